"""A store of objects that are a folder's files, with faults that a test asks for, and a fetcher of it."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np

from feeder._native import crc32c
from feeder.errors import ChangedError, NotFoundError, StoreError
from feeder.shard.cache.cache_mirror import CacheMirror, FetchOptions
from feeder.shard.cache.cached_file import Contents
from feeder.shard.cache.fetcher import become_fetcher
from feeder.shard.cache.presence import BLOCK_BYTES
from feeder.shard.cache.set_contents import SetContents
from feeder.shard.store.store import Entry
from feeder.shard.store.url import Url

_PIECE = 300_000  # no multiple of a block

__all__ = ["FolderContents", "FolderStore", "fault", "fetcher_pid", "folder_mirror", "main", "main_of_set"]


class FolderStore:
    """Objects in a folder. Faults are files in its folder ``.faults``, see :func:`fault`."""

    def __init__(self, folder: str) -> None:
        self.folder, self.url, self.retries = Path(folder), Url("s3", "bucket", "set"), 0
        self.timeout, self.has_answered = 600.0, False
        self.asked: list[tuple[str, int, int]] = []
        self.held: list[str] = []
        self._counting = threading.Lock()

    def size(self, key: str, *, is_wanted: Callable[[], bool] = lambda: True) -> Entry:
        try:
            status = (self.folder / key).stat()
        except FileNotFoundError:
            raise NotFoundError(f"{self.url.object(key)}: there is no such object") from None
        return Entry(key, status.st_size, f"{status.st_mtime_ns}-{status.st_ino}")

    def get(
        self,
        key: str,
        start: int = 0,
        end: int | None = None,
        etag: str | None = None,
        *,
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> bytes:
        faults = self.folder / ".faults"
        while (faults / f"{key}.hold").exists():
            self.held.append(key)
            time.sleep(0.002)
            if not is_wanted():
                raise StoreError(f"{self.url.object(key)}: nobody needs it any more")
        if etag and self.size(key).etag != etag:
            raise ChangedError(f"{self.url.object(key)}: it was replaced")
        with open(self.folder / key, "rb") as file:
            file.seek(start)
            data = bytearray(file.read(-1 if end is None else end - start))
        self.asked.append((key, start, start + len(data)))
        with open(self.folder / ".asked", "a") as log:
            log.write(f"{key} {start} {start + len(data)}\n")
        with self._counting, contextlib.suppress(FileNotFoundError):  # of several threads
            left = int((faults / f"{key}.flip").read_text())
            if left:
                _write(faults / f"{key}.flip", left - 1)
                data[len(data) // 2] ^= 0xFF
        return bytes(data)

    def pieces(
        self,
        key: str,
        start: int,
        end: int,
        etag: str | None = None,
        *,
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> Iterator[bytes]:
        data = self.get(key, start, end, etag, is_wanted=is_wanted)
        for at in range(0, len(data), _PIECE):
            yield data[at : at + _PIECE]


class FolderContents:
    """The files of a folder: shards with a CRC32C for each block, ``.fidx`` as a whole, others without checksums."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self._known: dict[str, Contents] = {}

    def of(self, name: str) -> Contents:
        if name not in self._known:
            try:
                data = memoryview((self._folder / name).read_bytes())
            except FileNotFoundError:
                raise NotFoundError(f"{name}: there is no such object") from None
            blocks = [crc32c(data[k : k + BLOCK_BYTES]) for k in range(0, len(data), BLOCK_BYTES)]
            identity = hashlib.sha256(data).digest()[:16]
            self._known[name] = Contents(
                len(data),
                identity,
                blocks=np.array(blocks, np.uint32) if name.endswith(".tar") else None,
                fetch=(lambda: bytes(data)) if name.endswith(".fidx") else None,
                is_kept=not name.endswith((".tar", ".fidx")),
            )
        return self._known[name]

    def forget(self) -> None:
        self._known.clear()

    def replaced(self) -> list[str]:
        return []


def fault(folder: Path, key: str, kind: str, count: int = 1) -> Path:
    """Asks for a fault: "flip" spoils so many answers, "hold" keeps them back until the file is removed."""
    path = folder / ".faults" / f"{key}.{kind}"
    path.parent.mkdir(exist_ok=True)
    _write(path, count)
    return path


def _write(path: Path, count: int) -> None:
    """Writes a number at once, so that another process never reads half of it."""
    own = path.with_name(f"{path.name}.new")
    own.write_text(str(count))
    own.replace(path)


def folder_mirror(cache: Path, folder: Path, *, is_set: bool = False, **options: Any) -> CacheMirror:
    """A mirror of a folder, whose fetcher is a process as that of any store.

    Args:
        cache, folder: The mirror and the folder.
        is_set: True to have the contents by the header that is in the folder.
        options: See :class:`FetchOptions`.
    """
    cache.mkdir(exist_ok=True, parents=True)
    target = "tests.support.folder_store:main_of_set" if is_set else "tests.support.folder_store:main"
    return CacheMirror(str(cache), FetchOptions(str(folder), **options), target)


def fetcher_pid(cache: Path) -> int:
    """Process id of a mirror's fetcher."""
    return int((cache / "fetcher.lock").read_text())


def main(folder: str, lock: int, options: dict[str, Any]) -> None:
    """The main function of a fetcher of a folder. The first one after the fault "fetcher.kill" dies at a change of its
    mirror's files, whose number that is."""
    place = options["url"]
    fault = Path(place) / ".faults" / "fetcher.kill"
    if fault.exists():
        _die_at(int(fault.read_text()), folder, fault.rename(fault.with_suffix(".alive")))
    become_fetcher(
        folder, lock, options, lambda: (cast(Any, FolderStore(place)), lambda _: cast(Any, FolderContents(place)))
    )


def _die_at(step: int, folder: str, alive: Path) -> None:
    """Ends this process by SIGKILL at a change of files in a folder: in the middle of a write, and just before others.

    Args:
        step: The number of the change, from 1 on.
        folder: The folder.
        alive: A file to remove before.
    """
    steps, counting = itertools.count(1), threading.Lock()

    def is_due() -> bool:
        with counting:
            return next(steps) == step

    def die() -> None:
        alive.unlink()
        os.kill(os.getpid(), signal.SIGKILL)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            changes = bool(arguments[2] & (os.O_CREAT | os.O_TRUNC))
        else:
            changes = event in ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate")
        if changes and (event == "os.truncate" or str(arguments[0]).startswith(f"{folder}/")) and is_due():
            die()

    def torn(write: Callable[..., int]) -> Callable[..., int]:
        def wrapped(descriptor: int, data: Any, at: int) -> int:
            if is_due():
                whole = b"".join(data) if write is pwritev else bytes(data)
                pwrite(descriptor, whole[: len(whole) // 2], at)
                die()
            return write(descriptor, data, at)

        return wrapped

    pwrite, pwritev = os.pwrite, os.pwritev
    os.pwrite, os.pwritev = torn(pwrite), torn(pwritev)
    sys.addaudithook(hook)


def main_of_set(folder: str, lock: int, options: dict[str, Any]) -> None:
    """The main function of a fetcher of a set in a folder."""
    store: Any = FolderStore(options["url"])
    become_fetcher(
        *(folder, lock, options),
        lambda: (store, lambda own: SetContents(store, own.cache, options["index"], own.is_wanted)),
    )

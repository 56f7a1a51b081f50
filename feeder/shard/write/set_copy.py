"""A copy of what the tools need of a shard set in a store: header and manifest; indexes and shards a few at a time."""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from feeder.errors import ChangedError, FormatError, NotFoundError
from feeder.shard.format.index_file import INDEX_NAME
from feeder.shard.format.manifest import MANIFEST_NAME
from feeder.shard.format.open_index import open_index
from feeder.shard.format.set_index import ASKED_INDEXES, SetIndex
from feeder.shard.store.open_store import open_store
from feeder.shard.store.store import RANGE_BYTES, Store, download
from feeder.shard.store.url import Url, is_remote, local_path
from feeder.shard.write.store_lock import StoreLock
from feeder.system.files import exclusive_lock, open_regular

_REQUESTS = 16  # at once

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


@dataclass(eq=False)
class SetCopy:
    """A shard set as runs and tools read and change it: in its own folder, or a copy of one in a store.

    Attributes:
        path: The folder or index file to read.
        shown: The set's name in messages.
        store: Its store; None for a local set.
        lock: The lock on the store, for one that may be changed.
        mirror: Brings the indexes of shards in the store, for one that is read.
    """

    path: str
    shown: str
    store: Store | None = None
    lock: StoreLock | None = None
    mirror: _StoreMirror | None = None

    @classmethod
    @contextlib.contextmanager
    def of(cls, place: str) -> Iterator[SetCopy]:
        """Opens the set at a path or a URL.

        Args:
            place: The set's folder, or a local index file.

        Raises:
            FormatError: if there is none, or its index is damaged.
            StoreError: if the store can't be read.
        """
        if not is_remote(place):
            yield cls(local_path(place), place)
            return
        store = open_store(place)
        with tempfile.TemporaryDirectory(prefix="feeder-set-") as folder, ThreadPoolExecutor(_REQUESTS) as pool:
            copy = cls(folder, str(store.url), store, mirror=_StoreMirror(store, folder, pool))
            with copy._shown_in_errors():
                if not copy.fetch(INDEX_NAME):
                    raise FormatError(
                        f"{store.url.object(INDEX_NAME)}: there is no index; expected the URL of a shard set, as "
                        "`feeder shard` writes one"
                    )
                copy.fetch(MANIFEST_NAME)  # sets of tars from elsewhere have none
                yield copy

    @classmethod
    @contextlib.contextmanager
    def to_change(cls, place: str | Url) -> Iterator[SetCopy]:
        """Locks the folder at a path or a URL to change it; a copy of one in a store is empty at first.

        Args:
            place: The set's folder.

        Raises:
            LockedError: if another process is writing there.
            OSError: if a local folder can't be written.
            StoreError: if the store can't be read or written.
        """
        if isinstance(place, str) and not is_remote(place):
            folder = os.path.abspath(local_path(place))
            with exclusive_lock(os.path.join(folder, ".lock")):
                yield cls(folder, place)
            return
        store = open_store(place, writes=True)
        with tempfile.TemporaryDirectory(prefix="feeder-set-") as folder, StoreLock.held(store) as lock:
            copy = cls(folder, str(store.url), store, lock)
            with copy._shown_in_errors():
                yield copy

    def index(self) -> SetIndex:
        """Opens the set's index. That of a set in a store asks for the indexes of shards when they are read.

        Raises:
            FormatError: if there is none, or it is damaged.
        """
        path = self.path
        if os.path.isdir(path) or not os.path.exists(path):
            path = os.path.join(path, INDEX_NAME)
        return open_index(path) if self.mirror is None else SetIndex(path, self.mirror, most_open=ASKED_INDEXES)

    @property
    def is_copy(self) -> bool:
        """True if the set is in a store."""
        return self.store is not None

    def file(self, name: str) -> str:
        """Returns the full path of a file in the folder."""
        return os.path.join(self.path, name)

    def fetch(self, name: str) -> bool:
        """Copies a file into the folder, if the set has it; returns True then."""
        if self.store is not None:
            with contextlib.suppress(NotFoundError):
                self._fetch(self.store, name)
        return os.path.exists(self.file(name))

    def read(self, name: str, start: int, end: int) -> bytes:
        """Returns a range of one of the set's files.

        Raises:
            OSError: if it can't be read.
            StoreError: if the store can't be read.
        """
        if self.store is not None:
            return bytes(self.store.get(name, start, end))
        with open(self.file(name), "rb", opener=open_regular) as file:
            return os.pread(file.fileno(), end - start, start)

    def publish(self, *paths: str) -> None:
        """Puts files of the folder into the store, in this order; those of a local set are there already."""
        for path in paths if self.store is not None else ():
            self._locked_store().put(self._key(path), Path(path))

    def remove(self, *paths: str) -> None:
        """Removes files of the set, those that are there."""
        if self.store is not None and paths:
            at_once(self._locked_store().delete, map(self._key, paths))
        for path in paths:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)

    @contextlib.contextmanager
    def shard(self, name: str, *, may_be_missing: bool = False) -> Iterator[None]:
        """Copies a shard into the folder for the duration of the context, if the set is in a store.

        Args:
            name: The shard.
            may_be_missing: True if a missing shard is for the caller to name.
        """
        if self.store is None:
            yield
            return
        try:
            with contextlib.suppress(*((NotFoundError, ChangedError) if may_be_missing else ())):
                self._fetch(self.store, name)
            yield
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.file(name))

    @contextlib.contextmanager
    def _shown_in_errors(self) -> Iterator[None]:
        try:
            yield
        except FormatError as error:
            raise FormatError(str(error).replace(self.path, self.shown)) from None

    def _locked_store(self) -> Store:
        """Returns the store, after it has seen that this process still has its lock."""
        assert self.store is not None
        assert self.lock is not None
        self.lock.check()
        return self.store

    def _key(self, path: str) -> str:
        return os.path.relpath(path, self.path)

    def _fetch(self, store: Store, name: str) -> None:
        entry = store.size(name)  # refuses names that lead out of the set
        path = self.file(name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        download(store, entry, path)


def at_once(call: Callable[[_Item], _Result], items: Iterable[_Item]) -> list[_Result]:
    """Calls a function that waits for a store with each item, several at a time; returns the results in order."""
    with ThreadPoolExecutor(_REQUESTS) as pool:
        return list(pool.map(call, items))


class _StoreMirror:
    """A mirror of a set in a store that copies the indexes which a thread asks for into a folder; see
    :class:`feeder.shard.store.mirror.Mirror`. The set's header is there as a whole.

    Args:
        store: The store.
        folder: The folder.
        pool: Threads that fetch.
    """

    budget_bytes, reads_crops = 1 << 62, False

    def __init__(self, store: Store, folder: str, pool: ThreadPoolExecutor) -> None:
        self.place = str(store.url)
        self._store = store
        self._folder = folder
        self._pool = pool

    def need(self, wants: Sequence[tuple[str, int, int]], *, again: bool = False) -> None:
        sizes = {name: end for name, _, end in wants if name != INDEX_NAME}
        for _ in self._pool.map(self._fetch, map(self._path, sizes), sizes, sizes.values()):
            pass

    def open(self, name: str, expected: bytes = b"") -> int:
        descriptor = open_regular(self._path(name))
        os.unlink(self._path(name))  # it takes space only while it is open or mapped
        return descriptor

    def _path(self, name: str) -> str:
        return os.path.join(self._folder, str(threading.get_ident()), name)

    def _fetch(self, path: str, name: str, size_bytes: int) -> None:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            for start in range(0, size_bytes, RANGE_BYTES):  # no further than it is: the size is what the header says
                file.write(self._store.get(name, start, min(start + RANGE_BYTES, size_bytes)))

"""Tars in a store as a source: copies of them, or lists of their members, several at a time."""

from __future__ import annotations

import contextlib
import hashlib
import io
import itertools
import json
import os
import shutil
import threading
from collections.abc import Generator, Sequence
from typing import Any, NamedTuple

from feeder.decoders.packed import CODEBOOK_NAME
from feeder.errors import SourceError
from feeder.shard.format.tar import Member, Refused, Seam, members_of
from feeder.shard.source.ahead import ahead
from feeder.shard.store.store import Entry, Store, download
from feeder.system.files import DISK_FULL, atomic_file

GZIP_MAGIC = b"\x1f\x8b"
_TARS_AHEAD = 16
_COPIES_AT_ONCE = 3  # each of which comes in several ranges of 8 MiB at a time
_REQUEST_BYTES = 1 << 20  # while members are listed; larger ones are passed over
_LABEL_FIELDS = ("cls", "json")
_LABEL_BYTES, _LABELS_BYTES = 1 << 16, 1 << 26  # the most that is kept of one such field, and of those of a tar


class TarMembers(NamedTuple):
    """The members of a tar that stays in its store, and the bytes of those that labels may come from, by offset."""

    members: list[Member | Refused | Seam]
    contents: dict[int, bytes]

    def pread(self, store: Store, entry: Entry, length: int, offset: int) -> bytes:
        """Reads bytes as os.pread does."""
        data = self.contents.get(offset, b"")
        if len(data) >= length:
            return data[:length]
        return bytes(store.get(entry.key, offset, offset + length, entry.etag, size_bytes=entry.size_bytes))


def fetched_tars(
    store: Store, entries: Sequence[Entry], work: str | None, copies: str | None
) -> Generator[tuple[Entry, str | TarMembers], None, None]:
    """Yields each tar with its copy, or with its members where it stays in the store; fetches some ahead.

    Args:
        store, entries, work: As :func:`open_stored_tars` takes them.
        copies: Folder for copies; None to make none.
    """
    totals = list(itertools.accumulate(entry.size_bytes for entry in entries))
    room_bytes = 0 if copies is None else (shutil.disk_usage(copies).free - totals[-1]) // 2

    def fetch(tar: tuple[Entry, int]) -> str | TarMembers:
        entry, total_bytes = tar
        if bytes(store.get(entry.key, 0, min(2, entry.size_bytes), entry.etag)) == GZIP_MAGIC:
            if work is None:
                raise compressed_error(store.url.object(entry.key))
            return _copy(store, entry, work)
        if copies is not None and total_bytes <= room_bytes:
            try:
                with copying:
                    return _copy(store, entry, copies)
            except OSError as error:
                if error.errno not in DISK_FULL:
                    raise
        return _members(store, entry)

    copying = threading.Semaphore(_COPIES_AT_ONCE)
    with contextlib.closing(ahead(fetch, zip(entries, totals, strict=True), _TARS_AHEAD)) as found:
        for (entry, _), tar in found:
            yield entry, tar.result()


def _copy(store: Store, entry: Entry, folder: str) -> str:
    """Returns the path of an object's copy, which a run that was killed may have left."""
    name = hashlib.sha256(json.dumps([entry.key, entry.size_bytes, entry.etag, entry.modified_ns]).encode()).hexdigest()
    path = os.path.join(folder, f"copy-{name[:32]}.tar")
    if not (os.path.isfile(path) and os.path.getsize(path) == entry.size_bytes):
        with atomic_file(path) as file:
            download(store, entry, file.name)
    return path


def _members(store: Store, entry: Entry) -> TarMembers:
    """Lists a tar in a store, with the fields that labels may come from; passes over large members."""
    found = TarMembers([], {})
    left = _LABELS_BYTES
    with io.BufferedReader(_StoreFile(store, entry), _REQUEST_BYTES) as file:
        for member in members_of(file, entry.size_bytes):
            found.members.append(member)
            if not isinstance(member, Member) or member.size > min(left, _LABEL_BYTES):
                continue
            base = member.name.rpartition("/")[2]
            if base.partition(".")[2].lower() in _LABEL_FIELDS or CODEBOOK_NAME.fullmatch(base):
                position = file.tell()
                file.seek(member.offset)
                found.contents[member.offset] = file.read(member.size)
                file.seek(position)
                left -= member.size
    return found


def compressed_error(path: str) -> SourceError:
    """Returns the error for a tar that must not be compressed."""
    return SourceError(f"{path}: is compressed, so it can't be indexed; unpack it, or shard it")


class _StoreFile(io.RawIOBase):
    """An object of a store as a file. What lies within a buffer around it costs no further request."""

    def __init__(self, store: Store, entry: Entry) -> None:
        self._store = store
        self._entry = entry
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._entry.size_bytes}[whence]
        self._position = base + offset
        return self._position

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        end = min(self._position + len(view), self._entry.size_bytes)
        if end <= self._position:
            return 0
        entry = self._entry
        data = self._store.get(entry.key, self._position, end, entry.etag, size_bytes=entry.size_bytes)
        view[: len(data)] = data
        self._position = end
        return len(data)

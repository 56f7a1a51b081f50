"""Scratch files for fields that are not in files: columns of a manifest, samples of an iterable, images behind URLs."""

from __future__ import annotations

import hashlib
import os
import struct
import zlib
from types import TracebackType
from typing import NamedTuple

from feeder.shard.source.sample_table import StoredField
from feeder.shard.source.source import Container, Source
from feeder.system.files import atomic_file

__all__ = ["KEPT_IMAGES", "KeptImage", "KeptImages", "Spool"]

KEPT_IMAGES = "images"  # name of the file in the work folder
_RECORD = struct.Struct("<q16sqI")  # row, hash of the URL, size of the image in bytes, its CRC-32


class Spool:
    """Appends fields to a scratch file, one of the source's containers. It can be read once the context has ended.

    Args:
        source: The source of the fields' samples.
        path: The scratch file; it is overwritten.
    """

    def __init__(self, source: Source, path: str) -> None:
        self._source = source
        self._hash = hashlib.sha256()
        self._size = 0
        self._container = len(source.containers)
        self._descriptor: int | None = None
        self._writing = atomic_file(path)
        source.containers.append(Container(path, 0, 0, is_scratch=True))

    def __enter__(self) -> Spool:
        self._file = self._writing.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
        self._writing.__exit__(kind, error, traceback)
        self._source.content_digest = self._hash.hexdigest()

    def add(self, field: str, data: bytes) -> StoredField:
        """Appends a field's bytes and returns their place."""
        part = StoredField(field, self._container, self._size, len(data))
        self._file.write(data)
        self.note(field, data)
        self._size += len(data)
        return part

    def read(self, part: StoredField) -> bytes:
        """Reads the bytes of a field that was appended before."""
        if self._descriptor is None:
            self._descriptor = os.open(self._file.name, os.O_RDONLY)
        self._file.flush()
        return os.pread(self._descriptor, part.length, part.offset)

    def note(self, field: str, data: bytes) -> None:
        """Takes a field's bytes, which are in another file, into the digest of the source."""
        self._hash.update(field.encode("utf-8", "surrogateescape") + b"\0%d\0" % len(data) + data)


class KeptImage(NamedTuple):
    """An image that an earlier run has read: its place in the file, and its bytes."""

    offset: int
    data: bytes


class KeptImages:
    """Images that were read from URLs, in a scratch file that stays until the run has ended well, so that each is read
    once however often it is started again. The file is one of the source's containers if it is used.

    Each image has a record before it. Those of rows that come later come later, so that they are looked through once.

    Args:
        source: The source of the samples.
        path: The file.
    """

    def __init__(self, source: Source, path: str) -> None:
        self._source, self._path = source, path
        self._container = -1
        self._descriptor = -1
        self._next = self._known = self._end = 0
        if os.path.exists(path):
            self._open()
            self._known = self._end = self._whole_bytes()
            os.ftruncate(self._descriptor, self._end)

    def __enter__(self) -> KeptImages:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)

    def find(self, row: int, url: str) -> KeptImage | None:
        """Returns the image of a row, the rows in their order; None if it is still to be read."""
        while self._next < self._known:
            number, key, size, checksum = self._record(self._next)
            if number > row:
                return None
            start = self._next + _RECORD.size
            self._next = start + size
            if (number, key) == (row, _key(url)):
                data = os.pread(self._descriptor, size, start)
                if zlib.crc32(data) == checksum:
                    return KeptImage(start, data)
        return None

    def part(self, row: int, url: str, image: bytes | KeptImage) -> StoredField:
        """Returns the place of a row's image, which is written if it has just been read."""
        if self._container < 0:
            self._container = len(self._source.containers)
            self._source.containers.append(Container(self._path, 0, 0, is_scratch=True))
        if isinstance(image, KeptImage):
            return StoredField("", self._container, image.offset, len(image.data))
        if self._descriptor < 0:
            self._open()
        record = memoryview(_RECORD.pack(row, _key(url), len(image), zlib.crc32(image)) + image)
        start = self._end
        while record:
            done = os.pwrite(self._descriptor, record, self._end)
            record, self._end = record[done:], self._end + done
        return StoredField("", self._container, start + _RECORD.size, len(image))

    def _open(self) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        self._descriptor = os.open(self._path, flags, 0o666)

    def _record(self, start: int) -> tuple[int, bytes, int, int]:
        row, key, size, checksum = _RECORD.unpack(os.pread(self._descriptor, _RECORD.size, start))
        return row, key, size, checksum

    def _whole_bytes(self) -> int:
        """Returns the size of the whole records: a killed run may have left a part of one."""
        end, size_bytes = 0, os.fstat(self._descriptor).st_size
        while end + _RECORD.size <= size_bytes:
            size = self._record(end)[2]
            if not 0 <= size <= size_bytes - end - _RECORD.size:
                break
            end += _RECORD.size + size
        return end


def _key(url: str) -> bytes:
    """Returns a hash of a URL, whose query may hold secrets."""
    return hashlib.sha256(url.encode("utf-8", "surrogatepass")).digest()[:16]

"""The file of a set's header: its head, and ranges of it that were compared with their hashes."""

from __future__ import annotations

import os
from typing import Any

from feeder.errors import ChangedError, FormatError, NotFoundError
from feeder.shard.format.index_file import INDEX_NAME
from feeder.shard.format.sealed_head import PREFIX_BYTES, damaged, head_bytes, read_head, short_hash
from feeder.shard.store.mirror import Mirror
from feeder.system.files import open_regular
from feeder.system.limit_errors import explained
from feeder.system.mapping import map_file

__all__ = ["HEADER_BYTES", "HEADER_MAGIC", "HeaderFile", "version_path"]

HEADER_MAGIC = b"FEEDERST"
# Of the head, which names all classes: enough for four million of 13 bytes, as the largest sets of faces have. Parsed,
# it takes several times as much memory, and nothing has shown yet that a set is what it claims to be.
HEADER_BYTES = 64 << 20
_FETCHES = 4  # of a range that comes spoilt from a store


def version_path(path: str, version: int) -> str:
    """Path of the header of an earlier version of a set, beside the newest one at ``path``."""
    stem, extension = os.path.splitext(path)
    return f"{stem}-{version:06d}{extension}"


class HeaderFile:
    """The mapped header of a set; of one in a store, ranges are brought into the mirror as they are needed.

    Args:
        path: The file.
        mirror: The mirror of the file's folder; None for a local set.

    Attributes:
        shown: Its name in messages.
        head: Its head.
        hash: Hash of the head.
        head_end: Number of the byte after the head.
        version: The version of the set that it is of, once that is known: if a newer one takes its place in the store,
            it is read from where earlier versions are kept.

    Raises:
        FormatError: if it can't be read, or its head is damaged.
    """

    def __init__(self, path: str, mirror: Mirror | None) -> None:
        self._path = path
        self._mirror = mirror
        self._name = os.path.basename(path)
        self._is_moved = False
        self.shown = path if mirror is None else f"{mirror.place}/{self._name}"
        self.version: int | None = None
        self.need((0, PREFIX_BYTES))
        self._map()
        head, digest, head_end = self._read_head()
        self.head = head
        self.hash = digest
        self.head_end = head_end

    @property
    def size_bytes(self) -> int:
        """Size of the file."""
        return len(self._data)

    def need(self, *ranges: tuple[int, int], again: bool = False) -> None:
        """Has ranges of the file brought into the mirror.

        Args:
            ranges: The first byte and the end of each.
            again: See :meth:`Mirror.need`.
        """
        if self._mirror is None:
            return
        try:
            self._mirror.need([(self._name, *each) for each in ranges], again=again)
        except ChangedError:
            if not self._has_moved():
                raise
            self._mirror.need([(self._name, *each) for each in ranges], again=again)

    def hashed(self, start: int, end: int, expected: bytes, what: str) -> memoryview:
        """Returns a range of the file that has a hash, and is in the folder. What came spoilt from a store is fetched
        again, so it is copied: its neighbours may be fetched again by others, and come spoilt.

        Args:
            start, end: The range, which was needed before.
            expected: Its hash.
            what: Its name in messages.

        Raises:
            FormatError: if it is damaged.
        """
        for left in reversed(range(self._attempts)):
            data = self._data[start:end] if self._mirror is None else memoryview(bytes(self._data[start:end]))
            if short_hash(data) == expected:
                return data
            if left:
                self.need((start, end), again=True)
        if self._has_moved():
            return self.hashed(start, end, expected, what)
        raise damaged(self.shown, f"{what} does not match its hash")

    def _map(self) -> None:
        """Maps the file."""
        try:
            descriptor = open_regular(os.path.join(os.path.dirname(self._path), self._name))
            try:
                size = os.fstat(descriptor).st_size
                with explained():
                    self._data = map_file(descriptor, size)
            finally:
                os.close(descriptor)
        except IsADirectoryError:
            raise FormatError(f"{self.shown}: is a folder, expected an index file") from None
        except (FileNotFoundError, NotADirectoryError):
            folder = os.path.dirname(self.shown) if self._name == INDEX_NAME else ""
            if folder and os.path.isdir(folder):
                found = f"{folder}: no {INDEX_NAME} in this folder, so it is not a shard set; make one"
            else:
                found = f"{self.shown}: no such folder or index; make a shard set"
            raise FormatError(f"{found} with `feeder shard`, or index tars with `feeder index`") from None
        except OSError as error:
            raise FormatError(f"{self.shown}: this index can't be read: {error.strerror}") from None

    def _read_head(self) -> tuple[dict[str, Any], bytes, int]:
        for left in reversed(range(self._attempts)):
            end = PREFIX_BYTES
            try:
                end = head_bytes(self.shown, HEADER_MAGIC, self._data, most_bytes=HEADER_BYTES)
                self.need((0, end))
                return read_head(self.shown, HEADER_MAGIC, self._data, most_bytes=HEADER_BYTES)
            except FormatError:
                if not left:
                    raise
                self.need((0, end), again=True)
        raise AssertionError

    @property
    def _attempts(self) -> int:
        """Number of times that a range is read before it is an error that it is damaged."""
        return 1 if self._mirror is None else _FETCHES

    def _has_moved(self) -> bool:
        """Returns True if this version was kept in a file of its own when a newer one took its place in the store;
        it is read from there from then on."""
        if self._mirror is None or self._is_moved or self.version is None:
            return False
        before, data = self._name, self._data
        try:
            self._name = os.path.basename(version_path(self._path, self.version))
            self._mirror.need([(self._name, 0, self.head_end)])
            self._map()
            head = read_head(self.shown, HEADER_MAGIC, self._data, most_bytes=HEADER_BYTES)
            self._is_moved = head[1] == self.hash
        except (FormatError, NotFoundError):  # there is none
            pass
        if not self._is_moved:
            self._name = before
            self._data = data
        return self._is_moved

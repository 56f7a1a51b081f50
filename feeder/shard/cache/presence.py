"""A record of the blocks of one file that are in the cache.

Note [Presence]
    Beside each cached file lies a record of its blocks of 256 KiB: one byte for each, which is set once the block was
    checked and written. The fetcher alone writes it, through a mapping; clients map it too, and ask it without a system
    call. A killed fetcher leaves it right, as the kernel has both the block and the byte by then. A power failure may
    keep the byte and lose the block. So a record names the boot that it was written in, and blocks of an earlier boot
    are checked anew before they are used.

    A file that leaves the cache is unlinked first, then its record gets the next generation, then the bytes are
    cleared, and only then the file may be made anew. A client that has opened the file between two equal looks at the
    generation has that generation's file, and what was present in it stays readable through its descriptor for good.
"""

from __future__ import annotations

import contextlib
import functools
import mmap
import os
import struct
from typing import Any

from feeder.system.files import TEMPORARY_SUFFIX

__all__ = ["BLOCK_BYTES", "IDENTITY_BYTES", "RECORDS", "Presence", "blocks_of", "boot_id", "record_path"]

BLOCK_BYTES = 1 << 18
IDENTITY_BYTES = 16
_MAGIC = b"FDRHAVE1"
# Magic, size in bytes, generation, flags, identity of the contents, boot.
_HEAD = struct.Struct("<8sQQQ16s16s")
RECORDS = ".have"
_SIZE, _GENERATION, _FLAGS = 1, 2, 3  # as 8-byte words of the head
_RETIRED, _PINNED = 1, 2


def record_path(folder: str, name: str) -> str:
    """Returns the path of a file's record."""
    return os.path.join(folder, RECORDS, name)


def blocks_of(start: int, end: int) -> tuple[int, int]:
    """Returns the first block and the end of the blocks that a range of bytes touches."""
    return start // BLOCK_BYTES, -(-end // BLOCK_BYTES)


@functools.cache
def boot_id() -> bytes:
    """Returns 16 bytes that differ from one start of this machine to the next."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return bytes.fromhex(file.read().strip().replace("-", ""))


class Presence:
    """The record of one file, mapped; see Note [Presence].

    Args:
        path: The record, made by :meth:`create`.
        writable: True for the fetcher, which alone may change it.

    Raises:
        OSError: if it can't be opened.
        ValueError: if it is no such record.
    """

    def __init__(self, path: str, *, writable: bool = False) -> None:
        descriptor = os.open(path, (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC)
        try:
            size = os.fstat(descriptor).st_size
            if size < _HEAD.size:
                raise ValueError(f"{path}: a record of {size} bytes")
            self._map = mmap.mmap(descriptor, size, access=mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ)
        finally:
            os.close(descriptor)
        self.size_bytes: int
        magic, self.size_bytes, _, _, self.identity, self.boot = _HEAD.unpack_from(self._map)
        self.blocks = -(-self.size_bytes // BLOCK_BYTES)
        if magic != _MAGIC or size != _HEAD.size + self.blocks:
            raise ValueError(f"{path}: no record of blocks")
        self._words: Any = memoryview(self._map)[: _HEAD.size].cast("Q")  # each is read and written whole

    @staticmethod
    def create(path: str, size_bytes: int, identity: bytes, generation: int = 1) -> None:
        """Makes the record of a file without any block, in place of an earlier one."""
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        temporary = f"{path}.{os.urandom(4).hex()}{TEMPORARY_SUFFIX}"
        try:
            with open(temporary, "xb") as file:
                file.write(_HEAD.pack(_MAGIC, size_bytes, generation, 0, identity, boot_id()))
                file.write(bytes(-(-size_bytes // BLOCK_BYTES)))
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise

    @property
    def generation(self) -> int:
        """Number of the file, of all that were made under this record."""
        return int(self._words[_GENERATION])

    @property
    def is_retired(self) -> bool:
        """True if another record has taken the place of this one."""
        return bool(self._words[_FLAGS] & _RETIRED)

    @property
    def is_pinned(self) -> bool:
        """True if the file is to stay in the cache."""
        return bool(self._words[_FLAGS] & _PINNED)

    @is_pinned.setter
    def is_pinned(self, value: bool) -> None:
        self._words[_FLAGS] = self._words[_FLAGS] & ~_PINNED | (_PINNED if value else 0)

    def has(self, start: int, end: int) -> bool:
        """Returns True if all blocks of a range of bytes are present; it may end past the file's end."""
        first, last = blocks_of(start, min(end, self.size_bytes))
        return first >= last or self._map.find(b"\0", _HEAD.size + first, _HEAD.size + last) < 0

    def missing(self, first: int, end: int) -> list[int]:
        """Returns the blocks from ``first`` to ``end`` that are not present."""
        view = self._map[_HEAD.size + first : _HEAD.size + min(end, self.blocks)]
        return [first + k for k, byte in enumerate(view) if not byte]

    def present_bytes(self) -> int:
        """Returns the size of all blocks that are present."""
        present: bytes = self._map[_HEAD.size :]
        count = self.blocks - present.count(b"\0")
        is_last_short = bool(count) and bool(present[-1])
        return count * BLOCK_BYTES - (-self.size_bytes % BLOCK_BYTES if is_last_short else 0)

    def mark(self, block: int) -> None:
        """Sets a block as present."""
        self._map[_HEAD.size + block] = 1

    def unmark(self, block: int) -> None:
        """Sets a block as not present."""
        self._map[_HEAD.size + block] = 0

    def renew(self, *, retire: bool = False) -> None:
        """Starts the next generation without any block; the file has been unlinked.

        Args:
            retire: True if another record takes the place of this one.
        """
        self._words[_GENERATION] += 1
        if retire:
            self._words[_FLAGS] |= _RETIRED
        self._map[_HEAD.size :] = bytes(self.blocks)

    def adopt(self) -> None:
        """Makes the record one of this boot, once its blocks were checked."""
        self.boot = boot_id()
        self._map[_HEAD.size - 16 : _HEAD.size] = self.boot

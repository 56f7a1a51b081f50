"""A record of the blocks of one file that are in the cache.

Note [Presence]
    Beside each cached file lies a record of its blocks of 256 KiB: one byte for each, which is 1 once the block was
    checked and written. The fetcher alone writes it. It keeps the bytes in memory, and no record open or mapped, as a
    cache may have more files than a process may open or map. Clients map the record, and ask it without a system call.
    A killed fetcher leaves it right, as the kernel has both the block and the byte by then. A power failure may keep
    the byte and lose the block. So a record names the boot that it was written in, and blocks of an earlier boot are
    checked anew before they are used. So are all blocks when a job begins, as the disk may have damaged them since:
    they are doubtful then, which clients take for missing, until the fetcher has compared them with their checksums.

    A record is of one file for good. When a file is evicted, it is unlinked first, then its record is marked as
    retired and unlinked, and only then the file may be made anew, with another record. A client that has opened the
    file and finds the record not retired afterwards has that record's file, and what was present in it stays readable
    through its descriptor for good.
"""

from __future__ import annotations

import contextlib
import functools
import os
import struct
from typing import Any

from feeder.system.files import TEMPORARY_SUFFIX
from feeder.system.mapping import map_file

BLOCK_BYTES = 1 << 18
IDENTITY_BYTES = 16
_MAGIC = b"FDRHAVE2"
# Magic, size in bytes, flags, identity of the contents, boot.
_HEAD = struct.Struct("<8sQQ16s16s")
RECORDS = ".have"
_FLAGS_AT, _BOOT_AT = 16, 40
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


def _head(path: str, data: bytes | memoryview) -> tuple[int, int, bytes, bytes]:
    """Returns size in bytes, flags, identity and boot of a record; raises ValueError if it is none."""
    if len(data) < _HEAD.size:
        raise ValueError(f"{path}: a record of {len(data)} bytes")
    magic, size_bytes, flags, identity, boot = _HEAD.unpack_from(data)
    if magic != _MAGIC or len(data) != _HEAD.size + blocks_of(0, size_bytes)[1]:
        raise ValueError(f"{path}: no record of blocks")
    return size_bytes, flags, identity, boot


class Presence:
    """The record of one file as a client sees it; see Note [Presence].

    Args:
        path: The record.

    Attributes:
        size_bytes: Size of the file.
        identity: Identity of its contents, 16 bytes.
        boot: Boot of the machine that its blocks were written in.

    Raises:
        OSError: if it can't be opened.
        ValueError: if it is no such record.
    """

    def __init__(self, path: str) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._map = map_file(descriptor, os.fstat(descriptor).st_size)
        finally:
            os.close(descriptor)
        self.size_bytes, _, self.identity, self.boot = _head(path, self._map)
        self._flags: Any = self._map[_FLAGS_AT : _FLAGS_AT + 8].cast("Q")

    @property
    def is_retired(self) -> bool:
        """True once the file was evicted."""
        return bool(self._flags[0] & _RETIRED)

    def has(self, start: int, end: int) -> bool:
        """Returns True if all blocks of a range of bytes are present; it may end past the file's end."""
        first, last = blocks_of(start, min(end, self.size_bytes))
        return first >= last or not bytes(self._map[_HEAD.size + first : _HEAD.size + last]).strip(b"\1")


class Record:
    """The record of one file as the fetcher keeps it; see Note [Presence].

    Its methods raise OSError if the record can't be written.

    Args:
        path: The record, made by :meth:`create`.

    Attributes:
        path: Its path.
        size_bytes, identity, boot: As those of :class:`Presence`.
        blocks: Number of its blocks.
        is_retired: True once the file was evicted.
        is_pinned: True if the file is to stay in the cache.

    Raises:
        OSError: if it can't be read.
        ValueError: if it is no such record.
    """

    __slots__ = ("_present", "blocks", "boot", "identity", "is_pinned", "is_retired", "path", "size_bytes")

    def __init__(self, path: str) -> None:
        with open(path, "rb") as file:
            data = file.read()
        self.path = path
        self.size_bytes, flags, self.identity, self.boot = _head(path, data)
        self.blocks = blocks_of(0, self.size_bytes)[1]
        self.is_retired = bool(flags & _RETIRED)
        self.is_pinned = bool(flags & _PINNED)
        self._present = bytearray(data[_HEAD.size :])

    @classmethod
    def create(cls, path: str, size_bytes: int, identity: bytes) -> Record:
        """Makes the record of a file without any block, in place of an earlier one."""
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        temporary = f"{path}.{os.urandom(4).hex()}{TEMPORARY_SUFFIX}"
        try:
            with open(temporary, "xb") as file:
                file.write(_HEAD.pack(_MAGIC, size_bytes, 0, identity, boot_id()))
                file.write(bytes(blocks_of(0, size_bytes)[1]))
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
        return cls(path)

    def missing(self, first: int, end: int) -> list[int]:
        """Returns the blocks from ``first`` to ``end`` that are not present, or doubtful."""
        return [first + k for k, byte in enumerate(self._present[first:end]) if byte != 1]

    def holds(self, block: int) -> bool:
        """Returns True for a block that is present, or doubtful."""
        return bool(self._present[block])

    def doubtful(self, first: int, end: int) -> list[int]:
        """Returns the blocks from ``first`` to ``end`` that are to be compared with their checksums."""
        return [first + k for k, byte in enumerate(self._present[first:end]) if byte > 1]

    def present_bytes(self) -> int:
        """Returns the size of all blocks that are present, or doubtful."""
        count = self.blocks - self._present.count(0)
        is_last_short = bool(count) and bool(self._present[-1])
        return count * BLOCK_BYTES - (-self.size_bytes % BLOCK_BYTES if is_last_short else 0)

    def mark(self, first: int, end: int) -> None:
        """Sets the blocks from ``first`` to ``end`` as present."""
        self._write(b"\1" * (end - first), _HEAD.size + first)
        self._present[first:end] = b"\1" * (end - first)

    def doubt(self, first: int, end: int) -> None:
        """Sets the blocks from ``first`` to ``end`` that are present as doubtful."""
        before = self._present[first:end]
        self._present[first:end] = before.replace(b"\1", b"\2")
        if self._present[first:end] != before:
            self._write(self._present[first:end], _HEAD.size + first)

    def unmark(self, block: int) -> None:
        """Sets a block as not present."""
        self._present[block] = 0
        self._write(b"\0", _HEAD.size + block)

    def pin(self) -> None:
        """Notes that the file is to stay in the cache."""
        self.is_pinned = True
        self._write_flags()

    def retire(self) -> None:
        """Ends the record of a file that was unlinked, and removes it."""
        self.is_retired = True
        self.is_pinned = False
        self._present = bytearray(self.blocks)
        self._write_flags()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)

    def adopt(self) -> None:
        """Makes the record one of this boot, in which its blocks are checked."""
        self.boot = boot_id()
        self._write(self.boot, _BOOT_AT)

    def _write_flags(self) -> None:
        flags = (_RETIRED if self.is_retired else 0) | (_PINNED if self.is_pinned else 0)
        self._write(flags.to_bytes(8, "little"), _FLAGS_AT)

    def _write(self, data: bytes | bytearray, at: int) -> None:
        """Writes to the record; one that somebody has deleted is made anew when its file is needed next."""
        with contextlib.suppress(FileNotFoundError):
            descriptor = os.open(self.path, os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.pwrite(descriptor, data, at)
            finally:
                os.close(descriptor)

"""The memory of a server that parts are made in, and the finished ones that stay there.

Note [Memory of parts]
    All parts lie in one memfd, which every process of the server maps once, and so does a client on the same host, for
    reading. Its size is fixed, so that nobody's parts take more; pages are allocated as they are first used, and given
    back once they were free for a while. Clients get a descriptor that was opened for reading, of a file that nobody
    may open for writing again, and that can't shrink under them.
    A piece has users: the process that makes a part in it, the clients that it is being sent to, and the window. It is
    used again when the last of them is gone, the one freed last first, as that is still in the CPU's caches.

Note [Sharing]
    A part is a function of its work, epoch and samples. So jobs that ask for the same part get the same result: while
    it is being made they wait for it together, and afterwards it stays in a window of bounded size, the oldest first to
    go. A job that comes later than that has it made again, and catches up: Note [Turns].
"""

from __future__ import annotations

import fcntl
import itertools
import mmap
import os
import time
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import NamedTuple

from feeder.errors import ArgumentError
from feeder.loader.slots.region import Region
from feeder.system.arrays import Size, aligned
from feeder.system.checks import check_int
from feeder.system.cores import available_bytes

PART_BYTES = 64 << 20  # a large part; there is memory for two of them for each core
_UNIT, _CLASS_BITS = 1 << 16, 4  # sizes differ by a sixteenth at least, or few pieces would be used again
_ALLOCATED_AT_ONCE = 1 << 20  # see Region


def memory_bytes(window_bytes: int, cores: int) -> int:
    """Returns the memory that a server takes at most: its window, and the parts that are being made and sent.

    Raises:
        ArgumentError: if the machine has less.
    """
    check_int("--window", window_bytes, 0)
    available = available_bytes()
    if window_bytes > available:
        raise ArgumentError(
            f"--window takes {window_bytes >> 20} MiB, and this machine has {available >> 20} MiB available: lower it"
        )
    parts_bytes = min((2 * cores + 2) * PART_BYTES, max(2 * PART_BYTES, (available - window_bytes) // 2))
    return aligned(window_bytes + parts_bytes, _UNIT)


@dataclass(eq=False)
class MemoryPiece:
    """A piece of the memory.

    Attributes:
        offset, size_bytes: Its place.
        is_allocated: True if its pages are.
        users: Number of its users.
        freed_s: Time of its last release, on the monotonic clock.
    """

    offset: int
    size_bytes: int
    is_allocated: bool = False
    users: int = 0
    freed_s: float = 0.0

    @property
    def end(self) -> int:
        return self.offset + self.size_bytes


class PartMemory:
    """One memfd for all parts of a server; see Note [Memory of parts].

    Args:
        size_bytes: Size of all of it.
    """

    def __init__(self, size_bytes: int) -> None:
        descriptor = os.memfd_create("feeder-parts", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(descriptor, size_bytes)
            os.fchmod(descriptor, 0o400)
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
            self.for_reading = os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY | os.O_CLOEXEC)
        except BaseException:
            os.close(descriptor)
            raise
        self.region = Region(size_bytes, descriptor)
        self._free = [MemoryPiece(0, size_bytes)]  # what was never used first, and the one freed last at the end

    @property
    def size_bytes(self) -> int:
        return self.region.size_bytes

    def take(self, size_bytes: int) -> MemoryPiece | None:
        """Returns a piece of that size or more, with one user; None if none is free.

        Raises:
            OSError: if the machine has no memory left.
        """
        unit = max(_UNIT, 1 << max(0, size_bytes.bit_length() - 1 - _CLASS_BITS))
        size_bytes = aligned(size_bytes, unit)
        piece = self._taken(size_bytes)
        if piece is None:
            self._join()
            piece = self._taken(size_bytes)
        if piece is None:
            return None
        try:
            self._allocate(piece)
        except OSError:
            self._free.append(piece)
            raise
        piece.users = 1
        return piece

    def release(self, piece: MemoryPiece) -> None:
        """Counts one user of a piece less; frees it with the last one."""
        piece.users -= 1
        if not piece.users:
            piece.freed_s = time.monotonic()
            self._free.append(piece)

    def give_back(self, kept_s: float = 10.0) -> None:
        """Returns pages to the system that were free for so long: others may be needed again soon."""
        now = time.monotonic()
        for piece in self._free:
            if piece.is_allocated and now - piece.freed_s >= kept_s:
                self._forget(piece)

    def close(self) -> None:
        """Closes the descriptors."""
        self.region.close()
        os.close(self.for_reading)

    def _taken(self, size_bytes: int) -> MemoryPiece | None:
        """Removes a free piece of that size, or the start of a larger one, and returns it; None if there is none."""
        same = (each for each in reversed(self._free) if each.size_bytes == size_bytes)
        larger = (each for each in self._free if each.size_bytes > size_bytes)
        piece = next(itertools.chain(same, larger), None)
        if piece is not None:
            self._free.remove(piece)
            if piece.size_bytes > size_bytes:
                rest_bytes = piece.size_bytes - size_bytes
                self._free.insert(0, replace(piece, offset=piece.offset + size_bytes, size_bytes=rest_bytes))
                piece.size_bytes = size_bytes
        return piece

    def _join(self) -> None:
        """Joins free pieces that lie side by side."""
        joined: list[MemoryPiece] = []
        for piece in sorted(self._free, key=lambda each: each.offset):
            last = joined[-1] if joined else piece
            if last.end != piece.offset:
                joined.append(piece)
                continue
            if last.is_allocated != piece.is_allocated:
                self._forget(last if last.is_allocated else piece)
            last.size_bytes += piece.size_bytes
            last.freed_s = max(last.freed_s, piece.freed_s)
        self._free = joined

    def _allocate(self, piece: MemoryPiece) -> None:
        if not piece.is_allocated:
            for start in range(piece.offset, piece.end, _ALLOCATED_AT_ONCE):
                os.posix_fallocate(self.region.descriptor, start, min(_ALLOCATED_AT_ONCE, piece.end - start))
            piece.is_allocated = True

    def _forget(self, piece: MemoryPiece) -> None:
        self.region.memory.madvise(mmap.MADV_REMOVE, piece.offset, piece.size_bytes)
        piece.is_allocated = False


class WorkSize(NamedTuple):
    """The memory that parts of some work take.

    Attributes:
        row_bytes: Bytes of a sample, but for the images that follow.
        pixel_bytes: Bytes of a sample for each pixel of the size that its batch has; 0 if all batches have one size.
        further_bytes: Bytes of a part beside its samples.
    """

    row_bytes: int
    pixel_bytes: int
    further_bytes: int

    def part_bytes(self, rows: int, size: Size | None) -> int:
        """Returns the bytes of a part of so many samples, whose images are of that (height, width)."""
        pixels = 0 if size is None else size[0] * size[1]
        return rows * (self.row_bytes + pixels * self.pixel_bytes) + self.further_bytes


class Result(NamedTuple):
    """A finished part.

    Attributes:
        report: Its report, as JSON.
        memory: The memory that it is in.
        places: [offset, bytes] of each array in the whole memory.
        rows: Number of its samples.
    """

    report: bytes
    memory: MemoryPiece
    places: list[list[int]]
    rows: int


class ResultWindow:
    """Finished parts, the newest of them; see Note [Sharing].

    Args:
        most_bytes: Bytes of memory that they may take.
        memory: Their memory.
    """

    def __init__(self, most_bytes: int, memory: PartMemory) -> None:
        self._most_bytes = most_bytes
        self._memory = memory
        self._results: OrderedDict[Hashable, Result] = OrderedDict()
        self._bytes = 0
        self.hits = 0

    def get(self, key: Hashable) -> Result | None:
        """Returns a finished part if it is still there."""
        found = self._results.get(key)
        self.hits += found is not None
        return found

    def add(self, key: Hashable, result: Result) -> None:
        """Adds a finished part, whose memory gets one more user; the oldest go until the others fit."""
        size = result.memory.size_bytes
        if size > self._most_bytes or key in self._results:
            return
        self._results[key] = result
        result.memory.users += 1
        self._bytes += size
        while self._bytes > self._most_bytes:
            self.drop_oldest()

    def drop_oldest(self) -> bool:
        """Drops the oldest part; returns False if there is none."""
        if not self._results:
            return False
        _, gone = self._results.popitem(last=False)
        self._bytes -= gone.memory.size_bytes
        self._memory.release(gone.memory)
        return True

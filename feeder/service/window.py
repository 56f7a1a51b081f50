"""Finished parts that other trials may want, too.

Note [Sharing]
    A part is a function of its work, epoch and samples. So jobs that ask for the same part get the same result: while
    it is being made they wait for it together, and afterwards it stays in a window of bounded size, the oldest first to
    go. A job that comes later than that has it made again, and catches up: Note [Turns].
"""

from __future__ import annotations

from collections import OrderedDict

from feeder.service.part_memory import MemoryPiece, PartMemory
from feeder.service.part_queue import Key

__all__ = ["Result", "ResultWindow"]


class Result:
    """A finished part.

    Args:
        report: Its report, as JSON.
        memory: The memory that it is in.
        places: [offset, bytes] of each array in the whole memory.
        rows: Number of its samples.
    """

    def __init__(self, report: bytes, memory: MemoryPiece, places: list[list[int]], rows: int) -> None:
        self.report = report
        self.memory = memory
        self.places = places
        self.rows = rows


class ResultWindow:
    """Finished parts, the newest of them; see Note [Sharing].

    Args:
        most_bytes: Bytes of memory that they may take.
        memory: Their memory.
    """

    def __init__(self, most_bytes: int, memory: PartMemory) -> None:
        self._most_bytes = most_bytes
        self._memory = memory
        self._results: OrderedDict[Key, Result] = OrderedDict()
        self._bytes = 0
        self.hits = 0

    def get(self, key: Key) -> Result | None:
        """Returns a finished part if it is still there."""
        found = self._results.get(key)
        self.hits += found is not None
        return found

    def add(self, key: Key, result: Result) -> None:
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

    def drop_half(self) -> bool:
        """Drops the older half of the parts; returns False if there is none."""
        dropped = [self.drop_oldest() for _ in range(-(-len(self._results) // 2))]
        return bool(dropped)

"""The parts that a server has to make, job by job, and the finished ones that other trials may want, too.

Note [Sharing]
    A part is a function of its work, epoch and samples. So jobs that ask for the same part get the same result: while
    it is being made they wait for it together, and afterwards it stays in a window of bounded size, the oldest first to
    go. A job that comes later than that has it made again.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator
from typing import Any

from feeder.loader.slots.region import Region
from feeder.service.frames import Kind

__all__ = ["Key", "Memory", "MemoryPiece", "PartQueue", "Result", "Task", "Window"]

_UNIT, _CLASS_BITS = 1 << 20, 4  # sizes differ by an eighth at least

Key = tuple[str, int, bytes, tuple[int, int] | None]


class Task:
    """Something that a part maker does: a part, or the check of some work.

    Args:
        kind: PART or WORK.
        job: The job that asked first.
        digest: Digest of the work.
        epoch: Of a part.
        numbers: A part's positions, ids and repeats, int64 [3, N] as bytes.
        size: (height, width) of the images of its batch; None: that of the recipe.

    Attributes:
        waiters: Who waits for it: any object, and its number for the part.
        region: The memory that a part is made in.
        started_s: Time at which it began, on the monotonic clock; 0: it waits.
    """

    def __init__(
        self,
        kind: Kind,
        job: str,
        digest: str,
        epoch: int = 0,
        numbers: bytes = b"",
        size: tuple[int, int] | None = None,
    ) -> None:
        self.kind, self.job, self.digest, self.epoch, self.numbers = kind, job, digest, epoch, numbers
        self.size = size
        self.waiters: list[tuple[Any, int]] = []
        self.region: MemoryPiece | None = None
        self.started_s = 0.0

    @property
    def key(self) -> Key:
        return self.digest, self.epoch, self.numbers, self.size


class PartQueue:
    """Tasks that wait, by job. A job's next task is the one that came first; the next job is the one with the fewest
    tasks under way, so that neither many parts nor slow ones keep the others from their share of the cores.

    Args:
        most: Largest number of tasks of one job that are under way at a time; None: any.
    """

    def __init__(self, most: int | None = None) -> None:
        self._most = most
        self._waiting: OrderedDict[str, deque[Task]] = OrderedDict()
        self.running: dict[str, int] = {}

    def __len__(self) -> int:
        return sum(map(len, list(self._waiting.values())))  # any thread may ask

    def waiting(self, job: str) -> int:
        """Returns the number of a job's tasks that wait."""
        return len(self._waiting.get(job, ()))

    def add(self, task: Task) -> None:
        """Adds a task."""
        self._waiting.setdefault(task.job, deque()).append(task)

    def take(self) -> Task | None:
        """Takes the next task, which is under way then; None if there is none."""
        job = min(self._waiting, key=lambda name: self.running.get(name, 0), default=None)
        if job is None or (self._most is not None and self.running.get(job, 0) >= self._most):
            return None
        tasks = self._waiting[job]
        task = tasks.popleft()
        if tasks:
            self._waiting.move_to_end(job)
        else:
            del self._waiting[job]
        self.running[job] = self.running.get(job, 0) + 1
        return task

    def ended(self, task: Task) -> None:
        """Notes that a task is no longer under way."""
        self.running[task.job] -= 1
        if not self.running[task.job]:
            del self.running[task.job]

    def remove(self, task: Task) -> None:
        """Removes a task that waits."""
        tasks = self._waiting[task.job]
        tasks.remove(task)
        if not tasks:
            del self._waiting[task.job]

    def jobs(self) -> set[str]:
        """Returns the jobs with a task that waits or is under way."""
        return {*self._waiting, *self.running}


class MemoryPiece:
    """Shared memory with a number."""

    def __init__(self, number: int, size_bytes: int) -> None:
        self.number, self.region = number, Region(size_bytes)
        self.users = 0


class Memory:
    """Shared memory for results, which is used again.

    Args:
        most: Number of pieces that are kept while nobody uses them.
    """

    def __init__(self, most: int) -> None:
        self._most, self._next = most, 0
        self._free: deque[MemoryPiece] = deque()
        self._closed: list[int] = []

    def take(self, size_bytes: int) -> MemoryPiece:
        """Returns memory of that size or more, with one user."""
        unit = max(_UNIT, 1 << max(0, size_bytes.bit_length() - _CLASS_BITS))  # few sizes, or none would be used again
        size_bytes = -(-size_bytes // unit) * unit
        found = next((each for each in self._free if each.region.size_bytes == size_bytes), None)
        if found is None:
            found = MemoryPiece(self._next, size_bytes)
            self._next += 1
        else:
            self._free.remove(found)
        found.users = 1
        return found

    def release(self, memory: MemoryPiece) -> None:
        """Takes away one user; without any the memory may be used for something else."""
        memory.users -= 1
        if not memory.users:
            self._free.append(memory)
            if len(self._free) > self._most:
                gone = self._free.popleft()
                gone.region.close()
                self._closed.append(gone.number)

    def take_closed(self) -> list[int]:
        """Returns the numbers of the memory that was closed since the last call."""
        closed, self._closed = self._closed, []
        return closed


class Result:
    """A finished part.

    Args:
        message: Its report.
        memory: The memory that it is in.
        places: [offset, bytes] of each array there.
    """

    def __init__(self, message: dict[str, Any], memory: MemoryPiece, places: list[list[int]]) -> None:
        self.message, self.memory = message, memory
        whole = memoryview(memory.region.memory)
        self.arrays = [whole[offset : offset + size] for offset, size in places]


class Window:
    """Finished parts, the newest of them; see Note [Sharing].

    Args:
        most_bytes: Bytes of memory that they may take.
        memory: Their memory.
    """

    def __init__(self, most_bytes: int, memory: Memory) -> None:
        self._most_bytes, self._memory = most_bytes, memory
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
        size = result.memory.region.size_bytes
        if size > self._most_bytes or key in self._results:
            return
        self._results[key] = result
        result.memory.users += 1
        self._bytes += size
        for oldest in self._oldest():
            gone = self._results.pop(oldest)
            self._bytes -= gone.memory.region.size_bytes
            self._memory.release(gone.memory)

    def _oldest(self) -> Iterator[Key]:
        while self._bytes > self._most_bytes:
            yield next(iter(self._results))

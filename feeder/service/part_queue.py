"""The parts that a server has to make, job by job."""

from __future__ import annotations

import operator
import sys
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from feeder.service.frames import Kind
from feeder.service.part_memory import MemoryPiece
from feeder.system.arrays import Size

_MOST_PASSED = 7

Key = tuple[str, int, bytes, Size | None]


@dataclass(eq=False)
class Task:
    """Something that a part maker does: a part, or the check of some work.

    Args:
        kind: PART or WORK.
        job: The job that asked first.
        digest: Digest of the work.
        epoch: Of a part.
        numbers: A part's positions, ids and repeats, int64 [3, N] as bytes.
        size: (height, width) of the images of its batch; None: that of the recipe.
        size_bytes: Memory that a part takes.

    Attributes:
        waiters: Who waits for it: any object, and its number for the part.
        memory: The memory that a part is made in.
        is_started: False while it waits.
        passed: Number of turns in which a job's next task was left for another job's, see Note [Turns].
        turn_of: The job of whose share of the cores it takes one while it is in flight; empty before.
    """

    kind: Kind
    job: str
    digest: str
    epoch: int = 0
    numbers: bytes = b""
    size: Size | None = None
    size_bytes: int = 0
    waiters: list[tuple[Any, int]] = field(default_factory=list)
    memory: MemoryPiece | None = None
    is_started: bool = False
    passed: int = 0
    turn_of: str = ""

    @property
    def place(self) -> tuple[int, int]:
        """The epoch and first position of a part: its place in the order of its work."""
        return self.epoch, int.from_bytes(self.numbers[:8], sys.byteorder)

    @property
    def key(self) -> Key:
        return self.digest, self.epoch, self.numbers, self.size


_place_of = operator.attrgetter("place")


class PartQueue:
    """Tasks that wait, by job. A job's next task is the one that came first; the next job is the one with the fewest
    tasks in flight, so that neither many parts nor slow ones keep the others from their share of the cores.

    Note [Turns]
        Jobs of the same work share parts as long as they are about as far in it: the window is bounded. Of two that are
        not, both would have all parts made for themselves alone, up to their ends. So a job leaves seven of eight turns
        to the one of its work that is furthest behind, which catches up with it.

    Args:
        most: Largest number of tasks of one job that are in flight at a time; None: any.
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
        """Adds a task, behind those of its job."""
        self._waiting.setdefault(task.job, deque()).append(task)

    def take(self, fits: Callable[[Task], bool] = lambda task: True) -> Task | None:
        """Removes the next task from the queue and returns it: it is in flight then; None if there is none.

        Args:
            fits: Returns False for a task that has to wait still, and its job with it.
        """
        for job in sorted(self._waiting, key=lambda name: self.running.get(name, 0)):
            if self._most is not None and self.running.get(job, 0) >= self._most:
                return None  # the jobs after it have as many in flight
            for name in dict.fromkeys((self._in_turn(job), job)):
                if fits(self._waiting[name][0]):
                    self._waiting[job][0].passed += name != job
                    return self._begin(name, job)
        return None

    def _in_turn(self, job: str) -> str:
        """Returns the job whose task is next in a job's turn."""
        own = self._waiting[job][0]
        if own.kind != Kind.PART or own.passed == _MOST_PASSED:
            return job
        nexts = (tasks[0] for tasks in self._waiting.values())
        last = min((each for each in nexts if (each.kind, each.digest) == (own.kind, own.digest)), key=_place_of)
        return job if last.place == own.place else last.job

    def _begin(self, name: str, turn_of: str) -> Task:
        """Removes a job's next task and returns it; it counts in the turn of this job or another one."""
        tasks = self._waiting[name]
        task = tasks.popleft()
        self._waiting.move_to_end(turn_of)
        if not tasks:
            del self._waiting[name]
        self.running[turn_of] = self.running.get(turn_of, 0) + 1
        task.turn_of = turn_of
        task.is_started = True
        return task

    def ended(self, task: Task) -> None:
        """Notes that a task is no longer in flight."""
        self.running[task.turn_of] -= 1
        if not self.running[task.turn_of]:
            del self.running[task.turn_of]

    def remove(self, task: Task) -> None:
        """Removes a task that waits."""
        tasks = self._waiting[task.job]
        tasks.remove(task)
        if not tasks:
            del self._waiting[task.job]

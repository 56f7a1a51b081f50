"""The processes of a server that make parts: what each has to do, what it answers, and its replacement."""

from __future__ import annotations

import json
import selectors
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from feeder.loader.workers.process import Forked
from feeder.loader.workers.supervisor import Supervisor, Worker
from feeder.service.frames import Kind, pack_frame
from feeder.service.part_maker import ANSWER
from feeder.service.part_queue import Memory, PartQueue, Task
from feeder.service.work_size import WorkSize

__all__ = ["NUMBER_BYTES", "KnownWork", "Makers"]

NUMBER_BYTES = 24  # of a sample: position, id, repeats
_TARGET = "feeder.service.part_maker:part_maker"
_HANG_S = 120.0
_WORKS = 16  # that a process keeps open
_MOST_FAILED_STARTS = 5


@dataclass(eq=False)
class _Maker(Worker):
    task: Task | None = None
    works: OrderedDict[str, None] = field(default_factory=OrderedDict)
    regions: set[int] = field(default_factory=set)  # memory that it may have mapped
    closed: list[int] = field(default_factory=list)  # of that, what it may unmap


class KnownWork:
    """Work that some client has asked for.

    Args:
        value: Its JSON.

    Attributes:
        size: The memory that its parts take; None until the work was checked.
    """

    def __init__(self, value: Any) -> None:
        self.value = value
        self.size: WorkSize | None = None


class Makers:
    """Processes that make parts, each one at a time.

    Args:
        count: Their number.
        roots, cache_dir, modules: See :class:`feeder.service.roots.Roots`.
        memory: Memory for results.
        selector: Has their sockets, with their numbers as data.
        end: Is told of the end of a task: with its kind of frame, and the message.

    Attributes:
        lost: Number of those that died.
    """

    def __init__(
        self,
        count: int,
        roots: Sequence[str],
        cache_dir: str | None,
        modules: Sequence[str],
        memory: Memory,
        selector: selectors.BaseSelector,
        end: Callable[[Task, Kind, dict[str, Any]], None],
    ) -> None:
        self._count = count
        self._here = {"roots": tuple(roots), "cache_dir": cache_dir, "modules": tuple(modules)}
        self._memory, self._selector, self._end = memory, selector, end
        self._supervisor = Supervisor(_Maker, ANSWER, _HANG_S)
        self._failed_starts = 0
        self.lost = 0

    def start(self) -> None:
        """Starts all of them."""
        for number in range(self._count):
            self._start(number)

    def close(self) -> None:
        """Ends all of them."""
        self._supervisor.close(0.0)

    def has_unsent(self) -> bool:
        """Returns True if something has not fit into a socket yet."""
        return any(maker.unsent for maker in self._supervisor.workers)

    def send(self) -> None:
        """Sends what fits now."""
        self._supervisor.wait(0)

    def kill_hung(self) -> None:
        """Kills those that take too long for a task."""
        for number, maker in enumerate(self._supervisor.workers):
            if maker.task is not None:
                self._supervisor.kill_if_silent(number, maker.heard_ns, has_started=True)

    def give_out(self, queue: PartQueue, works: Mapping[str, KnownWork]) -> None:
        """Gives idle ones the next tasks."""
        for number, maker in enumerate(self._supervisor.workers):
            if maker.task is not None:
                continue
            task = queue.take()
            if task is None:
                return
            task.started_s = time.monotonic()
            maker.task, maker.heard_ns = task, time.monotonic_ns()
            work = works[task.digest]
            if task.kind == Kind.PART and task.digest in maker.works:
                maker.works.move_to_end(task.digest)
            else:
                self._send_work(number, task.digest, work)
            if task.kind == Kind.PART:
                self._send_part(number, task, work)

    def hear(self, number: int) -> None:
        """Takes the answers of one; replaces it if it has died."""
        maker = self._supervisor.receive(number)
        self._take_answers(number, maker)
        if not maker.has_closed:
            return
        self._selector.unregister(maker.connection)
        self._supervisor.end(number)
        self._take_answers(number, maker)
        self._failed_starts = 0 if maker.has_spoken else self._failed_starts + 1
        if self._failed_starts > _MOST_FAILED_STARTS:
            raise RuntimeError("processes that make parts end before they begin; what they printed says why")
        self.lost += 1
        self._finish(maker, Kind.FAILED, {"error": "the process that made it has died"})
        self._start(number)

    def _start(self, number: int) -> None:
        maker = self._supervisor.start(number, lambda connection: Forked(_TARGET, connection))
        self._selector.register(maker.connection, selectors.EVENT_READ, number)

    def _send_work(self, number: int, digest: str, work: KnownWork) -> None:
        works, forget = self._supervisor.workers[number].works, []
        works[digest] = None
        while len(works) > _WORKS:
            forget.append(works.popitem(last=False)[0])
        message = {"digest": digest, "work": work.value, "here": self._here, "forget": forget}
        self._supervisor.send(number, pack_frame(Kind.WORK, message))

    def _send_part(self, number: int, task: Task, work: KnownWork) -> None:
        assert work.size is not None
        task.region = self._memory.take(work.size.part_bytes(len(task.numbers) // NUMBER_BYTES, task.size))
        region, maker = task.region.region, self._supervisor.workers[number]
        self._note_closed()
        maker.regions.add(task.region.number)
        closed, maker.closed = maker.closed, []
        message = {
            "closed": closed,
            "digest": task.digest,
            "epoch": task.epoch,
            "size": task.size,
            "region": task.region.number,
            "region_bytes": region.size_bytes,
        }
        head = pack_frame(Kind.PART, message, len(task.numbers))
        self._supervisor.send(number, head + task.numbers, [region.descriptor], region)

    def _note_closed(self) -> None:
        """Notes for each process the memory that is not used again, which it would keep otherwise."""
        for gone in self._memory.take_closed():
            for maker in self._supervisor.workers:
                if gone in maker.regions:
                    maker.regions.remove(gone)
                    maker.closed.append(gone)

    def _take_answers(self, number: int, maker: _Maker) -> None:
        for (kind,), data in self._supervisor.messages(number):
            task = maker.task
            if task is None or kind == Kind.BEAT:
                continue
            message = json.loads(data)
            if kind == Kind.FAILED and message["of"] == Kind.WORK:
                maker.works.pop(task.digest, None)
            if task.kind == message["of"]:  # else that of the work before a part, which fails as its work does
                self._finish(maker, Kind(kind), message)

    def _finish(self, maker: _Maker, kind: Kind, message: dict[str, Any]) -> None:
        task, maker.task = maker.task, None
        if task is not None:
            self._end(task, kind, message)

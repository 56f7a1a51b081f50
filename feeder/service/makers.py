"""The processes of a server that make parts: what each has to do, what it answers, and its replacement."""

from __future__ import annotations

import os
import selectors
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from feeder.loader.workers.fork_server import fork
from feeder.loader.workers.supervisor import Supervisor, Worker
from feeder.service.frames import Kind
from feeder.service.part_maker import join_json, split_json
from feeder.service.part_memory import PartMemory, WorkSize
from feeder.service.part_queue import Task
from feeder.system.process_usage import stat_fields

NUMBER_BYTES = 24  # a sample's position, id and repeats
_TARGET = "feeder.service.part_maker:part_maker"
_HANG_S = 120.0
_WORKS = 16  # works that a process keeps open
_MOST_FAILED_STARTS = 5


@dataclass(eq=False)
class _Maker(Worker):
    task: Task | None = None
    works: OrderedDict[str, None] = field(default_factory=OrderedDict)


@dataclass
class KnownWork:
    """Work that some client has asked for.

    Args:
        data: Its JSON, as the client has sent it.
        size: The memory that its parts take; None until the work was checked.
    """

    data: bytes
    size: WorkSize | None = None


class Makers(Supervisor[_Maker]):
    """Processes that make parts, each one at a time.

    Args:
        count: Their number.
        here: Arguments of :class:`feeder.service.roots.Roots`.
        memory: Memory that results are written to.
        selector: Has their sockets, with their numbers as data.
        end: Is told of the end of a task: of its kind, ACCEPTED, RESULT or FAILED, the message with it, and what comes
            with that, a part's report.

    Attributes:
        lost: Number of those that died.
    """

    def __init__(
        self,
        count: int,
        here: Mapping[str, Any],
        memory: PartMemory,
        selector: selectors.BaseSelector,
        end: Callable[[Task, Kind, dict[str, Any], bytes], None],
    ) -> None:
        super().__init__(_Maker, _HANG_S)
        self._count = count
        self._memory = memory
        self._selector = selector
        self._end = end
        self._hello = join_json({"here": here, "memory_bytes": memory.size_bytes})
        self._failed_starts = 0
        self.lost = 0

    def start_all(self) -> None:
        """Starts all of them."""
        for number in range(self._count):
            self._start(number)

    def pids(self) -> list[int]:
        """Returns the ids of this process, of theirs, and of the one that they are forked from; for any thread."""
        pids = super().pids()
        parents = {int(fields[1]) for pid in pids[:1] if (fields := stat_fields(pid))}
        return [os.getpid(), *parents, *pids]

    def has_unsent(self) -> bool:
        """Returns True if something has not fit into a socket yet."""
        return any(maker.unsent for maker in self.workers)

    def kill_hung(self) -> None:
        """Kills those that take too long for a task."""
        for number, maker in enumerate(self.workers):
            if maker.task is not None:
                self.kill_if_silent(number, maker.heard_ns, has_started=True)

    def idle(self) -> list[int]:
        """Returns the numbers of the processes that have nothing to do."""
        return [number for number, maker in enumerate(self.workers) if maker.task is None]

    def give(self, number: int, task: Task, work: KnownWork) -> None:
        """Gives an idle process its next task; a task that is a part has memory already."""
        maker = self.workers[number]
        maker.task = task
        maker.heard_ns = time.monotonic_ns()
        if task.kind == Kind.PART and task.digest in maker.works:
            maker.works.move_to_end(task.digest)
        else:
            self._send_work(number, task.digest, work)
        if task.memory is not None:
            at = [task.memory.offset, task.memory.size_bytes]
            message = {"digest": task.digest, "epoch": task.epoch, "size": task.size, "at": at}
            self.send(number, Kind.PART, join_json(message, task.numbers))

    def hear(self, number: int) -> None:
        """Receives the answers of a process; replaces it if it has died."""
        maker = self.receive(number)
        self._take_answers(number, maker)
        if not maker.has_closed:
            return
        self._selector.unregister(maker.connection)
        self.end(number)
        self._take_answers(number, maker)
        task, maker.task = maker.task, None
        self._failed_starts = 0 if maker.has_spoken else self._failed_starts + 1
        if self._failed_starts > _MOST_FAILED_STARTS:
            raise RuntimeError("processes that make parts end before they begin; what they printed says why")
        self.lost += 1
        if task is not None:
            self._end(task, Kind.FAILED, {"error": "the process that made it has died"}, b"")
        self._start(number)

    def _start(self, number: int) -> None:
        maker = self.start(number, lambda connection: fork(_TARGET, connection))
        self._selector.register(maker.connection, selectors.EVENT_READ, number)
        region = self._memory.region
        self.send(number, Kind.WELCOME, self._hello, [region.descriptor], region)

    def _send_work(self, number: int, digest: str, work: KnownWork) -> None:
        works, forget = self.workers[number].works, []
        works[digest] = None
        while len(works) > _WORKS:
            forget.append(works.popitem(last=False)[0])
        message = {"digest": digest, "forget": forget}
        self.send(number, Kind.WORK, join_json(message, work.data))

    def _take_answers(self, number: int, maker: _Maker) -> None:
        for kind, data in self.messages(number):
            task = maker.task
            if task is None:
                continue
            message, report = split_json(data)
            of = message.pop("of")
            if kind == Kind.FAILED and of == Kind.WORK:
                maker.works.pop(task.digest, None)
            if task.kind == of:  # else that of the work before a part, which fails as its work does
                maker.task = None
                self._end(task, Kind(kind), message, report)

"""The worker processes of one iterator over any dataset: tasks go out to them, messages come back."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from torch._utils import ExceptionWrapper

from feeder.loader.generic.generic_worker import HEAD, BatchResult, BatchTask, Job, encode_task, worker_main
from feeder.loader.generic.meters import Spent
from feeder.loader.slots.slots import Slots
from feeder.loader.workers.process import InContext
from feeder.loader.workers.supervisor import Supervisor, Worker

__all__ = ["GenericWorker", "Message", "Processes"]

POLL_MS = 1000


@dataclass(eq=False)
class GenericWorker(Worker):
    """A worker.

    Attributes:
        is_active: False once it has no more batches to give in this epoch.
        beginning: Its message that it has begun, not looked at yet.
        has_begun: True once it has begun its epoch.
        state: Its dataset's state after the last batch that was handed out; None before its first epoch.
        slots: The slots that it has mapped.
        owed: Number of messages that it was asked for and has not sent.
        failed_starts: Number of deaths, its own and its predecessors', since one of them has begun an epoch.
    """

    is_active: bool = True
    beginning: BatchResult | None = None
    has_begun: bool = False
    state: dict[str, Any] | None = None
    slots: Slots | None = None
    owed: int = 1
    failed_starts: int = 0

    def take_beginning(self) -> None:
        """Notes that it has begun its epoch, or raises its error."""
        assert self.beginning is not None
        result, self.beginning = self.beginning, None
        if isinstance(result.data, ExceptionWrapper):
            result.data.reraise()  # type: ignore[no-untyped-call]
        self.state = result.state
        self.has_begun = True
        self.failed_starts = 0


@dataclass
class Message:
    """A worker's message; without data: that it has ended.

    Attributes:
        worker: The worker's number.
        data: The pickled :class:`BatchResult`.
        batch: Number of the batch; -1 for none.
        used: Bytes of its slot that it takes.
        wanted: Bytes that it would take of a slot that is large enough.
        spent: Time that the worker took for it.
    """

    worker: int
    data: bytes | None = None
    batch: int = -1
    used: int = 0
    wanted: int = 0
    spent: Spent = field(default_factory=Spent)


class Processes(Supervisor[GenericWorker]):
    """Worker processes of one iterator, which get tasks and send messages.

    Args:
        context: The multiprocessing context.
        hang_timeout_s: A worker that has work and is silent for longer is killed; None: never.
    """

    def __init__(self, context: Any, hang_timeout_s: float | None) -> None:
        super().__init__(GenericWorker, HEAD, hang_timeout_s)
        self._context = context

    def launch(self, number: int, job: Job) -> GenericWorker:
        """Starts worker ``number``: the next one, or one in the place of a worker that has ended."""
        before = self.workers[number] if number < len(self.workers) else None
        worker = self.start(number, lambda connection: InContext(self._context, worker_main, (connection, job)))
        if before is not None:
            worker.is_active = before.is_active
            worker.state = before.state
            worker.failed_starts = before.failed_starts
        return worker

    def tell(self, number: int, task: BatchTask, slots: Slots | None = None) -> None:
        """Sends a task, and the slots that it needs if the worker doesn't have them yet."""
        worker = self.workers[number]
        if not worker.owed:
            worker.heard_ns = time.monotonic_ns()
        worker.owed += 1
        new = slots if worker.slots is not slots else None
        if new is not None:
            task.slots = new.slot_bytes, new.slots
            worker.slots = new
        self.send(number, encode_task(task), [] if new is None else [new.region.descriptor], keep=new)

    def look(self, timeout_s: float | None, only: int | None = None) -> Iterator[Message]:
        """Waits for messages, for a second at most, and yields those that are complete, and ends of workers.

        Args:
            timeout_s: Longest wait; None: any.
            only: Listens to this worker alone.
        """
        numbers = range(len(self.workers)) if only is None else (only,)
        for number in numbers:
            for message in self._complete(number):  # left there when an earlier one raised something
                yield message
                timeout_s = 0
        for number in self.wait(POLL_MS if timeout_s is None else min(POLL_MS, max(1, int(timeout_s * 1000))), only):
            worker = self.receive(number)
            yield from self._complete(number)
            if worker.has_closed:
                yield Message(number)
        for number in numbers:  # and no others: what they sent is not read yet
            worker = self.workers[number]
            if worker.owed and self.kill_if_silent(number, worker.heard_ns, worker.has_spoken):
                yield Message(number)

    def _complete(self, number: int) -> Iterator[Message]:
        for (batch, used, wanted, *spent), data in self.messages(number):
            if not data:  # a sign of life
                continue
            self.workers[number].owed -= 1
            yield Message(number, data, batch, used, wanted, Spent(*spent))

    def cause(self, number: int) -> str:
        """Makes sure that a worker has ended; returns the cause in torch's words."""
        code, worker = self.end(number), self.workers[number]
        pid = worker.process.pid()
        if worker.was_silent:
            return f"DataLoader worker (pid {pid}) was silent for more than {self.hang_timeout_s:g} s"
        if code < 0:
            name = signal.strsignal(-code) or f"signal {-code}"
            return f"DataLoader worker (pid {pid}) is killed by signal: {name}."
        return f"DataLoader worker (pid(s) {pid}) exited unexpectedly with exit code {code}"

    def failed_start(self, number: int) -> str | None:
        """Returns the likely cause, if a worker has ended and another one in its place would do so, too; else None."""
        worker = self.workers[number]
        code = worker.process.ended()
        return None if worker.has_spoken or code is None else worker.process.failed_start(code)

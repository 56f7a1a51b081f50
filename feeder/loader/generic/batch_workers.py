"""The workers of one iterator over any dataset: tasks go out, each batch comes back once, whichever worker dies."""

from __future__ import annotations

import dataclasses
import signal
import textwrap
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler
from typing import Any, NoReturn

from torch._utils import ExceptionWrapper
from torch.utils.data import _utils as torch_utils
from torch.utils.data._utils import worker as torch_worker
from torch.utils.data.dataloader import _DatasetKind

from feeder.errors import WorkerError
from feeder.loader.generic.generic_worker import ABOUT, BatchResult, BatchTask, Job, worker_main
from feeder.loader.generic.meters import GenericMeters, Spent
from feeder.loader.generic.pending_batches import BatchSlots, Pending, PendingBatches
from feeder.loader.generic.torchdata_state import worker_key
from feeder.loader.slots.batch_message import unpack
from feeder.loader.slots.slots import Slots
from feeder.loader.workers.process import InContext
from feeder.loader.workers.supervisor import Supervisor, Worker

POLL_MS = 1000
_SAME_BATCH_LIMIT = 3


@dataclass(eq=False)
class GenericWorker(Worker):
    """A worker.

    Attributes:
        is_active: False once it has no more batches to give in this epoch.
        has_begun: True once it has begun its epoch.
        error: The error with which it could not begin, until it is raised.
        state: Its dataset's state after the last batch that was handed out; None before its first epoch.
        slots: The slots that it has mapped.
        owed: Number of messages that it was asked for and has not sent.
        failed_starts: Number of deaths, its own and its predecessors', since one of them has begun an epoch.
    """

    is_active: bool = True
    has_begun: bool = False
    error: ExceptionWrapper | None = None
    state: dict[str, Any] | None = None
    slots: Slots | None = None
    owed: int = 1
    failed_starts: int = 0


class _DeadWorkerError(WorkerError, RuntimeError):
    """A dead worker, for which torch raises a RuntimeError."""


class BatchWorkers(Supervisor[GenericWorker]):
    """Asks workers for batches, takes these in, and replaces workers that die.

    Args:
        context: The multiprocessing context.
        hang_timeout_s: A worker that has work and is silent for longer is killed; None: never.
        job: The job of each worker, but for its number and state.
        first_states: The workers' states to begin with, by their key.
        pending: The batches.
        slots: Slots for them.
        meters: Count what workers report.
        replacements: Workers that are replaced are added to it.

    Attributes:
        job: Replaced workers begin with it.
        failure: The error that the workers were given up for.
    """

    def __init__(
        self,
        context: Any,
        hang_timeout_s: float | None,
        job: Job,
        first_states: dict[str, Any],
        pending: PendingBatches,
        slots: BatchSlots,
        meters: GenericMeters,
        replacements: list[dict[str, Any]],
    ) -> None:
        super().__init__(GenericWorker, hang_timeout_s)
        self.pending = pending
        self.slots = slots
        self.job = job
        self.failure: WorkerError | None = None
        self._context = context
        self._first_states = first_states
        self._meters = meters
        self._replacements = replacements
        self._is_iterable = job.kind == _DatasetKind.Iterable

    def launch(self, number: int) -> GenericWorker:
        """Starts worker ``number``: the next one, or one in the place of a worker that has ended, with its state."""
        before = self.workers[number] if number < len(self.workers) else None
        state = None if before is None else before.state
        state = state or self._first_states.get(worker_key(number)) or None
        job = dataclasses.replace(self.job, worker=number, state=state)
        worker = self.start(number, lambda connection: InContext(self._context, worker_main, (connection, job)))
        if before is not None:
            worker.is_active = before.is_active
            worker.state = before.state
            worker.failed_starts = before.failed_starts
        return worker

    def begin_epoch(self, shared_seed: int | None, check: Callable[[], object]) -> None:
        """Starts another epoch in all workers, and drops the batches of the last one.

        Args:
            shared_seed: The workers' shared seed.
            check: See :meth:`look`.
        """
        self.job.shared_seed = shared_seed
        for pending in self.pending.by_number.values():
            pending.is_wanted = False
            pending.index = None
        for number, worker in enumerate(self.workers):
            worker.has_begun = False
            self._tell(number, BatchTask(begin=(shared_seed,)))
        self.await_beginnings(check)
        for pending in self.pending.by_number.values():
            pending.drop_slot()

    def await_beginnings(self, check: Callable[[], object]) -> None:
        """Waits until all workers have begun their epoch."""
        for number in range(self.job.workers):
            self._await_beginning(number, check)

    def states(self) -> dict[str, dict[str, Any]]:
        """Returns the workers' states after the last batches that were handed out, by their key."""
        return {worker_key(number): worker.state or {} for number, worker in enumerate(self.workers)}

    def ask(self, pending: Pending) -> None:
        """Asks for a batch."""
        self.slots.assign(pending, self.pending.by_number.values())
        self._ask(self.pending.add(pending), pending)

    def look(self, timeout_s: float | None, check: Callable[[], object], only: int | None = None) -> None:
        """Waits for messages, for a second at most, takes them in, and replaces workers that have ended or hang.

        Args:
            timeout_s: Longest wait; None: any.
            check: Called first.
            only: Listens to this worker alone.
        """
        check()
        numbers = range(len(self.workers)) if only is None else (only,)
        for number in numbers:
            if self._take_all(number):  # left there when an earlier one raised something
                timeout_s = 0

        for number in self.wait(POLL_MS if timeout_s is None else min(POLL_MS, max(1, int(timeout_s * 1000))), only):
            worker = self.receive(number)
            self._take_all(number)
            if worker.has_closed:
                self._replace(number, check)

        for number in numbers:  # and no others: what they sent is not read yet
            worker = self.workers[number]
            if worker.owed and self.kill_if_silent(number, worker.heard_ns, worker.has_spoken):
                self._replace(number, check)

    def recover(self) -> None:
        """Asks again for a batch that was lost while it was taken in: to an interrupt, or as it can't be unpickled."""
        for number in self.pending.due():
            pending = self.pending.by_number[number]
            if self.workers[pending.worker].owed:
                continue  # it has not sent everything yet
            if not self._is_iterable:
                self._ask(number, pending)
            else:  # it doesn't give a batch twice
                self.pending.hand_out(number)
                pending.drop_slot()
                raise _DeadWorkerError("a batch was lost when an interrupt came while it was taken in")

    def shut_down(self) -> None:
        """Ends the workers, in bounded time."""
        self.end_all(torch_utils.MP_STATUS_CHECK_INTERVAL)

    def _ask(self, number: int, pending: Pending) -> None:
        task = BatchTask(number, pending.index, pending.slot, pending.snapshot)
        self._tell(pending.worker, task, pending.slots)

    def _tell(self, number: int, task: BatchTask, slots: Slots | None = None) -> None:
        """Sends a task, and the slots that it needs if the worker doesn't have them yet."""
        worker = self.workers[number]
        if not worker.owed:
            worker.heard_ns = time.monotonic_ns()
        worker.owed += 1
        new = slots if worker.slots is not slots else None
        if new is not None:
            task.slots = new.slot_bytes, new.slots
            worker.slots = new
        descriptors = [] if new is None else [new.region.descriptor]
        self.send(number, 0, bytes(ForkingPickler.dumps(task)), descriptors, keep=new)

    def _await_beginning(self, number: int, check: Callable[[], object]) -> None:
        while not (worker := self.workers[number]).has_begun:  # another, if it died meanwhile
            error, worker.error = worker.error, None
            if error is not None:
                error.reraise()  # type: ignore[no-untyped-call]
            self.look(None, check, number)

    def _take_all(self, number: int) -> bool:
        """Takes in the whole messages of a worker; returns True if there are any."""
        has_any = False
        for batch, data in self.messages(number):
            has_any = True
            self.workers[number].owed -= 1
            used, wanted, *spent = ABOUT.unpack_from(data)
            self._meters.made(number, Spent(*spent))
            self._take(self.workers[number], batch, used, wanted, memoryview(data)[ABOUT.size :])
        return has_any

    def _take(self, worker: GenericWorker, batch: int, used: int, wanted: int, data: memoryview) -> None:
        pending = self.pending.by_number.get(batch)
        memory = pending.lease_slot() if used and pending is not None else None
        result: BatchResult = unpack(data, memory)
        del memory

        if result.number is None:  # it has begun its epoch, or can't
            if isinstance(result.data, ExceptionWrapper):
                worker.error = result.data
                return
            worker.state = result.state
            worker.has_begun = True
            worker.failed_starts = 0
            return

        if pending is not None:
            pending.drop_slot()
            pending.result = result
            if isinstance(result.data, torch_worker._IterableDatasetStopIteration):
                worker.is_active = False
            self.slots.fit(wanted)

    def _cause(self, number: int) -> str:
        """Makes sure that a worker has ended; returns the cause in torch's words."""
        code, worker = self.end(number), self.workers[number]
        pid = worker.process.pid()
        if worker.was_silent:
            return f"DataLoader worker (pid {pid}) was silent for more than {self.hang_timeout_s:g} s"
        if code < 0:
            name = signal.strsignal(-code) or f"signal {-code}"
            return f"DataLoader worker (pid {pid}) is killed by signal: {name}."
        return f"DataLoader worker (pid(s) {pid}) exited unexpectedly with exit code {code}"

    def _replace(self, number: int, check: Callable[[], object]) -> None:
        """Replaces a dead worker, and has its batches made again; of an iterable dataset only if it had not begun."""
        worker = self.workers[number]
        try:
            cause = self._cause(number)
        except WorkerError as error:
            self._give_up(str(error))

        # It died at the first batch that it owes, or before its epoch began.
        lost = [n for n in self.pending.due(number) if self.pending.by_number[n].is_wanted]
        fatal = self.pending.by_number[lost[0]] if lost else None
        if fatal is not None:
            fatal.failures += worker.has_begun
        has_ever_begun = worker.state is not None  # it, or a worker that it replaced
        worker.failed_starts += not worker.has_begun

        # Another one would not get any further.
        code = worker.process.ended()
        advice = None if worker.has_spoken or code is None else worker.process.failed_start(code)
        if (
            (self._is_iterable and has_ever_begun)
            or advice is not None
            or worker.failed_starts >= _SAME_BATCH_LIMIT
            or (fatal is not None and fatal.failures >= _SAME_BATCH_LIMIT)
        ):
            has_ids = has_ever_begun and not self._is_iterable
            what = f"; at work on the samples {textwrap.shorten(str(fatal.index), 200)}" if fatal and has_ids else ""
            what += "" if advice is None else f"; {advice}"
            self._give_up(cause + what)

        self._replacements.append({"worker": number, "pid": worker.process.pid(), "cause": cause})
        try:
            successor = self.launch(number)
        except BaseException:
            self.shut_down()
            self.failure = _DeadWorkerError(f"{cause}; none could be started in its place")
            raise

        self._await_beginning(number, check)
        if self.workers[number] is not successor:
            return  # it died as well, and the one after it has been asked

        for n in lost:
            self._ask(n, self.pending.by_number[n])

    def _give_up(self, reason: str) -> NoReturn:
        self.shut_down()
        self.failure = _DeadWorkerError(reason)
        raise self.failure

"""The workers of one iterator and the batches that they were asked for: each arrives once, whichever worker dies."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NoReturn

from torch.utils.data import _utils as torch_utils
from torch.utils.data._utils import worker as torch_worker
from torch.utils.data.dataloader import _DatasetKind

from feeder.errors import WorkerError
from feeder.loader.generic.batch_slots import BatchSlots
from feeder.loader.generic.generic_worker import BatchResult, BatchTask, Job
from feeder.loader.generic.meters import GenericMeters
from feeder.loader.generic.pending_batches import Pending, PendingBatches
from feeder.loader.generic.torchdata_state import worker_key
from feeder.loader.generic.worker_processes import Message, Processes
from feeder.loader.slots.batch_message import unpack

__all__ = ["BatchWorkers"]

_SAME_BATCH_LIMIT = 3


class _DeadWorkerError(WorkerError, RuntimeError):
    """A dead worker, for which torch raises a RuntimeError."""


class BatchWorkers:
    """Asks workers for batches, takes these in, and replaces workers that die.

    Args:
        processes: The workers' processes, none of them started.
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
        processes: Processes,
        job: Job,
        first_states: dict[str, Any],
        pending: PendingBatches,
        slots: BatchSlots,
        meters: GenericMeters,
        replacements: list[dict[str, Any]],
    ) -> None:
        self.processes = processes
        self.pending = pending
        self.slots = slots
        self.job = job
        self.failure: WorkerError | None = None
        self._first_states = first_states
        self._meters = meters
        self._replacements = replacements
        self._is_iterable = job.kind == _DatasetKind.Iterable

    def start(self) -> None:
        """Starts all workers."""
        for number in range(self.job.workers):
            self.processes.launch(number, self._job(number))

    def begin_epoch(self, shared_seed: int | None, check: Callable[[], object]) -> None:
        """Has all workers begin another epoch, and drops the batches of the last one.

        Args:
            shared_seed: The workers' shared seed.
            check: See :meth:`look`.
        """
        self.job.shared_seed = shared_seed
        for pending in self.pending.by_number.values():
            pending.is_wanted = False
            pending.index = None
        for number, worker in enumerate(self.processes.workers):
            worker.has_begun = False
            self.processes.tell(number, BatchTask(begin=(shared_seed,)))
        self.await_beginnings(check)
        for pending in self.pending.by_number.values():
            pending.drop_slot()

    def await_beginnings(self, check: Callable[[], object]) -> None:
        """Waits until all workers have begun their epoch."""
        for number in range(self.job.workers):
            self._await_beginning(number, check)

    def states(self) -> dict[str, dict[str, Any]]:
        """Returns the workers' states after the last batches that were handed out, by their key."""
        return {worker_key(n): worker.state or {} for n, worker in enumerate(self.processes.workers)}

    def ask(self, pending: Pending) -> None:
        """Asks for a batch."""
        self.slots.assign(pending, self.pending.by_number.values())
        self._ask(self.pending.add(pending), pending)

    def look(self, timeout_s: float | None, check: Callable[[], object], only: int | None = None) -> None:
        """Waits for messages, for a second at most, and takes them in.

        Args:
            timeout_s: Longest wait; None: any.
            check: Called first.
            only: Listens to this worker alone.
        """
        check()
        for message in self.processes.look(timeout_s, only):
            if message.data is None:
                self._replace(message.worker, check)
            else:
                self._meters.made(message.worker, message.spent)
                self._take(message, message.data)

    def recover(self) -> None:
        """Asks again for a batch that was lost while it was taken in: to an interrupt, or as it can't be unpickled."""
        for number in sorted(self.pending.outstanding):
            if not self.pending.is_due(number):
                self.pending.outstanding.discard(number)
                continue
            pending = self.pending.by_number[number]
            if self.processes.workers[pending.worker].owed:
                continue  # it has not sent everything yet
            if not self._is_iterable:
                self._ask(number, pending)
            else:  # it doesn't give a batch twice
                self.pending.hand_out(number)
                pending.drop_slot()
                raise _DeadWorkerError("a batch was lost when an interrupt came while it was taken in")

    def close(self) -> None:
        """Ends the workers, in bounded time."""
        self.processes.close(torch_utils.MP_STATUS_CHECK_INTERVAL)

    def _job(self, number: int, state: dict[str, Any] | None = None) -> Job:
        """Returns a worker's job; it begins with the state, or with the one that this iterator began with."""
        state = state or self._first_states.get(worker_key(number)) or None
        return dataclasses.replace(self.job, worker=number, state=state)

    def _ask(self, number: int, pending: Pending) -> None:
        pending.was_made = False
        task = BatchTask(number, pending.index, pending.slot, pending.snapshot)
        self.processes.tell(pending.worker, task, pending.slots)

    def _await_beginning(self, number: int, check: Callable[[], object]) -> None:
        while not (worker := self.processes.workers[number]).has_begun:  # another, if it died meanwhile
            if worker.beginning is None:
                self.look(None, check, number)
            else:
                worker.take_beginning()

    def _take(self, message: Message, data: bytes) -> None:
        pending = self.pending.by_number.get(message.batch)
        memory = pending.lease_slot() if message.used and pending is not None else None
        try:
            with contextlib.ExitStack() as fetched:
                fetching = functools.partial(self.processes.fetching_from, message.worker)
                result: BatchResult = unpack(data, memory, lambda: fetched.enter_context(fetching()))
        except (OSError, EOFError):
            # Tensors outside of slots are fetched from the worker, as torch does it: lost, if it is dead by now.
            if not self.processes.is_ending(message.worker):
                raise
            if pending is not None:
                pending.was_made = True
            return
        finally:
            del memory
        if result.number is None:
            self.processes.workers[message.worker].beginning = result
            return
        self.pending.arrive(result.number, result)
        if pending is not None:
            if isinstance(result.data, torch_worker._IterableDatasetStopIteration):
                self.processes.workers[message.worker].is_active = False
            self.slots.fit(message.wanted)

    def _replace(self, number: int, check: Callable[[], object]) -> None:
        """Replaces a dead worker, and has its batches made again; of an iterable dataset only if it had not begun."""
        worker = self.processes.workers[number]
        try:
            cause = self.processes.cause(number)
        except WorkerError as error:
            self._give_up(str(error))

        if worker.beginning is not None and worker.beginning.state is not None:  # else the next one will fail likewise
            worker.take_beginning()

        lost = self.pending.lost_with(number)
        # It died at the first batch that it had not made.
        first = next((p for n in lost if not (p := self.pending.by_number[n]).was_made), None)
        if first is not None:
            first.failures += worker.has_begun
        has_begun = worker.state is not None  # in any epoch, or the worker that it replaced had
        worker.failed_starts += not worker.has_begun

        advice = self.processes.failed_start(number)
        if (
            (self._is_iterable and has_begun)
            or advice is not None
            or worker.failed_starts >= _SAME_BATCH_LIMIT
            or (first is not None and first.failures >= _SAME_BATCH_LIMIT)
        ):
            has_ids = has_begun and not self._is_iterable
            what = f"; at work on the samples {_short(first.index)}" if first is not None and has_ids else ""
            what += "" if advice is None else f"; {advice}"
            self._give_up(cause + what)

        self._replacements.append({"worker": number, "pid": worker.process.pid(), "cause": cause})
        try:
            successor = self.processes.launch(number, self._job(number, worker.state))
        except BaseException:
            self.close()
            self.failure = _DeadWorkerError(f"{cause}; none could be started in its place")
            raise

        self._await_beginning(number, check)
        if self.processes.workers[number] is not successor:
            return  # it died as well, and the one after it has been asked

        for n in lost:
            self._ask(n, self.pending.by_number[n])

    def _give_up(self, reason: str) -> NoReturn:
        self.close()
        self.failure = _DeadWorkerError(reason)
        raise self.failure


def _short(index: Any) -> str:
    text = str(index)
    return text if len(text) <= 200 else text[:200] + "..."

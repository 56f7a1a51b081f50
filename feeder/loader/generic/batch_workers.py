"""The workers of one iterator and the batches that they were asked for: each arrives once, whichever worker dies."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
from torch.utils.data import _utils as torch_utils
from torch.utils.data._utils import worker as torch_worker
from torch.utils.data.dataloader import _DatasetKind

from feeder.errors import WorkerError
from feeder.loader.device.page_lock import page_lock
from feeder.loader.generic.generic_worker import BatchResult, BatchTask, Job
from feeder.loader.generic.meters import GenericMeters
from feeder.loader.generic.torchdata_state import worker_key
from feeder.loader.generic.worker_processes import Message, Processes
from feeder.loader.slots.batch_message import unpack
from feeder.loader.slots.image_slots import HELD_BATCHES
from feeder.loader.slots.slots import Guard, Slots
from feeder.system.memory import available_bytes

__all__ = ["BatchSlots", "BatchWorkers", "Pending", "PendingBatches"]

_SAME_BATCH_LIMIT = 3


_SMALLEST_SLOT = 1 << 16
_PAGE = 4096


@dataclass
class Pending:
    """A batch that a worker was asked for.

    Attributes:
        worker: Number of the worker.
        index: The sampler's output for it.
        main: The sampler's state after it, if a snapshot is due there.
        snapshot: True if the worker's state has to come with it.
        slots, slot: The slot to write it into; None: none.
        result: The result, once it is there.
        is_wanted: False once its epoch was broken off.
        failures: Number of workers that died at it.
    """

    worker: int
    index: Any
    main: dict[str, Any] | None
    snapshot: bool
    slots: Slots | None = None
    slot: int | None = None
    result: BatchResult | None = None
    is_wanted: bool = True
    failures: int = 0

    def lease_slot(self) -> npt.NDArray[np.uint8] | None:
        """Hands the slot's memory to the caller; None without a slot."""
        if self.slots is None or self.slot is None:
            return None
        slot, self.slot = self.slot, None  # first: wherever an interrupt comes, nothing else is written there
        return self.slots.lease(slot)

    def drop_slot(self) -> None:
        """Takes back the slot of a batch that nobody will have in it."""
        if self.slots is not None and self.slot is not None:
            self.slots.put_back(self.slot)
            self.slot = None


class PendingBatches:
    """The batches of an epoch that were asked for, by running number, and the order in which they are handed out.

    Args:
        in_order: Hands them out in the order in which they were asked for, and not as they arrive.

    Attributes:
        by_number: The batches.
        outstanding: Numbers of those that have not arrived.
    """

    def __init__(self, in_order: bool) -> None:
        self.by_number: dict[int, Pending] = {}
        self.outstanding: set[int] = set()
        self._in_order = in_order
        self._arrived: collections.deque[int] = collections.deque()
        self._sent = self._received = self._first = 0
        self._highest = -1

    def __len__(self) -> int:
        return len(self.by_number)

    def begin(self) -> None:
        """Begins an epoch, with no batch pending. Numbers run on."""
        self.by_number.clear()
        self.outstanding.clear()
        self._arrived.clear()
        self._received = self._first = self._sent
        self._highest = self._sent - 1

    @property
    def asked(self) -> int:
        """Number of batches asked for in this epoch."""
        return self._sent - self._first

    def add(self, pending: Pending) -> int:
        """Adds a batch that is about to be asked for; returns its number."""
        number, self._sent = self._sent, self._sent + 1
        self.by_number[number] = pending
        self.outstanding.add(number)
        return number

    def load(self, worker: int) -> int:
        """Returns the number of batches that a worker still owes."""
        return sum(self.by_number[n].worker == worker for n in self.outstanding if n in self.by_number)

    def lost_with(self, worker: int) -> list[int]:
        """Returns the numbers of the batches that a dead worker owed."""
        pending = self.by_number
        return [n for n in sorted(pending) if pending[n].worker == worker and self.is_due(n) and pending[n].is_wanted]

    def is_due(self, number: int) -> bool:
        """Returns True if a batch is pending and its result is not there."""
        pending = self.by_number.get(number)
        return pending is not None and pending.result is None

    def arrive(self, number: int, result: BatchResult) -> None:
        """Notes a batch's result; it needs its slot no more."""
        pending = self.by_number.get(number)
        if pending is not None:
            pending.drop_slot()
            pending.result = result
            if not self._in_order:
                self._arrived.append(number)
        self.outstanding.discard(number)

    def ready(self) -> int | None:
        """Returns the number of a batch that can be handed out now."""
        if not self._in_order:
            return self._arrived.popleft() if self._arrived else None
        pending = self.by_number.get(self._received)
        return self._received if pending is not None and pending.result is not None else None

    def hand_out(self, number: int) -> tuple[Pending, bool]:
        """Takes a batch out; returns it, and True if exactly the batches up to it have been taken out."""
        pending = self.by_number.pop(number)
        self.outstanding.discard(number)
        self._highest = max(self._highest, number)
        while self._received < self._sent and self._received not in self.by_number:
            self._received += 1
        return pending, self._highest == number and self._received == number + 1


class BatchSlots:
    """The slots of one iterator.

    Args:
        ahead: Number of batches made ahead.
        limit_bytes: Largest size of all slots; None: half of the memory that is available then.
        guard: Asked before slots are used again; with one they are page-locked.

    Attributes:
        current: Those that the next batches are written into; None before the first batch.
    """

    def __init__(self, ahead: int, limit_bytes: int | None, guard: Guard | None) -> None:
        self.current: Slots | None = None
        self._count = ahead + HELD_BATCHES
        self._limit_bytes = limit_bytes
        self._guard = guard

    def assign(self, pending: Pending, others: Iterable[Pending]) -> None:
        """Gives a batch a slot, if there is one.

        Args:
            pending: The batch.
            others: All other batches that have slots.
        """
        slots = self.current
        if slots is None:
            return
        slot = slots.acquire()
        if slot is None:  # the caller has them all, or an interrupt lost some
            slots.reclaim({p.slot for p in others if p.slots is slots and p.slot is not None})
            slot = slots.acquire()
        pending.slots = slots
        pending.slot = slot

    def fit(self, wanted_bytes: int) -> None:
        """Makes slots for batches of that size, unless they fit those that are there, or are small or too large."""
        if wanted_bytes < _SMALLEST_SLOT or (self.current is not None and wanted_bytes <= self.current.slot_bytes):
            return
        size = -(-(wanted_bytes + wanted_bytes // 16) // _PAGE) * _PAGE
        limit = self._limit_bytes if self._limit_bytes is not None else available_bytes() // 2
        count = min(self._count, limit // size)
        if count >= 1:
            slots = Slots(size, count, self._guard)
            if self._guard is not None:
                page_lock(slots)
            self.current = slots


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
        result: BatchResult = unpack(data, memory)
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
        first = self.pending.by_number[lost[0]] if lost else None  # at which it died
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

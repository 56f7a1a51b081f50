"""The generic path: torch's iterators over any dataset, with slots, replaced workers and resume.

Note [What is torch's and what is ours]
    Which worker makes which batch, how workers are seeded, what they are told about themselves, the order of calls to
    samplers and datasets, and every error are torch's. Ours: batches come in slots (Note [Carrying]); a worker of a
    map-style dataset that dies or hangs is replaced, and its batches are made again by a worker seeded as it was;
    states.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch._utils import ExceptionWrapper
from torch.utils.data import DataLoader, IterDataPipe, MapDataPipe
from torch.utils.data import _utils as torch_utils
from torch.utils.data._utils import worker as torch_worker
from torch.utils.data._utils.pin_memory import pin_memory
from torch.utils.data.dataloader import _BaseDataLoaderIter, _DatasetKind, _sharding_worker_init_fn

from feeder.errors import ArgumentError, WorkerError
from feeder.loader.device.page_lock import page_lock, slot_guard
from feeder.loader.generic.meters import GenericMeters
from feeder.loader.generic.position import Progress, counts_off, fitting_states, with_workers, worker_key
from feeder.loader.generic.processes import Message, Processes
from feeder.loader.generic.single_process import begin_torchs
from feeder.loader.generic.split_order import SplitEpoch, SplitOrder
from feeder.loader.generic.state_dict import IndexIterator
from feeder.loader.generic.worker import Job, Result, Task
from feeder.loader.observe.live_view import LiveView, end_view
from feeder.loader.options import EpochOptions
from feeder.loader.path_reason import raise_explained
from feeder.loader.slots.batch_message import unpack
from feeder.loader.slots.slots import Slots
from feeder.loader.stateful import Stateful
from feeder.loader.workers.iterator_lock import Use
from feeder.system.memory import available_bytes

__all__ = ["WorkersIterator"]

_HELD_BATCHES = 2
_SMALLEST_SLOT = 1 << 16
_SAME_BATCH_LIMIT = 3
_PAGE = 4096


class _DeadWorkerError(WorkerError, RuntimeError):
    """What torch raises as a RuntimeError."""


@dataclass
class _Pending:
    """A batch that a worker was asked for."""

    worker: int
    index: Any
    main: dict[str, Any] | None
    snapshot: bool
    slots: Slots | None = None
    slot: int | None = None
    result: Result | None = None
    is_wanted: bool = True
    was_made: bool = False  # its message came, but what it points to went with the worker
    failures: int = 0


class WorkersIterator(_BaseDataLoaderIter):
    """Makes batches in worker processes.

    Args:
        loader: The loader.
        options: Its options for this epoch.
        order: Feeder's own order; None: torch's samplers decide.
        meters: Times of the stages.
        state: Where to go on; None: at the beginning.
        base_seed: The workers' base seed where it is drawn already; None: it is drawn as torch draws it.
        replacements: Workers that are replaced are added to it.
    """

    def __init__(
        self,
        loader: DataLoader[Any],
        options: EpochOptions,
        order: SplitOrder | None,
        meters: GenericMeters,
        state: dict[str, Any] | None,
        base_seed: int | None,
        replacements: list[dict[str, Any]],
    ) -> None:
        self.meters = meters
        self.delivers = True
        self.view: LiveView | None = None
        self._use = Use()
        begin_torchs(self, loader, base_seed)
        self._prefetch_factor: int = options.prefetch_factor or 0
        if self._prefetch_factor <= 0:
            raise AssertionError("prefetch_factor must be greater than 0")
        self._in_order = loader.in_order
        self._seeding = None if order is None else order.seeding
        self._interval = options.snapshot_every_n_steps or 0
        if order is not None and not isinstance(loader.dataset, Stateful):
            self._interval = 1  # such a state costs nothing, and it goes on with another world size or batch size
        self._guard = slot_guard(options.device)
        self._memory_limit_bytes = options.memory_limit_bytes
        context = options.multiprocessing_context or torch.multiprocessing
        self._processes = Processes(context, options.hang_timeout_s)
        self._init_fn = loader.worker_init_fn
        if isinstance(self._dataset, (IterDataPipe, MapDataPipe)):
            self._init_fn = functools.partial(_sharding_worker_init_fn, self._init_fn, self._world_size, self._rank)
        self._replacements = replacements
        self.progress = Progress()
        self._slots: Slots | None = None
        self._failed_starts: collections.Counter[int] = collections.Counter()
        self._failure: WorkerError | None = None
        self._pending: dict[int, _Pending] = {}
        self._outstanding: set[int] = set()
        self._arrived: collections.deque[int] = collections.deque()
        self._sent = self._received = 0
        if state is not None and "_snapshot" not in state:
            state = with_workers(state, self._num_workers)
        snapshot = None if state is None else state["_snapshot"]
        self._first_states: dict[str, Any] = {}
        if snapshot is not None:
            is_iterable = self._dataset_kind == _DatasetKind.Iterable
            self._first_states = fitting_states(snapshot, self._num_workers, is_iterable)
            main = snapshot["_main_snapshot"]
            self._base_seed = main.get("_base_seed", self._base_seed)
            self._shared_seed = main.get("_shared_seed", self._shared_seed)
        try:
            for number in range(self._num_workers):
                self._processes.launch(number, self._job(number))
            self._begin(None if snapshot is None else snapshot["_main_snapshot"])
            if state is None:
                self._fill()  # before the workers have begun, so that the first batch waits for one round less
            for number in range(self._num_workers):
                self._await_beginning(number)
            self.progress.workers = self._worker_states()
            if state is not None:
                self._restore(state)
        except BaseException:
            self._shutdown_workers()
            raise

    @property
    def _workers(self) -> list[Any]:
        """The processes, as torch's iterator has them."""
        return [worker.process.process for worker in self._processes.workers]  # type: ignore[attr-defined]

    @property
    def finished(self) -> bool:
        """Whether the epoch is over."""
        return self.progress.finished

    @property
    def split_epoch(self) -> SplitEpoch | None:
        """The epoch in feeder's own order; None with another sampler."""
        return self._indices.split_epoch

    def __next__(self) -> Any:
        with self._use.begun(self._shutdown_workers):
            return self._next()

    def _next(self) -> Any:
        if self.delivers:
            self.meters.asked()
        if self.split_epoch is not None:
            self.split_epoch.ask()
        try:
            batch = super().__next__()
        except StopIteration:
            self.progress.finished = True
            self.meters.warn_of_clipped()
            end_view(self)
            raise
        except (MemoryError, OSError, RuntimeError) as error:
            raise_explained(self._dataset, error)
        if self.delivers:
            self.meters.given(batch)
            if self.view is not None:
                self.view.step()
        return batch

    def slots(self) -> dict[str, int]:
        """How many slots there are, are held by the caller; batches that are being made, and that are ready."""
        pending = list(self._pending.values())  # another thread may ask
        ready = sum(each.result is not None for each in pending)
        total, held = (0, 0) if self._slots is None else (self._slots.slots, self._slots.held)
        return {"total": total, "held": held, "making": len(pending) - ready, "ready": ready}

    def state_dict(self) -> dict[str, Any]:
        """Where it is, under torchdata's keys."""
        return self.progress.state_dict()

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        """Begins another epoch with the same workers."""
        with self._use.begun(self._shutdown_workers):
            self._begin_anew(loader, first_iter)

    def restart(self) -> None:
        """Begins another epoch instead of this one, of which no batch was asked for."""
        with self._use.begun(self._shutdown_workers):
            self._num_yielded = 0
            self._begin_again()

    def _begin_anew(self, loader: Any, first_iter: bool) -> None:
        super()._reset(loader, first_iter)
        self._begin_again()

    def _begin_again(self) -> None:
        for pending in self._pending.values():
            pending.is_wanted = False
            pending.index = None
        for number, worker in enumerate(self._processes.workers):
            worker.has_begun = False
            self._processes.tell(number, Task(begin=(self._shared_seed,)))
        for number in range(self._num_workers):
            self._await_beginning(number)
        for pending in self._pending.values():
            self._drop(pending)
        self._begin(None)
        self._fill()

    def _begin(self, main: dict[str, Any] | None) -> None:
        """Begins an epoch; ``main`` is the sampler's place in a state that will be restored."""
        self._pending.clear()
        self._outstanding.clear()
        self._arrived.clear()
        self._received = self._first = self._sent
        self._highest = self._sent - 1
        self._turn = 0
        for worker in self._processes.workers:
            worker.is_active = True
        self._indices = IndexIterator(self._index_sampler)
        self._sampler_iter = self._indices
        progress = self.progress
        progress.main = self._main_state() if main is None else main
        progress.workers = self._worker_states()
        progress.step = progress.since = 0
        progress.last_worker = self._last_worker = self._num_workers - 1
        progress.finished = False

    def _restore(self, state: dict[str, Any]) -> None:
        snapshot = state["_snapshot"]
        main = snapshot["_main_snapshot"]
        self._indices.load(main)
        self._IterableDataset_len_called = main["_IterableDataset_len_called"]
        self._num_yielded = snapshot["_snapshot_step"]
        last = snapshot["_last_yielded_worker_id"]
        progress = self.progress
        if self._dataset_kind == _DatasetKind.Iterable and counts_off(snapshot):
            steps, self._num_yielded = self._num_yielded, 0
            self._fill()
            for _ in range(steps):  # nothing has a state: count off what was seen
                next(self)
            if self._last_worker != last:
                raise ArgumentError("the dataset gives other samples than when the state was saved")
        else:
            progress.main, progress.step, progress.last_worker = main, self._num_yielded, last
            self._turn = (last + 1) % self._num_workers
            self._fill()
        since = state["_steps_since_snapshot"]
        if since and self.split_epoch is not None:
            self.split_epoch.check_steps(main["_sampler_iter_state"])
        for _ in range(since):
            next(self)
        progress.finished = state["_iterator_finished"]

    def _main_state(self) -> dict[str, Any]:
        return {
            "_num_workers": self._num_workers,
            **self._indices.state(),
            "_IterableDataset_len_called": self._IterableDataset_len_called,
            "_shared_seed": self._shared_seed,
            "_base_seed": self._base_seed,
        }

    def _fill(self) -> None:
        """Asks for as many batches as may be made ahead."""
        most = self._prefetch_factor * self._num_workers
        while len(self._pending) < most:
            worker = self._next_worker(most)
            if worker is None:
                return
            try:
                index = next(self._indices)
            except StopIteration:
                return
            self._turn = (worker + 1) % self._num_workers
            number, self._sent = self._sent, self._sent + 1
            main, snapshot = self._snapshots(number - self._first + 1)
            pending = _Pending(worker, index, main, snapshot)
            if self._slots is not None:
                pending.slots, pending.slot = self._slots, self._acquire(self._slots)
            self._pending[number] = pending
            self._outstanding.add(number)
            self._ask(number, pending)

    def _acquire(self, slots: Slots) -> int | None:
        slot = slots.acquire()
        if slot is None:  # the caller has them all, or an interrupt lost some
            slots.reclaim({p.slot for p in self._pending.values() if p.slots is slots and p.slot is not None})
            slot = slots.acquire()
        return slot

    def _snapshots(self, step: int) -> tuple[dict[str, Any] | None, bool]:
        """The sampler's state if a snapshot is due after that many batches, and whether the worker's is needed for one.

        The last batch of every worker before the snapshot must bring its state along.
        """
        if not self._interval:
            return None, False
        main = self._main_state() if step % self._interval == 0 else None
        near = (step - 1) % self._interval + self._num_workers >= self._interval
        return main, near or self._dataset_kind == _DatasetKind.Iterable

    def _next_worker(self, most: int) -> int | None:
        active = sum(worker.is_active for worker in self._processes.workers)
        for step in range(self._num_workers):
            number = (self._turn + step) % self._num_workers
            if self._processes.workers[number].is_active:
                if self._in_order:
                    return number
                load = sum(self._pending[n].worker == number for n in self._outstanding if n in self._pending)
                if load < most // active:
                    return number
        return None

    def _ask(self, number: int, pending: _Pending) -> None:
        pending.was_made = False
        task = Task(number, pending.index, pending.slot, pending.snapshot)
        self._processes.tell(pending.worker, task, pending.slots)

    def _next_data(self) -> Any:
        if not self._processes.check_open():
            raise self._failure or StopIteration
        started = time.monotonic()
        while True:
            self._fill()
            number = self._ready()
            if number is not None:
                pending = self._pending.pop(number)
                is_prefix = self._passed(number)
                if self._has_ended(pending):
                    continue
                self.meters.waited(int(1e9 * (time.monotonic() - started)))
                return self._deliver(pending, is_prefix)
            if not self._outstanding:
                if not self._persistent_workers:
                    self._shutdown_workers()
                raise StopIteration
            left = self._timeout - (time.monotonic() - started) if self._timeout > 0 else None
            if left is not None and left <= 0:
                raise RuntimeError(f"DataLoader timed out after {self._timeout} seconds")
            self._recover()
            self._look(left)

    def _ready(self) -> int | None:
        """The number of a batch that can be handed out now."""
        if not self._in_order:
            return self._arrived.popleft() if self._arrived else None
        pending = self._pending.get(self._received)
        return self._received if pending is not None and pending.result is not None else None

    def _passed(self, number: int) -> bool:
        """Counts a batch as handed out; whether exactly the batches up to it have been."""
        self._highest = max(self._highest, number)
        while self._received < self._sent and self._received not in self._pending:
            self._received += 1
        return self._highest == number and self._received == number + 1

    def _has_ended(self, pending: _Pending) -> bool:
        """Whether this is a worker's end of an iterable dataset, and no batch."""
        result = pending.result
        assert result is not None
        if not isinstance(result.data, torch_worker._IterableDatasetStopIteration):
            return False
        if result.state is not None:
            self._processes.workers[pending.worker].state = result.state
        self._drop(pending)
        return True

    def _deliver(self, pending: _Pending, is_prefix: bool) -> Any:
        result, progress = pending.result, self.progress
        assert result is not None
        if self.split_epoch is not None:
            self.split_epoch.hand_out()
        self._fill()
        data = result.data
        if isinstance(data, ExceptionWrapper):
            self._drop(pending)
            data.reraise()  # type: ignore[no-untyped-call]
        self.meters.decoded(result.counts)
        worker = self._processes.workers[pending.worker]
        if result.state is not None:
            worker.state = result.state
        self._last_worker = pending.worker
        progress.since += 1
        if pending.main is not None and is_prefix:
            progress.main, progress.since = pending.main, 0
            progress.step, progress.last_worker = self._num_yielded + 1, pending.worker
            progress.workers = self._worker_states()
        if self._pin_memory:  # tensors in page-locked slots stay where they are
            data = pin_memory(data, self._pin_memory_device)  # type: ignore[no-untyped-call]
        return data

    def _worker_states(self) -> dict[str, dict[str, Any]]:
        return {worker_key(n): worker.state or {} for n, worker in enumerate(self._processes.workers)}

    def _drop(self, pending: _Pending) -> None:
        """Takes back the slot of a batch that nobody will have."""
        if pending.slots is not None and pending.slot is not None:
            pending.slots.put_back(pending.slot)
            pending.slot = None

    def _look(self, timeout_s: float | None, only: int | None = None) -> None:
        """Waits for messages and takes them in."""
        self._use.check()
        for message in self._processes.look(timeout_s, only):
            if message.data is None:
                self._died(message.worker)
            else:
                self.meters.made(message.worker, message.spent)
                self._take(message, message.data)

    def _take(self, message: Message, data: bytes) -> None:
        pending = self._pending.get(message.batch)
        memory = None
        if message.used and pending is not None and pending.slots is not None and pending.slot is not None:
            slot, pending.slot = pending.slot, None  # first: wherever an interrupt comes, nothing else is written there
            memory = pending.slots.lease(slot)
        try:
            with contextlib.ExitStack() as until_there:
                fetching = functools.partial(self._processes.fetching_from, message.worker)
                result: Result = unpack(data, memory, lambda: until_there.enter_context(fetching()))
        except (OSError, EOFError):
            # Tensors outside of slots are fetched from the worker, as torch does it: lost, if it is dead by now.
            if not self._processes.is_ending(message.worker):
                raise
            if pending is not None:
                pending.was_made = True
            return
        finally:
            del memory
        if result.number is None:
            self._processes.workers[message.worker].beginning = result
            return
        if pending is None:
            self._outstanding.discard(result.number)
            return
        self._drop(pending)
        pending.result = result
        if not self._in_order:
            self._arrived.append(result.number)
        self._outstanding.discard(result.number)
        if isinstance(result.data, torch_worker._IterableDatasetStopIteration):
            self._processes.workers[message.worker].is_active = False
        self._learn(message.wanted)

    def _recover(self) -> None:
        """Asks again for a batch that was lost while it was taken in: to an interrupt, or as it can't be unpickled."""
        for number in sorted(self._outstanding):
            pending = self._pending.get(number)
            if pending is None or pending.result is not None:
                self._outstanding.discard(number)
            elif self._processes.workers[pending.worker].owed:
                continue  # it has not sent everything yet
            elif self._dataset_kind != _DatasetKind.Iterable:
                self._ask(number, pending)
            else:  # it doesn't give a batch twice
                self._outstanding.discard(number)
                self._drop(self._pending.pop(number))
                self._passed(number)
                raise _DeadWorkerError("a batch was lost when an interrupt came while it was taken in")

    def _learn(self, wanted: int) -> None:
        """Makes slots when the size of batches is known, and larger ones when batches outgrow them."""
        if wanted < _SMALLEST_SLOT or (self._slots is not None and wanted <= self._slots.slot_bytes):
            return
        size = -(-(wanted + wanted // 16) // _PAGE) * _PAGE
        count = self._prefetch_factor * self._num_workers + _HELD_BATCHES
        limit = self._memory_limit_bytes if self._memory_limit_bytes is not None else available_bytes() // 2
        count = min(count, limit // size)
        if count >= 1:
            self._slots = Slots(size, count, self._guard)
            if self._guard is not None:
                page_lock(self._slots)

    def _await_beginning(self, number: int) -> None:
        """Waits until a worker has begun its epoch, and takes its state."""
        while not (worker := self._processes.workers[number]).has_begun:  # another, if it died meanwhile
            result = worker.beginning
            if result is None:
                self._look(None, number)
                continue
            self._note_beginning(number, result)

    def _note_beginning(self, number: int, result: Result) -> None:
        worker = self._processes.workers[number]
        worker.beginning = None
        if isinstance(result.data, ExceptionWrapper):
            result.data.reraise()  # type: ignore[no-untyped-call]
        worker.state, worker.has_begun = result.state, True
        self._failed_starts[number] = 0

    def _job(self, number: int, state: dict[str, Any] | None = None) -> Job:
        """What a worker is for; it begins with the state, or with the one that this iterator began with."""
        return Job(
            self._dataset_kind,
            self._dataset,
            self._auto_collation,
            self._collate_fn,
            self._drop_last,
            int(self._base_seed),
            self._init_fn,
            number,
            self._num_workers,
            None if self._shared_seed is None else int(self._shared_seed),
            state or self._first_states.get(worker_key(number)) or None,
            self._seeding,
        )

    def _died(self, number: int) -> None:
        """Replaces a dead worker, and has its batches made again; of an iterable dataset only if it had not begun."""
        worker = self._processes.workers[number]
        try:
            cause = self._processes.cause(number)
        except WorkerError as error:
            self._give_up(str(error))
        if worker.beginning is not None and worker.beginning.state is not None:  # else the next one will fail likewise
            self._note_beginning(number, worker.beginning)
        numbers = [n for n in sorted(self._pending) if self._pending[n].worker == number]
        lost = [n for n in numbers if self._pending[n].result is None and self._pending[n].is_wanted]
        # The batch that it died at is the first that it had not made.
        first = next((self._pending[n] for n in lost if not self._pending[n].was_made), None)
        if first is not None:
            first.failures += worker.has_begun
        has_begun = worker.state is not None  # in any epoch: it, or one in whose place it was
        self._failed_starts[number] += not worker.has_begun
        advice = self._processes.failed_start(number)
        if (
            (self._dataset_kind == _DatasetKind.Iterable and has_begun)
            or advice is not None
            or self._failed_starts[number] >= _SAME_BATCH_LIMIT
            or (first is not None and first.failures >= _SAME_BATCH_LIMIT)
        ):
            has_ids = has_begun and self._dataset_kind != _DatasetKind.Iterable
            what = f"; at work on the samples {_short(first.index)}" if first is not None and has_ids else ""
            what += "" if advice is None else f"; {advice}"
            self._give_up(cause + what)
        self._replacements.append({"worker": number, "pid": worker.process.pid(), "cause": cause})
        try:
            successor = self._processes.launch(number, self._job(number, worker.state))
        except BaseException:
            self._shutdown_workers()
            self._failure = _DeadWorkerError(f"{cause}; none could be started in its place")
            raise
        successor.is_active, successor.state = worker.is_active, worker.state
        self._await_beginning(number)
        if self._processes.workers[number] is not successor:
            return  # it died as well, and the one after it has been asked
        for n in lost:
            self._ask(n, self._pending[n])

    @property
    def is_usable(self) -> bool:
        """Whether its workers run, and are not those of a process that this one was forked from."""
        return self._processes.is_ours and self._processes.check_open()

    def close(self) -> None:
        """Ends the workers, see Note [Closing]."""
        self._use.end(self._shutdown_workers, self._processes.kill)

    def _shutdown_workers(self) -> None:
        """Ends the workers, in bounded time."""
        end_view(self)
        self._processes.close(torch_utils.MP_STATUS_CHECK_INTERVAL)

    def _give_up(self, reason: str) -> NoReturn:
        self._shutdown_workers()
        self._failure = _DeadWorkerError(reason)
        raise self._failure

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not is_finalizing() and hasattr(self, "_processes"):  # see Note [At the interpreter's end]
            self._processes.close(torch_utils.MP_STATUS_CHECK_INTERVAL)


def _short(index: Any) -> str:
    text = str(index)
    return text if len(text) <= 200 else text[:200] + "..."

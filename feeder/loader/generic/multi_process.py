"""The generic path: torch's iterators over any dataset, with slots, replaced workers and resume.

Note [What is torch's and what is ours]
    As in torch: which worker makes which batch, the workers' seeds and their get_worker_info(), the order of calls to
    samplers and datasets, and every error. Added: batches come in slots (Note [Carrying]); a worker of a
    map-style dataset that dies or hangs is replaced, and its batches are made again by a worker seeded as it was;
    iterators have a state.
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch._utils import ExceptionWrapper
from torch.utils.data import DataLoader, IterDataPipe, MapDataPipe
from torch.utils.data._utils import worker as torch_worker
from torch.utils.data._utils.pin_memory import pin_memory
from torch.utils.data.dataloader import _sharding_worker_init_fn

from feeder.errors import ArgumentError
from feeder.loader.device.page_lock import slot_guard
from feeder.loader.generic.batch_workers import BatchWorkers
from feeder.loader.generic.generic_worker import Job
from feeder.loader.generic.meters import GenericMeters
from feeder.loader.generic.pending_batches import BatchSlots, Pending, PendingBatches
from feeder.loader.generic.resumable_samplers import IndexIterator
from feeder.loader.generic.single_process import CountedIterator, begin_torchs
from feeder.loader.generic.torchdata_state import GenericProgress, fitting_states, resumes_by_skipping, sampler_place
from feeder.loader.options import ImageOptions, LoaderOptions
from feeder.loader.workers.iterator_lock import IteratorLock


class WorkersIterator(CountedIterator):
    """Makes batches in worker processes.

    Args:
        loader: The loader.
        options: Its options for this epoch.
        meters: Times of the stages.
        state: The state to resume from; None: begins an epoch.
        base_seed: The workers' base seed if it was drawn already; None: it is drawn as torch draws it.
        replacements: Workers that are replaced are added to it.
    """

    def __init__(
        self,
        loader: DataLoader[Any],
        options: LoaderOptions,
        meters: GenericMeters,
        state: dict[str, Any] | None,
        base_seed: int | None,
        replacements: list[dict[str, Any]],
    ) -> None:
        self.meters = meters
        self._use = IteratorLock()

        begin_torchs(self, loader, base_seed)
        self._prefetch_factor: int = options.prefetch_factor or 0
        if self._prefetch_factor <= 0:
            raise AssertionError("prefetch_factor must be greater than 0")

        self._in_order = loader.in_order
        self._interval = options.snapshot_every_n_steps or 0

        self.progress = GenericProgress()
        self._pending = PendingBatches(loader.in_order)

        main: dict[str, Any] | None = None
        first_states: dict[str, Any] = {}
        if state is not None:
            first_states = fitting_states(state, self._num_workers, self._is_iterable)
            main = sampler_place(state)
            self._base_seed = main.get("_base_seed", self._base_seed)
            self._shared_seed = main.get("_shared_seed", self._shared_seed)

        ahead = self._prefetch_factor * self._num_workers
        self._batches = BatchWorkers(
            options.multiprocessing_context or torch.multiprocessing,
            options.workers.hang_timeout_s,
            self._job(loader.worker_init_fn, options.images),
            first_states,
            self._pending,
            BatchSlots(ahead, options.workers.memory_limit_bytes, slot_guard(options.device)),
            self.meters,
            replacements,
        )

        try:
            for number in range(self._num_workers):
                self._batches.launch(number)
            self._begin(main)
            if state is None:
                self._fill()  # before the workers have begun, so that the first batch waits for one round less
            self._batches.await_beginnings(self._use.check)
            self.progress.workers = self._batches.states()
            if state is not None:
                self._restore(state)
        except BaseException:
            self._shutdown_workers()
            raise

    def _job(self, init_fn: Callable[[int], object] | None, images: ImageOptions | None) -> Job:
        """Returns what all workers have to do."""
        if isinstance(self._dataset, (IterDataPipe, MapDataPipe)):
            init_fn = functools.partial(_sharding_worker_init_fn, init_fn, self._world_size, self._rank)
        return Job(
            self._dataset_kind,
            self._dataset,
            self._auto_collation,
            self._collate_fn,
            self._drop_last,
            int(self._base_seed),
            init_fn,
            0,
            self._num_workers,
            None if self._shared_seed is None else int(self._shared_seed),
            None,
            images,
        )

    @property
    def _workers(self) -> list[Any]:
        """The multiprocessing processes, as torch's iterator has them."""
        return [worker.process.process for worker in self._batches.workers]  # type: ignore[attr-defined]

    def __next__(self) -> Any:
        with self._use.begun(self._shutdown_workers):
            return self._counted(super().__next__)

    def slots(self) -> dict[str, int]:
        """Returns the number of slots in total and held by the caller, of batches being made and ready."""
        pending = list(self._pending.by_number.values())  # another thread may ask
        ready = sum(each.result is not None for each in pending)
        slots = self._batches.slots.current
        total, held = (0, 0) if slots is None else (slots.slots, slots.held)
        return {"total": total, "held": held, "making": len(pending) - ready, "ready": ready}

    def state_dict(self) -> dict[str, Any]:
        """Returns the iterator's state, under torchdata's keys."""
        return self.progress.state_dict()

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        """Begins another epoch with the same workers."""
        with self._use.begun(self._shutdown_workers):
            super()._reset(loader, first_iter)
            self._batches.begin_epoch(self._shared_seed, self._use.check)
            self._begin(None)
            self._fill()

    def _begin(self, main: dict[str, Any] | None) -> None:
        """Begins an epoch; ``main`` is the sampler's place in a state that will be restored."""
        self._pending.begin()
        self._turn = 0
        for worker in self._batches.workers:
            worker.is_active = True
        self._indices = IndexIterator(self._index_sampler)
        self._sampler_iter = self._indices
        progress = self.progress
        progress.main = self._main_state() if main is None else main
        progress.workers = self._batches.states()
        progress.step = progress.since = 0
        progress.last_worker = self._last_worker = self._num_workers - 1
        progress.finished = False

    def _restore(self, state: dict[str, Any]) -> None:
        main, last = self._load_main(state), state["_snapshot"]["_last_yielded_worker_id"]
        progress = self.progress
        if self._is_iterable and resumes_by_skipping(state):
            steps, self._num_yielded = self._num_yielded, 0
            self._fill()
            for _ in range(steps):  # nothing has a state: count off what was seen
                next(self)
            if self._last_worker != last:
                raise ArgumentError("the dataset gives other samples than when the state was saved")
        else:
            progress.main = main
            progress.step = self._num_yielded
            progress.last_worker = last
            self._turn = (last + 1) % self._num_workers
            self._fill()
        self._catch_up(state)

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
            main, snapshot = self._snapshots(self._pending.asked + 1)
            self._batches.ask(Pending(worker, index, main, snapshot))

    def _snapshots(self, step: int) -> tuple[dict[str, Any] | None, bool]:
        """Returns the sampler's state if a snapshot is due after that many batches, and True if the worker's is needed.

        The last batch of every worker before the snapshot must bring its state along.
        """
        if not self._interval:
            return None, False
        main = self._main_state() if step % self._interval == 0 else None
        near = (step - 1) % self._interval + self._num_workers >= self._interval
        return main, near or self._is_iterable

    def _next_worker(self, most: int) -> int | None:
        active = sum(worker.is_active for worker in self._batches.workers)
        for step in range(self._num_workers):
            number = (self._turn + step) % self._num_workers
            if self._batches.workers[number].is_active:
                if self._in_order:
                    return number
                if len(self._pending.due(number)) < most // active:
                    return number
        return None

    def _next_data(self) -> Any:
        if not self._batches.check_open():
            raise self._batches.failure or StopIteration
        started = time.monotonic()
        while True:
            self._fill()
            number = self._pending.ready()
            if number is not None:
                pending, is_prefix = self._pending.hand_out(number)
                if self._has_ended(pending):
                    continue
                self.meters.waited(int(1e9 * (time.monotonic() - started)))
                return self._deliver(pending, is_prefix)
            if not self._pending.due():
                if not self._persistent_workers:
                    self._shutdown_workers()
                raise StopIteration
            left = self._timeout - (time.monotonic() - started) if self._timeout > 0 else None
            if left is not None and left <= 0:
                raise RuntimeError(f"DataLoader timed out after {self._timeout} seconds")
            self._batches.recover()
            self._batches.look(left, self._use.check)

    def _has_ended(self, pending: Pending) -> bool:
        """Returns True if this is a worker's end of an iterable dataset, and no batch."""
        result = pending.result
        assert result is not None
        if not isinstance(result.data, torch_worker._IterableDatasetStopIteration):
            return False
        if result.state is not None:
            self._batches.workers[pending.worker].state = result.state
        pending.drop_slot()
        return True

    def _deliver(self, pending: Pending, is_prefix: bool) -> Any:
        result, progress = pending.result, self.progress
        assert result is not None
        self._fill()
        data = result.data
        if isinstance(data, ExceptionWrapper):
            pending.drop_slot()
            data.reraise()  # type: ignore[no-untyped-call]
        self.meters.add_images(result.counts)
        worker = self._batches.workers[pending.worker]
        if result.state is not None:
            worker.state = result.state
        self._last_worker = pending.worker
        progress.since += 1
        if pending.main is not None and is_prefix:
            progress.main = pending.main
            progress.since = 0
            progress.step = self._num_yielded + 1
            progress.last_worker = pending.worker
            progress.workers = self._batches.states()
        if self._pin_memory:  # tensors in page-locked slots stay where they are
            data = pin_memory(data, self._pin_memory_device)  # type: ignore[no-untyped-call]
        return data

    @property
    def is_usable(self) -> bool:
        """True if its workers run, and are not those of a process that this one was forked from."""
        return self._batches.is_ours and self._batches.check_open()

    def close(self) -> None:
        """Ends the workers, see Note [Closing]."""
        self._use.end(self._shutdown_workers, self._batches.kill)

    def _shutdown_workers(self) -> None:
        """Ends the workers, in bounded time."""
        self._batches.shut_down()

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not is_finalizing() and hasattr(self, "_batches"):  # see Note [At the interpreter's end]
            self._batches.shut_down()

"""The generic path: torch's iterators over any dataset, with slots, replaced workers and resume.

Note [What is torch's and what is ours]
    Which worker makes which batch, how workers are seeded, what they are told about themselves, the order of calls to
    samplers and datasets, and every error are torch's. Ours: batches come in slots (Note [Carrying]); a worker of a
    map-style dataset that dies is replaced, and its batches are made again by a worker seeded as it was; states.
"""

from __future__ import annotations

import collections
import functools
import select
import signal
import socket
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch._utils import ExceptionWrapper
from torch.utils.data import IterDataPipe, MapDataPipe, graph_settings
from torch.utils.data import _utils as torch_utils
from torch.utils.data._utils import worker as torch_worker
from torch.utils.data.dataloader import (
    _BaseDataLoaderIter,
    _DatasetKind,
    _sharding_worker_init_fn,
    _SingleProcessDataLoaderIter,
)

from feeder.batch import Slots, available_bytes
from feeder.carry import unpack
from feeder.device import page_lock, slot_guard
from feeder.ends import pair
from feeder.errors import ArgumentError, WorkerError
from feeder.generic_state import IndexIterator, load_if_stateful
from feeder.generic_worker import HEAD_BYTES, Job, Result, Task, decode_head, encode_task, worker_main, worker_state

if TYPE_CHECKING:
    from feeder.loader import DataLoader

__all__ = ["HereIterator", "Progress", "WorkersIterator", "epoch_is_over"]

_HELD_BATCHES = 2
_SMALLEST_SLOT = 1 << 16
_SAME_BATCH_LIMIT = 3
_POLL_MS = 1000
_JOIN_S = 5.0
_PAGE = 4096


class _DeadWorkerError(WorkerError, RuntimeError):
    """What torch raises as a RuntimeError."""


class HereIterator(_SingleProcessDataLoaderIter):
    """Makes batches in the calling process.

    Args:
        loader: The loader.
        state: Where to go on; None: at the beginning.
        base_seed: The workers' base seed where it is drawn already; None: it is drawn as torch draws it.
    """

    def __init__(self, loader: DataLoader[Any], state: dict[str, Any] | None, base_seed: int | None = None) -> None:
        if state is not None and "_snapshot" in state:
            state = _without_workers(state)
        self.meters = loader.generic_meters
        self.delivers = True
        # What torch's own constructor does, but for the dataset's state, which goes in between.
        _begin_torchs(self, loader, base_seed)
        if self._timeout != 0 or self._num_workers != 0:
            raise AssertionError("without workers, timeout must be 0")
        if isinstance(self._dataset, (IterDataPipe, MapDataPipe)):
            graph_settings.apply_sharding(self._dataset, self._world_size, self._rank)
        if state is not None:
            load_if_stateful(self._dataset, state["dataset_state"])
        self._dataset_fetcher = _DatasetKind.create_fetcher(  # type: ignore[no-untyped-call]
            self._dataset_kind,
            self._dataset,
            self._auto_collation,
            self.meters.timed(self._collate_fn) if self._auto_collation else self._collate_fn,
            self._drop_last,
        )
        self.finished = False
        self._indices = IndexIterator(self._index_sampler)
        self._sampler_iter: Any = self._indices
        if state is not None:
            self._load(state)

    def __next__(self) -> Any:
        if self.delivers:
            self.meters.asked()
        try:
            batch = super().__next__()
        except StopIteration:
            self.finished = True
            raise
        if self.delivers:
            self.meters.given(batch)
        return batch

    def _next_data(self) -> Any:
        started = time.perf_counter_ns()
        batch = super()._next_data()  # type: ignore[no-untyped-call]
        self.meters.made_here(time.perf_counter_ns() - started)
        return batch

    def state_dict(self) -> dict[str, Any]:
        """Where it is, under torchdata's keys."""
        fetcher: Any = self._dataset_fetcher
        indices = self._indices.state()  # first: it may draw a seed, which the dataset's random state has to be after
        state = worker_state(0, self._dataset_kind, fetcher, fetcher.dataset)
        return {
            **indices,
            "_num_yielded": self._num_yielded,
            "_IterableDataset_len_called": self._IterableDataset_len_called,
            "_shared_seed": self._shared_seed,
            "fetcher_state": state["fetcher_state"],
            "dataset_state": state["dataset_state"],
            "_iterator_finished": self.finished,
        }

    def _load(self, state: dict[str, Any]) -> None:
        self._indices.load(state)
        self._num_yielded = state["_num_yielded"]
        self._IterableDataset_len_called = state["_IterableDataset_len_called"]
        self._shared_seed = state["_shared_seed"]
        fetcher_state = state["fetcher_state"]
        if self._dataset_kind == _DatasetKind.Iterable and fetcher_state is not None:
            fetcher: Any = self._dataset_fetcher
            if state["dataset_state"] is None and fetcher_state["dataset_iter_state"] is None:
                blank = [None] * (self._index_sampler.batch_size if self._auto_collation else 1)
                for _ in range(self._num_yielded):  # nothing has a state: count off what was seen
                    fetcher.fetch(blank)
            else:
                load_if_stateful(fetcher.dataset_iter, fetcher_state["dataset_iter_state"])
                fetcher.ended = fetcher_state["fetcher_ended"]
        self.finished = state["_iterator_finished"]


@dataclass
class Progress:
    """Where an iteration with workers is; outlives the iterator."""

    main: dict[str, Any] = field(default_factory=dict)
    workers: dict[str, dict[str, Any]] = field(default_factory=dict)
    step: int = 0
    last_worker: int = 0
    since: int = 0
    finished: bool = False

    def state_dict(self) -> dict[str, Any]:
        """The state, under torchdata's keys."""
        snapshot = {
            "_snapshot_step": self.step,
            "_last_yielded_worker_id": self.last_worker,
            "_main_snapshot": self.main,
            "_worker_snapshots": dict(self.workers),
        }
        return {"_snapshot": snapshot, "_steps_since_snapshot": self.since, "_iterator_finished": self.finished}


@dataclass
class _Worker:
    process: Any
    connection: socket.socket
    buffer: bytearray = field(default_factory=bytearray)
    is_active: bool = True
    state: dict[str, Any] | None = None


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
    was_made: bool = False  # its message came, but what it points to went with the worker
    failures: int = 0


class WorkersIterator(_BaseDataLoaderIter):
    """Makes batches in worker processes.

    Args:
        loader: The loader.
        state: Where to go on; None: at the beginning.
        base_seed: The workers' base seed where it is drawn already; None: it is drawn as torch draws it.
    """

    def __init__(self, loader: DataLoader[Any], state: dict[str, Any] | None, base_seed: int | None = None) -> None:
        self._is_shut = True
        self.meters = loader.generic_meters
        self.delivers = True
        _begin_torchs(self, loader, base_seed)
        self._prefetch_factor: int = loader.prefetch_factor or 0
        if self._prefetch_factor <= 0:
            raise AssertionError("prefetch_factor must be greater than 0")
        self._in_order = loader.in_order
        self._interval = loader.snapshot_every_n_steps or 0
        self._guard = slot_guard(loader)
        self._memory_limit_bytes = loader.memory_limit_bytes
        self._context = loader.multiprocessing_context or torch.multiprocessing
        self._init_fn = loader.worker_init_fn
        if isinstance(self._dataset, (IterDataPipe, MapDataPipe)):
            self._init_fn = functools.partial(_sharding_worker_init_fn, self._init_fn, self._world_size, self._rank)
        self.replacements: list[dict[str, Any]] = []
        self.progress = Progress()
        self._slots: Slots | None = None
        self._mapped: list[Slots | None] = []
        self._pending: dict[int, _Pending] = {}
        self._outstanding: set[int] = set()
        self._arrived: collections.deque[int] = collections.deque()
        self._sent = self._received = 0
        if state is not None and "_snapshot" not in state:
            state = _with_workers(state, self._num_workers)
        snapshot = None if state is None else state["_snapshot"]
        worker_states: dict[str, Any] = {}
        if snapshot is not None:
            worker_states = self._fitting(snapshot)
            main = snapshot["_main_snapshot"]
            self._base_seed = main.get("_base_seed", self._base_seed)
            self._shared_seed = main.get("_shared_seed", self._shared_seed)
        self._workers_list: list[_Worker] = []
        self._is_shut = False
        try:
            for number in range(self._num_workers):
                self._workers_list.append(self._start(number, worker_states.get(_key(number))))
            for number in range(self._num_workers):
                self._await_beginning(number)
            self._begin(None if snapshot is None else snapshot["_main_snapshot"])
            if state is None:
                self._fill()
            else:
                self._restore(state)
        except BaseException:
            self._shutdown_workers()
            raise

    @property
    def _workers(self) -> list[Any]:
        """The processes, as torch's iterator has them."""
        return [worker.process for worker in self._workers_list]

    @property
    def finished(self) -> bool:
        """Whether the epoch is over."""
        return self.progress.finished

    def __next__(self) -> Any:
        if self.delivers:
            self.meters.asked()
        try:
            batch = super().__next__()
        except StopIteration:
            self.progress.finished = True
            raise
        if self.delivers:
            self.meters.given(batch)
        return batch

    def slots(self) -> dict[str, int]:
        """How many slots there are, are held by the caller; batches that are being made, and that are ready."""
        ready = sum(pending.result is not None for pending in self._pending.values())
        total, held = (0, 0) if self._slots is None else (self._slots.slots, self._slots.leased)
        return {"total": total, "held": held, "making": len(self._pending) - ready, "ready": ready}

    def state_dict(self) -> dict[str, Any]:
        """Where it is, under torchdata's keys."""
        return self.progress.state_dict()

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        """Begins another epoch with the same workers."""
        super()._reset(loader, first_iter)
        for number, worker in enumerate(self._workers_list):
            worker.state = None
            self._tell(number, Task(begin=(self._shared_seed,)))
        for pending in self._pending.values():
            pending.index = None  # nobody wants it any more
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
        for worker in self._workers_list:
            worker.is_active = True
        self._indices = IndexIterator(self._index_sampler)
        self._sampler_iter = self._indices
        progress = self.progress
        progress.main = self._main_state() if main is None else main
        progress.workers = self._worker_states()
        progress.step = progress.since = 0
        progress.last_worker = self._last_worker = self._num_workers - 1
        progress.finished = False

    def _fitting(self, snapshot: dict[str, Any]) -> dict[str, Any]:
        """The workers' states, if they fit this number of workers."""
        states: dict[str, Any] = snapshot.get("_worker_snapshots", {})
        if len(states) == self._num_workers:
            return states
        stateful = any(
            s and (s["dataset_state"] is not None or s["fetcher_state"] is not None) for s in states.values()
        )
        if stateful or self._dataset_kind == _DatasetKind.Iterable:
            raise ArgumentError(
                f"this state is of {len(states)} workers, each with a state of its own, and this loader has "
                f"{self._num_workers}; resume with num_workers={len(states)}"
            )
        return {}

    def _restore(self, state: dict[str, Any]) -> None:
        snapshot = state["_snapshot"]
        main = snapshot["_main_snapshot"]
        self._indices.load(main)
        self._IterableDataset_len_called = main["_IterableDataset_len_called"]
        self._num_yielded = snapshot["_snapshot_step"]
        last = snapshot["_last_yielded_worker_id"]
        progress = self.progress
        is_blank = self._dataset_kind == _DatasetKind.Iterable and all(
            worker["dataset_state"] is None
            and (worker["fetcher_state"] is None or worker["fetcher_state"]["dataset_iter_state"] is None)
            for worker in snapshot["_worker_snapshots"].values()
            if worker
        )
        if is_blank:
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
        for _ in range(state["_steps_since_snapshot"]):
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
                pending.slots, pending.slot = self._slots, self._slots.acquire()
            self._pending[number] = pending
            self._outstanding.add(number)
            self._ask(number, pending)

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
        active = sum(worker.is_active for worker in self._workers_list)
        for step in range(self._num_workers):
            number = (self._turn + step) % self._num_workers
            if self._workers_list[number].is_active:
                if self._in_order:
                    return number
                load = sum(self._pending[n].worker == number for n in self._outstanding if n in self._pending)
                if load < most // active:
                    return number
        return None

    def _ask(self, number: int, pending: _Pending) -> None:
        pending.was_made = False
        task = Task(number, pending.index, pending.slot, pending.snapshot)
        self._tell(pending.worker, task, pending.slots)

    def _tell(self, number: int, task: Task, slots: Slots | None = None) -> None:
        worker = self._workers_list[number]
        descriptors = []
        if slots is not None and self._mapped[number] is not slots:
            task.slots = slots.slot_bytes, slots.slots
            descriptors = [slots.region.descriptor]
            self._mapped[number] = slots
        data = encode_task(task)
        try:
            sent = socket.send_fds(worker.connection, [data], descriptors) if descriptors else 0
            worker.connection.sendall(data[sent:])
        except (BrokenPipeError, ConnectionResetError):
            pass  # it is dead, which the next look at it will find

    def _next_data(self) -> Any:
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
            self._workers_list[pending.worker].state = result.state
        self._drop(pending)
        return True

    def _deliver(self, pending: _Pending, is_prefix: bool) -> Any:
        result, progress = pending.result, self.progress
        assert result is not None
        self._fill()
        data = result.data
        if isinstance(data, ExceptionWrapper):
            self._drop(pending)
            data.reraise()  # type: ignore[no-untyped-call]
        worker = self._workers_list[pending.worker]
        if result.state is not None:
            worker.state = result.state
        self._last_worker = pending.worker
        progress.since += 1
        if pending.main is not None and is_prefix:
            progress.main, progress.since = pending.main, 0
            progress.step, progress.last_worker = self._num_yielded + 1, pending.worker
            progress.workers = self._worker_states()
        return data

    def _worker_states(self) -> dict[str, dict[str, Any]]:
        return {_key(n): worker.state or {} for n, worker in enumerate(self._workers_list)}

    def _drop(self, pending: _Pending) -> None:
        """Takes back the slot of a batch that nobody will have."""
        if pending.slots is not None and pending.slot is not None:
            pending.slots.put_back(pending.slot)
            pending.slot = None

    def _look(self, timeout_s: float | None, only: int | None = None) -> None:
        """Waits for messages and takes them in."""
        poll = select.poll()
        numbers = {}
        for number, worker in enumerate(self._workers_list):
            if only is None or number == only:
                poll.register(worker.connection, select.POLLIN)
                numbers[worker.connection.fileno()] = number
        wait_ms = _POLL_MS if timeout_s is None else min(_POLL_MS, max(1, int(timeout_s * 1000)))
        for descriptor, _ in poll.poll(wait_ms):
            self._read(numbers[descriptor])

    def _read(self, number: int) -> None:
        worker = self._workers_list[number]
        try:
            data = worker.connection.recv(1 << 16, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except ConnectionResetError:
            data = b""
        worker.buffer += data
        while (head := decode_head(worker.buffer)) is not None:
            if len(worker.buffer) < HEAD_BYTES + head.length:
                break
            message = bytes(memoryview(worker.buffer)[HEAD_BYTES : HEAD_BYTES + head.length])
            del worker.buffer[: HEAD_BYTES + head.length]
            self.meters.made(number, head.spent)
            self._take(number, head.batch, message, head.used, head.wanted)
        if not data:
            self._died(number)

    def _take(self, worker: int, batch: int, message: bytes, used: int, wanted: int) -> None:
        pending = self._pending.get(batch)
        memory = None
        if used and pending is not None and pending.slots is not None and pending.slot is not None:
            memory = pending.slots.lease(pending.slot)
        try:
            result: Result = unpack(message, memory)
        except (OSError, EOFError):
            # Tensors outside of slots are fetched from the worker, as torch does it: lost, if it is dead by now.
            self._workers_list[worker].process.join(_POLL_MS / 1000)
            if self._workers_list[worker].process.is_alive():
                raise
            if pending is not None:
                pending.was_made = True
            return
        finally:
            if memory is not None and pending is not None:
                pending.slot = None
            del memory
        if result.number is None:
            self._beginnings[worker] = result
            return
        self._outstanding.discard(result.number)
        if pending is None:
            return
        self._drop(pending)
        pending.result = result
        if not self._in_order:
            self._arrived.append(result.number)
        if isinstance(result.data, torch_worker._IterableDatasetStopIteration):
            self._workers_list[worker].is_active = False
        self._learn(wanted)

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

    @functools.cached_property
    def _beginnings(self) -> dict[int, Result]:
        return {}

    def _await_beginning(self, number: int) -> None:
        """Waits until a worker has begun its epoch, and takes its state."""
        while number not in self._beginnings:
            self._look(None, number)
        result = self._beginnings.pop(number)
        if isinstance(result.data, ExceptionWrapper):
            result.data.reraise()  # type: ignore[no-untyped-call]
        self._workers_list[number].state = result.state

    def _start(self, number: int, state: dict[str, Any] | None) -> _Worker:
        mine, theirs = pair()
        shared_seed = None if self._shared_seed is None else int(self._shared_seed)
        job = Job(
            self._dataset_kind,
            self._dataset,
            self._auto_collation,
            self._collate_fn,
            self._drop_last,
            int(self._base_seed),
            self._init_fn,
            number,
            self._num_workers,
            shared_seed,
            state or None,
        )
        with theirs:
            process = self._context.Process(target=worker_main, args=(theirs, job), daemon=True)
            try:
                process.start()
            except BaseException:
                mine.close()
                raise
        if number < len(self._mapped):
            self._mapped[number] = None
        else:
            self._mapped.append(None)
        return _Worker(process, mine)

    def _died(self, number: int) -> None:
        """Replaces a dead worker of a map-style dataset, and has its batches made again."""
        worker = self._workers_list[number]
        worker.process.join(_JOIN_S)
        code = worker.process.exitcode
        if code is None:  # it has closed its connection and does not end
            worker.process.kill()
            worker.process.join(_JOIN_S)
            code = worker.process.exitcode
        numbers = [n for n in sorted(self._pending) if self._pending[n].worker == number]
        lost = [n for n in numbers if self._pending[n].result is None]
        cause = _cause(worker.process.pid, code)
        # The batch that it died at is the first that it had not made.
        first = next((self._pending[n] for n in lost if not self._pending[n].was_made), None)
        if first is not None:
            first.failures += 1
        has_begun = worker.state is not None
        if (
            self._dataset_kind == _DatasetKind.Iterable
            or not has_begun
            or (first is not None and first.failures >= _SAME_BATCH_LIMIT)
        ):
            what = "" if first is None else f"; at work on the samples {_short(first.index)}"
            self._shutdown_workers()
            raise _DeadWorkerError(cause + what)
        self.replacements.append({"worker": number, "pid": worker.process.pid, "cause": cause})
        worker.connection.close()
        replaced = self._start(number, worker.state)
        replaced.is_active = worker.is_active
        self._workers_list[number] = replaced
        self._await_beginning(number)
        for n in lost:
            self._ask(n, self._pending[n])

    def _shutdown_workers(self) -> None:
        """Ends the workers, in bounded time."""
        if self._is_shut or torch_utils is None or torch_utils.python_exit_status in (True, None):
            return
        self._is_shut = True
        for worker in self._workers_list:
            worker.connection.close()
        for worker in self._workers_list:
            worker.process.join(timeout=torch_utils.MP_STATUS_CHECK_INTERVAL)
        for worker in self._workers_list:
            if worker.process.is_alive():
                worker.process.terminate()
                worker.process.join(timeout=torch_utils.MP_STATUS_CHECK_INTERVAL)
                if worker.process.is_alive():
                    worker.process.kill()

    def __del__(self) -> None:
        self._shutdown_workers()


def _begin_torchs(iterator: Any, loader: DataLoader[Any], base_seed: int | None) -> None:
    """Runs the constructor of torch's base class, with a base seed that may be drawn already."""
    random_state = torch.get_rng_state()
    _BaseDataLoaderIter.__init__(iterator, loader)
    if base_seed is not None:
        torch.set_rng_state(random_state)
        iterator._base_seed = base_seed


def epoch_is_over(state: dict[str, Any]) -> dict[str, Any] | None:
    """The sampler's part of a state that is of an epoch's end, if no dataset or iterator has a state of its own."""
    if not state["_iterator_finished"]:
        return None
    if "_snapshot" not in state:
        return None if _have_own({"": state}) else state
    snapshot = state["_snapshot"]
    main: dict[str, Any] = snapshot["_main_snapshot"]
    return None if _have_own(snapshot["_worker_snapshots"]) else main


def _have_own(states: dict[str, Any]) -> bool:
    """Whether any worker's dataset or iterator has a state of its own."""
    return any(s and (s["dataset_state"] is not None or s["fetcher_state"] is not None) for s in states.values())


def _key(worker: int) -> str:
    return f"worker_{worker}"


def _cause(pid: int, code: int | None) -> str:
    """torch's words for a worker's end."""
    if code is not None and code < 0:
        name = signal.strsignal(-code) or f"signal {-code}"
        return f"DataLoader worker (pid {pid}) is killed by signal: {name}."
    return f"DataLoader worker (pid(s) {pid}) exited unexpectedly with exit code {code}"


def _short(index: Any) -> str:
    text = str(index)
    return text if len(text) <= 200 else text[:200] + "..."


def _with_workers(state: dict[str, Any], workers: int) -> dict[str, Any]:
    """A state of :class:`HereIterator` as one of workers; for map-style datasets without a state."""
    if state["fetcher_state"] is not None or state["dataset_state"] is not None:
        raise ArgumentError(
            f"this state was taken without workers and holds the dataset's own state; this loader has {workers} "
            "workers: resume with num_workers=0"
        )
    main = {key: state[key] for key in ("_index_sampler_state", "_sampler_iter_state", "_sampler_iter_yielded")}
    main |= {key: state[key] for key in ("_IterableDataset_len_called", "_shared_seed")}
    snapshot = {
        "_snapshot_step": state["_num_yielded"],
        "_last_yielded_worker_id": workers - 1,
        "_main_snapshot": main,
        "_worker_snapshots": {},
    }
    return {"_snapshot": snapshot, "_steps_since_snapshot": 0, "_iterator_finished": state["_iterator_finished"]}


def _without_workers(state: dict[str, Any]) -> dict[str, Any]:
    """A state of workers as one of :class:`HereIterator`; for map-style datasets without a state."""
    snapshot = state["_snapshot"]
    workers = snapshot["_worker_snapshots"]
    if state["_steps_since_snapshot"] or _have_own(workers):
        raise ArgumentError(
            f"this state is of {len(workers)} workers, each with a state of its own; resume with "
            f"num_workers={len(workers)}"
        )
    main = snapshot["_main_snapshot"]
    return {
        **main,
        "_num_yielded": snapshot["_snapshot_step"],
        "fetcher_state": None,
        "dataset_state": None,
        "_iterator_finished": state["_iterator_finished"],
    }

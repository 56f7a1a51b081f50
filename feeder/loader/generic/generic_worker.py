"""A worker of the generic path: torch's loop over tasks, with batches in slots."""

from __future__ import annotations

import contextlib
import pickle
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch._utils import ExceptionWrapper
from torch.utils.data import IterDataPipe, default_collate
from torch.utils.data._utils import signal_handling
from torch.utils.data._utils import worker as torch_worker
from torch.utils.data.dataloader import _DatasetKind

from feeder.dataset.decoding import DecodeCounts, counted
from feeder.errors import stop_in_a_batch
from feeder.loader.generic.encoded_samples import EncodedSamples
from feeder.loader.generic.meters import Spent
from feeder.loader.options import ImageOptions
from feeder.loader.slots.batch_message import Packed, Slot, pack, slot_collate
from feeder.loader.slots.region import Region
from feeder.loader.stateful import load_if_stateful, state_of
from feeder.loader.workers.channel import Channel, end_with_trainer
from feeder.loader.workers.process import shorten_temporary_folder
from feeder.loader.workers.seeding import introduce
from feeder.shard.cache.waits import waits

# Before a pickled result: used bytes of the slot, wanted bytes, times and bytes of Spent.
ABOUT = struct.Struct("<8q")
_NO_BATCH = -2  # in place of its number
_NOTHING = Spent()
_GRACE_S = 4.0


@dataclass
class Job:
    """A worker's job: the arguments of torch's worker loop, a state, and the options of images that samples hold as
    :class:`feeder.Encoded`."""

    kind: int
    dataset: Any
    auto_collation: bool
    collate_fn: Any
    drop_last: bool
    base_seed: int
    init_fn: Any
    worker: int
    workers: int
    shared_seed: int | None
    state: dict[str, Any] | None
    images: ImageOptions | None = None


@dataclass
class BatchTask:
    """A message of the trainer: a batch to make, slots to map, or an epoch to begin.

    Attributes:
        number: Number of the batch; None with ``begin``.
        index: The sampler's output for it.
        slot: Number of the slot to write into; None: none.
        snapshot: True if the dataset's state is to be sent along.
        slots: (slot size, number of slots): new slots, whose descriptor comes with the message.
        begin: Begin an epoch with this shared seed.
    """

    number: int | None = None
    index: Any = None
    slot: int | None = None
    snapshot: bool = False
    slots: tuple[int, int] | None = None
    begin: tuple[int | None] | None = None


@dataclass
class BatchResult:
    """A worker's answer.

    Attributes:
        number: Number of the batch; None: the worker has begun an epoch.
        data: The batch, an ExceptionWrapper, or torch's mark for the end of an iterable dataset.
        state: The worker's state after it, if it was asked for.
        counts: Of the images that were decoded for it.
    """

    number: int | None
    data: Any
    state: dict[str, Any] | None
    counts: DecodeCounts = field(default_factory=DecodeCounts)


def never_ending(collate: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Returns the function with another error for StopIteration, which would be taken for the dataset's end."""

    def call(samples: Any) -> Any:
        try:
            return collate(samples)
        except StopIteration as error:
            raise stop_in_a_batch(error) from error

    return call


def worker_state(worker: int, kind: int, fetcher: Any, dataset: Any) -> dict[str, Any]:
    """Returns a worker's state, under torchdata's keys."""
    fetcher_state = None
    dataset_state = None
    if kind == _DatasetKind.Iterable:
        fetcher_state = {"dataset_iter_state": state_of(fetcher.dataset_iter), "fetcher_ended": fetcher.ended}
        if fetcher.dataset_iter is not fetcher.dataset:
            dataset_state = state_of(dataset)
    else:
        dataset_state = state_of(dataset)
    return {"worker_id": worker, "dataset_state": dataset_state, "fetcher_state": fetcher_state}


def worker_main(connection: socket.socket, job: Job) -> None:
    """The worker's main function.

    Args:
        connection: The socket to the trainer.
        job: The job.
    """
    signal_handling._set_worker_signal_handlers()
    shorten_temporary_folder()
    end_with_trainer(connection, _GRACE_S)  # an idle worker ends by itself, with the caller's clean-up code
    channel = Channel(connection)
    waits.heartbeat = channel.heartbeat
    with contextlib.suppress(KeyboardInterrupt):  # the trainer has it too, and decides what it means
        _run(channel, job)


def _run(channel: Channel, job: Job) -> None:
    torch.set_num_threads(1)
    worker = _Worker(job)
    introduce(job.base_seed, job.worker, job.workers, worker.dataset)

    error: ExceptionWrapper | None = None
    state = None
    where = f"in DataLoader worker process {job.worker}"
    try:
        if job.init_fn is not None:
            job.init_fn(job.worker)
        worker.begin(job.state)
        state = worker.state()
    except Exception:
        error = _caught(where)

    send_result(channel, pack(BatchResult(None, error, state), Slot(_NO_MEMORY)))
    slots: tuple[Region, Any] | None = None
    clock = time.perf_counter_ns
    idle_from = clock()

    while (received := channel.receive()) is not None:
        started = clock()
        _, data, descriptors = received
        task: BatchTask = pickle.loads(data)

        if task.slots is not None:
            size, count = task.slots
            region = Region(size * count, descriptors[0])
            slots = region, region.array(np.uint8, (count, size))

        if task.begin is not None:
            send_result(channel, pack(worker.begun_again(task.begin[0], where), Slot(_NO_MEMORY)))
        if task.number is None:
            continue

        spent = _NOTHING
        worker.collate_ns = 0
        if error is not None:
            result, error = BatchResult(task.number, error, None), None
            slot = Slot(_NO_MEMORY)
        else:
            memory = slots[1][task.slot] if slots is not None and task.slot is not None else _NO_MEMORY
            slot = Slot(memory)
            result = worker.make(task, slot, where)

        made, collated = clock(), slot.used
        try:
            packed = pack(result, slot)
            if not worker.ended and not isinstance(result.data, ExceptionWrapper):
                times = started - idle_from, made - started - worker.collate_ns, worker.collate_ns, clock() - made
                spent = Spent(*times, collated, packed.used - collated + len(packed.message))
        except Exception:  # a batch that can't be pickled
            packed = pack(BatchResult(task.number, _caught(where), None), Slot(_NO_MEMORY))

        send_result(channel, packed, task.number, spent)
        del task, data, received, result, slot, packed  # so that no batch outlives its sending
        idle_from = clock()


_NO_MEMORY = np.empty(0, np.uint8)


class _Worker:
    """The dataset and torch's fetcher of its samples."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.dataset = job.dataset
        self.ended = False
        self.collate_ns = 0
        self._generator = torch.Generator()
        self._slot: Slot | None = None
        self._collate = slot_collate(job.collate_fn) if job.auto_collation else None
        self.seed(job.shared_seed)

    def seed(self, shared_seed: int | None) -> None:
        """Seeds a data pipe's random ops, which all workers share."""
        from torch.utils.data.graph_settings import apply_random_seed

        if isinstance(self.dataset, IterDataPipe):
            assert shared_seed is not None
            self._generator.manual_seed(shared_seed)
            self.dataset = apply_random_seed(self.dataset, self._generator)

    def begin(self, state: dict[str, Any] | None) -> None:
        """Begins an epoch, from a state if there is one. In this order: dataset, its iterator, the iterator's state."""
        job = self.job
        self.ended = False
        if state is not None:
            load_if_stateful(self.dataset, state["dataset_state"])
        collate = never_ending(job.collate_fn if self._collate is None else self._into_slot)
        dataset = self.dataset
        if job.images is not None:
            is_stacked = self._collate is not None and job.collate_fn is default_collate
            dataset = EncodedSamples(dataset, job.images, is_stacked=is_stacked, empty=self._empty)
        self.fetcher = _DatasetKind.create_fetcher(  # type: ignore[no-untyped-call]
            job.kind, dataset, job.auto_collation, collate, job.drop_last
        )
        if state is not None and job.kind == _DatasetKind.Iterable and state["fetcher_state"] is not None:
            load_if_stateful(self.fetcher.dataset_iter, state["fetcher_state"]["dataset_iter_state"])

    def begun_again(self, shared_seed: int | None, where: str) -> BatchResult:
        """Begins the next epoch; returns the answer to the trainer, without a batch."""
        try:
            self.seed(shared_seed)
            self.begin(None)
            return BatchResult(None, None, self.state())
        except Exception:
            return BatchResult(None, _caught(where), None)

    def state(self) -> dict[str, Any]:
        return worker_state(self.job.worker, self.job.kind, self.fetcher, self.dataset)

    def make(self, task: BatchTask, slot: Slot, where: str) -> BatchResult:
        state = None
        data: Any
        counts = DecodeCounts()
        self._slot = slot
        try:
            try:
                with counted() as counts:
                    data = None if self.ended else self.fetcher.fetch(task.index)
            except StopIteration as error:
                if self.job.kind != _DatasetKind.Iterable:
                    raise stop_in_a_batch(error) from error
                self.ended = True
            if self.ended:
                data = torch_worker._IterableDatasetStopIteration(self.job.worker)
            if task.snapshot or self.ended:
                state = self.state()
        except Exception:
            data = _caught(where)
        finally:
            self._slot = None
        return BatchResult(task.number, data, state, counts)

    def _empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor | None:
        assert self._slot is not None
        return self._slot.empty(shape, dtype)

    def _into_slot(self, batch: Any) -> Any:
        assert self._collate is not None
        assert self._slot is not None
        started = time.perf_counter_ns()
        collated = self._collate(batch, self._slot)
        self.collate_ns += time.perf_counter_ns() - started
        return collated


def send_result(channel: Channel, packed: Packed, number: int = _NO_BATCH, spent: Spent = _NOTHING) -> None:
    """Sends a packed :class:`BatchResult`."""
    channel.send(number, ABOUT.pack(packed.used, packed.wanted, *spent) + packed.message)


def _caught(where: str) -> ExceptionWrapper:
    """Returns the exception being handled, as torch sends it."""
    return ExceptionWrapper(where=where)  # type: ignore[no-untyped-call]

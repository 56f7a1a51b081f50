"""Batches in order: made by the worker pool ahead of the caller, or in the calling process."""

from __future__ import annotations

import collections
import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from feeder.loader.fast.part_report import PartReport
from feeder.loader.fast.position import EpochProgress
from feeder.loader.fast.sample_maker import Work
from feeder.loader.slots.image_slots import HELD_BATCHES, Samples, Sizes, SlotView
from feeder.order.sample_order import Order
from feeder.order.split import Split, ordered_batches
from feeder.system.warning import warn

if TYPE_CHECKING:
    from feeder.loader.fast.engine import Engine
    from feeder.loader.workers.iterator_lock import IteratorLock

__all__ = ["BatchQueue", "Finished", "Request", "ReusedMemory", "make_here", "requests"]

_LINE_BYTES = 64


class Request(NamedTuple):
    """A batch to make.

    Attributes:
        epoch: The epoch that the augmentation is drawn for.
        samples: The samples.
        sizes: Sizes of the images; None: the recipe's.
    """

    epoch: int
    samples: Samples
    sizes: Sizes | None = None


@dataclass
class Finished:
    """A batch that is made.

    Attributes:
        arrays: Its rows; without images once these are decoded elsewhere.
        report: The report on all of its parts.
        epoch: The epoch of its augmentation.
        parts: (first row, number of rows) of its parts.
        images: [N, 3, H, W] of the recipe's output dtype, on the decoder's device, for each view, where staged images
            were decoded in this process; else None.
    """

    arrays: SlotView
    report: PartReport
    epoch: int
    parts: list[tuple[int, int]]
    images: list[torch.Tensor] | None = None

    def let_go(self, *, is_taken: bool = False) -> None:
        """Copies all but the images to ordinary memory and drops the slot; the images are gone from here.

        Args:
            is_taken: True if the caller has the targets and further fields; they are not copied then.
        """
        arrays = self.arrays
        further = () if is_taken else arrays.further
        self.arrays = SlotView(arrays.samples, arrays.labels, (), further, arrays.sizes).copy()

    def made(self) -> Samples:
        """Returns the samples whose images are in the batch: those of the request, or their substitutes."""
        samples = self.arrays.samples
        if not self.report.substitutions:
            return samples
        made = samples.copy()
        for substitution in self.report.substitutions:
            row = samples.positions == substitution.position
            made.ids[row], made.repeats[row] = substitution.substitute, 0
        return made


def requests(
    order: Order, progress: EpochProgress, sizes: Callable[[int, Split | None, int, Samples], Sizes] | None = None
) -> Iterator[Request]:
    """Yields the batches to make, from the place that an iterator starts at.

    Args:
        order: Feeder's own order; not for an explicit sampler.
        progress: Progress of the iterator.
        sizes: Returns the sizes of a batch's images, see :meth:`BatchSizes.of`; None: all have the recipe's.
    """
    epoch, split, replay = progress.place.epoch, progress.split, progress.replay
    if split is not None:
        for step, found in enumerate(ordered_batches(order, epoch, split)):
            samples = Samples(*found)
            yield Request(epoch, samples, None if sizes is None else sizes(epoch, split, step, samples))
        return
    assert replay is not None
    for samples in replay.batches():
        yield Request(epoch, samples, None if sizes is None else sizes(epoch, None, 0, samples))


@dataclass
class _Making:
    request: Request
    slot: int
    edges: list[tuple[int, int]]
    parts: list[int]
    reports: dict[int, PartReport | BaseException] = field(default_factory=dict)


def make_here(work: Work, requests: Iterator[Request]) -> Iterator[Finished | BaseException]:
    """Makes each batch in the calling process, when it is asked for, in ordinary memory.

    The next batches use it again, see :class:`ReusedMemory`.

    Args:
        work: Makes the samples.
        requests: The batches.
    """
    layout = work.layout(0)
    empty = [ReusedMemory().empty for _ in (*layout.images, *layout.further)]
    for request in requests:
        rows = len(request.samples.ids)
        arrays = SlotView.new(work.layout(rows), request.samples, request.sizes, empty)
        started = time.perf_counter_ns()
        try:
            report = work.run(request.epoch, arrays)
        except Exception as error:
            yield error
            continue
        report.count(work.meter, time.perf_counter_ns() - started)
        yield Finished(arrays, report, request.epoch, [(0, rows)])


class BatchQueue:
    """Keeps an engine's workers busy with the next batches and hands out finished ones in order.

    Args:
        engine: Slots and workers; prepared for the first batch, and again for a batch larger than all before.
        requests: The batches.
        timeout_s: Longest wait for a batch; 0: no limit.
        batch_size: The largest batch, if it is known.
        use: The iterator's; ends waits.
    """

    def __init__(
        self, engine: Engine, requests: Iterator[Request], timeout_s: float, batch_size: int | None, use: IteratorLock
    ) -> None:
        self._engine = engine
        self._timeout_s = timeout_s
        self._batch_size = batch_size
        self._use = use
        self._requests = requests
        self._waiting: Request | None = None
        self._queue: collections.deque[_Making] = collections.deque()
        self._by_part: dict[int, _Making] = {}
        self._waited_ns = 0

    def __iter__(self) -> Iterator[Finished | BaseException]:
        return self

    def fill(self) -> None:
        """Gives workers as many batches as may be made ahead."""
        self._engine.check_owner()  # before anything is written into a slot, which the owner may use by now
        while True:
            if self._waiting is None:
                self._waiting = next(self._requests, None)
            if self._waiting is None:
                return
            rows, sizes = max(len(self._waiting.samples.ids), self._batch_size or 1), self._waiting.sizes
            size = None if sizes is None else sizes[0]  # the others have space in every slot
            if not self._engine.fits(rows, size):
                if self._queue:
                    return
                self._engine.prepare(rows, size)
            slot = self._engine.ring.acquire() if len(self._queue) < self._engine.ahead else None
            if slot is None:
                return
            self._give_out(self._waiting, slot)
            self._waiting = None

    def __next__(self) -> Finished | BaseException:
        self.fill()
        if not self._queue:
            raise StopIteration
        making = self._queue[0]
        started = time.monotonic()
        while len(making.reports) < len(making.parts):
            left = None if not self._timeout_s else started + self._timeout_s - time.monotonic()
            if left is not None and left <= 0:
                raise RuntimeError(f"DataLoader timed out after {self._timeout_s} seconds")
            last_missing = making.parts[-1] not in making.reports
            for part, report in self._engine.pool.take(left, last_missing, self._use.check):
                self._by_part.pop(part).reports[part] = report
        self._waited_ns += int((time.monotonic() - started) * 1e9)
        self._queue.popleft()
        return self._finished(making)

    def ready(self) -> bool:
        """Returns True if the next batch is made. Takes finished parts, and never waits."""
        self.fill()
        if not self._queue:
            return False
        for part, report in self._engine.pool.take(0):
            self._by_part.pop(part).reports[part] = report
        making = self._queue[0]
        return len(making.reports) == len(making.parts)

    def __len__(self) -> int:
        """Number of batches given to workers and not handed out."""
        return len(self._queue)

    def made(self) -> int:
        """Returns about how many of them are made: workers take parts in order, but do not finish them in order."""
        queue = list(self._queue)  # another thread may ask
        left = self._engine.unfinished if queue else 0
        unmade = 0
        for making in reversed(queue):
            if left <= 0:
                break
            left -= len(making.parts) - len(making.reports)
            unmade += 1
        return len(queue) - unmade

    def take_waited_ns(self) -> int:
        """Returns the time that the caller waited since the last call, nanoseconds."""
        waited, self._waited_ns = self._waited_ns, 0
        return waited

    def abandon(self) -> None:
        """Drops the batches that are being made."""
        self._queue.clear()
        self._by_part.clear()
        self._requests = iter(())
        self._waiting = None

    def _give_out(self, request: Request, slot: int) -> None:
        rows = len(request.samples.ids)
        view = self._engine.ring.views[slot]
        samples, wanted = view.samples, request.samples
        samples.positions[:rows] = wanted.positions
        samples.ids[:rows] = wanted.ids
        samples.repeats[:rows] = wanted.repeats
        pool = self._engine.pool
        edges = self._engine.parts(rows)
        parts = pool.submit(slot, edges, request.epoch, None if request.sizes is None else request.sizes[0])
        making = _Making(request, slot, edges, parts)
        self._by_part.update(dict.fromkeys(parts, making))
        self._queue.append(making)

    def _finished(self, making: _Making) -> Finished | BaseException:
        reports: list[tuple[int, PartReport]] = []
        for part, (first, _) in zip(making.parts, making.edges, strict=True):
            report = making.reports[part]
            if isinstance(report, BaseException):
                self._engine.ring.put_back(making.slot)
                return report
            reports.append((first, report))

        has_news = any(report.has_news for _, report in reports)  # joining those that have none takes 30 us
        report = PartReport.join(reports) if has_news else PartReport()

        rows, ring = len(making.request.samples.ids), self._engine.ring
        # Half of the batches ahead stay possible, whatever the caller keeps.
        most = ring.slots - 1 - max(1, self._engine.ahead // 2)
        if ring.settle(most):
            arrays = ring.lease_view(making.slot, making.request.samples, making.request.sizes)
        else:
            held = ring.held
            if held >= HELD_BATCHES and held > most and not self._engine.warned:
                self._engine.warned = True
                warn(
                    f"{held} batches are held at a time, so further ones are copied to ordinary memory; "
                    "if they are kept by mistake, let go of them, or copy what is needed",
                    RuntimeWarning,
                )
            request = making.request
            arrays = SlotView.of(ring.layout, ring.whole[making.slot], request.samples, request.sizes).copy()
            ring.put_back(making.slot)

        if report.collated is not None and report.collated.message is not None:
            self._engine.grow_slots(report.collated.message.wanted, rows)
        return Finished(arrays, report, making.request.epoch, making.edges)


class ReusedMemory:
    """Memory for one array of each batch. It is used again when the last array or tensor on it is gone.

    Without that the system clears the pages of every batch anew, a tenth of the time that it takes to make it. No more
    memory is in use than without: a loop has the next batch made while it still holds the last one.
    """

    def __init__(self) -> None:
        # Filled by finalizers, which run at any moment and in any thread: appending to a deque is atomic.
        self._idle: deque[_Memory] = deque(maxlen=HELD_BATCHES)

    def empty(self, shape: tuple[int, ...], dtype: Any) -> npt.NDArray[Any]:
        """Returns an uninitialized array, aligned to a cache line, as :func:`numpy.empty` does."""
        size = math.prod(shape) * np.dtype(dtype).itemsize
        while self._idle:
            memory = self._idle.pop()
            if memory.nbytes >= size:
                break
        else:
            memory = _aligned(size)
        use = memory.view(_Use)
        use.idle = self._idle
        array: npt.NDArray[Any] = np.ndarray(shape, dtype, use)
        return array


class _Memory(np.ndarray):
    """Bytes of a class of their own: numpy skips a base whose own base is a plain array."""


class _Use(np.ndarray):
    """Keeps memory from being used again while an array on it lives."""

    base: _Memory
    idle: deque[_Memory]

    def __del__(self) -> None:
        self.idle.append(self.base)


def _aligned(size: int) -> _Memory:
    memory = np.empty(size + _LINE_BYTES, np.uint8)
    start = -memory.__array_interface__["data"][0] % _LINE_BYTES
    return memory[start : start + size].view(_Memory)

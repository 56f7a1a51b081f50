"""Batches in order: made by the worker pool ahead of the caller, or in the calling process."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from feeder.loader.fast.engine import Engine
from feeder.loader.fast.part_report import PartReport
from feeder.loader.fast.position import EpochProgress
from feeder.loader.fast.sample_maker import Work
from feeder.loader.slots.image_slots import HELD_BATCHES, Samples, Sizes, SlotView
from feeder.loader.workers.iterator_lock import IteratorLock
from feeder.order.split import Split, ordered_batches
from feeder.system.arrays import AnyArray
from feeder.system.warning import warn

_LINE_BYTES = 64


@dataclass(eq=False)
class BatchRecord:
    """A batch, from the request for it until it is handed out.

    Attributes:
        epoch: The epoch that the augmentation is drawn for.
        samples: The samples that were asked for.
        sizes: Sizes of the images; None: the recipe's.
        slot: The slot that workers fill.
        parts: (first row, number of rows) of the parts that it is made in.
        reports: What came back from workers, by number of the part; None: nothing yet.
        arrays: Its rows, once it is made; without images once these are decoded elsewhere.
        report: The report on all of its parts, once it is made.
        images: [N, 3, H, W] of the recipe's output dtype, on the decoder's device, for each view, where staged images
            were decoded in this process; else None.
    """

    epoch: int
    samples: Samples
    sizes: Sizes | None = None
    slot: int = -1
    parts: list[tuple[int, int]] = field(default_factory=list)
    reports: dict[int, PartReport | BaseException | None] = field(default_factory=dict)
    arrays: SlotView = field(init=False)
    report: PartReport = field(default_factory=PartReport)
    images: list[torch.Tensor] | None = None

    @property
    def missing(self) -> int:
        """Number of parts that have not come back."""
        return sum(report is None for report in self.reports.values())

    def let_go(self, *, is_taken: bool = False) -> None:
        """Copies all but the images to ordinary memory and drops the slot; the images are gone from here.

        Args:
            is_taken: True if the caller has the targets and further fields; they are not copied then.
        """
        arrays = self.arrays
        further = () if is_taken else arrays.further
        self.arrays = SlotView(arrays.samples, arrays.labels, (), further, arrays.sizes).copy()

    def made(self) -> Samples:
        """Returns the samples whose images are in the batch: those that were asked for, or their substitutes."""
        samples = self.arrays.samples
        if not self.report.substitutions:
            return samples
        made = samples.copy()
        for substitution in self.report.substitutions:
            row = samples.positions == substitution.position
            made.ids[row], made.repeats[row] = substitution.substitute, 0
        return made


def requests(
    progress: EpochProgress, sizes: Callable[[int, Split | None, int, Samples], Sizes] | None = None
) -> Iterator[BatchRecord]:
    """Yields the batches to make, from the place that an iterator starts at.

    Args:
        progress: Progress of the iterator. Its order may change between two batches.
        sizes: Returns the sizes of a batch's images, see :meth:`BatchSizes.of`; None: all have the recipe's.
    """
    epoch, replay = progress.place.epoch, progress.replay
    while progress.split is not None and progress.ordered < len(progress.split):
        order, split = progress.order, progress.split
        assert order is not None
        for found in ordered_batches(order, epoch, split, progress.ordered):
            step, samples = progress.ordered, Samples(*found)
            progress.ordered += 1
            yield BatchRecord(epoch, samples, None if sizes is None else sizes(epoch, split, step, samples))
            if progress.order is not order:
                break
    if progress.split is not None:
        return
    assert replay is not None
    for samples in replay.batches():
        yield BatchRecord(epoch, samples, None if sizes is None else sizes(epoch, None, 0, samples))


def make_here(work: Work, requests: Iterator[BatchRecord]) -> Iterator[BatchRecord | BaseException]:
    """Makes each batch in the calling process, when it is asked for, in ordinary memory.

    Later batches use the memory again, see :class:`ReusedMemory`.

    Args:
        work: Makes the samples.
        requests: The batches.
    """
    layout = work.layout(0)
    empty = [ReusedMemory().empty for _ in (*layout.images, *layout.further)]
    for batch in requests:
        rows = len(batch.samples.ids)
        batch.parts = [(0, rows)]
        batch.arrays = SlotView.new(work.layout(rows), batch.samples, batch.sizes, empty)
        started = time.perf_counter_ns()
        try:
            batch.report = work.run(batch.epoch, batch.arrays)
        except Exception as error:
            yield error
            continue
        work.meter.add_part(time.perf_counter_ns() - started)
        yield batch


@dataclass(eq=False)
class BatchQueue:
    """Keeps an engine's workers busy with the next batches and hands out finished ones in order.

    Args:
        engine: Slots and workers; prepared for the first batch, and again for a batch larger than all before.
        requests: The batches.
        timeout_s: Longest wait for a batch; 0: no limit.
        batch_size: The largest batch, if it is known.
        use: The iterator's lock; closing the iterator ends waits.
        waited: Called with the time of each wait for workers, nanoseconds.
    """

    engine: Engine
    requests: Iterator[BatchRecord]
    timeout_s: float
    batch_size: int | None
    use: IteratorLock
    waited: Callable[[int], None]

    def __post_init__(self) -> None:
        self._waiting: BatchRecord | None = None
        self._queue: deque[BatchRecord] = deque()
        self._by_part: dict[int, BatchRecord] = {}

    def __iter__(self) -> Iterator[BatchRecord | BaseException]:
        return self

    def fill(self) -> None:
        """Gives workers as many batches as may be made ahead."""
        self.engine.check_owner()  # before anything is written into a slot, which the owner may use by now
        while True:
            if self._waiting is None:
                self._waiting = next(self.requests, None)
            if self._waiting is None:
                return

            rows, sizes = max(len(self._waiting.samples.ids), self.batch_size or 1), self._waiting.sizes
            size = None if sizes is None else sizes[0]  # the others have space in every slot
            if not self.engine.fits(rows, size):
                if self._queue:
                    return
                self.engine.prepare(rows, size)

            slot = self.engine.ring.acquire() if len(self._queue) < self.engine.ahead else None
            if slot is None:
                return
            self._give_out(self._waiting, slot)
            self._waiting = None

    def __next__(self) -> BatchRecord | BaseException:
        self.fill()
        if not self._queue:
            raise StopIteration
        batch = self._queue[0]
        last, started = next(reversed(batch.reports)), time.monotonic()
        while batch.missing:
            left = None if not self.timeout_s else started + self.timeout_s - time.monotonic()
            if left is not None and left <= 0:
                raise RuntimeError(f"DataLoader timed out after {self.timeout_s} seconds")
            self._note_reports(left, batch.reports[last] is None, self.use.check)
        self.waited(int((time.monotonic() - started) * 1e9))
        self._queue.popleft()
        return self._finished(batch)

    def _note_reports(self, timeout_s: float | None, *how: Any) -> None:
        """Notes the reports of parts that have come back; arguments as in :meth:`Pool.take`."""
        for number, report in self.engine.pool.take(timeout_s, *how):
            self._by_part.pop(number).reports[number] = report

    def ready(self) -> bool:
        """Returns True if the next batch is made. Takes finished parts, and never waits."""
        self.fill()
        if not self._queue:
            return False
        self._note_reports(0)
        return not self._queue[0].missing

    def __len__(self) -> int:
        """Number of batches given to workers and not handed out."""
        return len(self._queue)

    def made(self) -> int:
        """Returns about how many of them are made: workers take parts in order, but do not finish them in order."""
        queue = list(self._queue)  # another thread may ask
        left = self.engine.unfinished if queue else 0
        unmade = 0
        for batch in reversed(queue):
            if left <= 0:
                break
            left -= batch.missing
            unmade += 1
        return len(queue) - unmade

    def abandon(self) -> None:
        """Drops the batches that are being made."""
        self._queue.clear()
        self._by_part.clear()
        self.requests = iter(())
        self._waiting = None

    def _give_out(self, batch: BatchRecord, slot: int) -> None:
        """Writes a batch's samples into its slot, and gives its parts to the workers."""
        rows, pool = len(batch.samples.ids), self.engine.pool
        for column, wanted in zip(self.engine.ring.views[slot].samples, batch.samples, strict=True):
            column[:rows] = wanted

        batch.slot = slot
        batch.parts = self.engine.parts(rows)
        size = None if batch.sizes is None else batch.sizes[0]
        batch.reports = dict.fromkeys(pool.submit(slot, batch.parts, batch.epoch, size))
        self._by_part.update(dict.fromkeys(batch.reports, batch))
        self._queue.append(batch)

    def _finished(self, batch: BatchRecord) -> BatchRecord | BaseException:
        """Returns a batch whose parts have come back, or the first error of these."""
        ring = self.engine.ring
        reports: list[tuple[int, PartReport]] = []
        for (first, _), report in zip(batch.parts, batch.reports.values(), strict=True):
            if not isinstance(report, PartReport):
                ring.put_back(batch.slot)
                assert report is not None
                return report
            reports.append((first, report))

        if any(report.has_news for _, report in reports):  # joining those that have none takes 30 us
            batch.report = PartReport.join(reports)
        batch.reports = {}  # not cleared: another thread may count them

        # Half of the batches ahead stay possible, whatever the caller keeps.
        most = ring.slots - 1 - max(1, self.engine.ahead // 2)
        if ring.settle(most):
            batch.arrays = SlotView.of(ring.layout, ring.lease(batch.slot), batch.samples, batch.sizes)
        else:
            self._warn_of_held(ring.held, most)
            batch.arrays = SlotView.of(ring.layout, ring.whole[batch.slot], batch.samples, batch.sizes).copy()
            ring.put_back(batch.slot)

        collated = batch.report.collated
        if collated is not None and collated.message is not None:
            self.engine.grow_slots(collated.message.wanted, len(batch.samples.ids))
        return batch

    def _warn_of_held(self, held: int, most: int) -> None:
        """Warns once that the caller holds many batches."""
        if held >= HELD_BATCHES and held > most and not self.engine.warned:
            self.engine.warned = True
            warn(
                f"{held} batches are held at a time, so further ones are copied to ordinary memory; "
                "if they are kept by mistake, let go of them, or copy what is needed",
                RuntimeWarning,
            )


class ReusedMemory:
    """Memory for one array of each batch. A later batch uses it again when the last array or tensor on it is gone.

    With new memory for each batch, the kernel would clear its pages, which takes a tenth of the time to make a batch.
    Reuse takes no more memory: a loop holds the last batch while the next one is made.
    """

    def __init__(self) -> None:
        # Filled by finalizers, which run at any moment and in any thread: appending to a deque is atomic.
        self._idle: deque[_Memory] = deque(maxlen=HELD_BATCHES)

    def empty(self, shape: tuple[int, ...], dtype: Any) -> AnyArray:
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
        array: AnyArray = np.ndarray(shape, dtype, use)
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

"""Slots and workers of one loader, made when they are needed and kept for the next iterator."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import Any

import numpy as np

from feeder.dataset.extras import Column
from feeder.errors import ArgumentError, WorkerError
from feeder.loader.device.page_lock import CudaGuard, page_lock
from feeder.loader.fast.part_sizes import (
    AHEAD_BYTES,
    PartSizes,
    enough_ahead,
    most_sent_parts,
    part_rows,
    sent_part_rows,
)
from feeder.loader.fast.pool import Pool, PoolOptions
from feeder.loader.fast.sample_maker import Work
from feeder.loader.observe.meter import METER_WORDS, part_sums
from feeder.loader.slots.image_slots import HELD_BATCHES, Layout, Ring, plan_slots
from feeder.loader.workers.supervisor import check_owner
from feeder.system.arrays import Int64s, Size
from feeder.system.numa import running_on

_ALIGN = 64
_MOST_SENT_AHEAD = 256
_GROWTH = 1.25  # slots that were too small grow by this: collated batches differ in size


@dataclass(frozen=True, kw_only=True)
class EngineOptions(PoolOptions):
    """Options of an engine, and of its workers.

    Args:
        ahead: Number of batches to make ahead of the caller, at most.
        ahead_is_given: True to make so many, as far as the memory allows; False: as many as workers need.
        persistent: True if workers outlive the iterator.
        memory_limit_bytes: Limit of the ring; None: half of the available memory.
        held: Number of batches held at a time outside of the engine, by the caller and on the way to its device.
        guard: Asked before slots are used again; with one they are page-locked.
    """

    ahead: int
    ahead_is_given: bool
    persistent: bool
    memory_limit_bytes: int | None
    held: int = HELD_BATCHES
    guard: CudaGuard | None = None


class Engine:
    """Slots and workers of one loader.

    Args:
        work: The workers' work.
        options: The options.

    Attributes:
        replacements: All replaced workers so far.
    """

    def __init__(self, work: Work, options: EngineOptions) -> None:
        self._pid = os.getpid()
        self.busy = False
        self._is_retired = False
        self.ahead = 0
        self.warned = False
        self._work = work
        self._options = options
        self._ring: Ring | None = None
        self._sizes = PartSizes(max(1, options.workers))
        self._pool: Pool | None = None
        self._stages = np.zeros((options.processes, METER_WORDS), np.int64)  # the sums of pools that have ended
        self.replacements: list[dict[str, Any]] = []

    @property
    def is_ours(self) -> bool:
        """True in the process that made it; one that was forked off shares its memory and must not touch it."""
        return self._pid == os.getpid()

    def check_owner(self) -> None:
        """Raises WorkerError in a process that was forked off."""
        check_owner(self._pid)

    @property
    def ring(self) -> Ring:
        """The slots, once :meth:`prepare` has made them."""
        assert self._ring is not None
        return self._ring

    @property
    def pool(self) -> Pool:
        """The workers, once :meth:`prepare` has started them."""
        assert self._pool is not None
        return self._pool

    @property
    def unfinished(self) -> int:
        """Number of parts that no worker has sent off yet; for any thread."""
        pool = self._pool
        return 0 if pool is None else pool.board.unfinished()

    def stages(self) -> Int64s:
        """Returns what the workers' stages took so far: int64 [workers, METER_WORDS]."""
        pool = self._pool
        return self._stages if pool is None else pool.board.stages.copy()

    def worker_pids(self) -> list[int]:
        """Returns the process ids of the workers that run now."""
        return [] if self._pool is None else self._pool.pids()

    def fits(self, rows: int, size: Size | None = None) -> bool:
        """Returns True if there are slots and workers for batches of so many rows, and of images of that (height,
        width); None: of the recipe's."""
        return self._pool is not None and self._has_slots(rows, size)

    def _has_slots(self, rows: int, size: Size | None) -> bool:
        if self._ring is None:
            return False
        layout = self._ring.layout
        if size is not None and not layout.holds(size):
            return False
        is_large_enough = not self._work.makes_batches or layout.images == self._work.image_columns
        return is_large_enough and rows <= layout.batch_size

    def parts(self, rows: int) -> list[tuple[int, int]]:
        """Returns (first row, number of rows) of the parts of the next batch, which has so many rows."""
        if self._work.makes_batches:
            return [(0, rows)]
        if self._options.service is not None:  # its servers share the parts, too
            cores, layout = self.pool.board.service_cores, self.ring.layout
            row_bytes = layout.slot_bytes // layout.batch_size
            return sent_part_rows(rows, self._options.workers, cores, self.ahead, row_bytes)
        if self._sizes.is_due:
            sums = part_sums(self.stages())
            self._sizes.learn(sums["parts"], sums["busy_ns"])
        return self._sizes.next(rows, self.ahead)

    def _most_parts(self, layout: Layout) -> int:
        """Returns the number of parts of a batch, at most."""
        rows, workers = layout.batch_size, self._options.workers
        if self._options.service is not None:
            return most_sent_parts(rows, workers, layout.slot_bytes // rows)
        return 1 if self._work.makes_batches else len(part_rows(rows, max(1, workers)))

    def _ahead(self, layout: Layout) -> int:
        options = self._options
        if options.ahead_is_given:
            return options.ahead
        if options.service is not None:
            # Any number of servers may come: as many batches as take little memory.
            return max(options.ahead, min(_MOST_SENT_AHEAD, AHEAD_BYTES // layout.slot_bytes))
        return enough_ahead(layout, options.workers, self._most_parts(layout), options.ahead)

    def grow_slots(self, wanted_bytes: int, rows: int) -> None:
        """Makes slots larger from the next :meth:`prepare` on, if they were too small for a collated batch and there is
        memory.

        Args:
            wanted_bytes: Bytes that the batch would have taken of its slot.
            rows: Number of its samples.
        """
        work, layout = self._work, self.ring.layout
        if wanted_bytes <= rows * layout.images[0].shape[0] or work.image_columns != layout.images:
            return
        share = int(_GROWTH * wanted_bytes / rows) // _ALIGN * _ALIGN + _ALIGN
        wanted = Layout(layout.batch_size, (Column((share,), "uint8"),))
        options = self._options
        with contextlib.suppress(ArgumentError):  # no memory: what does not fit travels in messages
            _, ahead = plan_slots(wanted, self._ahead(wanted), options.held, options.memory_limit_bytes)
            if ahead >= min(self.ahead, options.processes):  # else workers would be idle for want of slots
                work.share_bytes = share

    def prepare(self, rows: int, size: Size | None = None) -> None:
        """Makes the slots and workers that are missing for batches of that size, while no batch is being made; see
        :meth:`fits`."""
        if self.fits(rows, size):
            return

        if not self._has_slots(rows, size):
            self.close()
            if size is not None and not self._work.layout(rows).holds(size):
                self._work.include_size(size)
            if self._ring is not None:
                rows = max(rows, self._ring.layout.batch_size)
            layout = self._work.layout(rows)
            slots, self.ahead = plan_slots(
                layout, self._ahead(layout), self._options.held, self._options.memory_limit_bytes
            )
            with running_on(self._options.cpus):
                ring = Ring(layout, slots, self._options.guard)
                if self._options.guard is not None:
                    page_lock(ring)
            self._ring = ring

        assert self._ring is not None
        parts = self._ring.slots * self._most_parts(self._ring.layout)
        self._pool = Pool(self._work, self._ring, parts, self._options, self._stages, self.replacements)

    def end_iterator(self) -> None:
        """Ends an iterator's use of the engine; drops the batches that are being made."""
        if not self.is_ours:
            return
        try:
            pool = self._pool
            if self._options.persistent and not self._is_retired and pool is not None:
                try:
                    pool.abandon()
                except WorkerError:
                    self.close()
            else:
                self.close()
        except BaseException:  # interrupted: workers may be writing into these slots
            self._ring = None
            try:
                self.close()
            finally:
                self._drop_pool()
            raise
        finally:
            self.busy = self._is_retired = False
        if self._ring is not None:
            self._ring.reclaim()

    def retire(self) -> None:
        """Ends the workers now, or when the iterator that uses them ends."""
        self._is_retired = self.busy
        if not self.busy:
            self.close()

    def close(self) -> None:
        """Ends the workers; the slots are kept."""
        if self._pool is not None and self.is_ours:
            if not self._pool.close():
                self._ring = None  # a worker that can't be ended may still write into it
            self._drop_pool()

    def _drop_pool(self) -> None:
        if self._pool is not None:
            self._stages = self.stages()  # first: other threads read them at any time
            self._pool = None

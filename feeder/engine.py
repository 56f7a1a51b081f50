"""Slots and workers of one loader, made when they are needed and kept for the next iterator."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from feeder.assembly import HELD_BATCHES, part_rows
from feeder.batch import Layout, Ring, plan_slots
from feeder.device import CudaGuard, page_lock
from feeder.errors import WorkerError
from feeder.meter import METER_WORDS
from feeder.workers import Pool, PoolOptions, Replacement

if TYPE_CHECKING:
    from feeder.work import Work

__all__ = ["Engine", "EngineOptions"]


@dataclass(frozen=True)
class EngineOptions:
    """How to run.

    Args:
        ahead: Batches to make ahead of the caller.
        persistent: Whether workers outlive the iterator.
        memory_limit_bytes: Of the ring; None: what is available.
        pool: How to run workers.
        held: Batches that are held at a time outside of the engine, by the caller and on the way to its device.
        guard: Asked before slots are used again; with one they are page-locked.
    """

    ahead: int
    persistent: bool
    memory_limit_bytes: int | None
    pool: PoolOptions
    held: int = HELD_BATCHES
    guard: CudaGuard | None = None


class Engine:
    """See the module.

    Args:
        work: What workers do.
        options: How to run.
    """

    def __init__(self, work: Work, options: EngineOptions) -> None:
        self._pid = os.getpid()
        self.busy = False
        self.ahead = 0
        self.warned = False
        self._work, self._options = work, options
        self._ring: Ring | None = None
        self._pool: Pool | None = None
        self._meters: dict[str, int] = {}
        self._stages = np.zeros((options.pool.workers, METER_WORDS), np.int64)
        self._replacements: list[Replacement] = []

    @property
    def is_ours(self) -> bool:
        """Whether this process made it; one that was forked off shares its memory, and must keep its hands off."""
        return self._pid == os.getpid()

    @property
    def ring(self) -> Ring:
        """The slots; :meth:`prepare` has made them."""
        assert self._ring is not None
        return self._ring

    @property
    def pool(self) -> Pool:
        """The workers; :meth:`prepare` has started them."""
        assert self._pool is not None
        return self._pool

    @property
    def replacements(self) -> list[Replacement]:
        """All replaced workers so far."""
        return self._replacements + (self._pool.replacements if self._pool is not None else [])

    def meters(self) -> dict[str, int]:
        """Sums over all workers so far."""
        meters = dict(self._meters)
        if self._pool is not None:
            for name, value in self._pool.meters().items():
                meters[name] = meters.get(name, 0) + value
        return meters

    def stages(self) -> npt.NDArray[np.int64]:
        """What the workers' stages took so far: int64 [workers, METER_WORDS]."""
        pool = self._pool  # another thread may ask, while this one closes it
        return self._stages + pool.stages() if pool is not None else self._stages.copy()

    def worker_pids(self) -> list[int]:
        """Process ids of the workers that run now."""
        return [] if self._pool is None else self._pool.pids()

    def fits(self, rows: int) -> bool:
        """Whether slots and workers are there for batches of that size."""
        return self._pool is not None and self._ring is not None and rows <= self._ring.layout.batch_size

    def prepare(self, rows: int) -> None:
        """Makes what is missing for batches of that size. Nothing may be in the making."""
        if self.fits(rows):
            return
        if self._ring is None or rows > self._ring.layout.batch_size:
            self.close()
            layout = Layout(rows, self._work.sample_shape, self._work.sample_dtype.name)
            slots, self.ahead = plan_slots(
                layout, self._options.ahead, self._options.held, self._options.memory_limit_bytes
            )
            self._ring = Ring(layout, slots, self._options.guard)
            if self._options.guard is not None:
                page_lock(self._ring)
        workers = self._options.pool.workers
        parts = self._ring.slots * len(part_rows(self._ring.layout.batch_size, workers))
        self._pool = Pool(self._work, self._ring, parts, self._options.pool)

    def end_iterator(self, slots: list[int]) -> None:
        """An iterator is done with the engine.

        Args:
            slots: Those in the making, which nobody will ask for.
        """
        if not self.is_ours:
            return
        if self._options.persistent and self._pool is not None:
            try:
                self._pool.abandon()
            except WorkerError:
                self.close()
        else:
            self.close()
        if self._ring is not None:
            for slot in slots:
                self._ring.put_back(slot)
        self.busy = False

    def close(self) -> None:
        """Ends the workers; slots are kept."""
        if self._pool is not None and self.is_ours:
            pool, self._pool = self._pool, None
            if not pool.close():
                self._ring = None  # a worker that can't be ended may still write into it
            for name, value in pool.meters().items():
                self._meters[name] = self._meters.get(name, 0) + value
            self._stages += pool.stages()
            self._replacements += pool.replacements

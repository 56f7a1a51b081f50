"""Slots for batches whose size is not known before the first one is there, and may grow."""

from __future__ import annotations

from collections.abc import Iterable

from feeder.loader.device.page_lock import page_lock
from feeder.loader.generic.pending_batches import Pending
from feeder.loader.slots.image_slots import HELD_BATCHES
from feeder.loader.slots.slots import Guard, Slots
from feeder.system.memory import available_bytes

__all__ = ["BatchSlots"]

_SMALLEST_SLOT = 1 << 16
_PAGE = 4096


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

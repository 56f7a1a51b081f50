"""The batches that one iterator has asked its workers for, and the slots that they come in."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from feeder.loader.device.page_lock import page_lock
from feeder.loader.generic.generic_worker import BatchResult
from feeder.loader.slots.image_slots import HELD_BATCHES
from feeder.loader.slots.slots import Slots
from feeder.system.arrays import Uint8s, aligned
from feeder.system.cores import available_bytes

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

    def lease_slot(self) -> Uint8s | None:
        """Hands the slot's memory to the caller; None without a slot."""
        if self.slots is None or self.slot is None:
            return None
        slot, self.slot = self.slot, None  # first: wherever an interrupt comes, nothing else is written there
        return self.slots.lease(slot)

    def drop_slot(self) -> None:
        """Frees the slot of a batch that is not handed out in it."""
        if self.slots is not None and self.slot is not None:
            self.slots.put_back(self.slot)
            self.slot = None


class PendingBatches:
    """The batches of an epoch that were asked for, by running number, and the order in which they are handed out.

    Args:
        in_order: Hands them out in the order in which they were asked for, and not as they arrive.

    Attributes:
        by_number: The batches, in the order of their numbers.
    """

    def __init__(self, in_order: bool) -> None:
        self.by_number: dict[int, Pending] = {}
        self._in_order = in_order
        self._sent = self._received = self._first = 0
        self._highest = -1

    def __len__(self) -> int:
        return len(self.by_number)

    def begin(self) -> None:
        """Begins an epoch, with no batch pending. Numbers run on."""
        self.by_number.clear()
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
        return number

    def due(self, worker: int | None = None) -> list[int]:
        """Returns the numbers of the batches that have not arrived, of all workers or of one."""
        batches = self.by_number.items()
        return [n for n, each in batches if each.result is None and (worker is None or each.worker == worker)]

    def ready(self) -> int | None:
        """Returns the number of a batch that can be handed out now."""
        if not self._in_order:
            return next((n for n, each in self.by_number.items() if each.result is not None), None)
        pending = self.by_number.get(self._received)
        return self._received if pending is not None and pending.result is not None else None

    def hand_out(self, number: int) -> tuple[Pending, bool]:
        """Removes a batch and returns it, and True if exactly the batches up to it have been removed."""
        pending = self.by_number.pop(number)
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

    def __init__(self, ahead: int, limit_bytes: int | None, guard: Any) -> None:
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
        size = aligned(wanted_bytes + wanted_bytes // 16, _PAGE)
        limit = self._limit_bytes if self._limit_bytes is not None else available_bytes() // 2
        count = min(self._count, limit // size)
        if count >= 1:
            slots = Slots(size, count, self._guard)
            if self._guard is not None:
                page_lock(slots)
            self.current = slots

"""Batches that workers were asked for and that were not handed out yet."""

from __future__ import annotations

import collections
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from feeder.loader.generic.generic_worker import BatchResult
from feeder.loader.slots.slots import Slots

__all__ = ["Pending", "PendingBatches"]


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
        was_made: True if its message came, but what that points to was lost with the worker.
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
    was_made: bool = False
    failures: int = 0

    def lease_slot(self) -> npt.NDArray[np.uint8] | None:
        """Hands the slot's memory to the caller; None without a slot."""
        if self.slots is None or self.slot is None:
            return None
        slot, self.slot = self.slot, None  # first: wherever an interrupt comes, nothing else is written there
        return self.slots.lease(slot)

    def drop_slot(self) -> None:
        """Takes back the slot of a batch that nobody will have in it."""
        if self.slots is not None and self.slot is not None:
            self.slots.put_back(self.slot)
            self.slot = None


class PendingBatches:
    """The batches of an epoch that were asked for, by running number, and the order in which they are handed out.

    Args:
        in_order: Hands them out in the order in which they were asked for, and not as they arrive.

    Attributes:
        by_number: The batches.
        outstanding: Numbers of those that have not arrived.
    """

    def __init__(self, in_order: bool) -> None:
        self.by_number: dict[int, Pending] = {}
        self.outstanding: set[int] = set()
        self._in_order = in_order
        self._arrived: collections.deque[int] = collections.deque()
        self._sent = self._received = self._first = 0
        self._highest = -1

    def __len__(self) -> int:
        return len(self.by_number)

    def begin(self) -> None:
        """Begins an epoch, with no batch pending. Numbers run on."""
        self.by_number.clear()
        self.outstanding.clear()
        self._arrived.clear()
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
        self.outstanding.add(number)
        return number

    def load(self, worker: int) -> int:
        """Returns the number of batches that a worker still owes."""
        return sum(self.by_number[n].worker == worker for n in self.outstanding if n in self.by_number)

    def lost_with(self, worker: int) -> list[int]:
        """Returns the numbers of the batches that a dead worker owed."""
        pending = self.by_number
        return [n for n in sorted(pending) if pending[n].worker == worker and self.is_due(n) and pending[n].is_wanted]

    def is_due(self, number: int) -> bool:
        """Returns True if a batch is pending and its result is not there."""
        pending = self.by_number.get(number)
        return pending is not None and pending.result is None

    def arrive(self, number: int, result: BatchResult) -> None:
        """Notes a batch's result; it needs its slot no more."""
        pending = self.by_number.get(number)
        if pending is not None:
            pending.drop_slot()
            pending.result = result
            if not self._in_order:
                self._arrived.append(number)
        self.outstanding.discard(number)

    def ready(self) -> int | None:
        """Returns the number of a batch that can be handed out now."""
        if not self._in_order:
            return self._arrived.popleft() if self._arrived else None
        pending = self.by_number.get(self._received)
        return self._received if pending is not None and pending.result is not None else None

    def hand_out(self, number: int) -> tuple[Pending, bool]:
        """Takes a batch out; returns it, and True if exactly the batches up to it have been taken out."""
        pending = self.by_number.pop(number)
        self.outstanding.discard(number)
        self._highest = max(self._highest, number)
        while self._received < self._sent and self._received not in self.by_number:
            self._received += 1
        return pending, self._highest == number and self._received == number + 1

"""The ring of batch slots: anonymous shared memory that workers write into and the caller's tensors are views of.

Note [Slots]
    A slot holds one batch: positions int64 [B], sample ids int64 [B], labels (int64 [B], or float32 [B] or [B, K]),
    then the images: pixels, or for each image an equal share of memory, in which the images of a part are staged for a
    decoder in the trainer: a table, then an arena (see :class:`feeder.decoders.staged.staged.Staged`). Targets and
    further fields of fixed size follow, each in an array [B, *shape]. The ring is one
    memfd, so nothing has a name that a crash could leave behind, and its pages are allocated before the first worker
    starts, so that lack of memory is an error then and no SIGBUS later.
    A slot is handed to the caller as a lease: the object that the arrays of that batch, and so their tensors, keep
    alive. When the last of them is gone the slot is free again; if it is page-locked, once the guard says that every
    copy that may still read it is done.
"""

from __future__ import annotations

import contextlib
import sys
import time
import weakref
from collections import deque
from collections.abc import Callable, Collection
from typing import Any

import numpy as np

from feeder.loader.slots.region import Region
from feeder.system.arrays import Uint8s

_LONGEST_WAIT_S = 60.0  # for the copies that may still read slots
_POLL_S = 0.0005


class Lease:
    """Keeps a slot from being used again while an array on it lives."""

    _slots: Slots | None = None  # for the finalizer, if an interrupt comes before the lease is whole

    def __init__(self, slots: Slots, slot: int) -> None:
        address = slots.address + slot * slots.slot_bytes
        shape = (slots.slot_bytes,)
        self.__array_interface__ = {"data": (address, False), "shape": shape, "typestr": "|u1", "version": 3}
        self._slot = slot
        self.token = object()
        self._slots = slots

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not is_finalizing() and self._slots is not None:  # see Note [At the interpreter's end]
            self._slots.release(self._slot, self.token)


class Slots:
    """Pieces of shared memory of one size, from the side that owns them.

    Args:
        slot_bytes: Size of each; a multiple of the page size.
        slots: Number of slots.
        guard: Asked before a slot that the caller had is used again, as :class:`CudaGuard` is: ``record()`` marks a
            moment, and ``done(mark)`` never waits. None: it is used at once.
    """

    def __init__(self, slot_bytes: int, slots: int, guard: Any = None) -> None:
        self.slot_bytes = slot_bytes
        self.slots = slots
        self.region = Region(slot_bytes * slots)
        self.guard = guard
        self.whole = self.region.array(np.uint8, (slots, slot_bytes))
        self.address = int(self.whole.__array_interface__["data"][0])
        self._free = deque(range(slots))
        self._tokens: list[object | None] = [None] * slots  # the tokens of live leases
        # Filled by finalizers, which run at any moment and in any thread: appending to a deque is atomic.
        self._released: deque[tuple[int, Any]] = deque()

    @property
    def leased(self) -> int:
        """Number of slots that the caller holds, or that copies may still read."""
        self._collect()
        return self.held + len(self._released)

    @property
    def held(self) -> int:
        """Approximate number of slots that the caller holds; unlike the rest of this class, for any thread."""
        return self.slots - self._tokens.count(None)

    def settle(self, most: int) -> bool:
        """Waits until at most ``most`` slots are leased, if only copies hold up the others; at most a minute.

        Returns:
            True if so few are leased. Slots that the caller holds are not waited for.
        """
        ends = time.monotonic() + _LONGEST_WAIT_S
        while self.leased > most:
            if self.held > most or time.monotonic() > ends:
                return False
            time.sleep(_POLL_S)  # a wait for a CUDA event would keep a core busy
        return True

    def acquire(self) -> int | None:
        """Returns a free slot to fill; None if there is none now."""
        self._collect()
        return self._free.popleft() if self._free else None

    def put_back(self, slot: int) -> None:
        """Frees a slot that the caller never had."""
        self._free.append(slot)

    def lease(self, slot: int) -> Uint8s:
        """Hands a filled slot to the caller; it becomes free by itself when the last array on it is gone.

        Returns:
            uint8 [slot_bytes].
        """
        lease = Lease(self, slot)
        self._tokens[slot] = lease.token
        return np.asarray(lease)

    def release(self, slot: int, token: object) -> None:
        """Frees the slot of a lease that is gone. If nothing can tell when copies are done, it isn't used again."""
        if self._tokens[slot] is token:  # it is not, if an interrupt came before it was noted
            # CUDA can't be asked in a forked process, nor after an error that it does not recover from.
            with contextlib.suppress(RuntimeError):
                self._retire(slot)
                self._tokens[slot] = None  # only now, or it would seem to be lost meanwhile

    def reclaim(self, making: Collection[int] = ()) -> None:
        """Frees the slots that an interrupt lost on their way between free, being filled and leased.

        Args:
            making: Slots that may be written into now.
        """
        held = {slot for slot, token in enumerate(self._tokens) if token is not None}
        held |= {slot for slot, _ in list(self._released)}  # read after the tokens: slots go from there to here
        for slot in set(range(self.slots)).difference(making, held, self._free):
            with contextlib.suppress(RuntimeError):  # as above
                self._retire(slot)  # a copy may still read it

    def before_end(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Calls a function before the memory is freed, once no copy reads it any more, or after a minute.

        At the interpreter's end it isn't called: the system takes all memory back, and a stuck GPU would hold it up.
        """
        finalizer = weakref.finalize(self.region, _end, self.guard, self._released, function, *arguments)
        finalizer.atexit = False

    def _collect(self) -> None:
        for _ in range(len(self._released)):
            slot, mark = self._released.popleft()
            if self.guard is None or self.guard.done(mark):
                self._free.append(slot)
            else:
                self._released.append((slot, mark))

    def _retire(self, slot: int) -> None:
        self._released.append((slot, self.guard.record() if self.guard is not None else None))


def _end(guard: Any, released: deque[tuple[int, Any]], function: Callable[..., Any], *arguments: Any) -> None:
    ends = time.monotonic() + _LONGEST_WAIT_S
    with contextlib.suppress(RuntimeError):  # as in Slots.release
        while guard is not None and released and time.monotonic() < ends:
            if guard.done(released[0][1]):
                released.popleft()
            else:
                time.sleep(_POLL_S)
    function(*arguments)

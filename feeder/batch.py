"""The ring of batch slots: anonymous shared memory that workers decode into and the caller's tensors stand on.

Note [Slots]
    A slot holds one batch: positions int64 [B], sample ids int64 [B], labels (int64 [B], or float32 [B] or [B, K]),
    then the images: pixels, or for each image an equal share of memory, where those of a part are staged for a decoder
    in the trainer: a table, then an arena (see :class:`feeder.decode.staged.Staged`). The ring is one memfd, so nothing
    has a name that a crash could leave behind, and its pages are allocated before the first worker starts, so that lack
    of memory is an error then and no SIGBUS later.
    A slot is handed to the caller as a lease: the object that the arrays of that batch, and so their tensors, keep
    alive. When the last of them is gone the slot is free again, or, page-locked, once the guard says that every copy
    that may still read it is done.
"""

from __future__ import annotations

import contextlib
import functools
import math
import mmap
import os
import sys
import time
import weakref
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from feeder.cores import memory_limit
from feeder.errors import ArgumentError

__all__ = ["Guard", "Layout", "Lease", "Region", "Ring", "SlotView", "Slots", "available_bytes", "plan_slots"]

_PAGE = 4096
_ALLOCATED_AT_ONCE = 1 << 20  # takes a tenth of a millisecond
_LONGEST_WAIT_S = 60.0  # for the copies that may still read slots
_POLL_S = 0.0005


class Region:
    """A piece of anonymous shared memory.

    Args:
        size_bytes: Its size.
        descriptor: Of a region made by another process, to be mapped here and owned from now on; None makes a new one.
        writable: Whether it is mapped for writing.
    """

    def __init__(self, size_bytes: int, descriptor: int | None = None, *, writable: bool = True) -> None:
        self.size_bytes = size_bytes
        self.descriptor = os.memfd_create("feeder", os.MFD_CLOEXEC) if descriptor is None else descriptor
        try:
            if descriptor is None:
                try:
                    # In pieces: kernels before 6.8 give up when a signal comes meanwhile, and it is begun anew: under a
                    # profiler's timer a large region would never be done.
                    for start in range(0, size_bytes, _ALLOCATED_AT_ONCE):
                        piece = min(_ALLOCATED_AT_ONCE, size_bytes - start)
                        os.posix_fallocate(self.descriptor, start, piece)
                except OSError as error:
                    raise ArgumentError(
                        f"can't allocate {size_bytes >> 20} MiB of shared memory for batches ({error.strerror}): lower "
                        "batch_size, num_workers or prefetch_factor, or set memory_limit_bytes"
                    ) from None
            access = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
            self.memory = mmap.mmap(self.descriptor, size_bytes, mmap.MAP_SHARED, access)
        except BaseException:
            os.close(self.descriptor)
            raise
        self._pid = os.getpid()

    def array(self, dtype: Any, shape: tuple[int, ...], offset: int = 0) -> npt.NDArray[Any]:
        """An array on the region's memory, which stays mapped as long as the array lives."""
        count = int(np.prod(shape, dtype=np.int64))
        return np.frombuffer(self.memory, dtype, count, offset).reshape(shape)

    def close(self) -> None:
        """Closes the descriptor; the memory goes with the last array on it."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0 and self._pid == os.getpid():
            os.close(descriptor)

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not is_finalizing() and hasattr(self, "_pid"):  # see Note [At the interpreter's end]
            self.close()


@dataclass(frozen=True)
class Layout:
    """Where things stand in a slot; see Note [Slots].

    Args:
        batch_size: At most how many samples a slot holds.
        image_shape: (C, H, W), or (bytes,) of an image's share where they are staged.
        dtype: numpy dtype name of the images as stored.
        label_dtype: Of a sample's label: numpy's int64 or float32, or a subarray of K of these.
    """

    batch_size: int
    image_shape: tuple[int, ...]
    dtype: str
    label_dtype: np.dtype[Any] = field(default_factory=lambda: np.dtype(np.int64))

    @functools.cached_property
    def images_offset(self) -> int:
        return _aligned((2 * 8 + self.label_dtype.itemsize) * self.batch_size)

    @functools.cached_property
    def slot_bytes(self) -> int:
        images = self.batch_size * math.prod(self.image_shape) * np.dtype(self.dtype).itemsize
        return self.images_offset + _aligned(images)


@dataclass(frozen=True)
class SlotView:
    """The arrays of a slot: positions and ids int64 [B], labels int64 [B] or float32 [B] or [B, K], images
    [B, *image_shape]."""

    positions: npt.NDArray[np.int64]
    ids: npt.NDArray[np.int64]
    labels: npt.NDArray[Any]
    images: npt.NDArray[Any]

    @classmethod
    def of(cls, layout: Layout, memory: npt.NDArray[np.uint8], rows: int | None = None) -> SlotView:
        """The view of uint8 [slot_bytes], or of its first rows."""
        rows = layout.batch_size if rows is None else rows
        positions, ids = (np.ndarray((rows,), np.int64, memory, 8 * layout.batch_size * k) for k in range(2))
        labels = np.ndarray((rows,), layout.label_dtype, memory, 8 * layout.batch_size * 2)
        images = np.ndarray((rows, *layout.image_shape), layout.dtype, memory, layout.images_offset)
        return cls(positions, ids, labels, images)

    def copy(self) -> SlotView:
        """The same in ordinary memory."""
        return SlotView(self.positions.copy(), self.ids.copy(), self.labels.copy(), self.images.copy())


class Guard(Protocol):
    """Says when copies that may still read a slot are done."""

    def record(self) -> Any:
        """Marks this moment; called when a slot's last tensor is gone."""

    def done(self, mark: Any) -> bool:
        """Whether everything before the mark is done. Never waits."""


class Lease:
    """Keeps a slot from being used again as long as an array on it lives."""

    _slots: Slots | None = None  # as long as an interrupt may come before it is whole

    def __init__(self, slots: Slots, slot: int) -> None:
        address = slots.address + slot * slots.slot_bytes
        shape = (slots.slot_bytes,)
        self.__array_interface__ = {"data": (address, False), "shape": shape, "typestr": "|u1", "version": 3}
        self._slot, self.token, self._slots = slot, object(), slots

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not is_finalizing() and self._slots is not None:  # see Note [At the interpreter's end]
            self._slots.release(self._slot, self.token)


class Slots:
    """Pieces of shared memory of one size, from the side that owns them.

    Args:
        slot_bytes: Size of each; a multiple of the page size.
        slots: How many.
        guard: Asked before a slot that the caller had is used again; None: at once.
    """

    def __init__(self, slot_bytes: int, slots: int, guard: Guard | None = None) -> None:
        self.slot_bytes = slot_bytes
        self.slots = slots
        self.region = Region(slot_bytes * slots)
        self.guard = guard
        self.whole = self.region.array(np.uint8, (slots, slot_bytes))
        self.address = int(self.whole.__array_interface__["data"][0])
        self._free = deque(range(slots))
        self._tokens: list[object | None] = [None] * slots  # of the leases that live
        # Filled by finalizers, which run at any moment and in any thread: appending to a deque is atomic.
        self._released: deque[tuple[int, Any]] = deque()

    @property
    def leased(self) -> int:
        """Slots that the caller holds, or that copies may still read."""
        self._collect()
        return self.held + len(self._released)

    @property
    def held(self) -> int:
        """Slots that the caller holds, about; unlike the rest of this class, for any thread."""
        return self.slots - self._tokens.count(None)

    def settle(self, most: int) -> bool:
        """Waits until at most so many slots are leased, if only copies hold up the others; at most a minute.

        Returns:
            Whether so few are leased. What the caller holds is not waited for.
        """
        ends = time.monotonic() + _LONGEST_WAIT_S
        while self.leased > most:
            if self.held > most or time.monotonic() > ends:
                return False
            time.sleep(_POLL_S)  # a wait for a CUDA event would keep a core busy
        return True

    def acquire(self) -> int | None:
        """Takes a free slot to fill, or None if there is none now."""
        self._collect()
        return self._free.popleft() if self._free else None

    def put_back(self, slot: int) -> None:
        """Gives back a slot that the caller never had."""
        self._free.append(slot)

    def lease(self, slot: int) -> npt.NDArray[np.uint8]:
        """Hands a filled slot to the caller: it comes free by itself when the last array on it is gone.

        Returns:
            uint8 [slot_bytes].
        """
        lease = Lease(self, slot)
        self._tokens[slot] = lease.token
        return np.asarray(lease)

    def release(self, slot: int, token: object) -> None:
        """Called by a lease that is gone. Where nobody can say when copies are done, the slot isn't used again."""
        if self._tokens[slot] is token:  # not, where an interrupt came before it was noted
            # CUDA can't be asked in a forked process, nor after an error that it does not recover from.
            with contextlib.suppress(RuntimeError):
                self._retire(slot)
                self._tokens[slot] = None  # only now: meanwhile it would seem to be lost

    def reclaim(self, making: Collection[int] = ()) -> None:
        """Frees the slots that an interrupt took from one hand and put into no other.

        Args:
            making: Those that may be written into now.
        """
        held = {slot for slot, token in enumerate(self._tokens) if token is not None}
        held |= {slot for slot, _ in list(self._released)}  # after those, as that is the way they go
        for slot in set(range(self.slots)).difference(making, held, self._free):
            with contextlib.suppress(RuntimeError):  # as above
                self._retire(slot)  # a copy may still read it

    def before_end(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Has a function called when the memory goes, once no copy reads it any more, or after a minute.

        At the interpreter's end it isn't called: the system takes all back then, and a stuck GPU would hold it up.
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


class Ring(Slots):
    """Slots for batches of images; see Note [Slots].

    Args:
        layout: Of each slot.
        slots: How many.
        guard: Asked before a slot that the caller had is used again; None: at once.
    """

    def __init__(self, layout: Layout, slots: int, guard: Guard | None = None) -> None:
        super().__init__(layout.slot_bytes, slots, guard)
        self.layout = layout
        self.views = [SlotView.of(layout, self.whole[k]) for k in range(slots)]

    def lease_view(self, slot: int, rows: int | None = None) -> SlotView:
        """As :meth:`lease`: the arrays of the slot, or their first rows, each of which keeps it."""
        return SlotView.of(self.layout, self.lease(slot), rows)


def plan_slots(layout: Layout, ahead: int, held: int, limit_bytes: int | None) -> tuple[int, int]:
    """How many slots to make and how many batches to make ahead, within the memory limit.

    Args:
        layout: Of each slot.
        ahead: Batches wanted ahead of the caller.
        held: Batches that the caller is expected to hold at a time.
        limit_bytes: Of the whole ring; None: half of the memory that is available now, or two slots if they take more.

    Returns:
        (slots, ahead), ahead at least 1.

    Raises:
        ArgumentError: naming what to change, if not even two slots fit.
    """
    available = available_bytes()
    limit = available if limit_bytes is None else min(limit_bytes, available)
    fit = limit // layout.slot_bytes
    if limit_bytes is None:  # the ring is allocated at once, and workers, decoding and the caller need memory, too
        fit = min(fit, max(2, available // 2 // layout.slot_bytes))
    if fit < 2:
        source = "memory_limit_bytes" if limit_bytes is not None and limit_bytes <= available else "available memory"
        if len(layout.image_shape) == 1:
            what, smaller = "encoded images", "lower batch_size"
        else:
            height, width = layout.image_shape[1:]
            what = f"images of {height}x{width} ({layout.dtype})"
            smaller = "lower batch_size or the image size, return uint8 (no ToDtype/Normalize in the recipe)"
        raise ArgumentError(
            f"two batches of {layout.batch_size} {what} take {2 * layout.slot_bytes} bytes, {source} is {limit}: "
            f"{smaller}, or raise memory_limit_bytes"
        )
    slots = min(fit, ahead + held)
    return slots, max(1, min(ahead, slots - 1))


def available_bytes() -> int:
    """Memory that can be taken now: the system's, or the container's limit if that is lower."""
    available = 1 << 62
    with open("/proc/meminfo") as file:
        for line in file:
            if line.startswith("MemAvailable:"):
                available = int(line.split()[1]) << 10
    limit = memory_limit()
    if limit is not None:
        available = min(available, limit.available_bytes)
    return available


def _end(guard: Guard | None, released: deque[tuple[int, Any]], function: Callable[..., Any], *arguments: Any) -> None:
    ends = time.monotonic() + _LONGEST_WAIT_S
    with contextlib.suppress(RuntimeError):  # as in Slots.release
        while guard is not None and released and time.monotonic() < ends:
            if guard.done(released[0][1]):
                released.popleft()
            else:
                time.sleep(_POLL_S)
    function(*arguments)


def _aligned(size: int) -> int:
    return -(-size // _PAGE) * _PAGE

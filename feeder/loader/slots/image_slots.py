"""The ring of slots for batches of images, and the layout of a slot."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from feeder.dataset.extras import Column
from feeder.errors import ArgumentError
from feeder.loader.slots.slots import Slots
from feeder.system.arrays import AnyArray, Int64s, Size, Uint8s, aligned
from feeder.system.cores import available_bytes

# Batches that a training loop holds at a time: the one in use, and the one before it until the name is bound anew.
HELD_BATCHES = 2

# (height, width) of a batch's images, or of each view.
Sizes = tuple[Size, ...]

_PAGE, _LINE = 4096, 64
_COLUMNS = 3


@dataclass(frozen=True)
class Layout:
    """The layout of a slot; see Note [Slots].

    Args:
        batch_size: Largest number of samples in a slot.
        images: The image of a sample, (C, H, W), or one for each view; (bytes,) of an image's share if they are staged.
        label_dtype: A sample's label: numpy's int64 or float32, or a subarray of K of these.
        further: Arrays of the targets and further fields.
    """

    batch_size: int
    images: tuple[Column, ...]
    label_dtype: np.dtype[Any] = field(default_factory=lambda: np.dtype(np.int64))
    further: tuple[Column, ...] = ()

    @functools.cached_property
    def offsets(self) -> tuple[int, ...]:
        """Offsets of the images, the further arrays and the slot's end, bytes."""
        at = (_COLUMNS * 8 + self.label_dtype.itemsize) * self.batch_size
        offsets = [aligned(at, _PAGE)]
        for column in self.columns:
            at = offsets[-1] + self.batch_size * math.prod(column.shape) * np.dtype(column.dtype).itemsize
            offsets.append(aligned(at, _LINE))
        offsets[-1] = aligned(at, _PAGE)
        return tuple(offsets)

    @property
    def slot_bytes(self) -> int:
        return self.offsets[-1]

    def holds(self, size: Size) -> bool:
        """Returns True if a slot has space for the first image of that (height, width), any if it is not pixels, and
        for the arrays that have its size."""
        shape = self.images[0].shape
        pixels = [math.prod(column.shape) for column in self.further if column.image == 0]
        return math.prod(size) <= min(pixels if len(shape) == 1 else [math.prod(shape[-2:]), *pixels], default=math.inf)

    @functools.cached_property
    def columns(self) -> tuple[Column, ...]:
        """The images and the further arrays."""
        return *self.images, *self.further

    def columns_at(self, sizes: Sizes | None) -> tuple[Column, ...]:
        """Returns the images and the further arrays of a batch, see :meth:`at`; None: of the layout's sizes."""
        return self.columns if sizes is None else self.at(sizes).columns

    def at(self, sizes: Sizes) -> Layout:
        """Returns the layout of a batch of other sizes, which fit in a slot. Staged images have no sizes there."""
        images = self.images
        if len(images[0].shape) > 1:
            images = tuple(
                Column((*each.shape[:-2], *size), each.dtype) for size, each in zip(sizes, images, strict=True)
            )
        return dataclasses.replace(self, images=images, further=tuple(column.at(sizes) for column in self.further))


class Samples(NamedTuple):
    """The samples of a batch, or of a part of one.

    Attributes:
        positions: int64 [N], positions in the epoch; they choose the substitutes of bad samples.
        ids: int64 [N], sample ids.
        repeats: int64 [N], times that the sample came before in the epoch, as an explicit sampler may repeat it; each
            time it is augmented anew. Of a mixture, the pass of its source.
    """

    positions: Int64s
    ids: Int64s
    repeats: Int64s

    @classmethod
    def of(cls, positions: Int64s, ids: Int64s) -> Samples:
        """Returns samples of which none is a repeat."""
        return cls(positions, ids, np.zeros(len(ids), np.int64))

    def part(self, rows: slice | Int64s) -> Samples:
        """Returns some of the samples, in the same memory if ``rows`` is a slice."""
        return Samples(*(numbers[rows] for numbers in self))

    def keys(self, rows: int, total: int) -> list[Int64s]:
        """Returns the keys of the augmentation's draws, ``rows`` times int64 [N]: others for each of ``total`` samples
        and each repeat of one."""
        return [self.ids + (self.repeats * rows + row) * total for row in range(rows)]

    def copy(self) -> Samples:
        """Returns the same samples in other memory."""
        return Samples(*(numbers.copy() for numbers in self))


@dataclass(frozen=True)
class SlotView:
    """The arrays of a slot for B samples.

    Attributes:
        samples: The samples.
        labels: int64 [B], or float32 [B] or [B, K].
        images: [B, *shape] of the image, or of each view.
        further: [B, *shape] of each further array.
        sizes: Sizes of the batch's images; None: those of the layout.
    """

    samples: Samples
    labels: AnyArray
    images: tuple[AnyArray, ...]
    further: tuple[AnyArray, ...] = ()
    sizes: Sizes | None = None

    @classmethod
    def of(
        cls,
        layout: Layout,
        memory: Uint8s,
        samples: Samples | None = None,
        sizes: Sizes | None = None,
    ) -> SlotView:
        """Returns the view of a slot.

        Args:
            layout: Its layout.
            memory: uint8 [slot_bytes].
            samples: Those of a batch: the view has its first rows, and these samples. None: all rows.
            sizes: Sizes of the batch's images; None: those of the layout.
        """
        rows = layout.batch_size if samples is None else len(samples.ids)
        if samples is None:
            samples = Samples(
                *(np.ndarray((rows,), np.int64, memory, 8 * layout.batch_size * k) for k in range(_COLUMNS))
            )
        labels = np.ndarray((rows,), layout.label_dtype, memory, 8 * layout.batch_size * _COLUMNS)
        arrays = tuple(
            np.ndarray((rows, *column.shape), column.dtype, memory, offset)
            for column, offset in zip(layout.columns_at(sizes), layout.offsets, strict=False)
        )
        return cls(samples, labels, arrays[: len(layout.images)], arrays[len(layout.images) :], sizes)

    @classmethod
    def new(
        cls,
        layout: Layout,
        samples: Samples,
        sizes: Sizes | None = None,
        empty: Sequence[Callable[[tuple[int, ...], Any], AnyArray]] = (),
    ) -> SlotView:
        """Returns arrays for samples in ordinary memory, where each is freed alone.

        Args:
            layout: The layout of a slot for them.
            samples: The samples.
            sizes: Sizes of the images; None: those of the layout.
            empty: Makes each array of the images and the further ones; empty: :func:`numpy.empty`.
        """
        rows = len(samples.ids)
        columns = layout.columns_at(sizes)
        makers = empty or (np.empty,) * len(columns)
        arrays = tuple(make((rows, *each.shape), each.dtype) for make, each in zip(makers, columns, strict=True))
        images = arrays[: len(layout.images)]
        return cls(samples, np.empty(rows, layout.label_dtype), images, arrays[len(images) :], sizes)

    @property
    def image_size(self) -> Size | None:
        """(height, width) of the images, or of the first view, where batches differ in size; else None."""
        return None if self.sizes is None else self.sizes[0]

    def part(self, rows: slice) -> SlotView:
        """Returns the view of some rows."""
        images, further = (tuple(array[rows] for array in arrays) for arrays in (self.images, self.further))
        return SlotView(self.samples.part(rows), self.labels[rows], images, further, self.sizes)

    def copy(self) -> SlotView:
        """Returns a copy in ordinary memory."""
        images, further = (tuple(array.copy() for array in arrays) for arrays in (self.images, self.further))
        return SlotView(self.samples.copy(), self.labels.copy(), images, further, self.sizes)


class Ring(Slots):
    """Slots for batches of images; see Note [Slots].

    Args:
        layout: The layout of each slot.
        slots: Number of slots.
        guard: Asked before a slot that the caller had is used again; None: it is at once.
    """

    def __init__(self, layout: Layout, slots: int, guard: Any = None) -> None:
        super().__init__(layout.slot_bytes, slots, guard)
        self.layout = layout
        self.views = [SlotView.of(layout, self.whole[k]) for k in range(slots)]


def plan_slots(layout: Layout, ahead: int, held: int, limit_bytes: int | None) -> tuple[int, int]:
    """Plans the number of slots and of batches made ahead, within the memory limit.

    Args:
        layout: The layout of each slot.
        ahead: Number of batches wanted ahead of the caller.
        held: Number of batches that the caller is expected to hold at a time.
        limit_bytes: Limit of the whole ring; None: half of the memory that is available now, or two slots if they take
            more.

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
        shape, dtype = layout.images[0].shape, layout.images[0].dtype
        if len(shape) == 1:
            what, smaller = "encoded images", "lower batch_size"
        else:
            height, width = shape[1:]
            what = f"images of {height}x{width} ({dtype})"
            smaller = "lower batch_size or the image size, return uint8 (no ToDtype/Normalize in the recipe)"
        raise ArgumentError(
            f"two batches of {layout.batch_size} {what} take {2 * layout.slot_bytes} bytes, {source} is {limit}: "
            f"{smaller}, or raise memory_limit_bytes"
        )

    slots = min(fit, ahead + held)
    return slots, max(1, min(ahead, slots - 1))

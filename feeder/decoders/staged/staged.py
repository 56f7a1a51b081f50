"""A batch of encoded images, as a worker hands it to a decoder in the trainer. Needs neither torch nor DALI."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from feeder.decoders.decoder import Buffer
from feeder.errors import ArgumentError
from feeder.system.arrays import Int32s, Int64s, Records, Size, Uint8s

# The offset of a payload that did not fit.
_ELSEWHERE = -1


class RowKind(IntEnum):
    """Content of a staged row."""

    JPEG = 0
    """A JPEG to be decoded, cropped and resized."""
    PIXELS = 1
    """uint8 [H, W, 3] of the output's size, turned already."""
    FAILED = 2
    """Nothing."""
    PLAN = 3
    """A plan of ``_native.plan_images``, which holds everything but the row's size: that of the output, turned already.

    A plan that uses the segments or lines of another row's plan comes after it, and has a payload, too.
    """


# One row for each image to be made. Boxes are (left, top, right, bottom) in stored pixels of the payload's image.
#   size             (height, width) to resize to, before the turn
#   window, decoded  the box that this view needs, and the box around those of all views of the JPEG
#   back             number of rows from this one back to the first view of the JPEG, which has the payload
#   offset, length   place of the payload in a packed batch
ROW = np.dtype(
    [
        ("kind", "u1"),
        ("turn", "u1"),
        ("size", "i4", 2),
        ("window", "i4", 4),
        ("decoded", "i4", 4),
        ("back", "i4"),
        ("source", "f8", 4),
        ("offset", "i8"),
        ("length", "i8"),
    ],
    align=True,
)


@dataclass(frozen=True, eq=False)
class Staged:
    """A batch that waits for its decoder in the trainer: encoded images, cut and checked, with their boxes.

    Args:
        rows: [N * V] of :data:`ROW`, those of the V views of a sample behind each other.
        payloads: The bytes of each row, as its kind says; empty for a view of a JPEG that an earlier row has.
        views: Number of views of each sample, V.
    """

    rows: Records
    payloads: list[Buffer]
    views: int = 1

    def __len__(self) -> int:
        """Returns the number of samples."""
        return len(self.payloads) // self.views

    @property
    def owners(self) -> Int64s:
        """The row that has the JPEG of each row, or the segments or lines of its plan; int64 [N * V]."""
        own: Int64s = np.arange(len(self.rows)) - self.rows["back"]
        return own

    def view(self, number: int) -> Staged:
        """Returns the rows of one view alone."""
        return Staged(self.rows[number :: self.views], self.payloads[number :: self.views])

    @property
    def image_bytes(self) -> int:
        """Size of the largest image that is made of a row."""
        return 3 * int(self.rows["size"].prod(axis=1).max())

    def pixels(self) -> tuple[Int64s, Uint8s]:
        """Returns the rows that workers have decoded, int64 [R], and their pixels, uint8 [R, :attr:`image_bytes`]: a
        smaller image takes the first bytes of its row."""
        here = np.flatnonzero(self.rows["kind"] == RowKind.PIXELS)
        pixels = np.zeros((len(here), self.image_bytes), np.uint8)
        for row, out in zip(here.tolist(), pixels, strict=True):
            payload = np.frombuffer(self.payloads[row], np.uint8)
            out[: len(payload)] = payload
        return here, pixels

    @property
    def packed_bytes(self) -> int:
        """Memory that :meth:`pack` needs to leave no payload over."""
        return int(self.rows.nbytes) + sum(map(len, self.payloads))

    def pack(self, memory: Uint8s) -> dict[int, Buffer]:
        """Writes the batch to memory: the rows, then the payloads that fit.

        Args:
            memory: uint8, aligned to 8 bytes, large enough for the rows at least.

        Returns:
            The payloads that did not fit, by row.

        Raises:
            ArgumentError: if not even the rows fit; nothing was written then.
        """
        offset = int(self.rows.nbytes)
        if offset > len(memory):
            raise ArgumentError(f"{len(self.rows)} staged rows take {offset} bytes, the slot has {len(memory)}")
        rows = memory[:offset].view(ROW)
        rows[:] = self.rows
        left_over: dict[int, Buffer] = {}
        for row, payload in enumerate(self.payloads):
            end = offset + len(payload)
            if end > len(memory):
                left_over[row] = payload
                rows["offset"][row], rows["length"][row] = _ELSEWHERE, 0
                continue
            memory[offset:end] = np.frombuffer(payload, np.uint8)
            rows["offset"][row], rows["length"][row] = offset, len(payload)
            offset = end
        return left_over

    @classmethod
    def unpack(
        cls,
        memory: Uint8s,
        count: int,
        left_over: Mapping[int, Buffer] | None = None,
        views: int = 1,
    ) -> Staged:
        """Returns the batch that :meth:`pack` wrote; its payloads are views of the memory.

        Args:
            memory: uint8.
            count: How many samples it has.
            left_over: What :meth:`pack` returned.
            views: Number of views of each sample.

        Raises:
            ArgumentError: if a row does not lie in the memory.
        """
        count *= views
        if count * ROW.itemsize > len(memory):
            raise ArgumentError(f"{count} staged rows take {count * ROW.itemsize} bytes, the slot has {len(memory)}")

        left_over = left_over or {}
        rows = memory[: count * ROW.itemsize].view(ROW)
        whole, payloads = memory.data, list[Buffer]()
        # Parts are small, and numpy would take longer.
        places = zip(rows["offset"].tolist(), rows["length"].tolist(), rows["back"].tolist(), strict=True)
        for row, (start, length, back) in enumerate(places):
            if not 0 <= back <= row % views:
                raise ArgumentError("a staged row names another sample's image")
            if row in left_over:
                payloads.append(left_over[row])
            elif start >= 0 and 0 <= length <= len(memory) - start:
                payloads.append(whole[start : start + length])
            else:
                raise ArgumentError(f"a staged row does not lie in its slot of {len(memory)} bytes")
        return cls(rows, payloads, views)

    @classmethod
    def join(cls, parts: Sequence[Staged]) -> Staged:
        """Joins batches of the same views, at least one."""
        if len(parts) == 1:
            return parts[0]
        payloads = [each for part in parts for each in part.payloads]
        rows = np.concatenate([part.rows.view(np.uint8) for part in parts])  # as structs each field would be looked at
        return cls(rows.view(ROW), payloads, parts[0].views)


def by_size(sizes: Int32s) -> Iterator[tuple[Size, Int64s]]:
    """Yields each (height, width) among sizes, int32 [N, 2], and the places where it stands."""
    for height, width in np.unique(sizes, axis=0).tolist():
        yield (height, width), np.flatnonzero((sizes == (height, width)).all(axis=1))

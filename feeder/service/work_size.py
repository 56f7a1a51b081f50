"""The memory that parts of some work take."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["WorkSize"]


class WorkSize(NamedTuple):
    """The memory that parts of some work take.

    Attributes:
        row_bytes: Bytes of a sample, but for the images that follow.
        pixel_bytes: Bytes of a sample for each pixel of the size that its batch has; 0 if all batches have one size.
        further_bytes: Bytes of a part beside its samples.
    """

    row_bytes: int
    pixel_bytes: int
    further_bytes: int

    def part_bytes(self, rows: int, size: tuple[int, int] | None) -> int:
        """Returns the bytes of a part of so many samples, whose images are of that (height, width)."""
        pixels = 0 if size is None else size[0] * size[1]
        return rows * (self.row_bytes + pixels * self.pixel_bytes) + self.further_bytes

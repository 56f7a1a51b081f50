"""Batches of images of different sizes, padded to one."""

from __future__ import annotations

from dataclasses import dataclass

from feeder.errors import ArgumentError
from feeder.system.arrays import Int32s, Size
from feeder.system.checks import check_int


@dataclass(frozen=True)
class PadToBatch:
    """Puts the images of a batch, each of the size that the recipe gives it, into one tensor, as detectors take them.

    The images stand top left; what is left over on the right and below has one value. The tensor's sides are those of
    the highest and the widest image, rounded up. An entry follows the labels in the batch: the images' own sizes, int64
    [N, 2], (height, width). Masks among the targets are padded alike, each with its ``fill``.

    Args:
        multiple: The tensor's sides are multiples of it, 1 or more.
        value: Value of the padding, as it stands in the batch: after ToDtype and Normalize, if the recipe has them.
        group_by_aspect: True makes batches of images of similar aspect ratios, so that less is padded. The order is
            then that of :class:`feeder.Buckets`.

    Raises:
        ArgumentError: for an argument outside its range.
    """

    multiple: int = 32
    value: float = 0
    group_by_aspect: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "multiple", check_int("multiple", self.multiple, 1))
        if not isinstance(self.value, (int, float)) or self.value != self.value:
            raise ArgumentError(f"value must be a number, got {self.value!r}")

    def size(self, sizes: Int32s) -> Size:
        """Returns the (height, width) of the tensor for images of these sizes, int32 [N, 2], N at least 1."""
        height, width = (-(-sizes.max(axis=0) // self.multiple) * self.multiple).tolist()
        return height, width

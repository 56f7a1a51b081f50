"""Aspect-ratio buckets: the sizes that batches have, and the size that suits an image."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from feeder.errors import ArgumentError
from feeder.system.arrays import AnyArray, Size
from feeder.system.checks import check_int, check_number

_MAX_SIZES = 1024
_MAX_SIDE = 65_535


@dataclass(frozen=True, init=False)
class Buckets:
    """Sizes for images of many aspect ratios: each batch has one of them, and each image goes to the nearest one.

    Either the sizes are given, or all those that multiples of ``step`` make with at most so many ``pixels`` and sides
    that differ by at most ``max_aspect``: for each height the largest width, and for each width the largest height.

    Args:
        sizes: (height, width) in pixels of each bucket, of different aspect ratios.
        pixels: Largest number of pixels of a size.
        step: The sides are multiples of it, 1 or more.
        max_aspect: Largest ratio of the longer to the shorter side, 1 or more.

    Attributes:
        sizes: The sizes, from the widest to the tallest.

    Raises:
        ArgumentError: for an argument outside its range, or if no size is left.
    """

    sizes: tuple[Size, ...]

    def __init__(
        self,
        sizes: Sequence[Size] | None = None,
        *,
        pixels: int | None = None,
        step: int = 64,
        max_aspect: float = 2.0,
    ) -> None:
        if (sizes is None) == (pixels is None):
            raise ArgumentError("give either the sizes of buckets, Buckets(sizes=[(512, 512), ...]), or their pixels=")
        found = _sizes_of(pixels, step, max_aspect) if pixels is not None else _checked(sizes)
        object.__setattr__(self, "sizes", tuple(sorted(found, key=lambda size: size[0] / size[1])))

    def __len__(self) -> int:
        return len(self.sizes)

    @property
    def largest(self) -> Size:
        """(height, width) of the size with the most pixels."""
        return max(self.sizes, key=lambda size: (size[0] * size[1], size))

    def nearest(self, sizes: AnyArray) -> npt.NDArray[np.intp]:
        """Returns the number of the size that is nearest in the logarithm of the aspect ratio, for N images.

        Args:
            sizes: integers [N, 2], upright (height, width) in pixels.

        Returns:
            intp [N], indices into :attr:`sizes`. Where two sizes are equally near, that of the wider one.
        """
        # The border of two neighbours is the geometric mean of their aspect ratios. It is compared squared, in products
        # and quotients alone, which every machine rounds alike; logarithms are not.
        borders = [a[0] * b[0] / (a[1] * b[1]) for a, b in itertools.pairwise(self.sizes)]
        sides = np.maximum(np.asarray(sizes, np.float64).reshape(-1, 2), 1.0)
        ratios = sides[:, 0] / sides[:, 1]
        return np.searchsorted(borders, ratios * ratios, side="left")

    def neighbors(self, number: int) -> list[int]:
        """Returns the numbers of all sizes, this one first, then from the nearest in the logarithm of the aspect ratio
        to the farthest; the wider one first of two that are equally near."""

        def distance(other: int) -> Fraction:
            (a, b), (c, d) = self.sizes[number], self.sizes[other]
            return max(Fraction(a * d, b * c), Fraction(b * c, a * d))  # exact, as logarithms are not

        return sorted(range(len(self)), key=distance)


def _checked(sizes: Any) -> list[Size]:
    found: dict[float, Size] = {}
    sizes = sizes.tolist() if isinstance(sizes, np.ndarray) else sizes
    is_list = isinstance(sizes, Sequence) and not isinstance(sizes, str)
    if not is_list or not 1 <= len(sizes) <= _MAX_SIZES:
        raise ArgumentError(f"sizes must be a list of 1 to {_MAX_SIZES:,} sizes (height, width), got {sizes!r}")
    for size in sizes:
        sides = tuple(size) if isinstance(size, Sequence) else ()
        is_whole = all(isinstance(side, (int, np.integer)) and not isinstance(side, bool) for side in sides)
        if len(sides) != 2 or not is_whole or not 1 <= min(sides) <= max(sides) <= _MAX_SIDE:
            raise ArgumentError(f"sizes must be pairs (height, width) of 1 to {_MAX_SIDE:,} pixels, got {size!r}")
        height, width = map(int, sides)
        other = found.setdefault(height / width, (height, width))
        if other is not None and other != (height, width):
            raise ArgumentError(
                f"sizes {other} and {(height, width)} have one aspect ratio, so one of them would get no images; "
                "leave one out"
            )
    if len(found) < len(sizes):
        raise ArgumentError(f"sizes must be different, got {list(sizes)!r}")
    return list(found.values())


def _sizes_of(pixels: int, step: int, max_aspect: float) -> list[Size]:
    for name, value in (("pixels", pixels), ("step", step)):
        check_int(name, value, 1)
    check_number("max_aspect", max_aspect, 1)
    pixels, step = int(pixels), int(step)
    found: dict[float, Size] = {}
    longest = min(_MAX_SIDE, math.isqrt(int(pixels * max_aspect) + 1) + step)
    for side in range(step, longest + 1, step):
        other = pixels // side // step * step
        for height, width in ((side, other), (other, side)):
            if min(height, width) < step or max(height, width) > max_aspect * min(height, width):
                continue
            same = found.get(height / width)
            if same is None or same[0] < height:
                found[height / width] = (height, width)
    if not 1 <= len(found) <= _MAX_SIZES:
        raise ArgumentError(
            f"pixels={pixels}, step={step} and max_aspect={max_aspect} make {len(found):,} sizes, expected 1 to "
            f"{_MAX_SIZES:,}; change the step"
        )
    return list(found.values())

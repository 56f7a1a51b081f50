"""Resizes to random sizes, as detection and segmentation models take them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from feeder.errors import ArgumentError
from feeder.transforms.arguments import check_interpolation, check_range, check_size
from feeder.transforms.op import IntArray, ResizeOp, SizeBounds, Uniforms
from feeder.transforms.sizes import ByEpoch, check_by_epoch


@dataclass(frozen=True, init=False)
class RandomResize(ResizeOp):
    """Resizes the image so that its shorter side gets a random length, and keeps the aspect ratio.

    Args:
        min_size: Least length of the shorter side in pixels.
        max_size: Greatest length, which itself is never drawn, as in torchvision.
        interpolation: By name, as torchvision's ``InterpolationMode`` or Pillow's constant.
        antialias: True; anything else than None is refused.

    Raises:
        ArgumentError: for an argument outside its range.
    """

    min_size: int
    max_size: int
    interpolation: str

    def __init__(
        self, min_size: int, max_size: int, interpolation: object = "bilinear", antialias: bool | None = True
    ) -> None:
        if not (isinstance(min_size, int) and isinstance(max_size, int) and 0 < min_size < max_size):
            raise ArgumentError(f"expected ints 0 < min_size < max_size, got {min_size!r} and {max_size!r}")
        filter_name = check_interpolation(interpolation, antialias)
        self._set(min_size=min_size, max_size=max_size, interpolation=filter_name)

    def resized(self, uniforms: Uniforms, sizes: IntArray) -> IntArray:
        length = self.min_size + (uniforms(1) * (self.max_size - self.min_size)).astype(np.int64)
        resized: IntArray = (length * sizes / sizes.min(axis=1, keepdims=True)).astype(np.int64)
        return resized

    def extent(self, extent: SizeBounds) -> SizeBounds:
        return SizeBounds((self.min_size, self.min_size))


@dataclass(frozen=True, init=False)
class RandomShortestSize(ResizeOp):
    """Resizes the image so that its shorter side gets one of several lengths, and keeps the aspect ratio.

    The output's size depends on the image and the draw: ``DataLoader(sizes=feeder.PadToBatch(...))`` makes batches of
    it.

    Args:
        min_size: Length of the shorter side in pixels; of a sequence one is drawn for each image. Either may also be
            given by epoch, :class:`feeder.transforms.ByEpoch`.
        max_size: Largest length of the longer side; it goes before ``min_size``. Also a :class:`ByEpoch`.
        interpolation: By name, as torchvision's ``InterpolationMode`` or Pillow's constant.
        antialias: True; anything else than None is refused.

    Raises:
        ArgumentError: for an argument outside its range.
    """

    draws_from_size = True

    min_size: tuple[int, ...]
    max_size: int | None
    interpolation: str

    def __init__(
        self,
        min_size: Sequence[int] | int | ByEpoch,
        max_size: int | ByEpoch | None = None,
        interpolation: object = "bilinear",
        antialias: bool | None = True,
    ) -> None:
        self._set(
            min_size=check_by_epoch(min_size, _check_lengths),
            max_size=check_by_epoch(max_size, _check_longest),
            interpolation=check_interpolation(interpolation, antialias),
        )

    def resized(self, uniforms: Uniforms, sizes: IntArray) -> IntArray:
        """Draws sizes with torchvision's rounding; at least one pixel."""
        lengths = np.array(self.min_size, np.int64)[(uniforms(1)[:, 0] * len(self.min_size)).astype(np.int64)]
        scale = lengths / sizes.min(axis=1)
        if self.max_size is not None:
            scale = np.minimum(scale, self.max_size / sizes.max(axis=1))
        resized: IntArray = np.maximum((sizes * scale[:, None]).astype(np.int64), 1)
        return resized

    def extent(self, extent: SizeBounds) -> SizeBounds:
        if self.max_size is not None:
            return SizeBounds()
        shortest = min(self.min_size) - 1  # torchvision's product may come out just below the length
        return SizeBounds((max(1, shortest), max(1, shortest)))


def _check_lengths(value: object) -> tuple[int, ...]:
    lengths = tuple(value) if isinstance(value, Sequence) else (value,)
    if not lengths:
        raise ArgumentError("min_size must be a length or a sequence of at least one, got none")
    return tuple(check_size("min_size", length)[0] for length in lengths)


def _check_longest(value: Any) -> int | None:
    return None if value is None else check_size("max_size", value)[0]


@dataclass(frozen=True, init=False)
class ScaleJitter(ResizeOp):
    """Resizes the image by a random factor, keeping its aspect ratio (Ghiasi et al., "Simple Copy-Paste", 2021).

    The output's size depends on the image and the draw; a crop of fixed size belongs after it.

    Args:
        target_size: Two lengths in pixels: at scale 1 the image's height is at most the second and its width at most
            the first, as in torchvision; an int makes a square.
        scale_range: (min, max) of the scale.
        interpolation: By name, as torchvision's ``InterpolationMode`` or Pillow's constant.
        antialias: True; anything else than None is refused.

    Raises:
        ArgumentError: for an argument outside its range.
    """

    draws_from_size = True

    target_size: tuple[int, int]
    scale_range: tuple[float, float]
    interpolation: str

    def __init__(
        self,
        target_size: int | Sequence[int] | ByEpoch,
        scale_range: Sequence[float] = (0.1, 2.0),
        interpolation: object = "bilinear",
        antialias: bool | None = True,
    ) -> None:
        self._set(
            target_size=check_by_epoch(target_size, partial(check_size, "target_size")),
            scale_range=check_range("scale_range", scale_range, low=1e-6),
            interpolation=check_interpolation(interpolation, antialias),
        )

    def resized(self, uniforms: Uniforms, sizes: IntArray) -> IntArray:
        low, high = self.scale_range
        factor = (np.array(self.target_size[::-1]) / sizes).min(axis=1) * (low + uniforms(1)[:, 0] * (high - low))
        resized: IntArray = np.maximum((sizes * factor[:, None]).astype(np.int64), 1)
        return resized

    def extent(self, extent: SizeBounds) -> SizeBounds:
        return SizeBounds()

"""Crops, resizes and flips."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from feeder.errors import ArgumentError
from feeder.system.arrays import Bools, Size
from feeder.system.checks import check_one_of
from feeder.transforms.arguments import (
    DRAWN,
    check_fill,
    check_interpolation,
    check_padding,
    check_padding_mode,
    check_range,
    check_size,
)
from feeder.transforms.op import Drawn, FloatArray, IntArray, Op, ProbabilityOp, ResizeOp, SizeBounds, Uniforms
from feeder.transforms.sizes import ByEpoch, VariableSize, by_phase, check_by_epoch, check_variable

ATTEMPTS = 10  # at a rectangle that fits into an image
# In torchvision's order, of what is left of an image beside a crop the shares that are above it and to its left.
CORNERS = {"top left": (0, 0), "top right": (0, 1), "bottom left": (1, 0), "bottom right": (1, 1)}


class SizedOp(Op):
    """An op whose output has its ``size``, whatever its input's."""

    size: Size

    def window(self, start: IntArray) -> Drawn:
        """Returns windows of this size that start at (top, left), int64 [N, 2]."""
        size = np.broadcast_to(np.array(self.size, np.int64), start.shape)
        return Drawn({"top": start[:, 0], "left": start[:, 1], "height": size[:, 0], "width": size[:, 1]}, size)

    def extent(self, extent: SizeBounds) -> SizeBounds:
        return SizeBounds(self.size, fixed=True)


def drawn_sides(
    pixels: IntArray, uniform: FloatArray, scale: tuple[float, float], ratio: tuple[float, float]
) -> tuple[IntArray, IntArray]:
    """Returns the sides of rectangles that are drawn as in torchvision, int64 [...].

    Args:
        pixels: int64 [...], of the images.
        uniform: float64 [..., 2].
        scale: (min, max) of a rectangle's area as a fraction of the image's.
        ratio: (min, max) of the first side / the second.
    """
    low, high = math.log(ratio[0]), math.log(ratio[1])
    area = pixels * (scale[0] + uniform[..., 0] * (scale[1] - scale[0]))
    aspect = np.exp(low + uniform[..., 1] * (high - low))
    return np.rint(np.sqrt(area * aspect)).astype(np.int64), np.rint(np.sqrt(area / aspect)).astype(np.int64)


def _check_size(size: int | Sequence[int]) -> Size:
    return check_size("size", size)


@dataclass(frozen=True, init=False)
class RandomResizedCrop(SizedOp, ResizeOp):
    """Crops a random area with a random aspect ratio and resizes it.

    Args:
        size: Output (height, width) in pixels; an int makes a square. Also ``BUCKET`` or a :class:`ByEpoch`.
        scale: (min, max) of the crop's area as a fraction of the image's.
        ratio: (min, max) of the crop's width / height.
        interpolation: By name, as torchvision's ``InterpolationMode`` or Pillow's constant; "random" draws bilinear or
            bicubic for each image, as timm does.
        antialias: True; anything else than None is refused.

    Raises:
        ArgumentError: for an argument outside its range.
    """

    draws_from_size = True
    crops = True

    size: Size
    scale: tuple[float, float]
    ratio: tuple[float, float]
    interpolation: str

    def __init__(
        self,
        size: int | Sequence[int] | ByEpoch,
        scale: Sequence[float] = (0.08, 1.0),
        ratio: Sequence[float] = (3.0 / 4.0, 4.0 / 3.0),
        interpolation: object = "bilinear",
        antialias: bool | None = True,
    ) -> None:
        self._set(
            size=check_variable(size, _check_size),
            scale=check_range("scale", scale, low=0.0),
            ratio=check_range("ratio", ratio, low=1e-6),
            interpolation=DRAWN if interpolation == DRAWN else check_interpolation(interpolation, antialias),
        )

    def draw(self, uniforms: Uniforms, sizes: IntArray) -> Drawn:
        """Draws as torchvision's ``RandomResizedCrop.make_params``: ten attempts, then a central crop."""
        height, width = sizes[:, 0], sizes[:, 1]
        # Nearly all samples fit at the first attempt; only the others cost more random numbers.
        first = uniforms(4)
        crop_height, crop_width, fits = self._attempt(height, width, first[:, 2:])
        top = np.floor(first[:, 0] * (height - crop_height + 1)).astype(np.int64)
        left = np.floor(first[:, 1] * (width - crop_width + 1)).astype(np.int64)
        if not fits.all():
            rows = np.flatnonzero(~fits)
            window = self._retry(height[rows], width[rows], uniforms(2 + 2 * ATTEMPTS, rows))
            top[rows], left[rows], crop_height[rows], crop_width[rows] = window
        resized = np.broadcast_to(np.array(self.size, np.int64), sizes.shape)
        params = {"top": top, "left": left, "height": crop_height, "width": crop_width}
        params |= {"resized_height": resized[:, 0], "resized_width": resized[:, 1]}
        if self.interpolation == DRAWN:  # by a number that no attempt takes
            params["bicubic"] = (uniforms(3 + 2 * ATTEMPTS)[:, -1] < 0.5).astype(np.uint8)
        return Drawn(params, resized)

    def _attempt(self, height: IntArray, width: IntArray, uniform: FloatArray) -> tuple[IntArray, IntArray, Bools]:
        crop_width, crop_height = drawn_sides(height * width, uniform, self.scale, self.ratio)
        fits = (crop_width > 0) & (crop_width <= width) & (crop_height > 0) & (crop_height <= height)
        return crop_height, crop_width, fits

    def _retry(
        self, height: IntArray, width: IntArray, uniform: FloatArray
    ) -> tuple[IntArray, IntArray, IntArray, IntArray]:
        crop_height, crop_width = self._fallback(height, width)
        top = (height - crop_height) // 2
        left = (width - crop_width) // 2
        # All further attempts at once, [N, attempts, 2]; the earliest that fits is taken.
        attempts = uniform[:, 4:].reshape(len(uniform), -1, 2)
        heights, widths, fit = self._attempt(height[:, None], width[:, None], attempts)
        rows = np.flatnonzero(fit.any(axis=1))
        chosen = rows, fit[rows].argmax(axis=1)
        crop_height[rows], crop_width[rows] = heights[chosen], widths[chosen]
        top[rows] = np.floor(uniform[rows, 0] * (height[rows] - crop_height[rows] + 1)).astype(np.int64)
        left[rows] = np.floor(uniform[rows, 1] * (width[rows] - crop_width[rows] + 1)).astype(np.int64)
        return top, left, crop_height, crop_width

    def _fallback(self, height: IntArray, width: IntArray) -> tuple[IntArray, IntArray]:
        """Returns the largest crop whose aspect ratio is within bounds, at least one pixel."""
        ratio = width / height
        narrow = np.rint(width / self.ratio[0]).astype(np.int64)
        wide = np.rint(height * self.ratio[1]).astype(np.int64)
        crop_height = np.where(ratio < self.ratio[0], narrow, height)
        crop_width = np.where(ratio > self.ratio[1], wide, width)
        return np.maximum(crop_height, 1), np.maximum(crop_width, 1)


@dataclass(frozen=True, init=False)
class Resize(ResizeOp):
    """Resizes the image.

    Args:
        size: Output (height, width); an int or a sequence of one is the length of the shorter side, and the aspect
            ratio is kept; None leaves it to ``max_size``. Also ``BUCKET`` or a :class:`ByEpoch`.
        interpolation: By name, as torchvision's ``InterpolationMode`` or Pillow's constant.
        max_size: Largest length of the longer side; its exact length if ``size`` is None. Also a :class:`ByEpoch`.
        antialias: True; anything else than None is refused.
        cover: True keeps the aspect ratio, and makes the image just large enough for (height, width): one side is as
            given, and the other as long or longer. A crop to that size belongs after it.

    Raises:
        ArgumentError: for an argument outside its range.
    """

    size: tuple[int, ...] | None
    interpolation: str
    max_size: int | None
    cover: bool = False

    def __repr__(self) -> str:
        sized = f"Resize(size={self.size!r}, interpolation={self.interpolation!r}, max_size={self.max_size!r}"
        return f"{sized}, cover=True)" if self.cover else f"{sized})"

    def __init__(
        self,
        size: int | Sequence[int] | ByEpoch | None,
        interpolation: object = "bilinear",
        max_size: int | ByEpoch | None = None,
        antialias: bool | None = True,
        *,
        cover: bool = False,
    ) -> None:
        longest = None if max_size is None else check_by_epoch(max_size, lambda value: check_size("max_size", value)[0])
        if longest is not None and (cover or (isinstance(size, VariableSize) and not isinstance(size, ByEpoch))):
            raise ArgumentError(f"max_size goes with size=None or one int, got size={size!r}, cover={cover}")
        if size is None and (longest is None or cover):
            raise ArgumentError("max_size must be an int when size is None, got None")

        def check(value: int | Sequence[int]) -> tuple[int, ...]:
            pair = check_size("size", value)
            return pair[:1] if not cover and (isinstance(value, int) or len(value) == 1) else pair

        checked = None if size is None else check_variable(size, check)
        if checked is not None and longest is not None:
            for sides, most in by_phase(checked, longest):
                if len(sides) == 2:
                    raise ArgumentError(f"max_size goes with size=None or one int, got size={sides!r}")
                if most <= sides[0]:
                    raise ArgumentError(f"max_size must be greater than size, got max_size={most} with size={sides[0]}")
        self._set(
            size=checked,
            interpolation=check_interpolation(interpolation, antialias),
            max_size=longest,
            cover=bool(cover),
        )

    def resized(self, uniforms: Uniforms | None, sizes: IntArray) -> IntArray:
        """Returns output sizes with torchvision's rounding; at least one pixel."""
        if self.size is not None and self.cover:
            height, width = self.size
            from_height = height * sizes[:, 1] >= width * sizes[:, 0]  # the height takes the larger scale
            wide = np.stack([np.full_like(sizes[:, 0], height), height * sizes[:, 1] // sizes[:, 0]], axis=1)
            tall = np.stack([width * sizes[:, 0] // sizes[:, 1], np.full_like(sizes[:, 1], width)], axis=1)
            covering: IntArray = np.where(from_height[:, None], wide, tall)
            return covering
        if self.size is not None and len(self.size) == 2:
            return np.broadcast_to(np.array(self.size, np.int64), sizes.shape)
        short, long = sizes.min(axis=1), sizes.max(axis=1)
        if self.size is None:
            new_long = np.full_like(long, self.max_size or 1)
            new_short = (new_long * short / long).astype(np.int64)
        else:
            new_short = np.full_like(short, self.size[0])
            new_long = (new_short * long / short).astype(np.int64)
            if self.max_size is not None:
                over = new_long > self.max_size
                new_short = np.where(over, (self.max_size * new_short / new_long).astype(np.int64), new_short)
                new_long = np.where(over, self.max_size, new_long)
        upright = sizes[:, 1] <= sizes[:, 0]
        pairs = np.stack([np.where(upright, new_long, new_short), np.where(upright, new_short, new_long)], axis=1)
        resized: IntArray = np.maximum(pairs, 1)
        return resized

    def extent(self, extent: SizeBounds) -> SizeBounds:
        if self.size is not None and self.cover and not extent.fixed:
            return SizeBounds((self.size[0], self.size[-1]))
        if extent.fixed or (self.size is not None and len(self.size) == 2):
            height, width = self.resized(None, np.array([extent.minimum], np.int64))[0].tolist()
            return SizeBounds((height, width), fixed=True)
        if self.size is not None and self.max_size is None:
            return SizeBounds((self.size[0], self.size[0]))
        return SizeBounds()


@dataclass(frozen=True, init=False)
class CenterCrop(SizedOp):
    """Crops the middle of the image; a smaller image is first padded with zeros.

    Args:
        size: Output (height, width) in pixels; an int makes a square.

    Raises:
        ArgumentError: if ``size`` is no size.
    """

    crops = True
    border = (0, 0, 0)

    size: Size

    def __init__(self, size: int | Sequence[int] | ByEpoch) -> None:
        self._set(size=check_variable(size, _check_size))

    def draw(self, uniforms: Uniforms, sizes: IntArray) -> Drawn:
        """Draws a window, which may reach outside the image, where pixels are zero."""
        size = np.array(self.size, np.int64)
        # torchvision pads by floor((crop - image) / 2) before the image, and otherwise rounds half to even.
        start = np.where(size > sizes, -((size - sizes) // 2), np.rint((sizes - size) / 2.0).astype(np.int64))
        return self.window(start)

    def fuses(self, extent: SizeBounds) -> bool:
        return self.size[0] <= extent.minimum[0] and self.size[1] <= extent.minimum[1]


@dataclass(frozen=True, init=False)
class CornerCrop(CenterCrop):
    """Crops a corner of the image; a smaller image is first padded with zeros at the other sides.

    Args:
        size: Output (height, width) in pixels; an int makes a square.
        corner: "top left", "top right", "bottom left" or "bottom right".

    Raises:
        ArgumentError: if ``size`` is no size, or for another corner.
    """

    corner: str

    def __init__(self, size: int | Sequence[int] | ByEpoch, corner: str) -> None:
        check_one_of("corner", corner, CORNERS)
        super().__init__(size)
        self._set(corner=corner)

    def draw(self, uniforms: Uniforms, sizes: IntArray) -> Drawn:
        params, cropped = super().draw(uniforms, sizes)
        start = (sizes - cropped) * CORNERS[self.corner]
        return Drawn(params | {"top": start[:, 0], "left": start[:, 1]}, cropped)


class RandomHorizontalFlip(ProbabilityOp):
    """Mirrors the image left to right with probability ``p``.

    Args:
        p: Probability, 0 to 1.

    Raises:
        ArgumentError: if ``p`` is no probability.
    """

    on_arrays = True
    drawn_name = "flip"

    def fuses(self, extent: SizeBounds) -> bool:
        return True


class RandomVerticalFlip(ProbabilityOp):
    """Mirrors the image top to bottom with probability ``p``.

    Args:
        p: Probability, 0 to 1.

    Raises:
        ArgumentError: if ``p`` is no probability.
    """

    drawn_name = "flip_vertically"


@dataclass(frozen=True, init=False)
class RandomCrop(SizedOp):
    """Crops at a random place.

    An image that is too small even after the padding is that sample's error.

    Args:
        size: Output (height, width) in pixels; an int makes a square. Also ``BUCKET`` or a :class:`ByEpoch`.
        padding: As in :class:`feeder.transforms.Pad`, applied first; None for none.
        pad_if_needed: True to pad a smaller image on both sides by the missing pixels.
        fill: As in :class:`feeder.transforms.Pad`.
        padding_mode: As in :class:`feeder.transforms.Pad`.

    Raises:
        ArgumentError: for an argument outside its range.
    """

    draws_from_size = True
    crops = True

    size: Size
    padding: tuple[int, int, int, int] | None
    pad_if_needed: bool
    fill: tuple[int, int, int]
    padding_mode: str

    def __init__(
        self,
        size: int | Sequence[int] | ByEpoch,
        padding: int | Sequence[int] | None = None,
        pad_if_needed: bool = False,
        fill: object = 0,
        padding_mode: str = "constant",
    ) -> None:
        self._set(
            size=check_variable(size, _check_size),
            padding=None if padding is None else check_padding(padding),
            pad_if_needed=bool(pad_if_needed),
            fill=check_fill(fill),
            padding_mode=check_padding_mode(padding_mode),
        )

    def draw(self, uniforms: Uniforms, sizes: IntArray) -> Drawn:
        left, top, right, bottom = self.padding or (0, 0, 0, 0)
        size = np.array(self.size, np.int64)
        pad_before = np.broadcast_to(np.array([top, left], np.int64), sizes.shape)
        pad_after = np.broadcast_to(np.array([bottom, right], np.int64), sizes.shape)
        if self.pad_if_needed:
            missing = np.maximum(size - (sizes + pad_before + pad_after), 0)
            pad_before, pad_after = pad_before + missing, pad_after + missing
        slack = sizes + pad_before + pad_after - size
        start = np.floor(uniforms(2) * (np.maximum(slack, 0) + 1)).astype(np.int64)
        params, cropped = self.window(start)
        if self._pads:
            params["padding"] = np.stack([pad_before[:, 1], pad_before[:, 0], pad_after[:, 1], pad_after[:, 0]], axis=1)
        return Drawn(params, cropped)

    @property
    def border(self) -> tuple[int, int, int] | None:  # type: ignore[override]
        return self.fill if self.padding_mode == "constant" else None

    @property
    def _pads(self) -> bool:
        return self.padding is not None or self.pad_if_needed

    def fuses(self, extent: SizeBounds) -> bool:
        fits = self.size[0] <= extent.minimum[0] and self.size[1] <= extent.minimum[1]
        return fits and not self._pads

"""The ops that add a border to an image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from feeder.transforms.arguments import (
    BASE_FILTERS,
    check_fill,
    check_interpolation,
    check_padding,
    check_padding_mode,
    check_probability,
    check_range,
    check_size,
)
from feeder.transforms.geometry import SizedOp
from feeder.transforms.op import Drawn, IntArray, Op, SizeBounds, Uniforms
from feeder.transforms.sizes import ByEpoch, check_variable


@dataclass(frozen=True, init=False)
class LetterBox(SizedOp):
    """Resizes the image to fit in a size, keeping its aspect ratio, and puts it in the middle of a border.

    The place is that of ultralytics' ``LetterBox``, and the resize is antialiased, which OpenCV's is not.

    Args:
        size: Output (height, width) in pixels; an int makes a square. Also ``BUCKET`` or a :class:`ByEpoch`.
        fill: One number or (R, G, B), 0-255, for the border.
        interpolation: By name, as torchvision's ``InterpolationMode`` or Pillow's constant.

    Raises:
        ArgumentError: for an argument outside its range.
    """

    resizes = True

    size: tuple[int, int]
    fill: tuple[int, int, int]
    interpolation: str

    def __init__(
        self, size: int | Sequence[int] | ByEpoch, fill: object = 114, interpolation: object = "bilinear"
    ) -> None:
        self._set(
            size=check_variable(size, partial(check_size, "size")),
            fill=check_fill(fill),
            interpolation=check_interpolation(interpolation, None),
        )

    @property
    def border(self) -> tuple[int, int, int] | None:  # type: ignore[override]
        return self.fill if self.interpolation in BASE_FILTERS else None

    def draw(self, uniforms: Uniforms, sizes: IntArray) -> Drawn:
        size = np.array(self.size, np.int64)
        scale = (size / sizes).min(axis=1, keepdims=True)
        resized = np.maximum(np.rint(sizes * scale).astype(np.int64), 1)
        before = (size - resized) // 2
        padding = np.concatenate([before, size - resized - before], axis=1)[:, [1, 0, 3, 2]]
        params = {"resized_height": resized[:, 0], "resized_width": resized[:, 1], "padding": padding}
        return Drawn(params, np.broadcast_to(size, sizes.shape))


@dataclass(frozen=True, init=False)
class Pad(Op):
    """Pads the image on all sides.

    Args:
        padding: Pixels on every side, or (left and right, top and bottom), or (left, top, right, bottom).
        fill: One number or (R, G, B), 0-255, for the mode "constant".
        padding_mode: "constant", "edge", "reflect" or "symmetric".

    Raises:
        ArgumentError: for an argument outside its range.
    """

    padding: tuple[int, int, int, int]
    fill: tuple[int, int, int]
    padding_mode: str

    def __init__(self, padding: int | Sequence[int], fill: object = 0, padding_mode: str = "constant") -> None:
        self._set(padding=check_padding(padding), fill=check_fill(fill), padding_mode=check_padding_mode(padding_mode))

    @property
    def border(self) -> tuple[int, int, int] | None:  # type: ignore[override]
        return self.fill if self.padding_mode == "constant" else None

    def draw(self, uniforms: Uniforms, sizes: IntArray) -> Drawn:
        left, top, right, bottom = self.padding
        padding = np.broadcast_to(np.array(self.padding, np.int64), (len(sizes), 4))
        return Drawn({"padding": padding}, sizes + np.array([top + bottom, left + right], np.int64))

    def extent(self, extent: SizeBounds) -> SizeBounds:
        left, top, right, bottom = self.padding
        return extent._replace(minimum=(extent.minimum[0] + top + bottom, extent.minimum[1] + left + right))


@dataclass(frozen=True, init=False)
class RandomZoomOut(Op):
    """Puts the image at a random place in a larger one, with probability ``p``.

    The output's size depends on the image and the draw; a resize or a crop of fixed size belongs after it.

    Args:
        fill: One number or (R, G, B), 0-255, for the border.
        side_range: (min, max) of the output's sides as multiples of the image's, 1 or more.
        p: Probability, 0 to 1.

    Raises:
        ArgumentError: for an argument outside its range.
    """

    draws_from_size = True

    fill: tuple[int, int, int]
    side_range: tuple[float, float]
    p: float

    def __init__(self, fill: object = 0, side_range: Sequence[float] = (1.0, 4.0), p: float = 0.5) -> None:
        self._set(
            fill=check_fill(fill),
            side_range=check_range("side_range", side_range, low=1.0, high=1000.0),
            p=check_probability(p),
        )

    def draw(self, uniforms: Uniforms, sizes: IntArray) -> Drawn:
        uniform = uniforms(4)
        low, high = self.side_range
        larger = (sizes * (low + uniform[:, 1:2] * (high - low))).astype(np.int64)
        missing = np.where(uniform[:, :1] < self.p, larger - sizes, 0)[:, ::-1]
        before = np.floor(missing * uniform[:, 2:]).astype(np.int64)
        padding = np.concatenate([before, missing - before], axis=1)
        return Drawn({"padding": padding}, sizes + missing[:, ::-1])

    def extent(self, extent: SizeBounds) -> SizeBounds:
        return extent._replace(fixed=False)

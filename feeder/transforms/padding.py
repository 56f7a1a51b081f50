"""The ops that add a border to an image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from feeder.transforms.arguments import check_fill, check_padding, check_padding_mode, check_probability, check_range
from feeder.transforms.op import Drawn, IntArray, Op, SizeBounds, Uniforms

__all__ = ["Pad", "RandomZoomOut"]


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

    draws_from_size = False

    padding: tuple[int, int, int, int]
    fill: tuple[int, int, int]
    padding_mode: str

    def __init__(self, padding: int | Sequence[int], fill: object = 0, padding_mode: str = "constant") -> None:
        self._set(padding=check_padding(padding), fill=check_fill(fill), padding_mode=check_padding_mode(padding_mode))

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

"""The ops that rotate, shift, scale, shear and tilt an image."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from feeder.errors import ArgumentError
from feeder.system.checks import check_number
from feeder.transforms.arguments import check_fill, check_probability, check_range, check_warp_interpolation
from feeder.transforms.matrices import rotation_matrix
from feeder.transforms.op import Drawn, FloatArray, IntArray, Op, SizeBounds, Uniforms


@dataclass(frozen=True, init=False)
class RandomRotation(Op):
    """Rotates the image counterclockwise by a random angle.

    Args:
        degrees: (min, max) of the angle, or one number for (-degrees, degrees).
        interpolation: By name, as torchvision's ``InterpolationMode`` or Pillow's constant.
        expand: True to enlarge the output until the whole image fits.
        center: (x, y) in pixels from the upper left corner; None for the middle.
        fill: One number or (R, G, B), 0-255, for pixels from outside the image.

    Raises:
        ArgumentError: for an argument outside its range.
    """

    degrees: tuple[float, float]
    interpolation: str
    expand: bool
    center: tuple[float, float] | None
    fill: tuple[int, int, int]

    def __init__(
        self,
        degrees: float | Sequence[float],
        interpolation: object = "nearest",
        expand: bool = False,
        center: Sequence[float] | None = None,
        fill: object = 0,
    ) -> None:
        self._set(
            degrees=_angle_range("degrees", degrees),
            interpolation=check_warp_interpolation(interpolation),
            expand=bool(expand),
            center=_center(center),
            fill=check_fill(fill),
        )

    def draw(self, uniforms: Uniforms, sizes: IntArray) -> Drawn:
        angle = _between(uniforms(1)[:, 0], self.degrees)
        if self.expand:
            pairs = zip(sizes.tolist(), angle.tolist(), strict=True)
            sizes = np.array([self.expanded_size(h, w, a) for (h, w), a in pairs], np.int64).reshape(-1, 2)
        return Drawn({"angle": angle}, sizes)

    def expanded_size(self, height: int, width: int, angle: float) -> tuple[int, int]:
        """Returns the output's (height, width), by the arithmetic of Pillow's ``Image.rotate``."""
        angle %= 360.0
        if self.center is None and angle in (0.0, 90.0, 180.0, 270.0):
            return (height, width) if angle in (0.0, 180.0) else (width, height)
        xx, xy, x0, yx, yy, y0 = rotation_matrix(width, height, angle, self.center)
        corners = ((0, 0), (width, 0), (width, height), (0, height))
        xs = [xx * x + xy * y + x0 for x, y in corners]
        ys = [yx * x + yy * y + y0 for x, y in corners]
        return math.ceil(max(ys)) - math.floor(min(ys)), math.ceil(max(xs)) - math.floor(min(xs))

    def extent(self, extent: SizeBounds) -> SizeBounds:
        return SizeBounds() if self.expand else extent


@dataclass(frozen=True, init=False)
class RandomAffine(Op):
    """Rotates, shifts, scales and shears the image by random amounts, about its center.

    Args:
        degrees: (min, max) of the angle, clockwise, or one number for (-degrees, degrees).
        translate: Largest shifts (x, y) as fractions of the width and the height; None for none.
        scale: (min, max) of the scale; None for 1.
        shear: In degrees: one number or (min, max) for x, or four numbers, (min, max) for x and for y.
        interpolation: By name, as torchvision's ``InterpolationMode`` or Pillow's constant.
        fill: One number or (R, G, B), 0-255, for pixels from outside the image.
        center: (x, y) in pixels from the upper left corner; None for the middle.

    Raises:
        ArgumentError: for an argument outside its range.
    """

    draws_from_size = True

    degrees: tuple[float, float]
    translate: tuple[float, float] | None
    scale: tuple[float, float] | None
    shear: tuple[float, float, float, float] | None
    interpolation: str
    fill: tuple[int, int, int]
    center: tuple[float, float] | None

    def __init__(
        self,
        degrees: float | Sequence[float],
        translate: Sequence[float] | None = None,
        scale: Sequence[float] | None = None,
        shear: float | Sequence[float] | None = None,
        interpolation: object = "nearest",
        fill: object = 0,
        center: Sequence[float] | None = None,
    ) -> None:
        if translate is not None and (len(translate) != 2 or not all(0.0 <= t <= 1.0 for t in translate)):
            raise ArgumentError(f"translate must be two fractions (x, y) from 0 to 1, got {translate!r}")
        shears: tuple[float, float, float, float] | None = None
        if shear is not None and not isinstance(shear, (int, float)) and len(shear) == 4:
            shears = (*check_range("shear", shear[:2]), *check_range("shear", shear[2:]))
        elif shear is not None:
            shears = (*_angle_range("shear", shear), 0.0, 0.0)
        self._set(
            degrees=_angle_range("degrees", degrees),
            translate=None if translate is None else (float(translate[0]), float(translate[1])),
            scale=None if scale is None else check_range("scale", scale, low=1e-6),
            shear=shears,
            interpolation=check_warp_interpolation(interpolation),
            fill=check_fill(fill),
            center=_center(center),
        )

    def draw(self, uniforms: Uniforms, sizes: IntArray) -> Drawn:
        uniform = uniforms(6)
        most_x, most_y = self.translate or (0.0, 0.0)
        shear = self.shear or (0.0, 0.0, 0.0, 0.0)
        params = {
            "angle": _between(uniform[:, 0], self.degrees),
            "shift_x": np.rint((2.0 * uniform[:, 1] - 1.0) * most_x * sizes[:, 1]).astype(np.int64),
            "shift_y": np.rint((2.0 * uniform[:, 2] - 1.0) * most_y * sizes[:, 0]).astype(np.int64),
            "scale": _between(uniform[:, 3], self.scale or (1.0, 1.0)),
            "shear_x": _between(uniform[:, 4], shear[:2]),
            "shear_y": _between(uniform[:, 5], shear[2:]),
        }
        return Drawn(params, sizes)

    def affine(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the arguments of :func:`feeder.transforms.matrices.affine_matrix` for one sample's drawn numbers."""
        names = ("angle", "shift_x", "shift_y", "scale", "shear_x", "shear_y")
        angle, x, y, scale, shear_x, shear_y = (float(row[name]) for name in names)
        return {"angle": angle, "shift": (x, y), "scale": scale, "shear": (shear_x, shear_y), "center": self.center}


@dataclass(frozen=True, init=False)
class RandomPerspective(Op):
    """Shows the image as seen from another side, with probability ``p``: its corners move inwards by random amounts.

    The image is unchanged if no perspective leads to the drawn corners, as may happen for a ``distortion_scale`` near 1
    or an image of one row.

    Args:
        distortion_scale: Largest move of a corner, as a fraction of half the width and half the height, 0 to 1.
        p: Probability, 0 to 1.
        interpolation: By name, as torchvision's ``InterpolationMode`` or Pillow's constant.
        fill: One number or (R, G, B), 0-255, for pixels from outside the image.

    Raises:
        ArgumentError: for an argument outside its range.
    """

    draws_from_size = True

    distortion_scale: float
    p: float
    interpolation: str
    fill: tuple[int, int, int]

    def __init__(
        self, distortion_scale: float = 0.5, p: float = 0.5, interpolation: object = "bilinear", fill: object = 0
    ) -> None:
        check_number("distortion_scale", distortion_scale, 0, 1)
        self._set(
            distortion_scale=float(distortion_scale),
            p=check_probability(p),
            interpolation=check_warp_interpolation(interpolation),
            fill=check_fill(fill),
        )

    def draw(self, uniforms: Uniforms, sizes: IntArray) -> Drawn:
        uniform = uniforms(9)
        reach = (self.distortion_scale * (sizes // 2)).astype(np.int64) + 1
        inwards = np.floor(uniform[:, 1:].reshape(-1, 4, 2) * reach[:, None, ::-1]).astype(np.int64)
        # (x, y) of the upper left, upper right, lower right and lower left corner: True at the far side.
        is_far = np.array([[False, False], [True, False], [True, True], [False, True]])
        corners = np.where(is_far, (sizes - reach)[:, None, ::-1], 0) + inwards
        return Drawn({"distort": uniform[:, 0] < self.p, "corners": corners}, sizes)


def _between(uniform: FloatArray, bounds: tuple[float, float]) -> FloatArray:
    return bounds[0] + uniform * (bounds[1] - bounds[0])


def _angle_range(name: str, value: float | Sequence[float]) -> tuple[float, float]:
    if isinstance(value, (int, float)):
        if value < 0:
            raise ArgumentError(f"{name} must not be negative if it is one number, got {value}")
        value = (-value, value)
    return check_range(name, value)


def _center(value: Sequence[float] | None) -> tuple[float, float] | None:
    if value is None:
        return None
    if len(value) != 2 or not all(map(math.isfinite, value)):
        raise ArgumentError(f"center must be (x, y) in pixels, two finite numbers, got {value!r}")
    return float(value[0]), float(value[1])

"""Matrices of warps, as in torchvision and Pillow."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

# (xx, xy, x0, yx, yy, y0): the pixel (x, y) of the output comes from (xx x + xy y + x0, yx x + yy y + y0) of the input.
# Pixels are squares of side 1: the middle of the upper left one is (0.5, 0.5).
Matrix = tuple[float, float, float, float, float, float]


def affine_matrix(
    width: int,
    height: int,
    *,
    angle: float = 0.0,
    shift: tuple[float, float] = (0.0, 0.0),
    scale: float = 1.0,
    shear: tuple[float, float] = (0.0, 0.0),
    center: tuple[float, float] | None = None,
    forward: bool = False,
) -> Matrix:
    """Returns torchvision's C * (R(angle) * scale * SHy * SHx)^-1 * C^-1 * T^-1.

    Args:
        width: Of the image, pixels.
        height: Of the image, pixels.
        angle: Degrees, clockwise.
        shift: (x, y) in pixels.
        scale: Positive.
        shear: (x, y) in degrees.
        center: (x, y) in pixels; None for the middle.
        forward: True for the inverse, T * C * R(angle) * scale * SHy * SHx * C^-1: a point (x, y) of the input goes to
            (xx x + xy y + x0, yx x + yy y + y0) of the output.
    """
    center_x, center_y = center or (width * 0.5, height * 0.5)
    moved_x, moved_y = center_x + shift[0], center_y + shift[1]
    turn, shear_x, shear_y = math.radians(angle), math.radians(shear[0]), math.radians(shear[1])
    a = math.cos(turn - shear_y) / math.cos(shear_y)
    b = -(a * math.tan(shear_x) + math.sin(turn))
    c = math.sin(turn - shear_y) / math.cos(shear_y)
    d = math.cos(turn) - c * math.tan(shear_x)

    if forward:
        xx, xy, yx, yy = a * scale, b * scale, c * scale, d * scale
        return xx, xy, moved_x - xx * center_x - xy * center_y, yx, yy, moved_y - yx * center_x - yy * center_y
    xx, xy, yx, yy = d / scale, -b / scale, -c / scale, a / scale
    return xx, xy, center_x - xx * moved_x - xy * moved_y, yx, yy, center_y - yx * moved_x - yy * moved_y


def rotation_matrix(width: int, height: int, degrees: float, center: tuple[float, float] | None = None) -> Matrix:
    """Returns the matrix of Pillow's ``Image.rotate`` to the image's own size.

    Args:
        width: Of the image, pixels.
        height: Of the image, pixels.
        degrees: Counterclockwise.
        center: (x, y) in pixels; None for the middle.
    """
    center_x, center_y = center or (width / 2, height / 2)
    radians = -math.radians(degrees % 360.0)
    # The rounding makes right angles exact, which Pillow turns without a filter.
    cos, sin, minus_sin = (round(value, 15) for value in (math.cos(radians), math.sin(radians), -math.sin(radians)))
    x0 = cos * -center_x + sin * -center_y + 0.0 + center_x
    y0 = minus_sin * -center_x + cos * -center_y + 0.0 + center_y
    return cos, sin, x0, minus_sin, cos, y0


def perspective_matrix(
    width: int, height: int, corners: Sequence[Sequence[int]]
) -> tuple[float, float, float, float, float, float, float, float] | None:
    """Returns the perspective that moves an image's corners to other places.

    The inverse of the unit square's map to a quadrilateral (Heckbert, "Fundamentals of texture mapping and image
    warping", 1989). In whole numbers up to the last step, so that it is the same on every machine.

    Args:
        width: Of the image, pixels.
        height: Of the image, pixels.
        corners: (x, y) in pixels of the upper left, upper right, lower right and lower left corner.

    Returns:
        (a, b, c, d, e, f, g, h), rounded to float32 as in torchvision: the pixel (x, y) of the output comes from
        ((a x + b y + c) / (g x + h y + 1), (d x + e y + f) / (g x + h y + 1)). None where there is no such map.
    """
    (x0, y0), (x1, y1), (x2, y2), (x3, y3) = corners
    sum_x, sum_y = x0 - x1 + x2 - x3, y0 - y1 + y2 - y3

    i = (x1 - x2) * (y3 - y2) - (x3 - x2) * (y1 - y2)
    g = sum_x * (y3 - y2) - (x3 - x2) * sum_y
    h = (x1 - x2) * sum_y - sum_x * (y1 - y2)
    a, b, c = (x1 - x0) * i + g * x1, (x3 - x0) * i + h * x3, x0 * i
    d, e, f = (y1 - y0) * i + g * y1, (y3 - y0) * i + h * y3, y0 * i

    divisor = a * e - b * d
    if divisor == 0 or a * (e * i - f * h) - b * (d * i - f * g) + c * (d * h - e * g) == 0:
        return None

    inverse = (
        (width - 1) * (e * i - f * h),
        (width - 1) * (c * h - b * i),
        (width - 1) * (b * f - c * e),
        (height - 1) * (f * g - d * i),
        (height - 1) * (a * i - c * g),
        (height - 1) * (c * d - a * f),
        d * h - e * g,
        b * g - a * h,
    )
    xx, xy, x, yx, yy, y, zx, zy = (float(np.float32(number / divisor)) for number in inverse)
    return xx, xy, x, yx, yy, y, zx, zy

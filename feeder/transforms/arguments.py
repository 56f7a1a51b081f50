"""Checks that turn torchvision's many spellings of an argument into one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from feeder.errors import ArgumentError
from feeder.system.checks import check_number, check_one_of

_INTERPOLATIONS = ("nearest", "nearest-exact", "bilinear", "bicubic", "box", "hamming", "lanczos")
BASE_FILTERS = ("bilinear", "bicubic")  # filters that a base path may have
DRAWN = "random"  # in place of an interpolation: one of these, drawn; ``bicubic`` of the draws is its number
_PILLOW_INTERPOLATIONS = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")
_PADDING_MODES = ("constant", "edge", "reflect", "symmetric")


def check_interpolation(value: object, antialias: object = True) -> str:
    """Returns an interpolation's name, from a name, torchvision's ``InterpolationMode`` or Pillow's constant."""
    if antialias is not True and antialias is not None:
        raise ArgumentError(
            f"antialias must be True, got {antialias!r}: images are resized as Pillow does it, always antialiased; "
            "leave the argument out"
        )
    named = getattr(value, "value", value)  # torchvision's and Pillow's enums
    if isinstance(named, int) and not isinstance(named, bool) and 0 <= named < len(_PILLOW_INTERPOLATIONS):
        return _PILLOW_INTERPOLATIONS[named]
    if isinstance(named, str) and named in _INTERPOLATIONS:
        return named
    raise ArgumentError(f"interpolation must be one of {', '.join(_INTERPOLATIONS)}, got {value!r}")


def check_warp_interpolation(value: object) -> str:
    """Checks the interpolation of an op that warps an image, which may be one of three."""
    name = check_interpolation(value)
    check_one_of("interpolation of this op", name, ("nearest", "nearest-exact", "bilinear", "bicubic"))
    return name


def check_size(name: str, value: int | Sequence[int]) -> tuple[int, int]:
    """Returns (height, width) in pixels from one int (a square) or a sequence of one or two."""
    sides = _ints(value, low=1)
    if len(sides) not in (1, 2):
        raise ArgumentError(f"{name} must be a positive int or a sequence (height, width) of them, got {value!r}")
    return sides[0], sides[-1]


def check_range(
    name: str, value: Iterable[float], *, low: float = -math.inf, high: float = math.inf
) -> tuple[float, float]:
    """Returns an increasing (min, max) of finite numbers within [low, high]."""
    try:
        pair = tuple(float(v) for v in value)
    except (TypeError, ValueError):
        pair = ()
    if len(pair) != 2 or not low <= pair[0] <= pair[1] <= high or not all(map(math.isfinite, pair)):
        within = "" if low == -math.inf and high == math.inf else f" within [{low}, {high}]"
        raise ArgumentError(f"{name} must be two increasing, finite numbers (min, max){within}, got {value!r}")
    return pair[0], pair[1]


def check_probability(value: float) -> float:
    """Returns a probability in [0, 1]."""
    check_number("p", value, 0, 1)
    return float(value)


def check_fill(value: Any) -> tuple[int, int, int]:
    """Returns RGB 0-255 from None (black), one number or three; fractions are cut as in torchvision."""
    numbers = (0,) if value is None else (value,) if isinstance(value, (int, float)) else value
    if (
        not isinstance(numbers, Sequence)
        or len(numbers) not in (1, 3)
        or not all(isinstance(v, (int, float)) and 0 <= v <= 255 for v in numbers)
    ):
        raise ArgumentError(f"fill must be a number or three numbers (R, G, B), each 0 to 255, got {value!r}")
    return int(numbers[0]), int(numbers[len(numbers) // 2]), int(numbers[-1])


def check_padding(value: int | Sequence[int]) -> tuple[int, int, int, int]:
    """Returns (left, top, right, bottom) in pixels from one int, (horizontal, vertical) or all four."""
    sides = _ints(value, low=0)
    if len(sides) not in (1, 2, 4):
        raise ArgumentError(f"padding must be an int >= 0 or a sequence of 1, 2 or 4 of them, got {value!r}")
    return sides[0], sides[1 % len(sides)], sides[2 % len(sides)], sides[-1]


def check_padding_mode(value: str) -> str:
    """Returns the name of a padding mode."""
    check_one_of("padding_mode", value, _PADDING_MODES)
    return value


def _ints(value: object, low: int) -> tuple[int, ...]:
    """Returns the ints in an int or a sequence; none if any element is not an int or is below ``low``."""
    numbers = tuple(value) if isinstance(value, Sequence) else (value,)
    ints = tuple(v for v in numbers if isinstance(v, int) and not isinstance(v, bool) and v >= low)
    return ints if len(ints) == len(numbers) else ()

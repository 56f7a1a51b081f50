"""Checks of arguments that many modules take: one sentence for each kind of fault."""

from __future__ import annotations

import contextlib
import math
import operator
from collections.abc import Iterable
from typing import Any

import numpy as np

from feeder.errors import ArgumentError
from feeder.system.arrays import Int64s

_NONE = ("", ", or None")  # by whether it may be


def check_one_of(name: str, value: Any, known: Iterable[object]) -> None:
    """Raises ArgumentError for a value that is none of those known."""
    choices = list(known)
    if value not in choices:
        raise ArgumentError(f"{name} must be one of {', '.join(map(str, choices))}, got {value!r}")


def check_int(name: str, value: Any, low: int, high: float = math.inf, *, or_none: bool = False) -> Any:
    """Returns an integer of any kind in [low, high] as Python's, or None if it may be; else raises ArgumentError."""
    if or_none and value is None:
        return None
    with contextlib.suppress(TypeError):
        found = operator.index(value)
        if low <= found <= high and not isinstance(value, bool):
            return found
    raise ArgumentError(f"{name} must be an integer {_span(low, high)}{_NONE[or_none]}, got {value!r}")


def check_number(name: str, value: Any, low: float, high: float = math.inf) -> None:
    """Raises ArgumentError for anything but a finite number, Python's or numpy's, in [low, high]."""
    if not (_is_finite(value) and low <= value <= high):
        raise ArgumentError(f"{name} must be a number {_span(low, high)}, got {value!r}")


def check_positive(name: str, value: Any, *, or_none: bool = False) -> None:
    """Raises ArgumentError for anything but a finite number above 0, Python's or numpy's; None passes if it may."""
    if not (_is_finite(value) and value > 0) and not (or_none and value is None):
        raise ArgumentError(f"{name} must be a number above 0{_NONE[or_none]}, got {value!r}")


def _span(low: float, high: float) -> str:
    return f"of {low} or more" if high == math.inf else f"from {low} to {high}"


def _is_finite(value: Any) -> bool:
    return isinstance(value, (int, float, np.number)) and math.isfinite(value)


def sample_numbers(numbers: Iterable[Any]) -> Int64s:
    """Converts sample numbers to an array.

    Args:
        numbers: Python's or numpy's integers, or integer tensors of one element.

    Returns:
        int64 [N].

    Raises:
        TypeError: naming the first number that is none of these, such as a boolean.
    """
    found = list(numbers)
    if not set(map(type, found)) <= {int}:
        found = [_checked(number) for number in found]
    return np.array(found, np.int64)


def _checked(number: Any) -> int:
    is_bool = isinstance(number, bool) or str(getattr(number, "dtype", "")) in ("bool", "torch.bool")
    try:
        if not is_bool:
            return operator.index(number)
    except TypeError:
        pass
    raise TypeError(
        f"a sample number must be an integer, got {number!r} ({type(number).__name__}); for a mask, use "
        "np.flatnonzero(mask)"
    )

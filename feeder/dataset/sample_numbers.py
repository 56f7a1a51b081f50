"""Sample numbers as callers and samplers pass them."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

import numpy as np

from feeder.system.arrays import Int64s


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

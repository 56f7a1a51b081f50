"""Golden files, each beside its generator."""

from __future__ import annotations

import functools
import json
import os
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["torchvision_arrays", "torchvision_cases"]

_TORCHVISION = os.path.join(os.path.dirname(__file__), "torchvision.npz")


@functools.cache
def torchvision_arrays() -> dict[str, npt.NDArray[Any]]:
    """The arrays of torchvision.npz."""
    with np.load(_TORCHVISION) as arrays:
        return dict(arrays)


def torchvision_cases(kind: str) -> list[dict[str, Any]]:
    """The described cases of torchvision.npz: "pixels", "draws", "sizes" or "magnitudes"."""
    cases: list[dict[str, Any]] = json.loads(str(torchvision_arrays()["cases"]))[kind]
    return cases

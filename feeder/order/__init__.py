"""The order of samples and every random number: pure functions of (seed, epoch, position or sample id)."""

from __future__ import annotations

import importlib
from typing import Any

_HOMES = {
    "Lanes": "lanes",
    "Order": "sample_order",
    "Split": "split",
    "Window": "sample_order",
    "permute": "permutation",
    "philox": "random",
    "substitute": "sample_order",
    "uniform": "random",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)

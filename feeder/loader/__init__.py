"""The DataLoader."""

from __future__ import annotations

import importlib
from typing import Any

_HOMES = {
    "DataLoader": "dataloader",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)

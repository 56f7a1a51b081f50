"""Map-style datasets: from sample numbers to encoded bytes."""

from __future__ import annotations

import importlib
from typing import Any

_HOMES = {
    "FOLDER_EXTENSIONS": "datasets",
    "FeederDataset": "datasets",
    "FolderDataset": "datasets",
    "ShardDataset": "datasets",
    "as_feeder": "datasets",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)

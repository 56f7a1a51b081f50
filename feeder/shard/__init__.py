"""Turns samples into pre-shuffled WebDataset shards and their index."""

from __future__ import annotations

import importlib
from typing import Any

_HOMES = {
    "Progress": "write.options",
    "REJECTED_NAME": "write.options",
    "ShardOptions": "write.options",
    "ShardSummary": "write.options",
    "default_out": "write.sharding",
    "shard": "write.sharding",
    "write_shards": "write.sharding",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)

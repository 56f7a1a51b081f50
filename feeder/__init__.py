"""feeder: an input pipeline for PyTorch vision training.

Names load their module on first use, so that ``import feeder`` costs nothing and starts nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from feeder.errors import (
        ArgumentError,
        BackendError,
        DecodeError,
        FeederError,
        FormatError,
        LockedError,
        ShardError,
        SourceError,
        WorkerError,
    )
    from feeder.shard import write_shards

__version__ = "0.1.0"

_HOMES = dict.fromkeys(
    [
        "ArgumentError",
        "BackendError",
        "DecodeError",
        "FeederError",
        "FormatError",
        "LockedError",
        "ShardError",
        "SourceError",
        "WorkerError",
    ],
    "feeder.errors",
) | {"write_shards": "feeder.shard"}

__all__ = [
    "ArgumentError",
    "BackendError",
    "DecodeError",
    "FeederError",
    "FormatError",
    "LockedError",
    "ShardError",
    "SourceError",
    "WorkerError",
    "write_shards",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'feeder' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

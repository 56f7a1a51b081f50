"""feeder: an input pipeline for PyTorch vision training.

Names load their module on first use, so that ``import feeder`` costs nothing and starts nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from feeder import transforms
    from feeder.batch_size import find_batch_size
    from feeder.dataset import FolderDataset, ShardDataset
    from feeder.device_log import CsvWriter, DeviceLog
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
    from feeder.loader import DataLoader
    from feeder.order import Window
    from feeder.shard import write_shards
    from feeder.tuning.headroom import headroom
    from feeder.tuning.tune import tune

__version__ = "0.1.0"

__all__ = [
    "ArgumentError",
    "BackendError",
    "CsvWriter",
    "DataLoader",
    "DecodeError",
    "DeviceLog",
    "FeederError",
    "FolderDataset",
    "FormatError",
    "LockedError",
    "ShardDataset",
    "ShardError",
    "SourceError",
    "Window",
    "WorkerError",
    "find_batch_size",
    "headroom",
    "transforms",
    "tune",
    "write_shards",
]

_HOMES = {
    "CsvWriter": "feeder.device_log",
    "DataLoader": "feeder.loader",
    "DeviceLog": "feeder.device_log",
    "FolderDataset": "feeder.dataset",
    "ShardDataset": "feeder.dataset",
    "Window": "feeder.order",
    "find_batch_size": "feeder.batch_size",
    "headroom": "feeder.tuning.headroom",
    "tune": "feeder.tuning.tune",
    "write_shards": "feeder.shard",
}


def __getattr__(name: str) -> Any:
    if name == "transforms":
        return importlib.import_module("feeder.transforms")
    if name not in __all__:
        raise AttributeError(f"module 'feeder' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES.get(name, "feeder.errors")), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

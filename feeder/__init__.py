"""feeder: an input pipeline for PyTorch vision training.

Names load their module on first use, so that ``import feeder`` costs nothing and starts nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from feeder import fields, service, transforms, wds
    from feeder.dataset.dataset_shards import write_shards
    from feeder.dataset.encoded import Encoded
    from feeder.dataset.folders import FolderDataset
    from feeder.dataset.mixture import Mixture
    from feeder.dataset.shards import ShardDataset
    from feeder.decoders.decode import decode
    from feeder.decoders.packed import decode_packed
    from feeder.decoders.registry import Dali
    from feeder.errors import (
        ArgumentError,
        BackendError,
        DecodeError,
        FeederError,
        FormatError,
        LockedError,
        ServiceError,
        ShardError,
        SourceError,
        WorkerError,
    )
    from feeder.loader.dataloader import DataLoader
    from feeder.loader.from_torch import explain, from_torch
    from feeder.loader.options import Metrics, ToDevice, WorkerOptions
    from feeder.loader.service_options import Service
    from feeder.order.buckets import Buckets
    from feeder.order.lanes import Lanes
    from feeder.order.sample_order import Window
    from feeder.order.skip import Skip
    from feeder.shard.format.packed_samples import packed_decoder
    from feeder.tools.device_log import CsvWriter, DeviceLog
    from feeder.tools.tune.tuner import tune
    from feeder.transforms.pad_to_batch import PadToBatch

__version__ = "0.1.0"

__all__ = [
    "ArgumentError",
    "BackendError",
    "Buckets",
    "CsvWriter",
    "Dali",
    "DataLoader",
    "DecodeError",
    "DeviceLog",
    "Encoded",
    "FeederError",
    "FolderDataset",
    "FormatError",
    "Lanes",
    "LockedError",
    "Metrics",
    "Mixture",
    "PadToBatch",
    "Service",
    "ServiceError",
    "ShardDataset",
    "ShardError",
    "Skip",
    "SourceError",
    "ToDevice",
    "Window",
    "WorkerError",
    "WorkerOptions",
    "decode",
    "decode_packed",
    "explain",
    "fields",
    "from_torch",
    "packed_decoder",
    "service",
    "transforms",
    "tune",
    "wds",
    "write_shards",
]

_HOMES = {
    "Buckets": "feeder.order.buckets",
    "CsvWriter": "feeder.tools.device_log",
    "Dali": "feeder.decoders.registry",
    "DataLoader": "feeder.loader.dataloader",
    "DeviceLog": "feeder.tools.device_log",
    "Encoded": "feeder.dataset.encoded",
    "FolderDataset": "feeder.dataset.folders",
    "Mixture": "feeder.dataset.mixture",
    "PadToBatch": "feeder.transforms.pad_to_batch",
    "ShardDataset": "feeder.dataset.shards",
    "Lanes": "feeder.order.lanes",
    "Metrics": "feeder.loader.options",
    "Service": "feeder.loader.service_options",
    "ToDevice": "feeder.loader.options",
    "Skip": "feeder.order.skip",
    "Window": "feeder.order.sample_order",
    "WorkerOptions": "feeder.loader.options",
    "decode": "feeder.decoders.decode",
    "decode_packed": "feeder.decoders.packed",
    "explain": "feeder.loader.from_torch",
    "from_torch": "feeder.loader.from_torch",
    "packed_decoder": "feeder.shard.format.packed_samples",
    "tune": "feeder.tools.tune.tuner",
    "write_shards": "feeder.dataset.dataset_shards",
}


def __getattr__(name: str) -> Any:
    if name in ("fields", "service", "transforms", "wds"):
        return importlib.import_module(f"feeder.{name}")
    if name not in __all__:
        raise AttributeError(f"module 'feeder' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES.get(name, "feeder.errors")), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

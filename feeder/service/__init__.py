"""The input service: parts of batches made on other nodes. Its names load on first use.

import feeder.service
feeder.service.start("train", roots=["/data"], cpus=8)      # inside a Ray cluster
feeder.DataLoader(dataset, ..., service="train")
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from feeder.service.cluster import start, status, stop

__all__ = ["start", "status", "stop"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'feeder.service' has no attribute {name!r}")
    return getattr(importlib.import_module("feeder.service.cluster"), name)

"""Options of the way of batches to a device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from feeder.loader.device.static_buffers import StaticBuffers

__all__ = ["DeviceOptions"]


@dataclass(frozen=True)
class DeviceOptions:
    """Options of the way of batches to a device.

    Attributes:
        target: The device that batches are to be on; None: where they are made.
        ahead: Batches that are copied before the caller asks for them, 0 or more.
        stream: The stream of the copies; None without a GPU.
        static: Where every batch is put; None: each has memory of its own.
        pin_memory: Whether batches on the host are page-locked.
    """

    target: torch.device | None
    ahead: int
    stream: Any
    static: StaticBuffers | None
    pin_memory: bool

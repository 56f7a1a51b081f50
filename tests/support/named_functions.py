"""Functions of a module, which processes on other machines find by their names."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import numpy as np

__all__ = ["ended_by_white", "inverted", "inverted_in_seven_seconds", "places_of", "spread_out"]

system = os.system  # a function that is not of this module


def inverted(image: Any) -> Any:
    """An op on uint8 images."""
    return 255 - image


def inverted_in_seven_seconds(image: Any) -> Any:
    """An op on uint8 images that takes longer than another job waits for its first core."""
    time.sleep(7)
    return inverted(image)


def ended_by_white(image: Any) -> Any:
    """An op on uint8 images, which ends its process where one is white."""
    if image.min() > 250:
        os.kill(os.getpid(), signal.SIGKILL)
    return image


def places_of(data: bytes) -> dict[str, Any]:
    """A field with an array, bytes, and a list."""
    return {"array": np.frombuffer(data, np.uint8).astype(np.int32), "bytes": data[:3], "list": [len(data), None, 0.5]}


def spread_out(data: bytes) -> set[int]:
    """A field that can't be sent."""
    return set(data)

"""Ordinary memory that batches made in the calling process use in turn."""

from __future__ import annotations

import math
from collections import deque
from typing import Any

import numpy as np
import numpy.typing as npt

from feeder.loader.slots.image_slots import HELD_BATCHES

__all__ = ["ReusedMemory"]

_LINE = 64


class ReusedMemory:
    """Memory for one array of each batch. It is used again when the last array or tensor on it is gone.

    Without that the system clears the pages of every batch anew, a tenth of the time that it takes to make it. No more
    memory is in use than without: a loop has the next batch made while it still holds the last one.
    """

    def __init__(self) -> None:
        # Filled by finalizers, which run at any moment and in any thread: appending to a deque is atomic.
        self._idle: deque[_Memory] = deque(maxlen=HELD_BATCHES)

    def empty(self, shape: tuple[int, ...], dtype: Any) -> npt.NDArray[Any]:
        """Returns an uninitialized array, aligned to a cache line, as :func:`numpy.empty` does."""
        size = math.prod(shape) * np.dtype(dtype).itemsize
        while self._idle:
            memory = self._idle.pop()
            if memory.nbytes >= size:
                break
        else:
            memory = _aligned(size)
        use = memory.view(_Use)
        use.idle = self._idle
        array: npt.NDArray[Any] = np.ndarray(shape, dtype, use)
        return array


class _Memory(np.ndarray):
    """Bytes of a class of their own: numpy skips a base whose own base is a plain array."""


class _Use(np.ndarray):
    """Keeps memory from being used again while an array on it lives."""

    base: _Memory
    idle: deque[_Memory]

    def __del__(self) -> None:
        self.idle.append(self.base)


def _aligned(size: int) -> _Memory:
    memory = np.empty(size + _LINE, np.uint8)
    start = -memory.__array_interface__["data"][0] % _LINE
    return memory[start : start + size].view(_Memory)

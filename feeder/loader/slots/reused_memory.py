"""Ordinary memory that batches made in the calling process use in turn."""

from __future__ import annotations

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
        self._idle: deque[npt.NDArray[np.uint8]] = deque(maxlen=HELD_BATCHES)

    def empty(self, shape: tuple[int, ...], dtype: Any) -> npt.NDArray[Any]:
        """Returns an uninitialized array, aligned to a cache line, as :func:`numpy.empty` does."""
        size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        while self._idle:
            memory = self._idle.pop()
            if memory.nbytes >= size:
                break
        else:
            memory = _aligned(size)
        array: npt.NDArray[Any] = np.ndarray(shape, dtype, np.asarray(_Use(memory, self._idle)))
        return array


class _Use:
    """Keeps memory from being used again while an array on it lives."""

    def __init__(self, memory: npt.NDArray[np.uint8], idle: deque[npt.NDArray[np.uint8]]) -> None:
        self.__array_interface__ = memory.__array_interface__
        self._memory, self._idle = memory, idle

    def __del__(self) -> None:
        self._idle.append(self._memory)


def _aligned(size: int) -> npt.NDArray[np.uint8]:
    memory = np.empty(size + _LINE, np.uint8)
    start = -memory.__array_interface__["data"][0] % _LINE
    return memory[start : start + size]

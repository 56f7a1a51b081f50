"""A piece of anonymous shared memory."""

from __future__ import annotations

import array
import math
import mmap
import os
import pickle
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from feeder.errors import ArgumentError
from feeder.system.arrays import AnyArray

_ALLOCATED_AT_ONCE = 1 << 20  # takes a tenth of a millisecond


class Region:
    """A piece of anonymous shared memory.

    Args:
        size_bytes: Its size.
        descriptor: A region made by another process, to be mapped here and owned from now on; None makes a new one.
        writable: Maps it for writing.
    """

    def __init__(self, size_bytes: int, descriptor: int | None = None, *, writable: bool = True) -> None:
        self.size_bytes = size_bytes
        self.descriptor = os.memfd_create("feeder", os.MFD_CLOEXEC) if descriptor is None else descriptor
        try:
            if descriptor is None:
                try:
                    # In pieces: kernels before 6.8 give up when a signal comes, and the call starts over: under a
                    # profiler's timer a large region would never be done.
                    for start in range(0, size_bytes, _ALLOCATED_AT_ONCE):
                        piece = min(_ALLOCATED_AT_ONCE, size_bytes - start)
                        os.posix_fallocate(self.descriptor, start, piece)
                except OSError as error:
                    raise ArgumentError(
                        f"can't allocate {size_bytes >> 20} MiB of shared memory for batches ({error.strerror}): lower "
                        "batch_size, num_workers or prefetch_factor, or set memory_limit_bytes"
                    ) from None
            access = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
            self.memory = mmap.mmap(self.descriptor, size_bytes, mmap.MAP_SHARED, access)
        except BaseException:
            os.close(self.descriptor)
            raise
        self._pid = os.getpid()

    def array(self, dtype: Any, shape: tuple[int, ...]) -> AnyArray:
        """Returns an array on the region's memory, which stays mapped while the array lives."""
        return np.frombuffer(self.memory, dtype, math.prod(shape)).reshape(shape)

    def close(self) -> None:
        """Closes the descriptor; the memory is freed with the last array on it."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0 and self._pid == os.getpid():
            os.close(descriptor)

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not is_finalizing() and hasattr(self, "_pid"):  # see Note [At the interpreter's end]
            self.close()


def pack(value: Any) -> Region:
    """Pickles a value into shared memory; large arrays are there once, and every worker maps them."""
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    pieces = [memoryview(data), *(buffer.raw() for buffer in buffers)]
    sizes = array.array("q", [len(pieces), *(piece.nbytes for piece in pieces)]).tobytes()
    region = Region(len(sizes) + sum(piece.nbytes for piece in pieces))
    region.memory.write(sizes)
    for piece in pieces:
        region.memory.write(piece)
    return region


def unpack(region: Region) -> Any:
    """Returns the value that :func:`pack` put there; its large arrays are views of the region's memory."""
    memory = memoryview(region.memory)
    count = int.from_bytes(memory[:8], "little")
    sizes = memory[8 : 8 + 8 * count].cast("q").tolist()
    at = 8 + 8 * count
    pieces = []
    for size in sizes:
        pieces.append(memory[at : at + size])
        at += size
    return pickle.loads(pieces[0], buffers=pieces[1:])

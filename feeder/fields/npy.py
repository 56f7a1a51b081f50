"""Arrays in ``.npy`` files, without pickle."""

from __future__ import annotations

import functools
import io
import math
from typing import Any, NamedTuple

import numpy as np

from feeder.system.arrays import AnyArray

_MAGIC = b"\x93NUMPY"


class NpyHeader(NamedTuple):
    """The header of an ``.npy`` file.

    Attributes:
        shape: The array's shape.
        is_fortran: True if its first axis is contiguous.
        dtype: Its dtype.
        size_bytes: Size of the header itself; the array follows.
    """

    shape: tuple[int, ...]
    is_fortran: bool
    dtype: np.dtype[Any]
    size_bytes: int


def npy_header(data: bytes | memoryview) -> NpyHeader:
    """Returns the header of an ``.npy`` file.

    Raises:
        ValueError: if it is none, or damaged.
    """
    start = bytes(data[:12])
    if start[:6] != _MAGIC:
        raise ValueError("is not an .npy file")
    size_bytes = 2 if start[6:7] == b"\x01" else 4
    end = 8 + size_bytes + int.from_bytes(start[8 : 8 + size_bytes], "little")
    return _parsed(bytes(data[:end]))


def npy_array(data: bytes) -> AnyArray:
    """Returns the array in an ``.npy`` file, in its bytes' memory.

    Raises:
        ValueError: if it is damaged, or holds anything but numbers and booleans.
    """
    header = npy_header(data)
    if header.dtype.kind not in "biufc" or header.dtype.char in "gG":  # long doubles
        raise ValueError(f"holds {header.dtype}, expected numbers or booleans")
    count = math.prod(header.shape)
    if len(data) - header.size_bytes < count * header.dtype.itemsize:
        found = len(data) - header.size_bytes
        raise ValueError(
            f"was cut off: {header.dtype} {list(header.shape)} is {count * header.dtype.itemsize} bytes, got {found}"
        )
    flat = np.frombuffer(data, header.dtype, count, header.size_bytes)
    return flat.reshape(header.shape, order="F" if header.is_fortran else "C")


@functools.lru_cache(maxsize=256)  # a set has few headers, and numpy parses each as Python, in 30 microseconds
def _parsed(head: bytes) -> NpyHeader:
    file = io.BytesIO(head)
    try:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, is_fortran, dtype = read(file)
    except Exception as error:
        raise ValueError(f"damaged .npy header: {error}") from None
    return NpyHeader(shape, is_fortran, dtype, file.tell())

"""Images stored as arrays: ``.npy`` files of uint8 [H, W, 3] or [H, W], as ``--encode raw`` writes them."""

from __future__ import annotations

import math

import numpy as np

from feeder.decoders.decoder import Buffer
from feeder.errors import DecodeError
from feeder.fields.npy import npy_header
from feeder.system.arrays import Uint8s

_MAGIC = b"\x93NUMPY"


def is_raw(buffer: Buffer) -> bool:
    """Returns whether a file begins as an ``.npy`` file does."""
    return bytes(buffer[: len(_MAGIC)]) == _MAGIC


def raw_pixels(buffer: Buffer) -> Uint8s:
    """Returns an ``.npy`` file's pixels, uint8 [H, W, 3] or [H, W]. Memory is sized by the file, never by its header.

    Raises:
        DecodeError: for any other array, or a damaged header.
    """
    try:
        shape, is_fortran, dtype, start = npy_header(memoryview(buffer))
    except ValueError as error:
        raise DecodeError(str(error)) from None
    pixels = np.frombuffer(buffer, np.uint8, offset=start)
    is_image = len(shape) == 2 or (len(shape) == 3 and shape[2] == 3)
    if dtype != np.uint8 or is_fortran or not is_image or min(shape) < 1 or math.prod(shape) != pixels.size:
        raise DecodeError(
            f"expected an .npy of uint8 [H, W, 3] or [H, W], got {dtype} {list(shape)} and {pixels.size} bytes"
        )
    return pixels.reshape(shape)

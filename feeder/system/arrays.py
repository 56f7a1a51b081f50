"""Types of arrays and of sizes, for the signatures of functions, and the places of arrays in memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Bools = npt.NDArray[np.bool_]
Float32s = npt.NDArray[np.float32]
Float64s = npt.NDArray[np.float64]
Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]
Records = npt.NDArray[np.void]
Uint8s = npt.NDArray[np.uint8]
Uint32s = npt.NDArray[np.uint32]
Uint64s = npt.NDArray[np.uint64]
AnyArray = npt.NDArray[Any]

Size = tuple[int, int]  # (height, width), pixels


def aligned(size_bytes: int, unit_bytes: int) -> int:
    """Returns a size, rounded up to a multiple of a unit."""
    return -(-size_bytes // unit_bytes) * unit_bytes

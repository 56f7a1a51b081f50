"""Types of arrays, for the signatures of functions; their docstrings say shapes and ranges."""

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

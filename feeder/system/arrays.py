"""Types of arrays, for the signatures of functions; their docstrings say shapes and ranges."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["AnyArray", "Int32s", "Int64s", "Uint8s"]

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]
Uint8s = npt.NDArray[np.uint8]
AnyArray = npt.NDArray[Any]

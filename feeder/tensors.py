"""Tensors on numpy arrays' memory."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt
import torch

__all__ = ["as_tensor"]


def as_tensor(array: npt.NDArray[Any], dtype: str) -> torch.Tensor:
    """The tensor on an array's memory.

    Args:
        array: Of a recipe's ``storage_dtype``.
        dtype: Its ``output_dtype``; bfloat16, which numpy lacks, is held as its bits in uint16.
    """
    tensor = torch.from_numpy(array)
    return tensor.view(torch.bfloat16) if dtype == "bfloat16" else tensor

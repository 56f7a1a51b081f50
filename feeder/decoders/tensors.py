"""Tensors on numpy arrays' memory, and copies of them on a device."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch

from feeder.errors import BackendError
from feeder.system.arrays import AnyArray


def as_tensor(array: AnyArray, dtype: str) -> torch.Tensor:
    """Returns a tensor on an array's memory.

    Args:
        array: Of a recipe's ``storage_dtype``.
        dtype: Its ``output_dtype``; bfloat16, which numpy lacks, is held as its bits in uint16.
    """
    tensor = torch.from_numpy(array)
    return tensor.view(torch.bfloat16) if dtype == "bfloat16" else tensor


def as_samples(
    images: Iterable[Any],
    labels: AnyArray,
    fields: Sequence[Sequence[Any]],
    dtype: str | tuple[str, ...],
) -> list[tuple[Any, ...]]:
    """Returns finished samples, each ``(image, label, *fields)``.

    Args:
        images: N images [C, H, W] of a recipe's ``storage_dtype``, or N sequences of views; the tensors share their
            memory.
        labels: int64 [N], which become ints, or float32 [N] or [N, K], which become tensors: Python's floats would be
            collated as float64.
        fields: The N values of each further field.
        dtype: The recipe's ``output_dtype``; a tuple of those of the views, which become a list of tensors.
    """
    targets = labels.tolist() if labels.dtype.kind == "i" else torch.from_numpy(labels).clone().unbind()
    rows = zip(images, targets, *fields, strict=True)
    if isinstance(dtype, str):
        return [(as_tensor(image, dtype), *rest) for image, *rest in rows]
    return [(list(map(as_tensor, views, dtype)), *rest) for views, *rest in rows]


def numbered(device: torch.device, backend: str) -> torch.device:
    """Returns a CUDA device with its number.

    Args:
        device: The device.
        backend: Name of the backend that it is for.

    Raises:
        BackendError: if torch finds none.
    """
    if not torch.cuda.is_available():
        raise BackendError(
            f"backend {backend!r} on a CUDA device: torch {torch.__version__} finds none; check `nvidia-smi`, install "
            f"a torch build for CUDA, or use {'device' if backend == 'dali' else 'backend'}='cpu'"
        )
    return device if device.index is not None else torch.device("cuda", torch.cuda.current_device())


def to_device(array: AnyArray, device: torch.device) -> torch.Tensor:
    """Copies an array to a device without waiting: the copy is queued on the current stream."""
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor

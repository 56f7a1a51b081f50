"""Some images of a batch on a device, changed in place: which ones is known on the CPU, so nothing waits for a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from feeder._gpu.tensors import to_device

__all__ = ["change_rows", "per_image"]

# So many pixels are changed at a time: what ops take in between (float64 for some) stays under a few hundred MiB.
PIXELS_AT_ONCE = 1 << 21


def change_rows(
    images: torch.Tensor, rows: npt.NDArray[np.int64], change: Callable[[torch.Tensor, slice], torch.Tensor]
) -> None:
    """Puts other images in the place of some.

    Args:
        images: uint8 [N, 3, H, W], written to.
        rows: Which ones, [R] on the CPU, each once.
        change: Makes uint8 [r, 3, H, W] of as many images, given with the part of ``rows`` that they are.
    """
    step = max(1, PIXELS_AT_ONCE // (images.shape[2] * images.shape[3]))
    for start in range(0, len(rows), step):
        part = slice(start, start + step)
        if len(rows) == len(images):
            images[part].copy_(change(images[part], part))
        else:
            where = to_device(rows[part], images.device)
            images.index_copy_(0, where, change(images.index_select(0, where), part))


def per_image(values: npt.NDArray[Any], images: torch.Tensor) -> torch.Tensor:
    """A number for each image, [n], as [n, 1, 1, 1] on their device."""
    return to_device(values, images.device).reshape(-1, 1, 1, 1)

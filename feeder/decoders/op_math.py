"""Numbers of ops that all backends share: the warps of augmentations, blur kernels, and bfloat16."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["augmentation_affine", "bfloat16_bits", "blur_weights"]


def augmentation_affine(kind: str, magnitude: float) -> dict[str, Any] | None:
    """Returns an augmentation's arguments of :func:`feeder.transforms.matrices.affine_matrix`; None if it has none.

    Args:
        kind: One of :data:`feeder.transforms.augment.AUGMENTATIONS`.
        magnitude: As drawn.
    """
    if kind == "ShearX":
        return {"shear": (math.degrees(math.atan(magnitude)), 0.0), "center": (0.0, 0.0)}
    if kind == "ShearY":
        return {"shear": (0.0, math.degrees(math.atan(magnitude))), "center": (0.0, 0.0)}
    if kind == "TranslateX":
        return {"shift": (int(magnitude), 0.0)}
    if kind == "TranslateY":
        return {"shift": (0.0, int(magnitude))}
    return None


def blur_weights(size: int, sigma: float) -> npt.NDArray[np.float32]:
    """Returns a Gaussian kernel as in torchvision, float32 [size]: exp(-(x / sigma)^2) at x from -limit to limit."""
    limit = (size - 1) / (2.0 * math.sqrt(2.0))
    kernel = np.exp(-((np.linspace(-limit, limit, size) / sigma) ** 2))
    weights: npt.NDArray[np.float32] = (kernel / kernel.sum()).astype(np.float32)
    return weights


def bfloat16_bits(array: npt.NDArray[Any]) -> npt.NDArray[np.uint16]:
    """Returns the upper halves of float32 numbers, rounded to nearest even."""
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))) >> np.uint32(16)
    quiet_nan = bits >> np.uint32(16) | np.uint32(0x40)
    halves: npt.NDArray[np.uint16] = np.where(np.isnan(array), quiet_nan, rounded).astype(np.uint16)
    return halves

"""Formulas of ops that all backends share: the warps of augmentations, blur weights, and rounding to bfloat16."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from feeder import transforms as T
from feeder.system.arrays import AnyArray, Float32s
from feeder.transforms.matrices import affine_matrix, perspective_matrix, rotation_matrix
from feeder.transforms.op import Params


def augmentation_matrix(kind: str, magnitude: float, width: int, height: int) -> tuple[float, ...] | None:
    """Returns the warp of an augmentation, see :func:`feeder.transforms.matrices.affine_matrix`; None if it has none.

    Args:
        kind: One of :data:`feeder.transforms.augment.AUGMENTATIONS`.
        magnitude: As drawn.
        width, height: The image's size, px.
    """
    if kind == "Rotate":
        return rotation_matrix(width, height, magnitude)
    degrees, pixels = math.degrees(math.atan(magnitude)), int(magnitude)
    moves: dict[str, dict[str, Any]] = {
        "ShearX": {"shear": (degrees, 0.0), "center": (0.0, 0.0)},
        "ShearY": {"shear": (0.0, degrees), "center": (0.0, 0.0)},
        "TranslateX": {"shift": (pixels, 0.0)},
        "TranslateY": {"shift": (0.0, pixels)},
    }
    return affine_matrix(width, height, **moves[kind]) if kind in moves else None


def drawn_matrices(
    op: T.RandomAffine | T.RandomPerspective | T.RandomRotation, params: Params, width: int, height: int
) -> list[tuple[float, ...] | None]:
    """Returns the warp of each sample, see :mod:`feeder.transforms.matrices`; None for one that stays as it is.

    Args:
        op: The op.
        params: What it has drawn, each [N, ...].
        width, height: The size of all images, px.
    """
    if isinstance(op, T.RandomAffine):
        rows = ({name: values[row] for name, values in params.items()} for row in range(len(params["angle"])))
        return [affine_matrix(width, height, **op.affine(row)) for row in rows]
    if isinstance(op, T.RandomRotation):
        return [rotation_matrix(width, height, angle, op.center) for angle in params["angle"].tolist()]
    drawn = zip(params["distort"].tolist(), params["corners"].tolist(), strict=True)
    return [perspective_matrix(width, height, corners) if is_drawn else None for is_drawn, corners in drawn]


def blur_weights(size: int, sigma: float) -> Float32s:
    """Returns a Gaussian kernel as in torchvision, float32 [size]: exp(-(x / sigma)^2) at x from -limit to limit."""
    limit = (size - 1) / (2.0 * math.sqrt(2.0))
    kernel = np.exp(-((np.linspace(-limit, limit, size) / sigma) ** 2))
    weights: Float32s = (kernel / kernel.sum()).astype(np.float32)
    return weights


def bfloat16_bits(array: AnyArray) -> npt.NDArray[np.uint16]:
    """Returns the upper halves of float32 numbers, rounded to nearest even."""
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))) >> np.uint32(16)
    quiet_nan = bits >> np.uint32(16) | np.uint32(0x40)
    halves: npt.NDArray[np.uint16] = np.where(np.isnan(array), quiet_nan, rounded).astype(np.uint16)
    return halves

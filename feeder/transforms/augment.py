"""Automatic augmentation: a few ops of random kinds and strengths."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from feeder.errors import ArgumentError
from feeder.transforms.arguments import check_fill, check_warp_interpolation
from feeder.transforms.op import Drawn, FloatArray, IntArray, Op, Uniforms

__all__ = ["AUGMENTATIONS", "ENHANCEMENTS", "RandAugment", "TrivialAugmentWide", "signed", "strengths"]

# torchvision's order; the drawn number of an augmentation is its place here.
AUGMENTATIONS = (
    "Identity",
    "ShearX",
    "ShearY",
    "TranslateX",
    "TranslateY",
    "Rotate",
    "Brightness",
    "Color",
    "Contrast",
    "Sharpness",
    "Posterize",
    "Solarize",
    "AutoContrast",
    "Equalize",
    "Invert",
)
# Enhancements, and the property that each changes.
ENHANCEMENTS = {"Brightness": "brightness", "Color": "saturation", "Contrast": "contrast", "Sharpness": "sharpness"}
# RandAugment and TrivialAugmentWide choose among all but the last; AutoAugment's policies have that one, too.
_DRAWN = AUGMENTATIONS.index("Invert")
_SIGNED = np.array([1 <= i <= 9 for i in range(len(AUGMENTATIONS))])


@dataclass(frozen=True, init=False)
class RandAugment(Op):
    """Does ``num_ops`` random augmentations of one strength (Cubuk et al., 2019).

    Args:
        num_ops: Number of augmentations.
        magnitude: Strength: number of the bin, from 0.
        num_magnitude_bins: Number of bins, at least 2.
        interpolation: By name, as torchvision's ``InterpolationMode`` or Pillow's constant.
        fill: One number or (R, G, B), 0-255, for pixels from outside the image; None for black.

    Raises:
        ArgumentError: for an argument outside its range.
    """

    draws_from_size = True

    num_ops: int
    magnitude: int
    num_magnitude_bins: int
    interpolation: str
    fill: tuple[int, int, int]

    def __init__(
        self,
        num_ops: int = 2,
        magnitude: int = 9,
        num_magnitude_bins: int = 31,
        interpolation: object = "nearest",
        fill: object = None,
    ) -> None:
        if num_ops < 0:
            raise ArgumentError(f"num_ops must not be negative, got {num_ops}")
        _check_bins(num_magnitude_bins)
        if not 0 <= magnitude < num_magnitude_bins:
            raise ArgumentError(f"magnitude must be a bin from 0 to {num_magnitude_bins - 1}, got {magnitude}")
        self._set(
            num_ops=num_ops,
            magnitude=magnitude,
            num_magnitude_bins=num_magnitude_bins,
            interpolation=check_warp_interpolation(interpolation),
            fill=check_fill(fill),
        )

    def draw(self, uniforms: Uniforms, sizes: IntArray) -> Drawn:
        uniform = uniforms(2 * self.num_ops)
        kind = _kinds(uniform[:, : self.num_ops])
        bins = np.full(kind.shape, self.magnitude)
        most = 150.0 / 331.0 * sizes.astype(np.float64)
        strength = strengths(kind, bins, self.num_magnitude_bins, most[:, 1:], most[:, :1], 0.3, 30.0, 0.9, 4)
        return Drawn({"kind": kind, "magnitude": signed(kind, strength, uniform[:, self.num_ops :])}, sizes)


@dataclass(frozen=True, init=False)
class TrivialAugmentWide(Op):
    """Does one random augmentation of random strength (Müller and Hutter, 2021).

    Args:
        num_magnitude_bins: Number of strengths, at least 2.
        interpolation: By name, as torchvision's ``InterpolationMode`` or Pillow's constant.
        fill: One number or (R, G, B), 0-255, for pixels from outside the image; None for black.

    Raises:
        ArgumentError: for an argument outside its range.
    """

    draws_from_size = True

    num_magnitude_bins: int
    interpolation: str
    fill: tuple[int, int, int]

    def __init__(self, num_magnitude_bins: int = 31, interpolation: object = "nearest", fill: object = None) -> None:
        _check_bins(num_magnitude_bins)
        self._set(
            num_magnitude_bins=num_magnitude_bins,
            interpolation=check_warp_interpolation(interpolation),
            fill=check_fill(fill),
        )

    def draw(self, uniforms: Uniforms, sizes: IntArray) -> Drawn:
        uniform = uniforms(3)
        kind = _kinds(uniform[:, :1])
        bins = np.floor(uniform[:, 2:] * self.num_magnitude_bins).astype(np.int64)
        most = np.full((len(sizes), 1), 32.0)
        strength = strengths(kind, bins, self.num_magnitude_bins, most, most, 0.99, 135.0, 0.99, 6)
        return Drawn({"kind": kind, "magnitude": signed(kind, strength, uniform[:, 1:2])}, sizes)


def _check_bins(count: int) -> None:
    if count < 2:
        raise ArgumentError(f"num_magnitude_bins must be at least 2, got {count}")


def _kinds(uniform: FloatArray) -> IntArray:
    return np.floor(uniform * _DRAWN).astype(np.int64)


def signed(kind: IntArray, strength: FloatArray, uniform: FloatArray) -> FloatArray:
    """Returns the strengths, negative for half of the uniform numbers if the kind has two directions."""
    return np.where(_SIGNED[kind] & (uniform <= 0.5), -strength, strength)


def strengths(
    kind: IntArray,
    bins: IntArray,
    count: int,
    width: FloatArray,
    height: FloatArray,
    shear: float,
    degrees: float,
    factor: float,
    bits: int,
    *,
    most_bits: int = 8,
) -> FloatArray:
    """Returns the strength of each augmentation, float64 [N, ops]; its meaning depends on the kind.

    The arguments after ``count`` are the largest strengths: shifts in pixels [N, 1], shear, degrees, enhancement
    factor, and bits removed from ``most_bits``.
    """
    most = np.zeros((*kind.shape, len(AUGMENTATIONS)))
    most[..., 1:3] = shear
    most[..., 3] = width
    most[..., 4] = height
    most[..., 5] = degrees
    most[..., 6:10] = factor

    end = np.take_along_axis(most, kind[..., None], axis=-1)[..., 0]
    # Computed exactly, then rounded once: torch.linspace, which torchvision uses, differs by CPU in the last bit.
    strength = (end * bins / (count - 1)).astype(np.float32).astype(np.float64)

    posterize = np.rint(np.float32(most_bits) - bins.astype(np.float32) / np.float32((count - 1) / bits))
    solarize = (1.0 - bins / (count - 1)).astype(np.float32)
    strength = np.where(kind == AUGMENTATIONS.index("Posterize"), posterize, strength)
    return np.where(kind == AUGMENTATIONS.index("Solarize"), solarize, strength)

"""Automatic augmentation: a few ops of random kinds and strengths."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from feeder.errors import ArgumentError
from feeder.system.checks import check_int
from feeder.transforms.arguments import BASE_FILTERS, DRAWN, check_fill, check_warp_interpolation
from feeder.transforms.op import Drawn, FloatArray, IntArray, Op, Uniforms

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

# timm's order, after one that does nothing.
TIMM_AUGMENTATIONS = (
    "Identity",
    "AutoContrast",
    "Equalize",
    "Invert",
    "Rotate",
    "Posterize",
    "Solarize",
    "SolarizeAdd",
    "Color",
    "Contrast",
    "Brightness",
    "Sharpness",
    "ShearX",
    "ShearY",
    "TranslateX",
    "TranslateY",
)
_SECTION = re.compile(r"(mstd|mmax|inc|m|n|p)(\d+(?:\.\d+)?|inf)")
_LEVELS = 10.0  # timm's strengths go from 0 to this


@dataclass(frozen=True, init=False)
class RandAugment(Op):
    """Applies ``num_ops`` random augmentations of one strength (Cubuk et al., 2019).

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
        num_ops = check_int("num_ops", num_ops, 0)
        num_magnitude_bins = check_int("num_magnitude_bins", num_magnitude_bins, 2)
        magnitude = check_int("magnitude", magnitude, 0, num_magnitude_bins - 1)
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
        magnitude = strengths(kind, bins, self.num_magnitude_bins, uniform[:, self.num_ops :], most)
        return Drawn({"kind": kind, "magnitude": magnitude}, sizes)


@dataclass(frozen=True, init=False)
class TrivialAugmentWide(Op):
    """Applies one random augmentation of random strength (Müller and Hutter, 2021).

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
        num_magnitude_bins = check_int("num_magnitude_bins", num_magnitude_bins, 2)
        self._set(
            num_magnitude_bins=num_magnitude_bins,
            interpolation=check_warp_interpolation(interpolation),
            fill=check_fill(fill),
        )

    def draw(self, uniforms: Uniforms, sizes: IntArray) -> Drawn:
        uniform = uniforms(3)
        kind = _kinds(uniform[:, :1])
        bins = np.floor(uniform[:, 2:] * self.num_magnitude_bins).astype(np.int64)
        most = np.full((len(sizes), 2), 32.0)
        wide = {"shear": 0.99, "degrees": 135.0, "factor": 0.99, "bits": 6}
        magnitude = strengths(kind, bins, self.num_magnitude_bins, uniform[:, 1:2], most, **wide)
        return Drawn({"kind": kind, "magnitude": magnitude}, sizes)


class _Config(NamedTuple):
    """The sections of timm's configuration."""

    m: float = 10.0
    n: float = 2.0
    p: float = 0.5
    mstd: float = 0.0
    mmax: float = _LEVELS
    inc: float = 0.0


@lru_cache
def _config(text: str) -> _Config:
    name, *sections = text.split("-")
    found = [_SECTION.fullmatch(section) for section in sections]
    given = {each[1]: float(each[2]) for each in found if each is not None}
    config = _Config(**given)
    whole = all(value == int(value) for value in (config.m, config.n, config.mmax, config.inc) if value != np.inf)
    if name != "rand" or None in found or not whole or max(config.p, config.inc) > 1 or max(config[:2]) > 1000:
        raise ArgumentError(
            f"config must be timm's, such as 'rand-m9-mstd0.5-inc1', of the sections m, n, p, mstd, mmax and inc, got "
            f"{text!r}; other sets of augmentations (t) are not among feeder's"
        )
    return config


@dataclass(frozen=True, init=False)
class TimmRandAugment(Op):
    """Applies random augmentations as timm's RandAugment, whose set, strengths and probabilities are its own.

    Args:
        config: timm's configuration, such as "rand-m9-mstd0.5-inc1": strength m (10), number of augmentations n (2),
            probability p of each (0.5), standard deviation of the strength mstd (0; above 100: uniform from 0 to m),
            largest strength mmax (10), and inc1 for augmentations that all grow with the strength.
        interpolation: By name, as torchvision's ``InterpolationMode`` or Pillow's constant; "random" draws bilinear or
            bicubic for each augmentation, as timm does.
        fill: One number or (R, G, B), 0-255, for pixels from outside the image; timm's is the mean of its images.

    Raises:
        ArgumentError: for an argument outside its range.
    """

    config: str
    interpolation: str
    fill: tuple[int, int, int]

    def __init__(
        self,
        config: str = "rand-m9-mstd0.5-inc1",
        interpolation: object = "bilinear",
        fill: object = (124, 116, 104),
    ) -> None:
        _config(config)
        name = DRAWN if interpolation == DRAWN else check_warp_interpolation(interpolation)
        self._set(config=config, interpolation=name, fill=check_fill(fill))

    def variants(self) -> tuple[TimmRandAugment, ...]:
        """Returns the op with each interpolation that it may draw; ``bicubic`` of its draws is the number of one."""
        if self.interpolation != DRAWN:
            return (self,)
        return tuple(replace(self, interpolation=each) for each in BASE_FILTERS)

    def draw(self, uniforms: Uniforms, sizes: IntArray) -> Drawn:
        """Draws ``kind``, [N, n], in ``TIMM_AUGMENTATIONS``, ``value``, of timm's own units, and ``bicubic``."""
        config = _config(self.config)
        count = int(config.n)
        choice, fires, first, second, sign = np.split(uniforms(5 * count), 5, axis=1)
        kind = np.floor(choice * (len(TIMM_AUGMENTATIONS) - 1)).astype(np.int64) + 1

        if config.mstd > 100:
            level = first * config.m
        else:
            level = config.m + config.mstd * np.sqrt(-2.0 * np.log1p(-first)) * np.cos(2.0 * np.pi * second)
        level = np.clip(level, 0.0, config.mmax or _LEVELS)
        value = _timm_values(kind, level / _LEVELS, np.where(sign > 0.5, -1.0, 1.0), config.inc == 1)
        fired = fires <= config.p
        cubic = np.zeros_like(kind)
        if self.interpolation == DRAWN:
            cubic += uniforms(6 * count)[:, 5 * count :] < 0.5
        return Drawn({"kind": np.where(fired, kind, 0), "value": np.where(fired, value, 0.0), "bicubic": cubic}, sizes)


def _timm_values(kind: IntArray, part: FloatArray, sign: FloatArray, increasing: bool) -> FloatArray:
    """Returns degrees, bits kept, thresholds, levels added, factors and shares of the size, by the kind."""
    bits, threshold = np.trunc(part * 4), np.minimum(256, np.trunc(part * 256))
    factor = part * 1.8 + 0.1
    if increasing:
        bits, threshold, factor = np.maximum(4 - bits, 0), 256 - threshold, np.maximum(0.1, 1.0 + sign * (part * 0.9))
    turn, shear, shift = sign * (part * 30.0), sign * (part * 0.3), sign * (part * 0.45)
    none, added = np.zeros_like(part), np.minimum(128, np.trunc(part * 110))
    values = [none] * 4 + [turn, np.minimum(bits, 8), threshold, added] + [factor] * 4 + [shear] * 2 + [shift] * 2
    return np.choose(kind, values)


def timm_matrix(kind: str, value: float, width: int, height: int) -> tuple[float, ...] | None:
    """Returns where a pixel (x, y) comes from, as Pillow takes it, (xx, xy, x0, yx, yy, y0); None for other kinds."""
    return {
        "ShearX": (1.0, value, 0.0, 0.0, 1.0, 0.0),
        "ShearY": (1.0, 0.0, 0.0, value, 1.0, 0.0),
        "TranslateX": (1.0, 0.0, value * width, 0.0, 1.0, 0.0),
        "TranslateY": (1.0, 0.0, 0.0, 0.0, 1.0, value * height),
    }.get(kind)


def _kinds(uniform: FloatArray) -> IntArray:
    return np.floor(uniform * _DRAWN).astype(np.int64)


def strengths(
    kind: IntArray,
    bins: IntArray,
    count: int,
    uniform: FloatArray,
    shift: FloatArray,
    *,
    shear: float = 0.3,
    degrees: float = 30.0,
    factor: float = 0.9,
    bits: float = 4,
    most_bits: float = 8,
) -> FloatArray:
    """Returns the strength of each augmentation, float64 [N, ops]; its meaning depends on the kind.

    If a kind has two directions, the strengths are negative for half of the uniform numbers, [N, ops]. The arguments
    after these are the largest strengths: shifts (down, right) in pixels, [N, 2], shear, degrees, enhancement factor,
    and bits removed from ``most_bits``.
    """
    most = np.zeros((*kind.shape, len(AUGMENTATIONS)))
    most[..., 1:3] = shear
    most[..., 3] = shift[:, 1:]
    most[..., 4] = shift[:, :1]
    most[..., 5] = degrees
    most[..., 6:10] = factor

    end = np.take_along_axis(most, kind[..., None], axis=-1)[..., 0]
    # Computed exactly, then rounded once: torch.linspace, which torchvision uses, differs by CPU in the last bit.
    strength = (end * bins / (count - 1)).astype(np.float32).astype(np.float64)

    posterize = np.rint(np.float32(most_bits) - bins.astype(np.float32) / np.float32((count - 1) / bits))
    solarize = (1.0 - bins / (count - 1)).astype(np.float32)
    strength = np.where(kind == AUGMENTATIONS.index("Posterize"), posterize, strength)
    strength = np.where(kind == AUGMENTATIONS.index("Solarize"), solarize, strength)
    return np.where(_SIGNED[kind] & (uniform <= 0.5), -strength, strength)

"""AutoAugment: pairs of augmentations found by search."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from feeder.system.checks import check_one_of
from feeder.transforms.arguments import check_fill, check_warp_interpolation
from feeder.transforms.augment import AUGMENTATIONS, strengths
from feeder.transforms.op import Drawn, FloatArray, IntArray, Op, Uniforms

_BINS = 10

# The policies, from the tables in the paper's appendix: a pair a line, each kind with its probability and, if it has
# strengths, the number of the bin.
_POLICIES = {
    "imagenet": """
        Posterize 0.4 8, Rotate 0.6 9
        Solarize 0.6 5, AutoContrast 0.6
        Equalize 0.8, Equalize 0.6
        Posterize 0.6 7, Posterize 0.6 6
        Equalize 0.4, Solarize 0.2 4
        Equalize 0.4, Rotate 0.8 8
        Solarize 0.6 3, Equalize 0.6
        Posterize 0.8 5, Equalize 1.0
        Rotate 0.2 3, Solarize 0.6 8
        Equalize 0.6, Posterize 0.4 6
        Rotate 0.8 8, Color 0.4 0
        Rotate 0.4 9, Equalize 0.6
        Equalize 0.0, Equalize 0.8
        Invert 0.6, Equalize 1.0
        Color 0.6 4, Contrast 1.0 8
        Rotate 0.8 8, Color 1.0 2
        Color 0.8 8, Solarize 0.8 7
        Sharpness 0.4 7, Invert 0.6
        ShearX 0.6 5, Equalize 1.0
        Color 0.4 0, Equalize 0.6
        Equalize 0.4, Solarize 0.2 4
        Solarize 0.6 5, AutoContrast 0.6
        Invert 0.6, Equalize 1.0
        Color 0.6 4, Contrast 1.0 8
        Equalize 0.8, Equalize 0.6
    """,
    "cifar10": """
        Invert 0.1, Contrast 0.2 6
        Rotate 0.7 2, TranslateX 0.3 9
        Sharpness 0.8 1, Sharpness 0.9 3
        ShearY 0.5 8, TranslateY 0.7 9
        AutoContrast 0.5, Equalize 0.9
        ShearY 0.2 7, Posterize 0.3 7
        Color 0.4 3, Brightness 0.6 7
        Sharpness 0.3 9, Brightness 0.7 9
        Equalize 0.6, Equalize 0.5
        Contrast 0.6 7, Sharpness 0.6 5
        Color 0.7 7, TranslateX 0.5 8
        Equalize 0.3, AutoContrast 0.4
        TranslateY 0.4 3, Sharpness 0.2 6
        Brightness 0.9 6, Color 0.2 8
        Solarize 0.5 2, Invert 0.0
        Equalize 0.2, AutoContrast 0.6
        Equalize 0.2, Equalize 0.6
        Color 0.9 9, Equalize 0.6
        AutoContrast 0.8, Solarize 0.2 8
        Brightness 0.1 3, Color 0.7 0
        Solarize 0.4 5, AutoContrast 0.9
        TranslateY 0.9 9, TranslateY 0.7 9
        AutoContrast 0.9, Solarize 0.8 3
        Equalize 0.8, Invert 0.1
        TranslateY 0.7 9, AutoContrast 0.9
    """,
    "svhn": """
        ShearX 0.9 4, Invert 0.2
        ShearY 0.9 8, Invert 0.7
        Equalize 0.6, Solarize 0.6 6
        Invert 0.9, Equalize 0.6
        Equalize 0.6, Rotate 0.9 3
        ShearX 0.9 4, AutoContrast 0.8
        ShearY 0.9 8, Invert 0.4
        ShearY 0.9 5, Solarize 0.2 6
        Invert 0.9, AutoContrast 0.8
        Equalize 0.6, Rotate 0.9 3
        ShearX 0.9 4, Solarize 0.3 3
        ShearY 0.8 8, Invert 0.7
        Equalize 0.9, TranslateY 0.6 6
        Invert 0.9, Equalize 0.6
        Contrast 0.3 3, Rotate 0.8 4
        Invert 0.8, TranslateY 0.0 2
        ShearY 0.7 6, Solarize 0.4 8
        Invert 0.6, Rotate 0.8 4
        ShearY 0.3 7, TranslateX 0.9 3
        ShearX 0.1 6, Invert 0.6
        Solarize 0.7 2, TranslateY 0.6 7
        ShearY 0.8 4, Invert 0.8
        ShearX 0.7 9, TranslateY 0.8 3
        ShearY 0.8 5, AutoContrast 0.7
        ShearX 0.7 2, Invert 0.1
    """,
}


class AutoAugmentPolicy(enum.Enum):
    """The images for which the pairs of :class:`AutoAugment` were found."""

    IMAGENET = "imagenet"
    CIFAR10 = "cifar10"
    SVHN = "svhn"


class _Pairs(NamedTuple):
    """A policy's pairs, each array [25, 2]: numbers in ``AUGMENTATIONS``, probabilities, bins."""

    kind: IntArray
    probability: FloatArray
    bins: IntArray


@lru_cache
def _pairs(policy: str) -> _Pairs:
    steps = [[step.split() for step in line.split(",")] for line in _POLICIES[policy].strip().splitlines()]
    return _Pairs(
        np.array([[AUGMENTATIONS.index(step[0]) for step in pair] for pair in steps]),
        np.array([[float(step[1]) for step in pair] for pair in steps]),
        np.array([[int(step[2]) if len(step) == 3 else 0 for step in pair] for pair in steps]),
    )


@dataclass(frozen=True, init=False)
class AutoAugment(Op):
    """Applies one of 25 pairs of augmentations, each half with its own probability (Cubuk et al., 2018).

    Args:
        policy: The pairs: an :class:`AutoAugmentPolicy`, torchvision's own, or "imagenet", "cifar10" or "svhn".
        interpolation: By name, as torchvision's ``InterpolationMode`` or Pillow's constant.
        fill: One number or (R, G, B), 0-255, for pixels from outside the image; None for black.

    Raises:
        ArgumentError: for an argument outside its range.
    """

    draws_from_size = True

    policy: str
    interpolation: str
    fill: tuple[int, int, int]

    def __init__(
        self, policy: object = AutoAugmentPolicy.IMAGENET, interpolation: object = "nearest", fill: object = None
    ) -> None:
        name = getattr(policy, "value", policy)  # torchvision's enum and feeder's have a value
        check_one_of("policy", name, _POLICIES)
        self._set(policy=name, interpolation=check_warp_interpolation(interpolation), fill=check_fill(fill))

    def draw(self, uniforms: Uniforms, sizes: IntArray) -> Drawn:
        uniform = uniforms(5)
        pairs = _pairs(self.policy)
        chosen = np.floor(uniform[:, 0] * len(pairs.kind)).astype(np.int64)
        # An augmentation left out is number 0, which does nothing.
        kind = np.where(uniform[:, 1:3] < pairs.probability[chosen], pairs.kind[chosen], 0)
        most = 150.0 / 331.0 * sizes.astype(np.float64)
        magnitude = strengths(kind, pairs.bins[chosen], _BINS, uniform[:, 3:], most)
        return Drawn({"kind": kind, "magnitude": magnitude}, sizes)

"""A recipe with every op, and draws for images of all shapes."""

from __future__ import annotations

from typing import Any

import numpy as np

from feeder import transforms
from feeder.transforms import (
    AugMix,
    AutoAugment,
    CenterCrop,
    ColorJitter,
    Compose,
    GaussianBlur,
    GaussianNoise,
    Normalize,
    Op,
    Pad,
    RandAugment,
    RandomAdjustSharpness,
    RandomAffine,
    RandomApply,
    RandomAutocontrast,
    RandomChoice,
    RandomCrop,
    RandomEqualize,
    RandomErasing,
    RandomGrayscale,
    RandomHorizontalFlip,
    RandomInvert,
    RandomOrder,
    RandomPerspective,
    RandomPhotometricDistort,
    RandomPosterize,
    RandomResizedCrop,
    RandomRotation,
    RandomSolarize,
    RandomVerticalFlip,
    RandomZoomOut,
    Recipe,
    Resize,
    TimmRandAugment,
    ToDtype,
    TrivialAugmentWide,
)

__all__ = ["ALL_OPS", "SIZES", "draw"]

SIZES = np.array([[375, 500], [500, 375], [64, 64], [30, 900], [1, 1], [257, 255]])
ALL_OPS: list[Op] = [
    RandomZoomOut(),
    RandomResizedCrop(48),
    Resize(40),
    CenterCrop(32),
    RandomHorizontalFlip(),
    Pad(3),
    RandomCrop(24, padding=2, pad_if_needed=True),
    RandomRotation(30, expand=True),
    RandomAffine(10, (0.1, 0.2), (0.8, 1.2), (-5.0, 5.0, -3.0, 3.0)),
    ColorJitter(0.4, 0.4, 0.4, 0.1),
    RandomGrayscale(),
    GaussianBlur(3),
    RandomVerticalFlip(),
    RandomApply([GaussianBlur(3), RandomRotation(5)]),
    RandAugment(),
    TrivialAugmentWide(),
    TimmRandAugment(),
    AutoAugment("cifar10"),
    AugMix(),
    RandomChoice([RandomInvert(), Compose([RandomSolarize(9), RandomRotation(5)]), RandomEqualize()], [1, 2, 3]),
    RandomOrder([RandomInvert(), Compose([RandomSolarize(9), RandomRotation(5)]), RandomEqualize()]),
    RandomPhotometricDistort(),
    GaussianNoise(),
    RandomPerspective(0.3),
    RandomPosterize(3),
    RandomAdjustSharpness(2),
    RandomAutocontrast(),
    ToDtype("float32", scale=True),
    Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
    RandomErasing(),
]


def draw(ops: list[Op], seed: int = 1, epoch: int = 2, ids: Any = None, sizes: Any = SIZES) -> transforms.Draws:
    return Recipe.of(ops).draw(seed, epoch, np.arange(len(sizes)) if ids is None else ids, sizes)

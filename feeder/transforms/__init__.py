"""The augment recipe: declares ops with torchvision v2's names and draws their parameters per sample. No pixels."""

from __future__ import annotations

from feeder.transforms.augment import RandAugment, TrivialAugmentWide
from feeder.transforms.distort import RandomAffine, RandomRotation
from feeder.transforms.function import Lambda
from feeder.transforms.geometry import CenterCrop, Pad, RandomCrop, RandomHorizontalFlip, RandomResizedCrop, Resize
from feeder.transforms.mixing import BatchOp, CutMix, MixedLabels, MixUp
from feeder.transforms.op import Op
from feeder.transforms.photometric import ColorJitter, GaussianBlur, RandomErasing, RandomGrayscale
from feeder.transforms.recipe import Compose, Draws, Recipe
from feeder.transforms.values import Normalize, ToDtype

__all__ = [
    "BatchOp",
    "CenterCrop",
    "ColorJitter",
    "Compose",
    "CutMix",
    "Draws",
    "GaussianBlur",
    "Lambda",
    "MixUp",
    "MixedLabels",
    "Normalize",
    "Op",
    "Pad",
    "RandAugment",
    "RandomAffine",
    "RandomCrop",
    "RandomErasing",
    "RandomGrayscale",
    "RandomHorizontalFlip",
    "RandomResizedCrop",
    "RandomRotation",
    "Recipe",
    "Resize",
    "ToDtype",
    "TrivialAugmentWide",
]

"""The augment recipe: declares ops with torchvision v2's names and draws their parameters per sample. No pixels."""

from __future__ import annotations

from feeder.transforms.geometry import CenterCrop, Pad, RandomCrop, RandomHorizontalFlip, RandomResizedCrop, Resize
from feeder.transforms.op import Op
from feeder.transforms.recipe import Compose, Draws, Recipe
from feeder.transforms.values import Normalize, ToDtype

__all__ = [
    "CenterCrop",
    "Compose",
    "Draws",
    "Normalize",
    "Op",
    "Pad",
    "RandomCrop",
    "RandomHorizontalFlip",
    "RandomResizedCrop",
    "Recipe",
    "Resize",
    "ToDtype",
]

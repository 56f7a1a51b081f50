"""The recipe: declares ops with torchvision v2's names, and draws their parameters per sample. Touches no pixels."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from feeder.system.text import meant
from feeder.transforms.augment import RandAugment, TimmRandAugment, TrivialAugmentWide
from feeder.transforms.augmix import AugMix
from feeder.transforms.autoaugment import AutoAugment, AutoAugmentPolicy
from feeder.transforms.choice import RandomApply, RandomChoice, RandomOrder
from feeder.transforms.conversions import ConvertImageDtype, PILToTensor, ToImage, ToPureTensor, ToTensor
from feeder.transforms.distort import RandomAffine, RandomPerspective, RandomRotation
from feeder.transforms.enhance import (
    RandomAdjustSharpness,
    RandomAutocontrast,
    RandomEqualize,
    RandomInvert,
    RandomPosterize,
    RandomSolarize,
)
from feeder.transforms.function import Lambda
from feeder.transforms.geometry import (
    CenterCrop,
    CornerCrop,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomVerticalFlip,
    Resize,
)
from feeder.transforms.iou_crop import RandomIoUCrop
from feeder.transforms.mixing import BatchOp, CutMix, MixedLabels, MixUp
from feeder.transforms.op import Op
from feeder.transforms.padding import LetterBox, Pad, RandomZoomOut
from feeder.transforms.photometric import (
    JPEG,
    ColorJitter,
    GaussianBlur,
    GaussianNoise,
    Grayscale,
    RandomErasing,
    RandomGrayscale,
    RandomPhotometricDistort,
)
from feeder.transforms.random_sizes import RandomResize, RandomShortestSize, ScaleJitter
from feeder.transforms.recipe import Compose, Draws, Recipe
from feeder.transforms.sizes import BUCKET, ByEpoch
from feeder.transforms.target_ops import ClampBoundingBoxes, ClampKeyPoints, SanitizeBoundingBoxes, SanitizeKeyPoints
from feeder.transforms.targets import BoundingBoxes, Image, KeyPoints, Mask
from feeder.transforms.torchvision_recipes import from_torchvision
from feeder.transforms.values import Normalize, ToDtype
from feeder.transforms.views import Views, recipe_or_views

__all__ = [
    "BUCKET",
    "JPEG",
    "AugMix",
    "AutoAugment",
    "AutoAugmentPolicy",
    "BatchOp",
    "BoundingBoxes",
    "ByEpoch",
    "CenterCrop",
    "ClampBoundingBoxes",
    "ClampKeyPoints",
    "ColorJitter",
    "Compose",
    "ConvertImageDtype",
    "CornerCrop",
    "CutMix",
    "Draws",
    "GaussianBlur",
    "GaussianNoise",
    "Grayscale",
    "Image",
    "KeyPoints",
    "Lambda",
    "LetterBox",
    "Mask",
    "MixUp",
    "MixedLabels",
    "Normalize",
    "Op",
    "PILToTensor",
    "Pad",
    "RandAugment",
    "RandomAdjustSharpness",
    "RandomAffine",
    "RandomApply",
    "RandomAutocontrast",
    "RandomChoice",
    "RandomCrop",
    "RandomEqualize",
    "RandomErasing",
    "RandomGrayscale",
    "RandomHorizontalFlip",
    "RandomInvert",
    "RandomIoUCrop",
    "RandomOrder",
    "RandomPerspective",
    "RandomPhotometricDistort",
    "RandomPosterize",
    "RandomResize",
    "RandomResizedCrop",
    "RandomRotation",
    "RandomShortestSize",
    "RandomSolarize",
    "RandomVerticalFlip",
    "RandomZoomOut",
    "Recipe",
    "Resize",
    "SanitizeBoundingBoxes",
    "SanitizeKeyPoints",
    "ScaleJitter",
    "TimmRandAugment",
    "ToDtype",
    "ToImage",
    "ToPureTensor",
    "ToTensor",
    "TrivialAugmentWide",
    "Views",
    "from_torchvision",
    "recipe_or_views",
]


if not TYPE_CHECKING:  # or type checkers would accept every name

    def __getattr__(name: str) -> NoReturn:
        hint = ""
        if name == "InterpolationMode":
            hint = "; give interpolations by name, such as 'bicubic', or as torchvision's enum"
        elif name[:1].isupper():
            hint = (
                "; it has some of torchvision's ops, and Lambda takes any function of an image, whose draws "
                "from random, numpy or torch are keyed by seed, epoch and sample"
            )
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{meant(name, __all__, 0.75) or hint}")

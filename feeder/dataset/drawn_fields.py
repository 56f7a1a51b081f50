"""Fields that follow from a sample's drawn parameters: sizes and crops. Needs no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from feeder.dataset.extras import Column, Extra
from feeder.dataset.reader import Reader
from feeder.errors import ArgumentError
from feeder.transforms import Draws, Recipe, Views
from feeder.transforms.augment import RandAugment, TimmRandAugment, TrivialAugmentWide
from feeder.transforms.augmix import AugMix
from feeder.transforms.autoaugment import AutoAugment
from feeder.transforms.choice import Branches
from feeder.transforms.distort import RandomAffine, RandomPerspective, RandomRotation
from feeder.transforms.geometry import RandomHorizontalFlip, RandomVerticalFlip

_FLIPS = (RandomHorizontalFlip, RandomVerticalFlip)  # ops with a probability of their own
_AUTOMATIC = AugMix, AutoAugment, RandAugment, TimmRandAugment, TrivialAugmentWide
_WARPS = (*_AUTOMATIC, RandomAffine, RandomPerspective, RandomRotation)


class _Drawn(Extra):
    """Base of the fields that are drawn, not read: int64 [count]."""

    count: int

    @property
    def columns(self) -> tuple[Column, ...]:
        return (Column((self.count,), "int64"),)

    def read(self, reader: Reader, i: int) -> None:
        return None


@dataclass(frozen=True)
class OriginalSize(_Drawn):
    """The image's size before the recipe, upright: int64 [2], (height, width)."""

    name: str = "original_size"
    count = 2

    def finish(self, value: Any, draws: Draws, row: int) -> Any:
        return (draws.image_size[row].astype(np.int64),)


@dataclass(frozen=True)
class ImageSizes(_Drawn):
    """The image's size after the recipe: int64 [2], (height, width)."""

    name: str = "size"
    count = 2

    def finish(self, value: Any, draws: Draws, row: int) -> Any:
        return (draws.output_size[row].astype(np.int64),)


@dataclass(frozen=True)
class CropBox(_Drawn):
    """The window that the recipe's crops leave of the resized image: int64 [4], (top, left, height, width).

    It is counted in pixels of the image as if all of it had been resized, and before any flip. What the recipe pads
    lies outside of that image. Ops on colors have no part in it; see :func:`check_crop_box` for others.
    """

    name: str = "crop_box"
    count = 4

    def finish(self, value: Any, draws: Draws, row: int) -> Any:
        # The window in the image as the ops before have resized it; at first, all of it.
        height, width = map(float, draws.image_size[row])
        top = left = 0.0
        is_flipped = is_upside_down = False

        for params in draws.ops:
            # Padding and windows are drawn in the image as it is by then: after a flip they count from the other side.
            if "padding" in params:
                before, above, behind, below = params["padding"][row].tolist()
                top -= below if is_upside_down else above
                left -= behind if is_flipped else before
                height, width = height + above + below, width + before + behind
            if "top" in params:
                y, x, rows, columns = (float(params[name][row]) for name in ("top", "left", "height", "width"))
                top += height - y - rows if is_upside_down else y
                left += width - x - columns if is_flipped else x
                height, width = rows, columns

            if "resized_height" in params:
                resized = float(params["resized_height"][row]), float(params["resized_width"][row])
                top, left = top * resized[0] / height, left * resized[1] / width
                height, width = resized

            if "flip" in params:
                is_flipped ^= bool(params["flip"][row])
            if "flip_vertically" in params:
                is_upside_down ^= bool(params["flip_vertically"][row])

        return ((round(top), round(left), round(height), round(width)),)


def check_crop_box(recipe: Recipe | Views) -> None:
    """Refuses the field "crop_box" where the recipe cuts no window, or several.

    Raises:
        ArgumentError: for views, or an op that turns or warps images, by name.
    """
    if len(recipe.views) > 1:
        raise ArgumentError(
            "field 'crop_box' is one window of each image, and Views makes several: leave the field out, or give "
            "the recipe of one image"
        )
    for op in recipe.views[0].ops:
        for each in op.inner_ops if isinstance(op, Branches) else (op,):
            if isinstance(op, Branches) and isinstance(each, _FLIPS):
                raise ArgumentError(
                    f"field 'crop_box' does not know what {type(op).__name__} draws: take {type(each).__name__} out "
                    "of it, and give it a p"
                )
            if isinstance(each, _WARPS):
                raise ArgumentError(
                    f"field 'crop_box' is a window of the resized image, and {type(each).__name__} may turn or warp "
                    "what is in it: leave the field or the op out"
                )


DRAWN_FIELDS: dict[str, Extra] = {field.name: field for field in (OriginalSize(), CropBox())}

"""The error for a batch of images of different sizes, which can't be stacked."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from torch.utils.data import Subset, default_collate

from feeder.errors import ArgumentError
from feeder.transforms import Resize, Views

if TYPE_CHECKING:
    from feeder.transforms import Recipe


def check_stackable(samples: list[tuple[Any, ...]], recipe: Recipe | Views) -> None:
    """Raises a clearer error than torch's loader would if it stacked images of different sizes.

    Only torch's fetcher knows the loader's collate function, so this reads it from the frame of the caller's caller.
    Other callers, and loaders with their own collate function, get the samples as they are.

    Args:
        samples: (image, ...), or rows, of a batch that ``dataset.__getitems__``, the caller, is about to return.
        recipe: The dataset's recipe.

    Raises:
        ArgumentError: naming the op that the recipe lacks.
    """
    if isinstance(recipe, Views) or recipe.output_size is not None:
        return
    images = [image for sample in samples if isinstance(sample, tuple) for image in sample[:1]]
    if len({getattr(image, "shape", None) for image in images}) < 2:  # Pillow images have none
        return
    frame = sys._getframe(2)
    while type(asking := frame.f_locals.get("self")) is Subset and frame.f_back is not None:
        frame = frame.f_back
    if getattr(asking, "collate_fn", None) is default_collate:
        resizes = [op for op in recipe.ops if isinstance(op, Resize) and len(op.size or ()) < 2]
        which = f"{resizes[-1]} keeps each image's shape" if resizes else "the recipe leaves images at their sizes"
        raise ArgumentError(
            f"the images of a batch have different sizes: {which}. Put CenterCrop, RandomCrop or RandomResizedCrop "
            "after it, or Resize((height, width)), or use a collate_fn that accepts different sizes"
        )

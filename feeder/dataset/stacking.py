"""Images of different sizes, which a batch can't be stacked of."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from torch.utils.data import Subset, default_collate

from feeder.errors import ArgumentError
from feeder.transforms import Resize

if TYPE_CHECKING:
    from feeder.transforms import Recipe

__all__ = ["check_stackable", "different_sizes"]


def different_sizes(recipe: Recipe) -> ArgumentError:
    """Returns the error for a batch of images of different sizes; it names the op that the recipe lacks."""
    resizes = [op for op in recipe.ops if isinstance(op, Resize) and len(op.size or ()) < 2]
    which = f"{resizes[-1]} keeps each image's shape" if resizes else "the recipe leaves images at their sizes"
    return ArgumentError(
        f"the images of a batch have different sizes: {which}. Put CenterCrop, RandomCrop or RandomResizedCrop behind "
        "it, or Resize((height, width)), or give a collate_fn that takes different sizes"
    )


def check_stackable(samples: list[tuple[Any, ...]], recipe: Recipe) -> None:
    """Raises a clearer error than torch's loader will, where that is going to stack images of different sizes.

    Which function puts samples together only the loader's fetcher knows, so this looks at the caller's caller. Whoever
    else asks for samples, or has a collate function of his own, gets them as they are.

    Args:
        samples: (image, ...) of a batch that ``dataset.__getitems__``, which calls this, is about to return.
        recipe: Of the dataset.

    Raises:
        ArgumentError: naming the op that the recipe lacks.
    """
    if recipe.output_size is not None or len({sample[0].shape for sample in samples}) < 2:
        return
    frame = sys._getframe(2)
    while type(asking := frame.f_locals.get("self")) is Subset and frame.f_back is not None:
        frame = frame.f_back
    if getattr(asking, "collate_fn", None) is default_collate:
        raise different_sizes(recipe)

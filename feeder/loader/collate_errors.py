"""Clearer words for errors of putting samples together to a batch."""

from __future__ import annotations

from typing import Any, NoReturn

from feeder.dataset.stacking import different_sizes
from feeder.dataset.subset import as_feeder
from feeder.system.limit_errors import explained

__all__ = ["explain_sizes", "raise_explained"]

_STACK_ERROR = "stack expects each tensor to be equal size"


def explain_sizes(dataset: Any, error: RuntimeError) -> None:
    """Raises a clearer error in place of torch's, where images of different sizes were to be stacked to a batch.

    Args:
        dataset: Of the loader.
        error: What collating a batch has raised.

    Raises:
        ArgumentError: naming the op that the recipe lacks.
    """
    source = as_feeder(dataset)
    if source is None or _STACK_ERROR not in str(error):
        return
    for recipe in source.recipe.views:
        if recipe.output_size is None:
            raise different_sizes(recipe) from error


def raise_explained(dataset: Any, error: Exception) -> NoReturn:
    """Raises a batch's error again, in clearer words where a limit or images of different sizes are the cause.

    Args:
        dataset: Of the loader.
        error: What making the batch has raised.
    """
    if isinstance(error, RuntimeError):
        explain_sizes(dataset, error)
    with explained():
        raise error

"""The reason why a loader of feeder's samples runs torch's path and not the fast one, and the way out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, NoReturn

from torch.utils.data import ConcatDataset, Dataset, Subset

from feeder.dataset.base import FeederDataset
from feeder.dataset.stacking import different_sizes
from feeder.dataset.subset import as_feeder, differing_part
from feeder.system.limits import explained

__all__ = ["GenericReason", "explain_sizes", "generic_reason", "raise_explained", "wrapped_dataset"]

_STACK_ERROR = "stack expects each tensor to be equal size"
_DEEPEST = 4  # wrappers around each other
_MOST_ITEMS = 16  # of a list in a wrapper


class GenericReason(NamedTuple):
    """The reason why a loader runs torch's path.

    Attributes:
        why: The obstacle, in words: "batch_size is None".
        way_out: The remedy; "" if no sample comes from a feeder dataset, as nothing is gained then.
    """

    why: str
    way_out: str

    def __str__(self) -> str:
        return f"{self.why}: {self.way_out}" if self.way_out else self.why


def generic_reason(dataset: Any) -> GenericReason:
    """Returns the reason why a loader runs torch's path, and the way to the fast one.

    Args:
        dataset: The loader's dataset.
    """
    source = as_feeder(dataset)
    if source is None:
        return _foreign(dataset)
    if source.recipe.output_size is None:
        way_out = "end the geometry of the recipe with a crop, or Resize((height, width)), or give a collate_fn"
        return GenericReason("images have sizes of their own", way_out)
    return GenericReason("batch_size is None", "give batch_size")


def explain_sizes(dataset: Any, error: RuntimeError) -> None:
    """Raises a clearer error in place of torch's, where images of different sizes were to be stacked to a batch.

    Args:
        dataset: Of the loader.
        error: What collating a batch has raised.

    Raises:
        ArgumentError: naming the op that the recipe lacks.
    """
    source = as_feeder(dataset)
    if source is None or source.recipe.output_size is not None or _STACK_ERROR not in str(error):
        return
    raise different_sizes(source.recipe) from error


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


def _foreign(dataset: Any) -> GenericReason:
    inner = wrapped_dataset(dataset)
    kinds = [type(dataset).__name__]
    while type(dataset) is Subset:
        dataset = dataset.dataset
        kinds.append(type(dataset).__name__)
    why = f"the dataset is a {' of a '.join(kinds)}"
    if inner is None:
        return GenericReason(why, "")
    if inner is dataset:
        why += ", whose samples or length are not a feeder dataset's"
        return GenericReason(why, "change what comes out of feeder's own samples in a collate_fn")
    if type(dataset) is ConcatDataset and (found := differing_part(dataset)) is not None:
        number, what = found
        if what == "samples":
            why += f", of which dataset {number} is a {type(dataset.datasets[number]).__name__}"
            return GenericReason(why, "join feeder datasets only, and change what comes out in a collate_fn")
        why += f", of which dataset {number} differs from the first in its {what}"
        return GenericReason(why, f"give the same {what} to all")
    name = type(inner).__name__
    way_out = f"give the {name} itself to the loader, and change what comes out in a collate_fn"
    return GenericReason(f"{why} around a {name}", way_out)


def wrapped_dataset(dataset: Any) -> FeederDataset | None:
    """Returns the dataset itself if it is a feeder dataset, else the first one in its attributes, or in the attributes
    of datasets there; None without one."""
    return _wrapped(dataset, _DEEPEST)


def _wrapped(value: Any, depth: int) -> FeederDataset | None:
    if isinstance(value, FeederDataset):
        return value
    if depth:
        for item in _kept(value):
            if isinstance(item, (Dataset, list, tuple)) and (found := _wrapped(item, depth - 1)) is not None:
                return found
    return None


def _kept(value: Any) -> Iterator[Any]:
    if isinstance(value, (list, tuple)):
        yield from value[:_MOST_ITEMS]
    else:
        yield from getattr(value, "__dict__", {}).values()

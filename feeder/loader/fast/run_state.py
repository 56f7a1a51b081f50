"""The state of a run: what it says beside the place, and what it is checked for before it is loaded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from feeder.dataset.base import FeederDataset
from feeder.dataset.folder_reader import FolderReader
from feeder.dataset.mixture import Mixture
from feeder.dataset.shard_reader import ShardReader
from feeder.dataset.subset import remote_of
from feeder.dataset.subset_reader import leaves
from feeder.dataset.target_values import targets_in
from feeder.errors import ArgumentError
from feeder.order.mixture_order import MixtureOrder
from feeder.order.sample_order import Order
from feeder.transforms.mixing import check_mix
from feeder.transforms.recipe_json import mix_to_json, recipe_to_json

STATE_VERSION = 1


def check_state(state: Any) -> None:
    """Raises ArgumentError for anything but a state of the fast path, of this version."""
    if not isinstance(state, Mapping):
        raise ArgumentError(f"expected a state that state_dict() gave, a dict, got {state!r}")
    version = state.get("version")
    if "_iterator_finished" in state:
        raise ArgumentError(
            "this state is of torchdata's StatefulDataLoader, or of a loader on torch's path, and this one takes "
            "the fast path: resume with the loader that saved it, or begin an epoch with loader.set_epoch(epoch)"
        )
    if version != STATE_VERSION:
        raise ArgumentError(
            f"this state is of version {version!r}, and this feeder reads version {STATE_VERSION}: resume with "
            "the feeder that saved it, or begin an epoch with loader.set_epoch(epoch)"
        )


def sources_of(dataset: FeederDataset) -> dict[str, FeederDataset]:
    """Returns the sources of a mixture by name; any other dataset by "", which no source has."""
    return dict(zip(dataset.names, dataset.sources, strict=True)) if isinstance(dataset, Mixture) else {"": dataset}


def weights_of(order: Order) -> dict[str, Any]:
    """Returns the weights that were set in a run of a mixture; empty without."""
    changes = order.shares.state() if isinstance(order, MixtureOrder) else []
    return {"weights": changes} if changes else {}


def hub_sets(dataset: FeederDataset) -> dict[str, Any]:
    """Returns the URLs of the sets on the Hub, at their commits, by source for a mixture."""
    found = {name: remote_of(leaves(source.reader)) for name, source in sources_of(dataset).items()}
    urls = {name: [each.hub for each in readers if each.hub] for name, readers in found.items()}
    on_hub = {name: each for name, each in urls.items() if each}
    return {"hub": on_hub.get("", on_hub)} if on_hub else {}


def made_by(dataset: FeederDataset, mix: Any, decoded_on: str) -> dict[str, Any]:
    """Returns all that a batch's images were made by and that ranks do not compare; None for what JSON can't hold.

    Args:
        dataset: The dataset, with its recipe.
        mix: The loader's ``mix``.
        decoded_on: Type of the device on which images are decoded.
    """
    recipes = {name: source.recipe for name, source in sources_of(dataset).items()}
    if all(each == dataset.recipe for each in recipes.values()):
        found: dict[str, Any] = {"recipe": _json_of(recipe_to_json, dataset.recipe)}
    else:
        found = {"recipes": {name: _json_of(recipe_to_json, each) for name, each in recipes.items()}}

    if isinstance(dataset.reader, (FolderReader, ShardReader)):
        found["exif_orientation"] = "apply" if dataset.reader.exif else "ignore"
    targets = [extra.name for extra in targets_in(dataset.extras)]
    if targets and isinstance(dataset.reader, FolderReader):  # their files are in the folder, and are no samples
        found["targets"] = targets
    if mixing := check_mix(mix):
        found["mix"] = _json_of(mix_to_json, mixing)
    if decoded_on != "cpu":
        found["decoded_on"] = decoded_on
    return found


def _json_of(encode: Callable[[Any], Any], value: Any) -> Any:
    """Returns a value as ``encode`` writes it; None if it refuses that."""
    try:
        return encode(value)
    except ArgumentError:
        return None

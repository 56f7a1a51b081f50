"""Batches of a training run, made again from a set and a saved state."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image

from feeder.dataset.base import FeederDataset
from feeder.dataset.relabel import without_labels
from feeder.dataset.shard_reader import ShardReader
from feeder.errors import ArgumentError
from feeder.loader.dataloader import DataLoader
from feeder.loader.order_identity import saved_shuffle, set_version
from feeder.order.buckets import Buckets
from feeder.system.arrays import Uint8s
from feeder.tools.presets import open_dataset
from feeder.transforms import Recipe, Views
from feeder.transforms.pad_to_batch import PadToBatch
from feeder.transforms.recipe_json import mix_from_json, recipe_from_json

_BY_HAND = "make the loader as the run did, load the state, and call its replay()"


def read_state(path: str, key: str | None = None) -> dict[str, Any]:
    """Returns the state of a loader from a file: JSON, or a checkpoint of torch, which is read with ``weights_only``.

    Args:
        path: The file.
        key: Name of the state in the file, with dots between names of dicts in dicts; a dict with one state in it will
            do. None: the file itself.

    Raises:
        ArgumentError: if the file can't be read, or has no such state.
    """
    try:
        if path.endswith(".json"):
            with open(path, encoding="utf-8-sig") as file:
                found = json.load(file)
        else:
            found = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise ArgumentError(
            f"{path}: can't be read: {error.strerror}; name the file that the run saved its state to"
        ) from error
    except (ValueError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise ArgumentError(
            f"{path}: is neither JSON, as *.json, nor a checkpoint of torch of tensors, numbers and texts only; "
            "save loader.state_dict() as JSON"
        ) from error

    for name in [] if key is None else key.split("."):
        if not isinstance(found, Mapping) or name not in found:
            names = ", ".join(map(str, found)) if isinstance(found, Mapping) else type(found).__name__
            raise ArgumentError(f"{path}: has no {key!r}; there are: {names}")
        found = found[name]

    if _is_state(found):
        return dict(found)
    inner = {name: each for name, each in found.items() if _is_state(each)} if isinstance(found, Mapping) else {}
    if not inner:
        candidates = (found, *found.values()) if isinstance(found, Mapping) else ()
        # In the form of torchdata's StatefulDataLoader.
        if any(isinstance(each, Mapping) and "_iterator_finished" in each for each in candidates):
            raise ArgumentError(
                f"{path}: has the state of a loader on torch's path, of a dataset that is not feeder's, which does not "
                "say which samples a step had"
            )
        raise ArgumentError(
            f"{path}: has no state of feeder's loader{f' at {key!r}' if key else ''}; name it with --key"
        )
    if len(inner) > 1:
        raise ArgumentError(f"{path}: has {len(inner)} states; name one with --key: {', '.join(map(str, inner))}")
    return dict(next(iter(inner.values())))


def read_recipe(path: str) -> Recipe | Views:
    """Returns the recipe of a JSON file, as the state of a loader has it under "recipe".

    Raises:
        ArgumentError: if the file can't be read, or has none.
    """
    with naming(path):
        try:
            with open(path, encoding="utf-8-sig") as file:
                return recipe_from_json(json.load(file))
        except OSError as error:
            raise ArgumentError(f"can't be read: {error.strerror}") from error
        except ValueError as error:
            raise ArgumentError(f'{error}; write state_dict()["recipe"] of a loader to it as JSON') from error


@contextlib.contextmanager
def naming(path: str | None) -> Iterator[None]:
    """Names the file of a state in errors about it; None: there is none."""
    try:
        yield
    except ArgumentError as error:
        raise error if path is None else ArgumentError(f"{path}: {error}") from error


def targets_of(state: Mapping[str, Any]) -> list[str]:
    """Returns the names of the targets of a run over a folder of images, whose files are no samples.

    Raises:
        ArgumentError: if the state has anything else in their place.
    """
    names = state.get("targets", [])
    if not isinstance(names, list) or not all(isinstance(name, str) and name for name in names):
        raise ArgumentError(f"this state is damaged: its targets are {names!r}")
    return names


def why_without_images(state: Mapping[str, Any]) -> str:
    """Returns the reason that a run's images can't be made by its state; empty if they can.

    Raises:
        ArgumentError: if the state's recipe is none.
    """
    if state.get("decoded_on") is not None:
        return "this run decoded on a GPU, whose pixels are not those that are made here"
    if state.get("recipe") is None:
        return "the recipe of this run calls a function (Lambda), which a state does not have"
    if "mix" in state and state["mix"] is None:
        return "this run mixed batches by an op of its own, which a state does not have"
    if any(view.draws_from_boxes for view in recipe_from_json(state["recipe"]).views):
        return "the recipe of this run draws from boxes, which a state does not name"
    return ""


def refuse_without_images(state: Mapping[str, Any]) -> None:
    """Raises ArgumentError if a run's images can't be made by its state, see :func:`why_without_images`."""
    if why := why_without_images(state):
        raise ArgumentError(f"{why}: {_BY_HAND}")


def loader_of(path: str, state: Mapping[str, Any], *, images: bool = True) -> DataLoader[Any]:
    """Returns a loader over a set, in the version that a state is of, which stands at the state, with its order and its
    recipe.

    Bad samples are replaced by others, as in a run with ``on_error="skip"``: one without had no such batch. Images of
    sizes of their own are padded, even if the run did not: :func:`batch_pixels` cuts it off. Targets are not read.

    Args:
        path: The set, or a folder of images.
        state: The state.
        images: False gives a loader with a recipe and a backend of no account, for ``samples_of``, also where
            :func:`why_without_images` has a reason.

    Raises:
        ArgumentError: if the state is of another set, or does not have all that batches were made by.
    """
    if "mixture" in state:
        raise ArgumentError(f"this state is of a Mixture, whose batches are of several sets: {_BY_HAND}")
    if "consumed" not in state or "spans" not in state:
        raise ArgumentError(
            "this state was saved with an explicit sampler, or is damaged: it does not say how batches were made"
        )
    if images:
        refuse_without_images(state)

    shuffle = saved_shuffle(state.get("shuffle"))
    if shuffle is None:
        raise ArgumentError(f"this state is damaged: its shuffle is {state.get('shuffle')!r}")
    recipe = recipe_from_json(state["recipe"] if images else _recipe_of_sizes(state))
    exif = state.get("exif_orientation", "apply")
    reader: Any = open_dataset(path, None, exif, set_version(state), targets=targets_of(state)).reader
    if state["fingerprint"] != reader.fingerprint() and isinstance(reader, ShardReader):
        without_labels(reader)  # as with labels=False
    if state["fingerprint"] != reader.fingerprint():
        raise ArgumentError(
            "this state is of another set; or of a Subset, of several sets, or of one opened with labels=, classes= or "
            f"target_transform=: {_BY_HAND}"
        )
    dataset = FeederDataset(reader, recipe, ())  # open_dataset() would refuse the recipe's ops on targets

    buckets, is_grouped = state.get("buckets"), bool(state.get("group_by_aspect"))
    sizes: Buckets | PadToBatch | None = None if buckets is None else Buckets(sizes=buckets)
    if is_grouped or (buckets is None and any(view.output_size is None for view in recipe.views)):
        sizes = PadToBatch(group_by_aspect=is_grouped)
    decoding: dict[str, Any] = {"backend": "pillow", "fidelity": "fast"}
    if not images:
        state = {**state, **decoding}
    else:
        mix = mix_from_json(state["mix"]) if "mix" in state else None
        decoding = {"backend": state.get("backend"), "fidelity": state.get("fidelity")}  # None is refused
        decoding |= {"mix": mix, "on_error": "skip"}
    loader: DataLoader[Any] = DataLoader(
        dataset,
        sizes=sizes,
        shuffle="full" if shuffle is True else shuffle,
        seed=state["seed"],
        **decoding,
    )
    loader.load_state_dict(dict(state))
    return loader


def save_images(views: Sequence[Sequence[Uint8s]], folder: str) -> list[str]:
    """Writes a batch's images as PNG files, and returns their names.

    Args:
        views: Those of each view, uint8 [H, W, 3].
        folder: A folder that is made.

    Raises:
        ArgumentError: if it exists already, or can't be made.
    """
    try:
        os.makedirs(folder)
    except FileExistsError:
        raise ArgumentError(f"{folder}: exists already; name a new folder") from None
    except OSError as error:
        raise ArgumentError(f"{folder}: can't be written: {error.strerror}; choose another --out") from error
    names = []
    for number, batch in enumerate(views):
        for row, image in enumerate(batch):
            name = f"{row:04d}.png" if len(views) == 1 else f"{row:04d}-view-{number}.png"
            Image.fromarray(image).save(os.path.join(folder, name))
            names.append(name)
    return names


def batch_pixels(loader: DataLoader[Any], batch: Sequence[Any]) -> list[list[Uint8s]]:
    """Returns the images of a loader's batch as :func:`as_pixels` does, without padding: of each view N, [H, W, 3]."""
    views = [list(images) for images in as_pixels(batch[0], loader.dataset.recipe)]
    if not isinstance(loader.sizes, PadToBatch):
        return views
    sizes = batch[2].tolist()
    return [[image[:height, :width] for image, (height, width) in zip(images, sizes, strict=True)] for images in views]


def as_pixels(images: Any, recipe: Recipe | Views) -> list[Uint8s]:
    """Returns a batch's images as pixels, floats as the ones that they were made of; [N, H, W, 3] for each view.

    Args:
        images: Tensor [N, 3, H, W], or one for each view.
        recipe: The recipe that made them.
    """
    found = []
    for batch, view in zip(images if isinstance(images, list) else [images], recipe.views, strict=True):
        pixels = batch.float().numpy()
        if view.affine is not None:
            scale, bias = (np.asarray(each, np.float32)[:, None, None] for each in view.affine)
            pixels = (pixels - bias) / scale
        found.append(np.rint(pixels).clip(0, 255).astype(np.uint8).transpose(0, 2, 3, 1))
    return found


def _recipe_of_sizes(state: Mapping[str, Any]) -> list[Any]:
    """Returns a recipe, as JSON, by which a loader has a state's order: that rests on none of the ops, but on sizes."""
    sizes = state.get("sizes_by_epoch", [])
    if not isinstance(sizes, list):
        raise ArgumentError(f"this state is damaged: its sizes_by_epoch are {sizes!r}")
    last = [8, 8] if state.get("buckets") is None else "BUCKET"
    by_epoch = [  # any number of lengths, as an op may have
        {"RandomShortestSize": {"min_size": {"ByEpoch": each}, "max_size": None, "interpolation": "bilinear"}}
        for each in sizes
    ]
    return [*by_epoch, {"CenterCrop": {"size": last}}]


def _is_state(value: Any) -> bool:
    return isinstance(value, Mapping) and {"version", "epoch", "seed", "fingerprint"} <= set(value)

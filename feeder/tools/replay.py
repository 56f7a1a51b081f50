"""Batches of a training run, made again from a set and a saved state."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from feeder.errors import ArgumentError
from feeder.loader.dataloader import DataLoader
from feeder.loader.fast.batch_sizes import SIZE_IDENTITY
from feeder.loader.rank_agreement import saved_shuffle
from feeder.tools.presets import open_dataset
from feeder.transforms import Recipe, Views
from feeder.transforms.recipe_json import recipe_from_json

__all__ = ["as_pixels", "loader_of", "read_state", "save_images"]


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
            with open(path, encoding="utf-8") as file:
                found = json.load(file)
        else:
            found = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise ArgumentError(f"{path}: can't be read: {error.strerror}") from error
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
        raise ArgumentError(
            f"{path}: has no state of feeder's loader{f' at {key!r}' if key else ''}; name it with --key"
        )
    if len(inner) > 1:
        raise ArgumentError(f"{path}: has {len(inner)} states; name one with --key: {', '.join(map(str, inner))}")
    return dict(next(iter(inner.values())))


def loader_of(path: str, state: Mapping[str, Any], exif_orientation: str = "apply") -> DataLoader[Any]:
    """Returns a loader over a set that stands at a state, with the order and the recipe that the state has.

    Args:
        path: The set, or a folder of images.
        state: The state.
        exif_orientation: As the dataset had it.

    Raises:
        ArgumentError: if the state is of another set, or does not have all that batches were made by.
    """
    if "consumed" not in state or "spans" not in state:
        raise ArgumentError(
            "this state was saved with an explicit sampler, or by an older version of feeder: it does not say how "
            "batches were made"
        )
    sizes = [name for name in SIZE_IDENTITY if state.get(name) is not None]
    if sizes:
        raise ArgumentError(f"this state is of a loader with {sizes[0]}: make that loader, and call its replay()")
    if state.get("recipe") is None:
        raise ArgumentError(
            "the recipe of this run calls a function (Lambda), which a state does not have: make the loader as the "
            "run did, load the state, and call its replay()"
        )
    shuffle = saved_shuffle(state.get("shuffle"))
    if shuffle is None:
        raise ArgumentError(f"this state is damaged: its shuffle is {state.get('shuffle')!r}")
    loader: DataLoader[Any] = DataLoader(
        open_dataset(path, recipe_from_json(state["recipe"]), exif_orientation),
        shuffle="full" if shuffle is True else shuffle,
        seed=state["seed"],
        backend=state["backend"],
        fidelity=state["fidelity"],
    )
    loader.load_state_dict(dict(state))
    return loader


def save_images(images: Any, recipe: Recipe | Views, folder: str) -> list[str]:
    """Writes a batch's images as PNG files, floats as the pixels that they were made of; returns their names.

    Args:
        images: Tensor [N, 3, H, W], or one for each view.
        recipe: The recipe that made them.
        folder: A folder that is made.

    Raises:
        ArgumentError: if it exists already.
    """
    try:
        os.makedirs(folder)
    except FileExistsError:
        raise ArgumentError(f"{folder}: exists already; name a new folder") from None
    names = []
    views = as_pixels(images, recipe)
    for number, batch in enumerate(views):
        for row, image in enumerate(batch):
            name = f"{row:04d}.png" if len(views) == 1 else f"{row:04d}-view-{number}.png"
            Image.fromarray(image).save(os.path.join(folder, name))
            names.append(name)
    return names


def as_pixels(images: Any, recipe: Recipe | Views) -> list[npt.NDArray[np.uint8]]:
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


def _is_state(value: Any) -> bool:
    return isinstance(value, Mapping) and {"version", "epoch", "seed", "fingerprint"} <= set(value)

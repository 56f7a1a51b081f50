"""The usual recipes of training and validation, and the datasets that commands measure with them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from feeder import transforms as T
from feeder.dataset.base import FeederDataset, applies_exif
from feeder.dataset.folder_reader import FolderReader
from feeder.dataset.folders import FolderDataset
from feeder.dataset.shards import ShardDataset
from feeder.errors import ArgumentError, SourceError
from feeder.shard.format.index_file import INDEX_NAME
from feeder.shard.store.url import is_remote
from feeder.system.checks import check_int, check_one_of

PRESETS = ("train", "val")
DTYPES = ("float32", "uint8")
MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)


def preset(name: str, dtype: str, image_size: int) -> T.Compose:
    """Returns a recipe.

    Args:
        name: "train": RandomResizedCrop and horizontal flip; "val": Resize and CenterCrop.
        dtype: "float32", normalized by ImageNet's mean and deviation, or "uint8".
        image_size: Height and width of the output, pixels.

    Raises:
        ArgumentError: naming the argument that is out of range.
    """
    check_one_of("preset", name, PRESETS)
    check_one_of("dtype", dtype, DTYPES)
    check_int("image_size", image_size, 1)
    if name == "train":
        head: list[Any] = [T.RandomResizedCrop(image_size), T.RandomHorizontalFlip()]
    else:
        head = [T.Resize(val_resize(image_size)), T.CenterCrop(image_size)]
    tail = [T.ToDtype("float32", scale=True), T.Normalize(MEAN, STD)] if dtype == "float32" else []
    return T.Compose([*head, *tail])


def describe(name: str, dtype: str, image_size: int) -> str:
    """Returns the recipe in words."""
    head = {
        "train": f"RandomResizedCrop({image_size}), flip",
        "val": f"Resize({val_resize(image_size)}), CenterCrop({image_size})",
    }[name]
    return head + {"float32": ", normalize to float32", "uint8": ", uint8"}[dtype]


def val_resize(image_size: int) -> int:
    """Returns the short side in pixels to which validation resizes before it crops."""
    return round(image_size * 256 / 224)


def is_shards(path: str) -> bool:
    """Returns True if a path is a shard set's folder, index or URL, False if it is a folder of images."""
    return is_remote(path) or os.path.isfile(path) or os.path.exists(os.path.join(path, INDEX_NAME))


def open_dataset(
    path: str,
    transform: Any,
    exif_orientation: str = "apply",
    version: int | None = None,
    *,
    targets: Sequence[str] = (),
) -> FeederDataset:
    """Opens the dataset at a path: a shard set, or a folder with a subfolder for each class.

    A set whose ``cls`` fields give no label is opened without labels, as only its images are measured.

    Args:
        path: The path, or a set's URL.
        transform: The recipe.
        exif_orientation: See :class:`feeder.ShardDataset`.
        version: Number of the set's version; None: the newest.
        targets: Names of members such as "seg.png", whose files in a folder are no samples. They are not read.

    Raises:
        ArgumentError: if there is no such version.
        FormatError, SourceError: if it can't be opened.
    """
    if not is_remote(path) and not os.path.lexists(path):
        raise SourceError(
            f"{path}: there is no such path; give a shard set, its URL, or a folder with a folder of images for each "
            "class"
        )

    if not is_shards(path):
        if version not in (None, 1):
            raise ArgumentError(f"{path}: a folder of images has version 1 only, asked for version {version}")
        if targets:
            exif = applies_exif(exif_orientation)
            reader = FolderReader.scan(os.path.abspath(path), exif=exif, targets=tuple(targets))
            return FeederDataset(reader, transform, ())
        return FolderDataset(path, transform, exif_orientation=exif_orientation)

    options: dict[str, Any] = {"exif_orientation": exif_orientation, "version": version}
    try:
        return ShardDataset(path, transform, **options)
    except ArgumentError:
        return ShardDataset(path, transform, labels=False, **options)

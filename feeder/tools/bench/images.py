"""The images of ``feeder bench``: a shard set, or a tree with a folder for each class."""

from __future__ import annotations

import os

from feeder.dataset.folder_reader import FolderReader
from feeder.decoders.packed import is_packed_field
from feeder.errors import SourceError
from feeder.tools.presets import is_shards
from feeder.tools.set_report import open_set


def listed(path: str) -> list[tuple[str, int]]:
    """Returns images and labels of a class-per-folder tree, in torchvision's order."""
    reader = FolderReader.scan(os.path.abspath(path))
    return [(os.path.join(reader.root, reader.path(i)), int(label)) for i, label in enumerate(reader.labels())]


def files_of(path: str, folder: str) -> list[tuple[str, int]]:
    """Returns the images of a shard set, in its order, as the files below a folder that they were made of, with labels.

    Raises:
        SourceError: if one of them is not there.
    """
    index = open_set(path)
    files = [(os.path.join(folder, index.source_path(i)), int(index.row(i).labels[0])) for i in range(len(index))]
    missing = next((file for file, _ in files if not os.path.isfile(file)), None)
    if missing is not None:
        raise SourceError(
            f"{missing}: not there; --folder is for the files that the set was made of, or of `feeder export`"
        )
    return files


def tars(path: str) -> list[str]:
    """Returns the shards of a set."""
    index = open_set(path)
    return [index.shard_path(i) for i in range(index.header.shards)]


def image_fields(path: str) -> list[str]:
    """Returns the names of the fields that hold images."""
    index = open_set(path)
    return [index.fields[i] for i in sorted(set(index.column("field").tolist()))]


def is_packed_set(path: str) -> bool:
    """Returns whether a path is a shard set with packed images."""
    return is_shards(path) and any(map(is_packed_field, image_fields(path)))

"""The images of ``feeder bench``: a shard set, or a tree with a folder for each class."""

from __future__ import annotations

import os

from feeder.dataset.folder_reader import FolderReader
from feeder.dataset.folders import FOLDER_EXTENSIONS
from feeder.dataset.shard_reader import ShardReader
from feeder.dataset.shards import ShardDataset
from feeder.shard.store.url import is_remote
from feeder.tools.inspect import open_set

__all__ = ["image_fields", "listed", "remote_reader", "tars"]


def listed(path: str) -> list[tuple[str, int]]:
    """Returns images and labels of a class-per-folder tree, in torchvision's order."""
    reader = FolderReader.scan(os.path.abspath(path), FOLDER_EXTENSIONS)
    return [(os.path.join(reader.root, reader.path(i)), int(label)) for i, label in enumerate(reader.labels())]


def remote_reader(url: str) -> ShardReader:
    """Returns the reader of a shard set in a store."""
    reader = ShardDataset(url, labels=False).reader
    assert isinstance(reader, ShardReader)
    return reader


def tars(path: str) -> list[str]:
    """Returns the shards of a set."""
    index = open_set(path)
    return [index.shard_path(i) for i in range(index.shard_count)]


def image_fields(path: str) -> list[str]:
    """Returns the names of the fields that hold images."""
    index = remote_reader(path).index if is_remote(path) else open_set(path)
    return [index.fields[i] for i in sorted(set(index.column("field").tolist()))]

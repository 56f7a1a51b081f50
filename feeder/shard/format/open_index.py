"""Opens the index of a shard set, of any version."""

from __future__ import annotations

import os

from feeder.errors import ArgumentError, FormatError
from feeder.shard.format.set_header import version_path
from feeder.shard.format.set_index import SetIndex
from feeder.shard.store.mirror import Mirror


def open_index(path: str | os.PathLike[str], version: int | None = None, mirror: Mirror | None = None) -> SetIndex:
    """Opens the index of a shard set.

    Args:
        path: The index file.
        version: Number of the version of the set, from 1; None for the newest.
        mirror: The mirror of the file's folder; None for a local set.

    Raises:
        FormatError: if it is missing or damaged.
        ArgumentError: if the set has no such version.
    """
    path = os.fspath(path)
    index = SetIndex(path, mirror)
    newest = index.header.info.version
    if version in (None, newest):
        return index
    if not 1 <= version < newest:
        raise ArgumentError(f"{path}: has the versions 1 to {newest}, asked for version {version}")
    earlier = SetIndex(version_path(path, version), mirror)
    found = earlier.header.info.version
    if found != version:
        raise FormatError(f"{earlier.path}: has version {found} of the set; restore version {version}")
    return earlier

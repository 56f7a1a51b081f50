"""Opens the index of a shard set, of any version."""

from __future__ import annotations

import os

from feeder.errors import ArgumentError, FormatError
from feeder.shard.format.column_index import ColumnIndex
from feeder.shard.format.header_file import HEADER_MAGIC, version_path
from feeder.shard.format.index import Index
from feeder.shard.format.index_file import INDEX_MAGIC
from feeder.shard.format.set_index import SetIndex
from feeder.shard.store.mirror import Mirror
from feeder.system.files import open_regular

__all__ = ["open_index"]


def open_index(path: str | os.PathLike[str], version: int | None = None, mirror: Mirror | None = None) -> Index:
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
    magic = _magic(path, mirror)
    if mirror is not None and magic == INDEX_MAGIC:
        raise FormatError(
            f"{mirror.place}/{os.path.basename(path)}: an index of format 1, which can't be read from a store; convert "
            "it with `feeder index --upgrade`, and upload the set again"
        )
    if mirror is None and magic != HEADER_MAGIC:
        if version not in (None, 1):
            raise ArgumentError(f"{path}: has version 1 only, asked for version {version}")
        return ColumnIndex(path)
    index = SetIndex(path, mirror)
    if version in (None, index.version):
        return index
    if not 1 <= version < index.version:
        raise ArgumentError(f"{path}: has the versions 1 to {index.version}, asked for version {version}")
    earlier = SetIndex(version_path(path, version), mirror)
    if earlier.version != version:
        raise FormatError(f"{earlier.path}: has version {earlier.version} of the set; restore version {version}")
    return earlier


def _magic(path: str, mirror: Mirror | None) -> bytes:
    """Returns the first bytes of an index; none of one that can't be read, which is explained later."""
    if mirror is not None:
        mirror.need([(os.path.basename(path), 0, len(HEADER_MAGIC))])
    try:
        with open(path, "rb", opener=open_regular) as file:
            return file.read(len(HEADER_MAGIC))
    except OSError:
        return b""

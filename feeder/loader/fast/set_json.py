"""The set that work reads as JSON: where it lies, which samples, and a fingerprint of them."""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import zlib
from typing import Any

import numpy as np

from feeder.dataset.folder_reader import FolderReader
from feeder.dataset.joined_reader import JoinedReader
from feeder.dataset.reader import Reader
from feeder.dataset.shard_reader import ShardReader
from feeder.dataset.subset_reader import PartReader
from feeder.errors import ArgumentError
from feeder.shard.cache.cache_mirror import CacheMirror
from feeder.system.arrays import Int64s

__all__ = ["SIZED_FILES", "set_from_json", "set_to_json"]

_MOST_SETS, _DEEPEST = 64, 8
_MOST_REPEATED = 1 << 22  # ids of a subset of fewer samples
# Of a folder. A file server answers 1,000 requests for sizes in less than a second; for all files of a large set it
# takes longer than to list them.
SIZED_FILES = 1024


def set_to_json(reader: Reader) -> dict[str, Any]:
    """Returns the JSON of a set.

    Raises:
        ArgumentError: if it is of a class of its own.
    """
    if isinstance(reader, PartReader):
        # By their differences: ids of samples in a row pack to nearly nothing.
        steps = np.diff(reader.ids, prepend=0).astype(np.int64)
        ids = base64.b64encode(zlib.compress(steps.tobytes(), 1)).decode()
        return {"kind": "subset", "of": set_to_json(reader.whole), "ids": ids}
    if isinstance(reader, JoinedReader):
        return {"kind": "sets", "of": [set_to_json(each) for each in reader.readers], "own_index": reader.own_index}
    if type(reader) is FolderReader:
        return {"kind": "folder", "path": reader.root, "exif": reader.exif, "fingerprint": _fingerprint(reader)}
    if type(reader) is not ShardReader:
        raise ArgumentError("a dataset of a class of its own")
    path = reader.mirror.options.url if isinstance(reader.mirror, CacheMirror) else reader.index.path
    found = {"kind": "shards", "path": path, "version": reader.index.header.info.version, "exif": reader.exif}
    return found | {"fingerprint": _fingerprint(reader)}


def set_from_json(value: Any, here: Any, members: tuple[str, ...] = (), depth: int = 0) -> Reader:
    """Opens the set that :func:`set_to_json` has described.

    Args:
        value: The JSON; trusted in nothing.
        here: Opens sets, or refuses them by an ArgumentError: a :class:`feeder.service.roots.Roots`.
        members: Names of members of a folder's samples that are images, and no samples themselves.
        depth: Number of sets that it is inside of.

    Raises:
        ArgumentError: if it is not such JSON, or a set differs from the client's.
    """
    if not isinstance(value, dict) or depth > _DEEPEST:
        raise ArgumentError("this is no set")

    kind, of = value.get("kind"), value.get("of")
    if kind == "subset":
        whole = set_from_json(of, here, members, depth + 1)
        return PartReader(whole, _ids_from_json(value.get("ids"), len(whole)))
    if kind == "sets":
        if not isinstance(of, list) or not 0 < len(of) <= _MOST_SETS:
            raise ArgumentError("these are no sets")
        readers = [set_from_json(each, here, members, depth + 1) for each in of]
        return JoinedReader(readers, own_index=value.get("own_index") is True)

    path, exif, version = (value.get(name) for name in ("path", "exif", "version"))
    if kind not in ("shards", "folder") or not isinstance(path, str) or type(exif) is not bool or "\0" in path:
        raise ArgumentError("this is no set")
    if version is not None and (type(version) is not int or version < 1):
        raise ArgumentError("this is no version of a set")

    reader: ShardReader | FolderReader
    if kind == "folder":
        reader = here.open_folder(path, members, exif=exif)
    else:
        reader = here.open_shards(path, exif=exif, version=version)
    if _fingerprint(reader) != value.get("fingerprint"):
        raise ArgumentError(f"{path}: the set here is not the client's: its samples, their sizes or their order differ")
    return reader


def _ids_from_json(value: Any, samples: int) -> Int64s:
    """Returns the ids of a subset of so many samples, int64 [N].

    Raises:
        ArgumentError: if there are none, too many, or samples that there are not.
    """
    unpacked = zlib.decompressobj()
    try:
        data = unpacked.decompress(base64.b64decode(value, validate=True), 8 * max(samples, _MOST_REPEATED))
        ids = np.cumsum(np.frombuffer(data, np.int64))
    except (binascii.Error, TypeError, ValueError, zlib.error):
        raise ArgumentError("this is no subset") from None
    if not unpacked.eof or ids.min(initial=0) < 0 or ids.max(initial=-1) >= samples:
        raise ArgumentError("a subset has samples that the set has not, or too many")
    return ids


def _fingerprint(reader: ShardReader | FolderReader) -> str:
    """Returns a hash of the samples and their order, whatever labels they were given; of a folder, of all files' names
    and the sizes of some, spread evenly."""
    if isinstance(reader, ShardReader):
        return reader.index.fingerprint()
    some = np.linspace(0, len(reader) - 1, min(len(reader), SIZED_FILES)).astype(np.int64)
    sizes = np.array([_size_bytes(os.path.join(reader.root, reader.path(i))) for i in some.tolist()], np.int64)
    digest = hashlib.blake2b(digest_size=16)
    for column in (reader.path_start, reader.path_data, sizes):
        digest.update(np.ascontiguousarray(column).data)
    return digest.hexdigest()


def _size_bytes(path: str) -> int:
    """Returns a file's size; -1 for one that can't be read, which is for the sample's reader to say."""
    try:
        return os.stat(path).st_size
    except OSError:
        return -1

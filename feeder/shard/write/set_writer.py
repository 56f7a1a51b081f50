"""Writes the header of a shard set from its shards and their indexes."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from feeder.errors import FormatError, ShardError
from feeder.shard.format.index_file import INDEX_NAME
from feeder.shard.format.sealed_head import HASH_BYTES
from feeder.shard.format.set_header import INDEX_SUFFIX, ROW, ImageOf, SetHeader, SetInfo, write_header
from feeder.shard.format.shard_index import ShardIndex

__all__ = ["HashedShard", "extend_set", "index_path", "own_suffix", "write_set"]


class HashedShard(NamedTuple):
    """A shard that was written or read, with its hash.

    Attributes:
        name: File name, relative to the set's folder.
        size_bytes: Its size.
        sha256: Its SHA-256, hexadecimal.
    """

    name: str
    size_bytes: int
    sha256: str


def index_path(folder: str, shard: str, suffix: str = INDEX_SUFFIX) -> str:
    """Path of the index of a shard, by the shard's name."""
    return os.path.join(folder, os.path.splitext(shard)[0] + suffix)


def own_suffix(path: str) -> str:
    """Suffix of the shards' indexes of the set with this header: several sets of the same shards have their own."""
    stem = os.path.splitext(os.path.basename(path))[0]
    return INDEX_SUFFIX if os.path.basename(path) == INDEX_NAME else f"{INDEX_SUFFIX}-{stem}"


def write_set(
    path: str,
    shards: Sequence[HashedShard],
    classes: Sequence[str] | None,
    *,
    suffix: str = INDEX_SUFFIX,
    image_of: ImageOf | None = None,
) -> None:
    """Writes the header of a set whose shards all have their indexes beside them.

    Args:
        path: The header.
        shards: The shards, by number.
        classes: Class names by label.
        suffix: Suffix of the shards' indexes.
        image_of: Origin of a set in which another field is the image.

    Raises:
        FormatError: if an index is missing or damaged, or the shards' targets differ.
    """
    found = _Shards(suffix, None)
    for shard in shards:
        found.add(os.path.dirname(path), shard)
    found.write(path, classes, image_of)


def extend_set(
    before: SetHeader, path: str, folder: str, shards: Sequence[HashedShard], classes: Sequence[str] | None
) -> None:
    """Writes the header of the next version of a set, which has further shards.

    Args:
        before: The present header.
        path: The file to write.
        folder: The set's folder, where the shards and their indexes are.
        shards: The further shards, by number.
        classes: Class names by label.

    Raises:
        FormatError: if an index is missing or damaged, or its targets are not the set's.
    """
    found = _Shards(before.info.index_suffix, before)
    for shard in shards:
        found.add(folder, shard)
    found.write(path, classes)


class _Shards:
    """The shards of a set, and what its header says of all of them.

    Args:
        suffix: Suffix of the shards' indexes.
        before: The header of the shards that the set has already; None without any.
    """

    def __init__(self, suffix: str, before: SetHeader | None) -> None:
        self._suffix, self._before = suffix, before
        info = None if before is None else before.info
        self._rows = [] if before is None else [before.rows()]
        self._names = [] if before is None else [before.shard_name(number) for number in range(before.shards)]
        self._fields = dict.fromkeys(() if info is None else info.fields)
        self._codebooks = dict.fromkeys(() if info is None else info.codebooks)
        self._digest = hashlib.blake2b(b"" if info is None else info.fingerprint.encode(), digest_size=16)
        self._labelled, self._max_label = (0, -1) if info is None else (info.labelled, info.max_label)
        self._is_numbered = None if info is None else info.is_numbered
        self._targets = None if info is None else info.targets

    def add(self, folder: str, shard: HashedShard) -> None:
        """Takes the next shard, whose index is beside it."""
        index = ShardIndex(index_path(folder, shard.name, self._suffix))
        if self._targets is not None and index.targets != self._targets:
            raise FormatError(f"{index.path}: has the targets {index.targets}, the shards before it {self._targets}")
        if index.size_bytes >= 1 << 32:
            raise ShardError(f"{index.path}: {index.size_bytes:,} bytes; an index has less than 4 GiB: use more shards")
        self._targets = index.targets
        self._fields |= dict.fromkeys(index.fields)
        self._codebooks |= dict.fromkeys(index.codebooks())
        groups = index.groups()
        shard_hash = bytes.fromhex(shard.sha256)[:HASH_BYTES]
        row = (index.samples, index.core_bytes, shard.size_bytes, np.void(shard_hash), np.void(index.hash))
        self._rows.append(np.array([row], ROW))
        self._names.append(shard.name)
        for part in (shard_hash, *(bytes.fromhex(groups[name][2]) for name in ("records", "target") if name in groups)):
            self._digest.update(part)
        labels = index.rows()["label"]
        self._labelled += int((labels >= 0).sum())
        self._max_label = max(self._max_label, int(labels.max(initial=-1)))
        self._is_numbered = self._is_numbered is not False and "source_row" in groups

    def write(self, path: str, classes: Sequence[str] | None, image_of: ImageOf | None = None) -> None:
        """Writes the header of all shards."""
        before = self._before
        info = SetInfo(
            fields=tuple(self._fields),
            classes=None if classes is None else tuple(classes),
            targets=self._targets or (),
            labelled=self._labelled,
            max_label=self._max_label,
            is_numbered=bool(self._is_numbered),
            fingerprint=self._digest.hexdigest(),
            index_suffix=self._suffix,
            codebooks=tuple(self._codebooks),
            version=1 if before is None else before.info.version + 1,
            versions=() if before is None else (*before.info.versions, (before.samples, before.shards)),
            taken_down=0 if before is None else before.info.taken_down,
            image_of=image_of,
        )
        write_header(path, info, np.concatenate([np.zeros(0, ROW), *self._rows]), self._names)

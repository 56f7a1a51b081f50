"""Writes the header of a shard set from its shards and their indexes."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from feeder.errors import FormatError
from feeder.shard.format.set_header import INDEX_SUFFIX, ROW, SetInfo, write_header
from feeder.shard.format.shard_index import ShardIndex

__all__ = ["HashedShard", "index_path", "write_set"]


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


def write_set(
    path: str,
    shards: Sequence[HashedShard],
    classes: Sequence[str] | None,
    *,
    suffix: str = INDEX_SUFFIX,
    fingerprint: str | None = None,
) -> None:
    """Writes the header of a set whose shards all have their indexes beside them.

    Args:
        path: The header.
        shards: The shards, by number.
        classes: Class names by label.
        suffix: Suffix of the shards' indexes.
        fingerprint: The set's fingerprint, if it is known; None to make it of the shards' hashes.

    Raises:
        FormatError: if an index is missing or damaged, or the shards' targets differ.
    """
    folder = os.path.dirname(path)
    rows = np.zeros(len(shards), ROW)
    fields: dict[str, int] = {}
    codebooks: dict[bytes, None] = {}
    digest = hashlib.blake2b(digest_size=16)
    labelled, max_label, is_numbered = 0, -1, True
    targets: tuple[str, ...] | None = None
    for number, shard in enumerate(shards):
        index = ShardIndex(index_path(folder, shard.name, suffix))
        if targets is not None and index.targets != targets:
            raise FormatError(f"{index.path}: has the targets {index.targets}, the shards before it {targets}")
        targets = index.targets
        for field in index.fields:
            fields.setdefault(field, len(fields))
        codebooks |= dict.fromkeys(index.codebooks())
        groups = index.groups()
        shard_hash = bytes.fromhex(shard.sha256)[:16]
        rows[number] = (index.samples, index.size_bytes, shard.size_bytes, np.void(shard_hash), np.void(index.hash))
        for part in (shard_hash, *(bytes.fromhex(groups[name][2]) for name in ("records", "target") if name in groups)):
            digest.update(part)
        labels = index.rows()["label"]
        labelled += int((labels >= 0).sum())
        max_label = max(max_label, int(labels.max(initial=-1)))
        is_numbered = is_numbered and "source_row" in groups
    info = SetInfo(
        fields=tuple(fields),
        classes=None if classes is None else tuple(classes),
        targets=targets or (),
        labelled=labelled,
        max_label=max_label,
        is_numbered=is_numbered and bool(shards),
        fingerprint=fingerprint or digest.hexdigest(),
        is_converted=fingerprint is not None,
        index_suffix=suffix,
        codebooks=tuple(codebooks),
    )
    write_header(path, info, rows, [shard.name for shard in shards])

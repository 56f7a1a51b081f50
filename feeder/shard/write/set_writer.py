"""Writes the header of a shard set from its shards and their indexes."""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Sequence

import numpy as np

from feeder.errors import FormatError, ShardError
from feeder.shard.format.index_file import INDEX_NAME
from feeder.shard.format.manifest import ShardRecord
from feeder.shard.format.sealed_head import HASH_BYTES
from feeder.shard.format.set_header import INDEX_SUFFIX, ROW, SetHeader, SetInfo, write_header
from feeder.shard.format.shard_index import ShardIndex
from feeder.system.arrays import AnyArray


def index_path(folder: str, shard: str, suffix: str = INDEX_SUFFIX) -> str:
    """Returns the path of the index of a shard, by the shard's name."""
    return os.path.join(folder, os.path.splitext(shard)[0] + suffix)


def own_suffix(path: str) -> str:
    """Returns the suffix of the shards' indexes of the set with this header: several sets of the same shards have their
    own."""
    stem = os.path.splitext(os.path.basename(path))[0]
    return INDEX_SUFFIX if os.path.basename(path) == INDEX_NAME else f"{INDEX_SUFFIX}-{stem}"


def header_row(index: ShardIndex, size_bytes: int, sha256: str) -> AnyArray:
    """Returns what a set's header says of a shard, :data:`ROW` [1].

    Args:
        index: The shard's index.
        size_bytes: Size of the shard.
        sha256: Its SHA-256, hexadecimal.
    """
    shard_hash = np.void(bytes.fromhex(sha256)[:HASH_BYTES])
    return np.array([(index.samples, index.size_bytes, size_bytes, shard_hash, np.void(index.hash))], ROW)


def write_set(
    path: str,
    shards: Sequence[ShardRecord],
    classes: Sequence[str] | None,
    *,
    before: SetHeader | None = None,
    folder: str | None = None,
    suffix: str = INDEX_SUFFIX,
) -> None:
    """Writes the header of a set whose shards all have their indexes beside them.

    Args:
        path: The header.
        shards: The shards, by number.
        classes: Class names by label.
        before: The present header of the set, to which the shards are added as its next version; None for a new set.
        folder: The set's folder; None for that of the header.
        suffix: Suffix of the shards' indexes in a new set.

    Raises:
        FormatError: if an index is missing or damaged, or the shards' targets differ.
        ShardError: if an index is too large.
    """
    info = SetInfo((), None, (), -1, True, "", index_suffix=suffix, version=0) if before is None else before.info
    rows = [np.zeros(0, ROW) if before is None else before.rows]
    names = [] if before is None else [before.shard_name(number) for number in range(before.shards)]
    info = _with_shards(info, shards, os.path.dirname(path) if folder is None else folder, rows, names)

    info = dataclasses.replace(
        info,
        classes=None if classes is None else tuple(classes),
        version=info.version + 1,
        versions=info.versions if before is None else (*info.versions, (before.samples, before.shards)),
    )
    write_header(path, info, np.concatenate(rows), names)


def _with_shards(
    info: SetInfo, shards: Sequence[ShardRecord], folder: str, rows: list[AnyArray], names: list[str]
) -> SetInfo:
    """Adds shards to the rows and names of a header, and returns what it says of the set with them."""
    fields = dict.fromkeys(info.fields)
    codebooks = dict.fromkeys(info.codebooks)
    digest = hashlib.blake2b(info.fingerprint.encode(), digest_size=16)
    targets = info.targets
    max_label = info.max_label
    is_numbered = info.is_numbered

    for shard in shards:
        index = ShardIndex(index_path(folder, shard.name, info.index_suffix))
        if names and index.targets != targets:
            raise FormatError(f"{index.path}: has the targets {index.targets}, the shards before it {targets}")
        if index.size_bytes >= 1 << 32:
            raise ShardError(f"{index.path}: {index.size_bytes:,} bytes; an index has less than 4 GiB: use more shards")
        rows.append(header_row(index, shard.size_bytes, shard.sha256))
        names.append(shard.name)

        targets = index.targets
        fields |= dict.fromkeys(index.fields)
        codebooks |= dict.fromkeys(index.codebooks())
        groups = index.groups
        is_numbered = is_numbered and index.is_numbered
        digest.update(rows[-1]["shard_hash"].tobytes())
        for name in ("records", "target"):
            if name in groups:
                digest.update(bytes.fromhex(groups[name][2]))
        max_label = max(max_label, int(index.rows()["label"].max(initial=-1)))

    return dataclasses.replace(
        info,
        fields=tuple(fields),
        targets=targets,
        max_label=max_label,
        is_numbered=is_numbered,
        fingerprint=digest.hexdigest(),
        codebooks=tuple(codebooks),
    )

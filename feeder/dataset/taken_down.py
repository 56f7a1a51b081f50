"""The samples of a set that were taken down, and those that stand in their places."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from feeder.shard.format.set_index import SetIndex
from feeder.shard.format.shard_index import ShardIndex
from feeder.system.arrays import Int64s


def all_taken_down(reader: Any) -> Int64s:
    """Returns the ids of all samples that were taken down, int64 [N], sorted.

    Args:
        reader: Reads the set.
    """
    index = _with_tombstones(reader)
    if index is None:
        return np.empty(0, np.int64)
    return np.array([i for shard in range(index.header.shards) for i in _of_shard(index, shard)[1]], np.int64)


def taken_down_of(reader: Any, ids: Sequence[int]) -> set[int]:
    """Returns those of some samples that were taken down."""
    index = _with_tombstones(reader)
    if index is None:
        return set()
    shards = {*index.header.locate(np.asarray(ids, np.int64))[0].tolist()}
    return {i for shard in shards for i in _of_shard(index, shard)[1]}.intersection(ids)


def stand_in(reader: Any, i: int) -> int | None:
    """Returns the sample that stands in the place of one that was taken down; None if that was not."""
    index = _with_tombstones(reader)
    if index is None:
        return None
    (shard,) = index.header.locate(np.array([i]))[0].tolist()
    own, gone = _of_shard(index, shard)
    if i not in gone:
        return None
    start, _ = index.header.sample_range(shard)
    offsets = own.rows()["offset"]  # the row is a copy of the other's
    same = (start + np.flatnonzero(offsets == offsets[i - start])).tolist()
    return next((other for other in same if other not in gone), None)


def _with_tombstones(reader: Any) -> SetIndex | None:
    """Returns the index of a set of which samples were taken down; None for any other."""
    index = getattr(reader, "index", None)
    return index if isinstance(index, SetIndex) and index.header.info.taken_down else None


def _of_shard(index: SetIndex, shard: int) -> tuple[ShardIndex, set[int]]:
    """Returns the index of a shard, and the ids of its samples that were taken down."""
    own = index.shard_index(shard)
    start, _ = index.header.sample_range(shard)
    return own, {start + row for row in own.taken_down()}

"""Name of a set's index, and records of its samples."""

from __future__ import annotations

from typing import NamedTuple

from feeder.system.arrays import Int64s

__all__ = [
    "INDEX_NAME",
    "NUMBER_FIELDS",
    "Located",
]

INDEX_NAME = "index.bin"
# Fields that are integers: "index" is the sample id; "width" and "height" are those of the image before the recipe, in
# pixels, upright if orientation is applied; "orientation" is EXIF's, as stored, 1-8; "row" is the sample's row in its
# manifest, from 0.
NUMBER_FIELDS = ("index", "width", "height", "orientation", "row")


class Located(NamedTuple):
    """Samples as the kernels find them in an index, see :meth:`feeder._native.PartRunner.run`.

    Attributes:
        shards: int64 [N], numbers of the shards; None: they follow from the rows.
        rows: int64 [N], rows in the shards, or in the set if there are no shards.
        per_shard: Samples in each shard but the last; 0: that is not what ``rows`` depends on.
    """

    shards: Int64s | None
    rows: Int64s
    per_shard: int

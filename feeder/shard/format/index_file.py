"""Name of a set's index, the columns of its samples, and records of them.

Note [Index file]
Columns of N samples: shard u32; field u16 (of the image, a number in `fields`); offset u64 and length u64 (of the
encoded image in its shard, bytes); label i64 (-1: none); width u32 and height u32 (as stored, before orientation);
orientation u8 (EXIF, 1-8); source_bytes u64 (size of the sample's source, before any re-encoding); crc32 u32 (CRC-32 of
the image's bytes followed by those of the other fields). A text is a start u64 [N+1] and bytes: `key_start`,
`key_data`, `path_start`, `path_data` (the original path, in the file system's bytes). The other fields of sample i are
rows member_start[i] to member_start[i+1] of member_field u16, member_offset u64, member_length u64.
`row_data` u32 has the places of the rows of pixels of a seekable or packed JPEG, which are stored in bands. Its
elements row_start[i] to row_start[i+1] are the height of a band in pixels, the offset of each band in the image's
bytes, and the offset of the end of the last band, with its marker. It is empty for other images.
`target` f32 [N, K] has K numbers for each sample, NaN for none, in place of a label, which is then -1. `source_row` u64
has the row number, from 0, of samples from rows of a table.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = [
    "COLUMNS",
    "INDEX_NAME",
    "NUMBER_FIELDS",
    "OPTIONAL_COLUMNS",
    "STARTS",
    "FieldPlaces",
    "Located",
    "SetSize",
    "ShardEntry",
]

INDEX_NAME = "index.bin"
# Columns and their dtypes, in the order of the file.
COLUMNS = {
    "shard": "<u4",
    "field": "<u2",
    "offset": "<u8",
    "length": "<u8",
    "label": "<i8",
    "width": "<u4",
    "height": "<u4",
    "orientation": "|u1",
    "source_bytes": "<u8",
    "crc32": "<u4",
    "key_start": "<u8",
    "key_data": "|u1",
    "path_start": "<u8",
    "path_data": "|u1",
    "member_start": "<u8",
    "member_field": "<u2",
    "member_offset": "<u8",
    "member_length": "<u8",
    "row_start": "<u8",
    "row_data": "<u4",
}
# Columns that some indexes have.
OPTIONAL_COLUMNS = {"target": "<f4", "source_row": "<u8"}
# Start columns, and the column whose length is their last value.
STARTS = {"key_start": "key_data", "path_start": "path_data", "member_start": "member_field", "row_start": "row_data"}
# Fields that are integers: "index" is the sample id; "width" and "height" are those of the image before the recipe, in
# pixels, upright if orientation is applied; "orientation" is EXIF's, as stored, 1-8; "row" is the sample's row in its
# manifest, from 0.
NUMBER_FIELDS = ("index", "width", "height", "orientation", "row")


class ShardEntry(NamedTuple):
    """A shard: its file name, relative to the index's folder, and its size."""

    name: str
    size_bytes: int


class FieldPlaces(NamedTuple):
    """The places of one field of all samples that have it, each [N].

    Attributes:
        ids: The samples.
        shards: Numbers of their shards.
        offsets, lengths: Places in these, bytes; not checked.
    """

    ids: npt.NDArray[np.int64]
    shards: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.uint64]
    lengths: npt.NDArray[np.uint64]


class Located(NamedTuple):
    """Samples as the kernels find them in an index, see :meth:`feeder._native.PartRunner.run`.

    Attributes:
        shards: int64 [N], numbers of the shards; None: they follow from the rows.
        rows: int64 [N], rows in the shards, or in the set if there are no shards.
        per_shard: Samples in each shard but the last; 0: that is not what ``rows`` depends on.
    """

    shards: npt.NDArray[np.int64] | None
    rows: npt.NDArray[np.int64]
    per_shard: int


class SetSize(NamedTuple):
    """Sizes of a set's files, bytes, without the optional groups of indexes.

    Attributes:
        indexes_bytes: Of the shards' own indexes.
        header_bytes: Of the set's header.
        largest_bytes: Of the largest shard.
    """

    indexes_bytes: int
    header_bytes: int
    largest_bytes: int

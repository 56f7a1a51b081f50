"""Chunks of the index: the members of one row are those of all rows, and damage is an error."""

from __future__ import annotations

import struct
import zlib

import numpy as np
import pytest

from feeder.shard.format import chunks


def test_the_members_of_one_row_are_those_of_all() -> None:
    rng = np.random.default_rng(0)
    rows = 2 * chunks.CHUNK_ROWS + 9
    counts = rng.integers(0, 4, rows)
    total = int(counts.sum())
    fields = rng.integers(0, 1 << 16, total).astype(np.uint16)
    places, images = (rng.integers(0, 1 << 63, (2, size)).astype(np.uint64) for size in (total, rows))
    given = chunks.MemberRows(counts, fields, *places)
    group = memoryview(chunks.pack_members(given, *images))
    every = range(-(-rows // chunks.CHUNK_ROWS))
    found = chunks.members(group, rows, every, *images)
    for own, expected in zip(found, given, strict=True):
        np.testing.assert_array_equal(own, expected)
    ends = np.cumsum(counts)
    for row in range(rows):
        own = slice(ends[row] - counts[row], ends[row])
        listed = list(zip(*(column[own].tolist() for column in given[1:]), strict=True))
        assert chunks.members_of_row(group, rows, row, *images[:, row].tolist()) == listed


@pytest.mark.parametrize("data", [b"\1", struct.pack("<I", 2) + b"\0" * 35], ids=["counts", "members"])
def test_a_chunk_that_is_too_short_is_an_error(data: bytes) -> None:
    packed = zlib.compress(data)
    group = memoryview(struct.pack("<I", len(packed)) + packed)
    with pytest.raises(ValueError, match="in a chunk of"):
        chunks.members_of_row(group, 1, 0, 512, 9)

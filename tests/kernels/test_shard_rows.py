from __future__ import annotations

import numpy as np
import pytest

from feeder import _native

RECORD = np.dtype([("length", "<u4"), ("steps", "<u4"), ("height", "<u2")])
PLACES = [32, 600, 20_000, 120_000, 121_000]
STEPS = np.array([32, 600, 19_400, 0xFFFF, 100_000 & 0xFFFF, 100_000 >> 16, 1000], "<u2")


def records(*rows: tuple[int, int, int]) -> bytes:
    return np.array(list(rows), RECORD).tobytes()


def held() -> _native.ShardRows:
    rows = _native.ShardRows(RECORD.itemsize, 0, 4, 8)
    rows.add(7, records((121_000, 0, 90), (5, 2**32 - 1, 90)))
    rows.add(10**12, records((1, 2, 3)))
    return rows


def test_records_of_many_shards_come_in_turn() -> None:
    rows = held()
    found = rows.gather(np.array([10**12, 7, 7]), np.array([0, 1, 0]))
    assert found == records((1, 2, 3), (5, 2**32 - 1, 90), (121_000, 0, 90))
    assert rows.gather(np.array([7, 8]), np.array([0, 0])) is None
    assert rows.gather(np.array([-1]), np.array([0])) is None
    rows.remove(7)
    assert rows.gather(np.array([7]), np.array([0])) is None
    for row in (1, -1, 2**62):
        with pytest.raises(IndexError):
            rows.gather(np.array([10**12]), np.array([row]))
    with pytest.raises(ValueError, match="one length"):
        rows.gather(np.array([7, 7]), np.array([0]))


def test_shards_that_share_a_place_in_the_table_are_told_apart() -> None:
    rows = _native.ShardRows(RECORD.itemsize, 0, 4, 8)
    numbers = [3, 3 + 8192, 3 + 2 * 8192]
    for number in numbers:
        rows.add(number, records((number, 0, 0)))
    for number in [*numbers, *numbers]:
        assert rows.gather(np.array([number]), np.array([0])) == records((number, 0, 0))
    rows.add(3, records((9, 9, 9)))
    assert rows.gather(np.array([3]), np.array([0])) == records((9, 9, 9))


@pytest.mark.parametrize("rows", [(0, 90), (0, 10), (40, 50), (70, 90), (-5, 200), (90, 91)])
def test_extents_are_those_of_plain_places(rows: tuple[int, int]) -> None:
    table = held()
    data, wanted = records((121_000, 0, 90), (5, 2**32 - 1, 90)), np.array([rows, rows], np.int32)
    shards = np.array([7, 7])
    assert table.extents(shards, data, wanted) is None
    table.add_steps(7, STEPS.tobytes())
    starts, ends = np.array([0, 5], np.uint64), np.array([5, 5], np.uint64)
    lengths, heights = np.array([121_000, 5], np.uint64), np.array([90, 90], np.uint32)
    plain = _native.row_extents(np.array(PLACES, np.uint32), starts, ends, lengths, heights, wanted)
    np.testing.assert_array_equal(table.extents(shards, data, wanted), plain)


@pytest.mark.parametrize("start", [1, 3, 6, 7, 100, 2**32 - 2])
def test_steps_that_end_too_soon_or_make_no_sense_mean_the_whole_image(start: int) -> None:
    table = held()
    table.add_steps(7, STEPS.tobytes())
    found = table.extents(np.array([7]), records((121_000, start, 90)), np.array([[40, 90]], np.int32))
    assert found is not None
    first, header, begin, end = found[0].tolist()
    assert (first, header, begin, end) == (-1, 0, 0, 121_000) or 0 <= header <= begin <= end <= 121_000
    table.add_steps(7, b"")
    found = table.extents(np.array([7]), records((121_000, 0, 90)), np.array([[40, 90]], np.int32))
    assert found is not None
    assert found[0].tolist() == [-1, 0, 0, 121_000]

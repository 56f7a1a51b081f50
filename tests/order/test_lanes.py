"""The order in lanes: a permutation of each epoch, of which a rank needs few shards."""

from __future__ import annotations

import copy
import pickle
import tracemalloc
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feeder.errors import ArgumentError
from feeder.order.lane_shards import EqualShards, UnequalShards, Whole
from feeder.order.lanes import Lanes
from feeder.order.permutation import FEISTEL_ROUNDS, permute, permute_each
from feeder.order.random import Stream, philox
from feeder.order.sample_order import Order
from feeder.order.shard_sizes import UnequalSizes
from feeder.order.split import Split

_EQUAL = np.array([50] * 240 + [1])
_UNEQUAL = np.random.default_rng(0).integers(30, 70, 241)


def _whole(order: Order, epoch: int = 0) -> npt.NDArray[np.int64]:
    return order.ids(epoch, np.arange(order.samples))


def _order(sizes: Any, count: int, window: int, block: int, seed: int = 0) -> Order:
    return Order(int(np.sum(sizes)), seed, Lanes(count, window, block), sizes)


def _positions(split: Split) -> npt.NDArray[np.int64]:
    return np.concatenate([split.positions(step) for step in range(len(split))])


@settings(deadline=None)
@given(
    sizes=st.one_of(
        st.lists(st.integers(1, 40), min_size=1, max_size=60),
        st.builds(lambda n, size, last: [size] * n + [min(last, size)], *[st.integers(1, 40)] * 3),
    ),
    count=st.integers(1, 48),
    window=st.integers(1, 30),
    block=st.integers(1, 50),
    seed=st.integers(0, 2**64 - 1),
    epoch=st.integers(0, 2**32 - 1),
)
def test_every_epoch_is_a_permutation_whatever_the_parts_it_is_asked_in(
    sizes: list[int], count: int, window: int, block: int, seed: int, epoch: int
) -> None:
    order = _order(sizes, count, window, block, seed)
    whole = _whole(order, epoch)
    assert np.array_equal(np.sort(whole), np.arange(sum(sizes)))
    mixed = permute(np.arange(sum(sizes)), sum(sizes), seed)
    assert np.array_equal(order.ids(epoch, mixed), whole[mixed])
    assert [order.ids(epoch, [p])[0] for p in mixed[:5]] == whole[mixed[:5]].tolist()


@pytest.mark.parametrize("sizes", [_EQUAL, _UNEQUAL])
@pytest.mark.parametrize(("count", "world_sizes"), [(8, (2, 4, 8)), (12, (3, 4, 12)), (32, (8, 32))])
def test_a_rank_needs_its_share_of_the_shards_in_all_epochs_together(
    sizes: npt.NDArray[np.int64], count: int, world_sizes: tuple[int, ...]
) -> None:
    order = _order(sizes, count, 64, 16)
    shard = np.repeat(np.arange(len(sizes)), sizes)
    for world_size in world_sizes:
        for rank in range(world_size):
            positions = _positions(Split(order.samples, 16, rank, world_size, drop_last=True))
            needed = {s for epoch in range(3) for s in shard[order.ids(epoch, positions)].tolist()}
            assert len(needed) < 1.1 * len(sizes) / world_size + 8
    positions = _positions(Split(order.samples, 16, 0, 5))
    assert len(set(shard[order.ids(0, positions)].tolist())) > 0.5 * len(sizes)


def test_ranks_of_a_smaller_job_exchange_few_samples() -> None:
    """548 shards are 8 or 9 for each of 64 lanes, so lanes that have 8 take samples from others."""
    sizes = np.full(548, 40)
    order = _order(sizes, 64, 64, 16)
    needed = [
        len(set((order.ids(0, _positions(Split(order.samples, 16, rank, 8, drop_last=True))) // 40).tolist()))
        for rank in range(8)
    ]
    assert sum(needed) < 548 + 8 * 3


def test_added_shards_reach_all_lanes() -> None:
    before, after = _order([48] * 64, 8, 64, 16), _order([48] * 72, 8, 64, 16)
    for rank in range(8):
        needed = [
            set((order.ids(0, _positions(Split(order.samples, 16, rank, 8))) // 48).tolist())
            for order in (before, after)
        ]
        assert needed[0] == set(range(rank, 64, 8))
        assert needed[1] == needed[0] | {64 + rank}


@pytest.mark.parametrize("sizes", [_EQUAL, _UNEQUAL])
def test_a_batch_is_of_a_window_of_a_lane_and_windows_differ_by_epoch(sizes: npt.NDArray[np.int64]) -> None:
    order = _order(sizes, 8, 100, 25)
    shard = np.repeat(np.arange(len(sizes)), sizes)
    first = [order.ids(epoch, np.arange(25)) for epoch in range(20)]
    for ids in first:
        assert len(set(shard[ids].tolist())) <= 5
        assert set((shard[ids] % 8).tolist()) == {0}
    # Each epoch begins with other shards of the lane, in another order.
    assert len({frozenset(shard[ids].tolist()) for ids in first}) > 15
    assert len(set(shard[np.concatenate(first)].tolist())) > 20
    assert (_whole(order) != _whole(_order(sizes, 8, 100, 25, seed=1))).mean() > 0.9


def test_the_samples_that_a_lane_has_beside_whole_shards_come_at_any_time() -> None:
    order = _order([50] * 35, 8, 16, 16)
    lane = _positions(Split(order.samples, 16, 2, 8, drop_last=True))
    first = {int(np.flatnonzero(order.ids(epoch, lane) // 50 == 34)[0]) // 48 for epoch in range(40)}
    assert first == {0, 1, 2, 3, 4}


def test_equal_shards_have_the_order_of_unequal_ones() -> None:
    for sizes in (np.full(30, 7), np.array([7] * 30 + [3])):
        equal, unequal = EqualShards(int(sizes.sum()), 7, 4), UnequalShards(UnequalSizes(sizes), 4)
        assert np.array_equal(equal.samples, unequal.samples)
        gives = equal.samples - np.array([0, 9, 3, 0])
        gives[3] += 5
        kept = np.minimum(gives, equal.samples)
        assert np.array_equal(equal.whole(kept), unequal.whole(kept))
        shards, samples = equal.whole(kept)
        whole = Whole(shards, samples, gives - samples)
        for lane in range(4):
            turns = np.arange(gives[lane])
            lanes = np.full(len(turns), lane)
            offsets = equal.offsets(3, 1, whole, lanes, turns)
            assert np.array_equal(offsets, unequal.offsets(3, 1, whole, lanes, turns))
            assert np.array_equal(np.sort(offsets), turns)
            own = offsets[offsets < equal.samples[lane]]
            assert np.array_equal(equal.ids(lanes[: len(own)], own), unequal.ids(lanes[: len(own)], own))


def test_many_unequal_shards_are_a_permutation_whose_positions_are_found_again() -> None:
    sizes = np.random.default_rng(1).integers(0, 9, 2000)
    for count, window in ((1, 20), (5, 300)):
        order = _order(sizes, count, window, 7)
        ids = _whole(order, 2)
        assert np.array_equal(np.sort(ids), np.arange(order.samples))
        assert np.array_equal(order.positions(2, ids), np.arange(order.samples))


@pytest.mark.parametrize("largest", [9, 4000, 5000, 1 << 30])
@pytest.mark.parametrize("count", [0, 1, 16, 17, 1 << 15])
def test_the_sizes_of_unequal_shards_are_kept_in_few_bytes(count: int, largest: int) -> None:
    sizes = np.random.default_rng(0).integers(0, largest, count)
    kept = UnequalSizes(sizes)
    assert (len(kept), kept.samples, kept.smallest) == (count, sizes.sum(), sizes.min(initial=largest if count else 0))
    assert np.array_equal(np.asarray(kept), sizes)
    assert len(pickle.dumps(kept)) < 5 * count * (1 if largest < 1 << 20 else 2) + 1000
    ids = np.unique(np.linspace(0, max(0, kept.samples - 1), 50).astype(np.int64))[: kept.samples]
    assert np.array_equal(kept.shards_of(ids), np.searchsorted(np.cumsum(sizes), ids, side="right"))
    beyond = np.array([count, count + 1, count + 40])
    assert kept.starts(beyond).tolist() == [kept.samples] * 3
    assert kept.sizes(beyond).tolist() == [0] * 3


def test_many_permutations_at_once_are_those_of_each() -> None:
    """Also where there are more positions than are mapped at a time, and of sizes that no float64 counts."""
    sizes, seeds = np.array([1, 2, 7, 64, 100_000]), range(5)
    keys = np.stack([philox(s, 2, np.arange(FEISTEL_ROUNDS), Stream.ORDER).view(np.uint64)[:, 0] for s in seeds])
    groups = np.repeat(np.arange(5), sizes)
    found = permute_each(np.concatenate([np.arange(n) for n in sizes]), sizes, keys, groups)
    each = [permute(np.arange(n), int(n), seed, 2) for n, seed in zip(sizes, seeds, strict=True)]
    assert np.array_equal(found, np.concatenate(each))
    for size in (2**53, 2**60 - 1, 2**62):
        places = np.array([0, 1, size - 1])
        found = permute_each(places, np.array([size]), keys[:1], np.zeros(3, np.intp))
        assert np.array_equal(found, permute(places, size, 0, 2))


@pytest.mark.parametrize(("count", "block"), [(8, 16), (12, 5), (1, 3)])
def test_the_share_of_lanes_is_what_a_rank_touches(count: int, block: int) -> None:
    order = _order([40] * 200, count, 32, block)
    assert order.lanes is not None
    assert order.lanes.count == count
    for world_size in (1, 2, 3, 4, 8, 24):
        for batch_size in (block, 2 * block, 3 * block, block - 1, block + 3, 1):
            for rank in {0, min(2, world_size - 1), world_size - 1}:
                positions = _positions(Split(order.samples, batch_size, rank, world_size, drop_last=True))
                touched = len(np.unique(positions // block % count)) / count
                assert order.lanes.share(batch_size, rank, world_size) == touched


def test_small_sets_have_fewer_lanes() -> None:
    def count(sizes: list[int], lanes: Lanes) -> int:
        order = Order(sum(sizes), 0, lanes, sizes)
        assert order.lanes is not None
        return order.lanes.count

    assert count([100] * 40, Lanes(60, 50, 10)) == 10  # four shards each
    assert count([100] * 400, Lanes(60, 5000, 10)) == 6  # a window each
    assert count([100] * 400, Lanes(60, 50, 10)) == 60
    assert count([5], Lanes(60, 50, 10)) == 1


def test_sets_without_shards_are_taken_window_by_window() -> None:
    order = Order(10_001, 3, Lanes(8, 100, 25))
    assert sorted(_whole(order).tolist()) == list(range(10_001))
    assert len(set((order.ids(0, np.arange(25)) // 100).tolist())) <= 2
    assert Order(0, 3, Lanes(8, 100, 25)).ids(0, []).tolist() == []


def test_ten_billion_samples_take_no_memory() -> None:
    sizes = np.full(4_166_667, 2400)
    sizes[-1] = 1600
    tracemalloc.start()
    try:
        order = _order(sizes, 64, 2048, 256)
        assert tracemalloc.get_traced_memory()[0] < 1 << 20
        tracemalloc.reset_peak()
        positions = np.concatenate([np.arange(2048), np.arange(7_777_777_777, 7_777_778_801)])
        assert len(np.unique(order.ids(5, positions))) == len(positions)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()
    assert len(pickle.dumps(order)) < 1000
    assert np.array_equal(order.shard_sizes, sizes)


def test_the_lanes_of_a_seed_never_change() -> None:
    # Golden: resumed runs depend on these numbers. Made by the first version of Lanes.
    for sizes, golden in ((_EQUAL, GOLDEN_EQUAL), ([30, 70] * 120, GOLDEN_UNEQUAL)):
        order = _order(sizes, 8, 64, 16, seed=9)
        for same in (order, pickle.loads(pickle.dumps(order)), copy.deepcopy(order)):
            assert same.ids(3, [0, 1, 16, 5000, 11_999]).tolist() == golden


GOLDEN_EQUAL = [9201, 9210, 4070, 7218, 3474]
GOLDEN_UNEQUAL = [9221, 4800, 4050, 11636, 6274]


@pytest.mark.parametrize(
    "make",
    [
        lambda: Lanes(0),
        lambda: Lanes(1 << 17),
        lambda: Lanes(2.0),  # type: ignore[arg-type]
        lambda: Lanes(window=0),
        lambda: Lanes(block=0),
        lambda: Lanes(block=True),
    ],
)
def test_lanes_out_of_range_are_refused(make: Any) -> None:
    with pytest.raises(ArgumentError, match=r"Lanes\((count|window|block)=\.\.\.\) must be an integer from 1 to "):
        make()


def test_an_order_in_lanes_needs_a_block() -> None:
    with pytest.raises(ArgumentError, match=r"Lanes\(block=256\)"):
        Order(10, 0, Lanes())

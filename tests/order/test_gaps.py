"""Positions that are left out: their inverse orders, places, and splits around them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feeder.errors import ArgumentError
from feeder.order.bucket_order import BucketSplit
from feeder.order.gaps import Gaps
from feeder.order.lanes import Lanes
from feeder.order.sample_order import Order, Shuffle, Window
from feeder.order.skip import Skip
from feeder.order.split import Split
from tests.order.test_buckets import global_batches, order_of

NONE = np.zeros(0, np.int64)


@settings(deadline=None)
@given(
    sizes=st.one_of(
        st.lists(st.integers(1, 40), min_size=1, max_size=40),
        st.builds(lambda n, size, last: [size] * n + [min(last, size)], *[st.integers(1, 40)] * 3),
    ),
    shuffle=st.one_of(
        st.booleans(),
        st.builds(Window, st.integers(1, 30)),
        st.builds(Lanes, st.integers(1, 48), st.integers(1, 30), st.integers(1, 50)),
    ),
    seed=st.integers(0, 2**64 - 1),
    epoch=st.integers(0, 2**32 - 1),
)
def test_positions_are_the_inverse_of_ids(sizes: list[int], shuffle: Shuffle, seed: int, epoch: int) -> None:
    order = Order(sum(sizes), seed, shuffle, sizes if isinstance(shuffle, (Window, Lanes)) else ())
    places = np.arange(order.samples)
    assert order.positions(epoch, order.ids(epoch, places)).tolist() == places.tolist()
    some = places[:: max(1, len(places) // 3)]
    assert order.ids(epoch, order.positions(epoch, some)).tolist() == some.tolist()


def test_empty_shards_do_not_change_the_positions_of_samples() -> None:
    order = Order(9, 1, Window(2), [0, 3, 0, 0, 4, 2, 0])
    assert order.positions(2, order.ids(2, np.arange(9))).tolist() == [*range(9)]


@pytest.mark.parametrize("shuffle", [False, True])
def test_positions_in_buckets_are_the_inverse_of_ids(shuffle: bool) -> None:
    order = order_of([7, 0, 21, 4], seed=3, shuffle=shuffle)
    places = np.arange(order.samples)
    assert order.positions(5, order.ids(5, places)).tolist() == places.tolist()


def test_positions_of_a_billion_samples_need_no_table() -> None:
    order = Order(1_000_000_007, 3, True)
    ids = np.array([0, 5, 1_000_000_006])
    assert order.ids(4, order.positions(4, ids)).tolist() == ids.tolist()


@pytest.mark.parametrize("order", [Order(5), order_of([5, 0, 0, 0])])
def test_ids_out_of_range_have_no_position(order: Order) -> None:
    with pytest.raises(ArgumentError, match=r"\[0, 5\), got 1 to 5"):
        order.positions(0, [1, 5])


@given(
    singles=st.lists(st.integers(0, 30), max_size=12),
    ranges=st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=4),
)
def test_places_number_the_positions_that_are_kept(singles: list[int], ranges: list[tuple[int, int]]) -> None:
    gaps = Gaps(np.array(singles, np.int64), ranges)
    out = {*singles} | {p for first, end in ranges for p in range(first, end)}
    kept = [p for p in range(40) if p not in out]
    assert len(gaps) == len(out)
    assert gaps.positions(np.arange(len(kept))).tolist() == kept
    assert gaps.places(np.arange(41)).tolist() == [sum(k < p for k in kept) for p in range(41)]


@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize("drop_last", [False, True])
def test_an_epoch_with_gaps_is_the_epoch_without_those_positions(world_size: int, drop_last: bool) -> None:
    gaps = Gaps(np.array([0, 7, 8, 22]), [(12, 15)])
    kept = [p for p in range(23) if p not in {0, 7, 8, 22, 12, 13, 14}]
    splits = [Split(23, 3, rank, world_size, drop_last, 0, gaps) for rank in range(world_size)]
    plain = [Split(len(kept), 3, rank, world_size, drop_last) for rank in range(world_size)]
    for split, other in zip(splits, plain, strict=True):
        assert len(split) == len(other)
        assert split.samples_here() == other.samples_here()
        for step in range(len(split)):
            assert split.positions(step).tolist() == [kept[p] for p in other.positions(step)]
            assert split.padding(step) == other.padding(step)


@pytest.mark.parametrize("gaps", [Gaps(np.array([2, 5, 6, 19])), Gaps(NONE, [(3, 11)]), Gaps(NONE, [(0, 20)])])
@pytest.mark.parametrize("after", [0, 1, 2])
def test_what_was_not_consumed_comes_once_also_with_other_gaps(gaps: Gaps, after: int) -> None:
    first = Split(20, 3)
    start = first.consumed(after)
    rest = Split(20, 4, start=start, gaps=gaps)
    seen = [p for step in range(len(rest)) for p in rest.positions(step).tolist()]
    out = {p for p in range(20) if p not in gaps.positions(np.arange(20 - len(gaps))).tolist()}
    assert seen == [p for p in range(start, 20) if p not in out]
    for steps in range(len(rest) + 1):
        again = Split(20, 4, start=rest.consumed(steps))
        given = {p for step in range(steps) for p in rest.positions(step).tolist()}
        later = [p for step in range(len(again)) for p in again.positions(step).tolist()]
        assert not given & {*later}
        assert given | {*later} | out >= {*range(start, 20)}
        assert rest.steps_before(rest.consumed(steps)) == steps


@pytest.mark.parametrize("world_size", [1, 2])
def test_buckets_with_gaps_have_every_other_sample_once_and_resume_alike(world_size: int) -> None:
    order = order_of([9, 3, 14, 7], seed=5)
    out = [2, 3, 11, 20, 30]
    gaps = Gaps(order.positions(3, out))
    whole, consumed = global_batches(order, 2, world_size, gaps=gaps)
    assert sorted(i for _, ids in whole for i in ids) == [i for i in range(33) if i not in out]
    assert consumed == [9, 3, 14, 7]
    for steps in range(len(whole)):
        begun, by_bucket = global_batches(order, 2, world_size, steps, gaps=gaps)
        rest, _ = global_batches(order, 2, world_size, consumed=by_bucket, gaps=gaps)
        assert begun + rest == whole
        split = BucketSplit(order, 3, 2, 0, world_size, gaps=gaps)
        assert split.consumed(steps) == sum(by_bucket)
        assert split.steps_before(sum(by_bucket), by_bucket) == steps or not steps


def test_buckets_take_up_gaps_in_the_middle_of_an_epoch() -> None:
    order = order_of([9, 3, 14, 7], seed=5)
    begun, by_bucket = global_batches(order, 2, 1, 5)
    given = [i for _, ids in begun for i in ids]
    out = [given[0], *[i for i in range(33) if i not in given][:4]]
    rest, _ = global_batches(order, 2, 1, consumed=by_bucket, gaps=Gaps(order.positions(3, out)))
    assert sorted(given + [i for _, ids in rest for i in ids]) == [i for i in range(33) if i not in out[1:]]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Skip([-1]), "ids of samples"),
        (lambda: Skip(np.array([1.5])), "ids of samples"),
        (lambda: Skip.of("12"), "ids of samples"),
        (lambda: Skip.of(3), "ids of samples"),
        (lambda: Skip(spans=[(0, 5, 4)]), r"\(epoch, first position, end\)"),
        (lambda: Skip(spans=[(0, 5)]), "span_of"),
        (lambda: Skip(spans=[(1 << 32, 0, 4)]), "span_of"),
        (lambda: Skip.of_state({"ids": ["a"], "spans": []}), "this state is damaged"),
        (lambda: Skip.of_state([1]), "this state is damaged"),
    ],
)
def test_what_is_no_sample_or_span_is_refused(make: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        make()


def test_a_skip_equals_another_of_the_same_samples_and_spans() -> None:
    ids: npt.NDArray[np.int64] = np.array([4, 2, 4])
    skip = Skip(ids, [(1, 0, 3)])
    assert skip == Skip([2, 4], [[1, 0, 3]]) == Skip.of_state(skip.state())
    assert hash(skip) == hash(Skip([2, 4], [(1, 0, 3)]))
    assert skip != Skip([2, 4])
    assert not Skip()

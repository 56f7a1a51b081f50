from __future__ import annotations

import itertools
import sys
import threading
import tracemalloc
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feeder.errors import ArgumentError
from feeder.order.bucket_order import BucketOrder, BucketSplit, BucketTable
from feeder.order.buckets import Buckets

FOUR = Buckets(sizes=[(64, 64), (32, 128), (96, 48), (48, 64)])


def order_of(counts: list[int], seed: int = 0, shuffle: bool = True) -> BucketOrder:
    """An order of so many samples in each of the four buckets; sample i is in bucket i % 4 as long as that has some."""
    sizes, left = [], list(counts)
    while any(left):
        for bucket in range(4):
            if left[bucket]:
                left[bucket] -= 1
                sizes.append(FOUR.sizes[bucket])
    found = np.array(sizes, np.int32).reshape(-1, 2)
    return BucketOrder(BucketTable.of(FOUR, len(found), lambda ids: found[ids]), seed, shuffle)


def global_batches(
    order: BucketOrder, batch_size: int, world_size: int, steps: int | None = None, **further: Any
) -> tuple[list[tuple[int, list[int]]], list[int]]:
    """Bucket and ids, without padding, of each step of the whole job, and what is consumed after them."""
    splits = [BucketSplit(order, 3, batch_size, rank, world_size, **further) for rank in range(world_size)]
    assert len({len(split) for split in splits}) == 1
    batches = []
    for step in range(len(splits[0]) if steps is None else min(steps, len(splits[0]))):
        assert len({split.bucket(step) for split in splits}) == 1
        ids: list[int] = []
        assert len({len(split.positions(step)) for split in splits}) == 1
        for split in splits:
            own = order.ids(3, split.positions(step)).tolist()
            ids += own[: len(own) - split.padding(step)]
            assert set(own) <= set(ids)  # padding repeats the batch's own samples
        batches.append((splits[0].bucket(step), ids))
    return batches, splits[0].consumed_by_bucket(len(batches))


def bucket_of(order: BucketOrder, sample: int) -> int:
    return int(order.table.bucket_at(np.flatnonzero(order.table.members == sample))[0])


def test_threads_that_ask_one_split_at_once_get_the_batches_of_one() -> None:
    order = order_of([900, 700, 500, 300])
    want = [BucketSplit(order, 3, 2).positions(step).tolist() for step in range(1200)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as threads:
            for _ in range(20):
                split, begin = BucketSplit(order, 3, 2), threading.Barrier(4)

                def asked(split: BucketSplit = split, begin: threading.Barrier = begin) -> list[list[int]]:
                    begin.wait()
                    return [split.positions(step).tolist() for step in (1199, 0, 600, 1100)]

                found = [each.result() for each in [threads.submit(asked) for _ in range(4)]]
                assert found == [[want[1199], want[0], want[600], want[1100]]] * 4
    finally:
        sys.setswitchinterval(interval)


COUNTS = st.lists(st.integers(0, 40), min_size=4, max_size=4)


@settings(max_examples=60, deadline=None)
@given(counts=COUNTS, batch_size=st.integers(1, 6), world_size=st.integers(1, 4), shuffle=st.booleans())
def test_an_epoch_has_each_sample_once_in_batches_of_its_bucket(
    counts: list[int], batch_size: int, world_size: int, shuffle: bool
) -> None:
    order, size = order_of(counts, shuffle=shuffle), batch_size * world_size
    batches, consumed = global_batches(order, batch_size, world_size)
    assert sorted(i for _, ids in batches for i in ids) == list(range(sum(counts)))
    assert consumed == counts
    full = sum(count // size for count in counts)
    for bucket, ids in batches[:full]:
        assert len(ids) == size
        assert {bucket_of(order, i) for i in ids} == {bucket}
    shared = [bucket_of(order, i) for _, ids in batches[full:] for i in ids]
    assert shared == sorted(shared)  # the nearest aspect ratios stand together
    for bucket, ids in batches[full:]:
        assert bucket in {bucket_of(order, i) for i in ids}
    splits = [BucketSplit(order, 3, batch_size, rank, world_size) for rank in range(world_size)]
    assert sum(split.padding(step) for split in splits for step in range(len(split))) < world_size
    kept, _ = global_batches(order, batch_size, world_size, drop_last=True)
    assert kept == batches[: sum(counts) // size]


@settings(max_examples=60, deadline=None)
@given(counts=COUNTS, steps=st.lists(st.integers(0, 12), max_size=3), seed=st.integers(0, 9))
def test_a_resume_with_the_same_global_batch_goes_on_alike_on_any_number_of_ranks(
    counts: list[int], steps: list[int], seed: int
) -> None:
    order = order_of(counts, seed)
    whole, _ = global_batches(order, 6, 1)
    found: list[tuple[int, list[int]]] = []
    consumed: list[int] = []
    for done, world_size in zip([*steps, None], itertools.cycle([2, 1, 3, 6])):
        batches, consumed = global_batches(order, 6 // world_size, world_size, done, consumed=consumed)
        found += batches
    assert found == whole


@settings(max_examples=60, deadline=None)
@given(counts=COUNTS, steps=st.lists(st.integers(0, 9), max_size=3), sizes=st.permutations([3, 8, 5, 13]))
def test_a_resume_with_another_global_batch_has_each_remaining_sample_once(
    counts: list[int], steps: list[int], sizes: list[int]
) -> None:
    order = order_of(counts)
    seen: Counter[int] = Counter()
    consumed: list[int] = []
    for done, size in zip([*steps, None], sizes, strict=False):
        batches, consumed = global_batches(order, size, 1, done, consumed=consumed)
        seen.update(i for _, ids in batches for i in ids)
        assert sum(seen.values()) == sum(consumed)
    assert seen == Counter(range(sum(counts)))


def test_buckets_and_their_sequence_are_shuffled_by_seed_and_epoch() -> None:
    sequences, orders = [], []
    for seed, epoch in itertools.product((1, 2), (0, 1)):
        order = order_of([200] * 4, seed)
        split = BucketSplit(order, epoch, 8)
        sequences.append(tuple(split.bucket(step) for step in range(len(split))))
        for bucket in range(4):  # where the bucket's samples stand in its stored order
            ids = order.ids(epoch, 200 * bucket + np.arange(200))
            orders.append(tuple(np.argsort(ids).tolist()))
    assert len(set(sequences)) == 4
    assert len(set(orders)) == 16
    for sequence in sequences:
        assert Counter(sequence) == dict.fromkeys(range(4), 25)
        assert sum(a != b for a, b in itertools.pairwise(sequence)) > 50  # of 99; 3, if they came one after the other
        assert sequence[:50].count(1) in range(4, 22)


def test_without_shuffle_buckets_come_one_after_the_other_in_stored_order() -> None:
    order = order_of([5, 4, 0, 3], shuffle=False)
    batches, _ = global_batches(order, 2, 1)
    assert [bucket for bucket, _ in batches] == [0, 0, 1, 1, 3, 3]
    ids = [i for _, ids in batches[:5] for i in ids]
    assert ids[:4] == sorted(ids[:4])
    assert ids[4:8] == sorted(ids[4:8])


def test_a_substitute_is_of_the_same_bucket() -> None:
    order = order_of([3, 30, 0, 9], seed=4)
    for position in range(42):
        bucket = int(order.table.bucket_at([position])[0])
        found = [order.table.substitute(position, attempt, 4, 1) for attempt in range(8)]
        assert {bucket_of(order, i) for i in found} == {bucket}
        assert len(set(found)) > 1
        assert found == [order.table.substitute(position, attempt, 4, 1) for attempt in range(8)]


def test_substitutes_are_of_the_bucket_itself_and_then_of_the_nearest_in_aspect() -> None:
    sizes = Buckets(sizes=[(10, 40), (10, 12), (10, 10), (12, 10), (30, 10)])
    for counts, bucket, expected in [
        ([1, 2, 1, 2, 3], 2, [1, 3, 4, 0]),  # its only sample stands in for no other; two are equally near
        ([1, 2, 2, 2, 3], 2, [2, 1, 3, 4, 0]),
        ([1, 0, 0, 2, 1], 0, [3, 4]),
        ([0, 0, 0, 0, 1], 4, []),
    ]:
        starts = np.cumsum([0, *counts])
        table = BucketTable(np.arange(starts[-1], dtype=np.uint32), starts)
        assert table.substitute_buckets(int(starts[bucket]), sizes) == expected
        for other in expected:
            assert table.substitute(int(starts[bucket]), 3, 4, 1, other) in range(*starts[other : other + 2])


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.tuples(st.integers(1, 2000), st.integers(1, 2000)), min_size=1, max_size=8),
    images=st.lists(st.tuples(st.integers(1, 9000), st.integers(1, 9000)), min_size=1),
)
def test_an_image_goes_to_the_size_nearest_in_log_aspect(
    sizes: list[tuple[int, int]], images: list[tuple[int, int]]
) -> None:
    distinct = {height / width: (height, width) for height, width in sizes}
    buckets = Buckets(sizes=list(distinct.values()))
    logs = np.log([height / width for height, width in buckets.sizes])
    assert (np.diff(logs) > 0).all()
    away = np.abs(np.log([height / width for height, width in images])[:, None] - logs)
    chosen = buckets.nearest(np.array(images))
    np.testing.assert_allclose(away[np.arange(len(images)), chosen], away.min(axis=1), atol=1e-12)


def test_sizes_may_be_of_numpy() -> None:
    expected = repr(Buckets([(32, 64), (64, 32)]))
    sizes: list[Any] = [np.array([(32, 64), (64, 32)]), [np.array((32, 64)).tolist(), (np.int32(64), np.int32(32))]]
    assert [repr(Buckets(each)) for each in sizes] == [expected] * 2
    assert repr(Buckets(pixels=np.int64(64 * 64), step=np.int64(32))) == repr(Buckets(pixels=64 * 64, step=32))


def test_pixels_make_a_list_of_sizes() -> None:
    assert Buckets(pixels=512 * 512).sizes == ((384, 640), (448, 576), (512, 512), (576, 448), (640, 384))
    assert Buckets(pixels=512 * 512, max_aspect=1.0).sizes == ((512, 512),)
    many = Buckets(pixels=1024 * 1024, step=32, max_aspect=3.0)
    assert many.largest == (1024, 1024)
    for height, width in many.sizes:
        assert height % 32 == width % 32 == 0
        assert 1024 * 1024 - 32 * max(height, width) < height * width <= 1024 * 1024
        assert 1 / 3 <= height / width <= 3
        assert (width, height) in many.sizes


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "sizes of buckets"),
        ({"sizes": [(8, 8)], "pixels": 64}, "sizes of buckets"),
        ({"sizes": []}, "list of 1 to"),
        ({"sizes": "512"}, "list of 1 to"),
        ({"sizes": [512]}, "pairs"),
        ({"sizes": [(512, 0)]}, "pairs"),
        ({"sizes": [(512, 64.0)]}, "pairs"),
        ({"sizes": [(512, 512), (256, 256)]}, "one aspect ratio"),
        ({"sizes": [(512, 512), (512, 512)]}, "different"),
        ({"pixels": 4000}, "make 0 sizes"),
        ({"pixels": 10**9, "step": 1}, "sizes, expected"),
        ({"pixels": 0}, "pixels must"),
        ({"pixels": 4096, "step": 0}, "step must"),
        ({"pixels": 4096, "max_aspect": 0.5}, "max_aspect must"),
    ],
)
def test_buckets_refuse_impossible_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        Buckets(**arguments)


@pytest.mark.parametrize("samples", [0, 1, 1 << 16, 150_001])
def test_a_table_has_the_samples_of_each_bucket_in_ascending_order(samples: int) -> None:
    sizes = np.random.default_rng(0).integers(1, 200, (samples, 2)).astype(np.int32)
    table = BucketTable.of(FOUR, samples, lambda ids: sizes[ids])
    nearest = FOUR.nearest(sizes)
    expected = [np.flatnonzero(nearest == bucket) for bucket in range(4)]
    assert table.members.dtype == np.uint32
    assert table.starts.tolist() == [0, *np.cumsum([*map(len, expected)]).tolist()]
    assert np.array_equal(table.members, np.concatenate(expected))


def test_making_a_table_takes_no_more_memory_for_more_samples() -> None:
    def sizes(ids: np.ndarray) -> np.ndarray:
        return np.stack([1 + ids % 37, 1 + ids % 41], axis=1).astype(np.int32)

    above = []
    for samples in (1 << 18, 1 << 21):
        tracemalloc.start()
        try:
            table = BucketTable.of(FOUR, samples, sizes)
            above.append(tracemalloc.get_traced_memory()[1] - table.members.nbytes)
        finally:
            tracemalloc.stop()
    assert max(above) < 8 << 20
    assert abs(above[1] - above[0]) < 1 << 17


def test_a_split_refuses_what_was_not_consumed_of_these_buckets() -> None:
    order = order_of([3, 4, 5, 6])
    for consumed in ([1, 2, 3], [4, 0, 0, 0], [-1, 0, 0, 0]):
        with pytest.raises(ArgumentError, match="consumed"):
            BucketSplit(order, 0, 2, consumed=consumed)

from __future__ import annotations

import copy
import itertools
import pickle
from typing import Any

import numpy as np
import pytest

from feeder.errors import ArgumentError
from feeder.order.gaps import Gaps
from feeder.order.recent import Recent
from feeder.order.sample_order import Order, Window, substitute
from feeder.order.split import Split


def _epoch(samples: int, batch_size: int, world_size: int, drop_last: bool, start: int = 0) -> list[list[list[int]]]:
    """Positions as [step][rank][row]."""
    splits = [Split(samples, batch_size, r, world_size, drop_last, start) for r in range(world_size)]
    assert len({len(s) for s in splits}) == 1
    return [[s.positions(t).tolist() for s in splits] for t in range(len(splits[0]))]


@pytest.mark.pairwise
@pytest.mark.parametrize("samples", [0, 1, 2, 7, 12, 13, 24, 25])
@pytest.mark.parametrize("batch_size", [1, 3, 4])
@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
def test_ranks_cover_every_position_with_equal_batches(samples: int, batch_size: int, world_size: int) -> None:
    steps = _epoch(samples, batch_size, world_size, drop_last=False)
    flat = [p for step in steps for rank in step for p in rank]
    assert flat[:samples] == list(range(samples))
    assert len(flat) - samples < world_size
    assert flat[samples:] == [p % samples for p in range(len(flat) - samples)]
    for step in steps:
        assert len({len(rank) for rank in step}) == 1
    padded = sum(
        Split(samples, batch_size, r, world_size).padding(t) for t in range(len(steps)) for r in range(world_size)
    )
    assert padded == len(flat) - samples

    kept = _epoch(samples, batch_size, world_size, drop_last=True)
    flat = [p for step in kept for rank in step for p in rank]
    assert flat == list(range(samples // (batch_size * world_size) * batch_size * world_size))


@pytest.mark.pairwise
@pytest.mark.parametrize("samples", [1, 7, 12, 13, 24, 25])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("gaps", [None, Gaps(np.array([0, 5]), [])])
def test_a_run_of_steps_has_their_positions(samples: int, drop_last: bool, gaps: Gaps | None) -> None:
    for batch_size, rank in itertools.product((1, 3, 4), (0, 1)):
        split = Split(samples, batch_size, rank, 2, drop_last, 1, gaps if samples > 5 else None)
        for first, end in itertools.combinations_with_replacement(range(len(split) + 1), 2):
            steps = [split.positions(step).tolist() for step in range(first, end)]
            positions, sizes = split.run(first, end)
            assert (positions.tolist(), sizes.tolist()) == ([p for step in steps for p in step], [*map(len, steps)])


def test_one_rank_has_the_batches_of_a_plain_loader() -> None:
    assert _epoch(10, 4, 1, drop_last=False) == [[[0, 1, 2, 3]], [[4, 5, 6, 7]], [[8, 9]]]
    assert len(Split(10, 4, drop_last=True)) == 2


@pytest.mark.parametrize("samples", [1, 11, 12, 23])
@pytest.mark.parametrize("batch_size", [1, 2, 5])
def test_an_epoch_that_changes_world_size_at_any_steps_sees_each_sample_once(samples: int, batch_size: int) -> None:
    """1 -> 2 -> 3 -> 1 ranks, broken at every possible step, also with another batch size after each break."""
    for first, second, third in itertools.product(range(4), repeat=3):
        seen: list[int] = []
        padding = 0
        start = 0
        for world_size, steps, size in [
            (1, first, batch_size),
            (2, second, batch_size + 1),
            (3, third, batch_size),
            (1, 1 << 30, 3),
        ]:
            splits = [Split(samples, size, r, world_size, start=start) for r in range(world_size)]
            done = min(steps, len(splits[0]))
            for t in range(done):
                for s in splits:
                    rows = s.positions(t).tolist()
                    padding += s.padding(t)
                    seen += rows[: len(rows) - s.padding(t)]
            start = splits[0].consumed(done)
        assert seen == list(range(samples))
        assert start == samples
        assert padding <= 3


def test_split_refuses_impossible_arguments() -> None:
    refused: list[dict[str, Any]] = [
        {"batch_size": 0},
        {"batch_size": 1, "rank": 1},
        {"batch_size": 1, "rank": -1},
        {"batch_size": 1, "world_size": 0},
        {"batch_size": 1, "start": 11},
    ]
    for bad in refused:
        with pytest.raises(ArgumentError):
            Split(10, **bad)
    with pytest.raises(ArgumentError, match="step"):
        Split(10, 2).positions(5)


@pytest.mark.parametrize("samples", [1, 2, 100, 1000])
@pytest.mark.parametrize("shuffle", [False, True, Window(1), Window(7), Window(64), Window(5000)])
def test_every_order_is_a_permutation_in_any_pieces(samples: int, shuffle: bool | Window) -> None:
    sizes = (samples,) if samples < 100 else (samples // 2, 3, samples - samples // 2 - 3)
    order = Order(samples, 5, shuffle, sizes)
    whole = order.ids(2, np.arange(samples))
    assert sorted(whole.tolist()) == list(range(samples))
    pieces = [order.ids(2, [p])[0] for p in range(samples)]
    assert whole.tolist() == pieces


def test_orders_differ_between_epochs_and_seeds() -> None:
    positions = np.arange(500)
    for shuffle in (True, Window(50)):
        a = Order(500, 1, shuffle, (100,) * 5)
        assert (a.ids(0, positions) != a.ids(1, positions)).any()
        assert (a.ids(0, positions) != Order(500, 2, shuffle, (100,) * 5).ids(0, positions)).any()
    stored = Order(500, 1, False)
    assert stored.ids(3, positions).tolist() == list(range(500))


def test_windows_differ_from_each_other() -> None:
    order = Order(640, 1, Window(64))
    windows = {tuple((order.ids(0, np.arange(64 * w, 64 * w + 64)) - 64 * w).tolist()) for w in range(10)}
    assert len(windows) == 10


def test_window_reads_few_shards_at_a_time() -> None:
    order = Order(1000, 1, Window(100), (100,) * 10)
    for w in range(10):
        ids = order.ids(0, np.arange(100 * w, 100 * w + 100))
        assert len(set((ids // 100).tolist())) == 1
    uneven = Order(1000, 1, Window(100), (150, 250, 100, 500))
    for w in range(10):
        ids = uneven.ids(0, np.arange(100 * w, 100 * w + 100))
        assert len(set(np.searchsorted([150, 400, 500, 1000], ids, side="right").tolist())) <= 3


class _OnlyCounted:
    """Sizes of shards of which nothing but their number can be had."""

    __hash__ = None  # type: ignore[assignment]

    def __len__(self) -> int:
        return 3


def test_window_looks_at_the_sizes_of_all_shards_once_an_epoch() -> None:
    order = Order(12, seed=1, shuffle=Window(5), shard_sizes=[3, 5, 4])
    epochs = [order.ids(epoch, np.arange(12)) for epoch in range(2)]
    object.__setattr__(order, "shard_sizes", _OnlyCounted())
    for epoch, ids in enumerate(epochs):
        assert order.ids(epoch, np.arange(12)).tolist() == ids.tolist()
        assert order.positions(epoch, ids).tolist() == list(range(12))
    with pytest.raises(TypeError):
        order.ids(2, [0])


def test_the_windows_of_a_seed_never_change() -> None:
    # Golden: resumed runs depend on these numbers. Made by the first version of Window.
    uneven = Order(1000, 9, Window(64), (150, 250, 100, 500))
    for order in (uneven, pickle.loads(pickle.dumps(uneven)), copy.deepcopy(uneven)):
        assert order.ids(3, [0, 1, 499, 500, 999]).tolist() == GOLDEN_WINDOWS


GOLDEN_WINDOWS = [533, 545, 985, 987, 130]


def test_an_order_that_an_earlier_version_pickled_goes_on() -> None:
    order = Order(1000, 9, Window(64), (150, 250, 100, 500))
    old = Order.__new__(Order)
    old.__setstate__({"samples": 1000, "seed": 9, "shuffle": Window(64), "shard_sizes": (150, 250, 100, 500)})
    assert np.array_equal(old.ids(3, np.arange(1000)), order.ids(3, np.arange(1000)))


def test_recent_results_are_kept_and_stay_behind_in_pickles() -> None:
    made: list[int] = []

    def get(recent: Recent[int], key: int) -> int:
        return recent.get(key, lambda: made.append(key) or key * 2)

    recent: Recent[int] = Recent(2)
    others = range(2, 20)
    assert [get(recent, key) for other in others for key in (1, other)] == [2 * each for o in others for each in (1, o)]
    assert made == [1, *others]  # what is used stays
    assert get(recent, 2) == 4
    assert made[19:] == [2]  # and of the others no more than the latest
    copied = pickle.loads(pickle.dumps(recent))
    assert [get(copied, key) for key in (1, 4, 1)] == [2, 8, 2]
    assert made[20:] == [1, 4]


def neighbour_distance(order: Order) -> float:
    """Mean stored distance of samples that follow each other, relative to that of a full shuffle."""
    places = np.arange(order.samples - 1)
    return float(np.abs(order.ids(0, places + 1) - order.ids(0, places)).mean() / (order.samples / 3))


def test_a_window_separates_neighbours_less_than_a_full_shuffle() -> None:
    full = neighbour_distance(Order(100_000, 1, True))
    windowed = neighbour_distance(Order(100_000, 1, Window(10_000), (1000,) * 100))
    stored = neighbour_distance(Order(100_000, 1, False))
    assert 0.9 < full < 1.1
    assert 0.001 < stored + 0.001 < windowed + 0.001 < full


def test_substitutes_are_a_function_and_spread() -> None:
    first = [substitute(p, 0, 1000, 7, 1) for p in range(200)]
    assert first == [substitute(p, 0, 1000, 7, 1) for p in range(200)]
    assert len(set(first)) > 150
    assert all(0 <= i < 1000 for i in first)
    assert first != [substitute(p, 1, 1000, 7, 1) for p in range(200)]
    assert first != [substitute(p, 0, 1000, 7, 2) for p in range(200)]
    assert substitute(3, 5, 1, 0, 0) == 0

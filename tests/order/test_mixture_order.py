"""The arithmetic of mixtures: against a plain reference, and what other libraries' mixtures hold."""

from __future__ import annotations

import itertools
import math
import pickle
import tracemalloc
from collections import Counter
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feeder.errors import ArgumentError
from feeder.order.mixture_order import BLOCK, MixtureOrder, Shares, source_seed
from feeder.order.permutation import permute
from feeder.order.random import Stream, uniform
from feeder.order.sample_order import Order, Window
from feeder.order.split import Split

STOPS = ("first_exhausted", "all_exhausted", "all_exhausted_without_replacement")


class Node:
    """A node of the tree of sources, which hands out one sample after the other.

    Args:
        sources: The sources below it, the heaviest first.
        ends: Sum of the weights before each of all sources, and of all.
        first: Place of the first of them among all.
        most: Samples that there are of each.
        phases: Those of all nodes.
    """

    def __init__(self, sources: list[int], ends: list[float], first: int, most: list[int], phases: list[float]) -> None:
        self.sources, self.most, self.given = sources, sum(most[source] for source in sources), 0
        if len(sources) == 1:
            return
        start, stop = first, first + len(sources)
        half = (ends[start] + ends[stop]) / 2
        middle = min(range(start + 1, stop), key=lambda at: abs(half - ends[at]))
        self.sides = [
            Node(sources[: middle - start], ends, first, most, phases),
            Node(sources[middle - start :], ends, middle, most, phases),
        ]
        weights = [Fraction(ends[middle] - ends[start]), Fraction(ends[stop] - ends[middle])]
        self.lighter = 0 if weights[0] <= weights[1] else 1
        self.share = min(weights) / sum(weights) if sum(weights) else Fraction(0)
        self.phase = Fraction(phases[middle])

    def ones(self, given: int) -> int:
        """Samples of the first side among so many."""
        light = math.floor(given * self.share + self.phase)
        ones = light if self.lighter == 0 else given - light
        return min(max(ones, given - self.sides[1].most), self.sides[0].most)

    def next(self) -> int:
        if len(self.sources) == 1:
            return self.sources[0]
        side = self.sides[0 if self.ones(self.given + 1) > self.ones(self.given) else 1]
        self.given += 1
        return side.next()


def handed_out(weights: list[float], most: list[int], seed: int, epoch: int, stream: int, total: int) -> list[int]:
    """The sources of the first samples, one by one."""
    ordered = sorted(range(len(weights)), key=lambda source: -weights[source])
    ends = [0.0, *itertools.accumulate(weights[source] for source in ordered)]
    phases = uniform(seed, epoch, np.arange(len(weights)), stream, 1)[:, 0].tolist()
    root = Node(ordered, ends, 0, most, phases)
    return [root.next() for _ in range(total)]


def reference(shares: Shares, seed: int, shuffle: bool, epoch: int) -> list[tuple[int, int]]:
    """(sample id, pass) at each position of an epoch, with all that came before gone through sample by sample."""
    names, sizes, weights = shares.names, shares.sizes.tolist(), shares.weights.tolist()
    parts = [shares.counts.tolist()]
    if isinstance(shares.takes, int):
        length = (epoch + 1) * shares.takes
        run = handed_out(weights, [length] * len(names), seed, 0, Stream.MIXTURE_RUN, length)
        before = [run[: epoch * shares.takes].count(source) for source in range(len(names))]
        parts = [[run[epoch * shares.takes :].count(source) for source in range(len(names))]]
    else:
        before = [epoch * -(-count // size) * size for count, size in zip(parts[0], sizes, strict=True)]
    if shares.takes == STOPS[2]:
        had, parts = [0] * len(names), []
        for end in sorted({size / weight for size, weight in zip(sizes, weights, strict=True)}):
            until = [min(math.floor(end * w + 0.5), size) for w, size in zip(weights, sizes, strict=True)]
            parts.append([now - then for now, then in zip(until, had, strict=True)])
            had = until

    drawn: list[int] = []
    for counts in parts:
        drawn += handed_out([float(each) for each in counts], counts, seed, epoch, Stream.MIXTURE, sum(counts))
    places = Order(len(drawn), seed, Window(BLOCK)).ids(epoch, np.arange(len(drawn)))
    found, first = [], np.cumsum([0, *sizes]).tolist()
    for block in range(0, len(drawn), BLOCK):
        by_source = sorted(drawn[block : block + BLOCK])
        for place in places[block : block + BLOCK].tolist():
            source = by_source[place - block]
            number, at = divmod(before[source], sizes[source])
            before[source] += 1
            own = int(permute([at], sizes[source], source_seed(seed, names[source]), number)[0]) if shuffle else at
            found.append((first[source] + own, number))
    return found


@st.composite
def some_shares(draw: Any) -> Shares:
    sizes = draw(st.lists(st.integers(1, 60), min_size=1, max_size=5))
    named = {f"source {s}": size for s, size in enumerate(sizes)}
    kind = draw(st.sampled_from((*STOPS, "samples", "repeats")))
    if kind == "repeats":
        return Shares.of(named, repeats={name: draw(st.integers(1, 4)) for name in named})
    weights = {name: draw(st.floats(0.05, 1.0)) for name in named} if draw(st.booleans()) else None
    if kind == "samples":
        return Shares.of(named, weights, samples=draw(st.integers(1, 200)))
    return Shares.of(named, weights, stop=kind)


@settings(max_examples=60, deadline=None)
@given(shares=some_shares(), seed=st.integers(0, 3), shuffle=st.booleans(), epoch=st.integers(0, 3))
def test_epochs_are_those_of_the_reference(shares: Shares, seed: int, shuffle: bool, epoch: int) -> None:
    order = MixtureOrder(shares, seed, shuffle)
    ids, passes = order.placed(epoch, np.arange(shares.samples))
    expected = reference(shares, seed, shuffle, epoch)
    assert list(zip(ids.tolist(), passes.tolist(), strict=True)) == expected
    for i in {0, int(shares.sizes.sum()) // 2, int(shares.sizes.sum()) - 1}:
        assert sorted(order.positions(epoch, [i]).tolist()) == [p for p, (own, _) in enumerate(expected) if own == i]


@pytest.mark.parametrize("stop", [*STOPS, None])
def test_several_blocks_are_those_of_the_reference(stop: Any) -> None:
    given = {"stop": stop} if stop else {"samples": 9001}
    weights = {"a": 0.61, "b": 0.3, "c": 0.09, "d": 1e-4}
    shares = Shares.of({"a": 5500, "b": 2000, "c": 40, "d": 3}, weights, **given)
    shares = shares if shares.samples < 100_000 else Shares.of({"a": 5500, "b": 2000, "c": 40}, repeats={"c": 30})
    order = MixtureOrder(shares, 7, True)
    ids, passes = order.placed(1, np.arange(shares.samples))
    assert list(zip(ids.tolist(), passes.tolist(), strict=True)) == reference(shares, 7, True, 1)
    own = np.flatnonzero(ids == 5501)
    assert sorted(order.positions(1, [5501]).tolist()) == own.tolist()


@settings(max_examples=40, deadline=None)
@given(shares=some_shares(), epochs=st.integers(1, 3))
def test_a_source_gives_each_sample_once_in_each_pass(shares: Shares, epochs: int) -> None:
    order, had = MixtureOrder(shares, 1, True), Counter[int]()
    by_source: list[list[tuple[int, int]]] = [[] for _ in shares.names]
    for epoch in range(epochs):
        ids, passes = order.placed(epoch, np.arange(shares.samples))
        sources = order.source_of(ids)
        for source, i, number in zip(sources.tolist(), ids.tolist(), passes.tolist(), strict=True):
            by_source[source].append((number, i))
        had.update(sources.tolist())
        samples = [samples for samples, _ in order.consumed(epoch, shares.samples)]
        assert samples == [had[source] for source in range(len(shares.names))]
        if len(shares.counts):
            assert np.bincount(sources, minlength=len(shares.names)).tolist() == shares.counts.tolist()
    for source, pairs in enumerate(by_source):
        numbers = [number for number, _ in pairs]
        assert numbers == sorted(numbers)  # a pass ends before the next begins
        assert len(set(pairs)) == len(pairs)
        if isinstance(shares.takes, int):
            assert [*Counter(numbers).values()][:-1] == [int(shares.sizes[source])] * (len(set(numbers)) - 1)


@pytest.mark.parametrize("heaviest", [None, 0.5, 0.9])
@pytest.mark.parametrize("sources", [2, 3, 10, 300])
@pytest.mark.parametrize("given", [{"samples": 5 * BLOCK}, {"stop": "first_exhausted"}], ids=str)
def test_each_source_is_within_three_samples_of_its_share_at_each_blocks_end(
    given: Any, sources: int, heaviest: float | None
) -> None:
    """Also a heavy source among many light ones, whose roundings add up elsewhere."""
    weights = np.random.default_rng(sources).random(sources) + 0.01
    if heaviest is not None:
        weights[0] = weights[1:].sum() * heaviest / (1 - heaviest)
    names = [f"{source:03}" for source in range(sources)]
    shares = Shares.of(dict.fromkeys(names, 10**6), dict(zip(names, weights.tolist(), strict=True)), **given)
    order, wanted = MixtureOrder(shares, 2, True), shares.weights
    if len(shares.counts):  # which are rounded, and the epoch holds them
        wanted = shares.counts / shares.samples
    for epoch in range(2):
        for block in range(6):
            had = np.array([samples for samples, _ in order.consumed(epoch, block * BLOCK)])
            position = epoch * shares.samples + block * BLOCK
            assert had.sum() == position
            assert np.abs(had - position * wanted).max() < 3


def test_lengths_follow_from_sizes_and_weights_alone() -> None:
    sizes = {"a": 10, "b": 20, "c": 5}
    assert Shares.of(sizes).samples == 35
    assert Shares.of(sizes, {"a": 1, "b": 1, "c": 1}).samples == 15
    assert Shares.of(sizes, {"a": 1, "b": 2, "c": 1}).samples == 20
    assert Shares.of(sizes, {"a": 1, "b": 1, "c": 1}, stop="all_exhausted").samples == 60
    assert Shares.of(sizes, {"a": 1, "b": 2, "c": 1}, stop="all_exhausted").counts.tolist() == [10, 20, 10]
    assert Shares.of(sizes, {"a": 9, "b": 1, "c": 1}, stop=STOPS[2]).samples == 35
    assert Shares.of(sizes, repeats={"c": 3}).counts.tolist() == [10, 20, 15]
    assert Shares.of(sizes, samples=7).samples == 7
    assert Shares.of({"a": 100, "b": 300}, {"a": 0.1, "b": 0.3}).counts.tolist() == [100, 300]
    assert Shares.of({"a": 1000, "b": 3}, {"a": 1, "b": 1e-9}).counts.tolist() == [1000, 1]  # no source is left out


def test_weights_set_the_pace_where_each_sample_comes_once() -> None:
    shares = Shares.of({"a": 3 * BLOCK, "b": 3 * BLOCK}, {"a": 0.75, "b": 0.25}, stop=STOPS[2])
    order = MixtureOrder(shares, 0, True)
    shares_of_a = [Counter(order.source_of(order.ids(0, BLOCK * b + np.arange(BLOCK))).tolist())[0] for b in range(6)]
    assert [round(4 * had / BLOCK) for had in shares_of_a] == [3, 3, 3, 3, 0, 0]
    assert sum(shares_of_a) == 3 * BLOCK


def test_what_an_exhausted_source_leaves_goes_to_all_others_by_weight() -> None:
    """Equal weights: after the first, the others have a third each, and so on."""
    sizes = {"a": 4 * BLOCK, "b": 8 * BLOCK, "c": 8 * BLOCK, "d": 8 * BLOCK}
    order = MixtureOrder(Shares.of(sizes, dict.fromkeys(sizes, 1), stop=STOPS[2]), 0, True)
    had = np.array([[samples for samples, _ in order.consumed(0, block * BLOCK)] for block in range(29)])
    assert np.abs(had[16] - [4 * BLOCK] * 4).max() == 0
    assert np.abs(np.diff(had[16:], axis=0)[:, 1:] - BLOCK / 3).max() < 3
    assert had[28].tolist() == [*sizes.values()]


def test_epochs_and_seeds_differ_and_ranks_agree() -> None:
    shares = Shares.of({"a": 300, "b": 200}, {"a": 0.5, "b": 0.5}, stop="all_exhausted")
    orders = [MixtureOrder(shares, seed, True) for seed in (0, 1)]
    epochs = [order.ids(epoch, np.arange(600)).tolist() for order in orders for epoch in (0, 1)]
    assert len(set(map(tuple, epochs))) == 4
    again = pickle.loads(pickle.dumps(orders[1])).with_seed(0)
    parts = [Split(600, 7, rank, 3).run(0, 29) for rank in range(3)]
    for positions, _ in parts:
        assert again.ids(0, positions).tolist() == [epochs[0][p] for p in positions.tolist()]
    assert again.with_seed(0) is again


def test_sources_are_mixed_evenly_within_a_block() -> None:
    shares = Shares.of({"a": BLOCK, "b": BLOCK})
    order = MixtureOrder(shares, 0, False)
    ids = order.ids(0, np.arange(2 * BLOCK))
    thirds = np.add.reduceat(order.source_of(ids), range(0, 2 * BLOCK, 256))
    assert 90 < thirds.min() <= thirds.max() < 166
    assert ids[ids < BLOCK].tolist() == list(range(BLOCK))  # the stored order of each stays


def test_windows_stay_within_shards_of_each_source() -> None:
    shares, sizes = Shares.of({"a": 60, "b": 40}), [[20] * 3, [10] * 4]
    order = MixtureOrder(shares, 0, Window(10), sizes)
    ids = order.ids(2, np.arange(100))
    assert sorted(ids.tolist()) == list(range(100))
    own = Order(60, source_seed(0, "a"), Window(10), [20] * 3)
    assert ids[ids < 60].tolist() == own.ids(2, np.arange(60)).tolist()
    assert ids[order.positions(2, np.arange(100))].tolist() == list(range(100))


def test_ten_billion_samples_of_a_thousand_sources_take_little_memory() -> None:
    sizes = {f"source {s}": 10**7 for s in range(1000)}
    weights = dict(zip(sizes, np.random.default_rng(0).pareto(1.2, 1000) + 1e-3, strict=True))
    tracemalloc.start()
    order = MixtureOrder(Shares.of(sizes, weights, samples=10**10), 1, True)
    ids = order.ids(3, 10**6 * BLOCK + np.arange(3 * BLOCK))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 64 << 20
    assert len(set(ids.tolist())) == 3 * BLOCK
    had = np.bincount(order.source_of(ids), minlength=1000)
    assert np.abs(had - 3 * BLOCK * order.shares.weights).max() < 6  # three at each end


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"weights": {"a": 1}}, "weights must have a number for each source .* check 'b'"),
        ({"weights": {"a": 1, "b": 1, "c": 1}}, "check 'c'"),
        ({"weights": [1, 2]}, "by name; check 'a'"),
        ({"weights": {"a": 0, "b": 1}}, "weights must be finite numbers above 0"),
        ({"weights": {"a": float("inf"), "b": 1}}, "weights must be finite numbers above 0"),
        ({"weights": {"a": "much", "b": 1}}, "weights must be finite numbers above 0"),
        ({"repeats": {"a": 1.5}}, "whole numbers of passes"),
        ({"repeats": {"z": 2}}, "check 'z'"),
        ({"repeats": {"a": 0}}, "repeats must be finite numbers above 0"),
        ({"repeats": {"a": 2}, "weights": {"a": 1, "b": 1}}, "repeats= in place of weights="),
        ({"repeats": {"a": 2}, "samples": 4}, "one of stop=, samples= and repeats="),
        ({"stop": "all_exhausted", "samples": 4}, "one of stop=, samples= and repeats="),
        ({"stop": "never"}, "stop must be one of 'first_exhausted'"),
        ({"samples": 0}, "samples must be an integer of 1 or more, got 0"),
        ({"samples": 1 << 51}, "at most 2\\*\\*50 samples"),
    ],
    ids=str,
)
def test_what_makes_no_shares_is_refused(given: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        Shares.of({"a": 3, "b": 4}, **given)


def test_places_that_there_are_not_are_refused() -> None:
    order = MixtureOrder(Shares.of({"a": 3, "b": 4}), 0, True)
    with pytest.raises(ArgumentError, match=r"positions must be in \[0, 7\), got 7 to 7"):
        order.ids(0, [7])
    with pytest.raises(ArgumentError, match=r"sample ids must be in \[0, 7\), got -1 to 2"):
        order.positions(0, [2, -1])
    endless = MixtureOrder(Shares.of({"a": 3}, samples=1 << 30), 0, True)
    with pytest.raises(ArgumentError, match="is past the 2\\*\\*50 of a Mixture's run"):
        endless.ids(1 << 20, [0])

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
from feeder.order.mixture_order import MixtureOrder
from feeder.order.mixture_shares import BLOCK, Shares, source_seed
from feeder.order.permutation import permute
from feeder.order.random import Stream, philox, uniform
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
        one, two = Fraction(ends[middle] - ends[start]), Fraction(ends[stop] - ends[middle])
        self.lighter = 0 if one <= two else 1
        share = min(one, two) / (one + two) if one + two else Fraction(0)
        phase = Fraction(phases[middle])
        self.by, self.add = share.numerator * phase.denominator, phase.numerator * share.denominator
        self.of = share.denominator * phase.denominator
        self.had = 0

    def ones(self, given: int) -> int:
        """Samples of the first side among so many."""
        light = (given * self.by + self.add) // self.of
        ones = light if self.lighter == 0 else given - light
        return min(max(ones, given - self.sides[1].most), self.sides[0].most)

    def next(self) -> int:
        if len(self.sources) == 1:
            return self.sources[0]
        self.given += 1
        before, self.had = self.had, self.ones(self.given)
        return self.sides[0 if self.had > before else 1].next()


def handed_out(weights: list[float], most: list[int], seed: int, epoch: int, stream: int, total: int) -> list[int]:
    """The sources of the first samples, one by one."""
    ordered = sorted(range(len(weights)), key=lambda source: -weights[source])
    ends = [0.0, *itertools.accumulate(weights[source] for source in ordered)]
    phases = uniform(seed, epoch, np.arange(len(weights)), stream, 1)[:, 0].tolist()
    root = Node(ordered, ends, 0, most, phases)
    return [root.next() for _ in range(total)]


def planned(shares: Shares, had: list[int], position: int, weights: list[float]) -> list[int]:
    """Samples of each source in the rest of an epoch, if the weights stayed."""
    if shares.takes == "repeats":
        return [size * passes for size, passes in zip(shares.sizes.tolist(), shares.passes.tolist(), strict=True)]
    left = [max(size - own, 0) for size, own in zip(shares.sizes.tolist(), had, strict=True)]
    on = [source for source, weight in enumerate(weights) if weight]
    if shares.takes == STOPS[2]:
        return [each if weight else 0 for each, weight in zip(left, weights, strict=True)]
    first = shares.takes == STOPS[0]
    last = (min if first else max)(on, key=lambda source: left[source] / weights[source])
    found = [math.floor(left[last] * (weight / weights[last]) + 0.5) for weight in weights]
    for source in on if left[last] or not first else []:
        least = min(left[source], 0 if position else 1) if first else left[source]
        found[source] = max(min(found[source], left[source]) if first else found[source], least)
    return found


def stretch(shares: Shares, epoch: int, position: int, had: list[int], weights: list[float], run: int) -> list[int]:
    """The sources of an epoch's rest, or of so many samples of a run, one by one."""
    counts: list[Any] = planned(shares, had, position, weights) if not run else [*weights]
    parts = [counts]
    if shares.takes == STOPS[2]:
        done, parts = [0] * len(had), []
        for end in sorted({count / weight for count, weight in zip(counts, weights, strict=True) if count}):
            until = [min(math.floor(end * w + 0.5), count) for w, count in zip(weights, counts, strict=True)]
            parts.append([now - then for now, then in zip(until, done, strict=True)])
            done = until

    seed = source_seed(0, str(position)) if position else 0
    drawn: list[int] = []
    for part in parts:
        most = [1 << 50] * len(had) if run else [int(each) for each in part]
        drawn += handed_out([float(each) for each in part], most, seed, epoch, Stream.MIXTURE, run or sum(most))
    found: list[int] = []
    while len(found) < len(drawn):
        at = position + len(found)
        within = at % int(shares.takes) if run else at
        size = min(BLOCK - within % BLOCK, len(drawn) - len(found), int(shares.takes) - within if run else BLOCK)
        words = philox(0, epoch, [at], Stream.MIXTURE_RUN)[0]
        by_source = sorted(drawn[len(found) : len(found) + size])
        slots = permute(np.arange(size), size, int(words[0]) << 32 | int(words[1]), epoch)
        found += [by_source[slot] for slot in slots.tolist()]
    return found


def reference(shares: Shares, seed: int, shuffle: bool, epochs: int) -> list[list[tuple[int, int]]]:
    """(sample id, pass) at each position of some epochs, all gone through sample by sample."""
    names, sizes = shares.names, shares.sizes.tolist()
    changes = {0: shares.weights, **shares.schedule, **shares.changes}
    first, passes = np.cumsum([0, *sizes]).tolist(), [0] * len(names)
    found: list[list[tuple[int, int]]] = []
    begun = 0
    is_run = isinstance(shares.takes, int)
    wanted = epochs * int(shares.takes) if is_run else 0
    while len(found) < (1 if is_run else epochs):
        epoch, had = len(found), [0] * len(names)
        rows: list[tuple[int, int]] = []
        while True:
            at = begun + len(rows)
            weights = changes[max(each for each in changes if each <= at)].tolist()
            later = [each for each in changes if each > at]
            run = wanted - len(rows) if is_run else 0
            plan = stretch(shares, epoch, len(rows), had, weights, run)
            cut = min(later) - at if later and min(later) < at + len(plan) else len(plan)
            for source in plan[:cut]:
                number, own = divmod(had[source], sizes[source])
                had[source] += 1
                if shuffle:
                    own = int(
                        permute([own], sizes[source], source_seed(seed, names[source]), passes[source] + number)[0]
                    )
                rows.append((first[source] + own, passes[source] + number))
            if cut == len(plan) or (is_run and len(rows) >= wanted):
                break
        found.append(rows)
        begun += len(rows)
        passes = [each - (-own // size) for each, own, size in zip(passes, had, sizes, strict=True)]
    if is_run:
        rows, each = found[0], int(shares.takes)
        found = [rows[epoch * each : (epoch + 1) * each] for epoch in range(epochs)]
    return found


def counts_of(shares: Shares, epoch: int = 0) -> list[int]:
    """Samples of each source in an epoch."""
    return [int(count) for count in shares.turn(epoch)[0].counts]


@st.composite
def some_shares(draw: Any) -> Shares:
    sizes = draw(st.lists(st.integers(1, 60), min_size=1, max_size=5))
    named = {f"source {s}": size for s, size in enumerate(sizes)}
    kind = draw(st.sampled_from((*STOPS, "samples", "repeats")))
    if kind == "repeats":
        return Shares.of(named, repeats={name: draw(st.integers(1, 4)) for name in named})

    def weights() -> dict[str, float]:
        found = {name: draw(st.one_of(st.just(0.0), st.floats(0.05, 1.0))) for name in named}
        return found if any(found.values()) else dict.fromkeys(named, 1.0)

    given: Any = weights() if draw(st.booleans()) else None
    if draw(st.booleans()):
        given = {0: weights(), **{draw(st.integers(0, 300)): weights() for _ in range(draw(st.integers(1, 3)))}}
    shares = Shares.of(
        named, given, **({"samples": draw(st.integers(1, 200))} if kind == "samples" else {"stop": kind})
    )
    return shares.changed(weights(), draw(st.integers(0, 300))) if draw(st.booleans()) else shares


@settings(max_examples=80, deadline=None)
@given(shares=some_shares(), seed=st.integers(0, 3), shuffle=st.booleans())
def test_epochs_are_those_of_the_reference(shares: Shares, seed: int, shuffle: bool) -> None:
    order, begun = MixtureOrder(shares, seed, shuffle), 0
    for epoch, expected in enumerate(reference(shares, seed, shuffle, 4)):
        assert order.samples_in(epoch) == len(expected)
        assert shares.place(epoch) == begun
        begun += len(expected)
        ids, passes = order.placed(epoch, np.arange(len(expected)))
        assert list(zip(ids.tolist(), passes.tolist(), strict=True)) == expected
        for i in {0, int(shares.sizes.sum()) // 2, int(shares.sizes.sum()) - 1}:
            places = [p for p, (own, _) in enumerate(expected) if own == i]
            assert sorted(order.positions(epoch, [i]).tolist()) == places


@pytest.mark.parametrize("stop", [*STOPS, None])
@pytest.mark.parametrize("changes", [{}, {5000: {"a": 0.2, "b": 0.7, "c": 0.1, "d": 0.0}}], ids=["", "changed"])
def test_several_blocks_are_those_of_the_reference(stop: Any, changes: Any) -> None:
    given = {"stop": stop} if stop else {"samples": 9001}
    weights = {"a": 0.61, "b": 0.3, "c": 0.09, "d": 1e-4}
    sizes = {"a": 5500, "b": 2000, "c": 40, "d": 3}
    if stop == "all_exhausted":
        weights["c"], weights["d"] = 0.01, 0.001
    shares = Shares.of(sizes, {0: weights, **changes}, **given)
    order = MixtureOrder(shares, 7, False)
    for epoch, expected in enumerate(reference(shares, 7, False, 2)):
        ids, passes = order.placed(epoch, np.arange(shares.samples(epoch)))
        assert list(zip(ids.tolist(), passes.tolist(), strict=True)) == expected
        own = np.flatnonzero(ids == 5501)
        assert sorted(order.positions(epoch, [5501]).tolist()) == own.tolist()


def test_shards_that_are_not_of_a_source_are_refused() -> None:
    shares = Shares.of({"a": 100, "b": 50}, {0: {"a": 0.5, "b": 0.5}})
    with pytest.raises(ArgumentError, match="shard_sizes add up to 49, expected 50 samples"):
        MixtureOrder(shares, 0, Window(10), [[100], [49]])


@settings(max_examples=100, deadline=None)
@given(shares=some_shares(), at=st.integers(0, 400), data=st.data())
def test_a_change_leaves_all_samples_before_it_as_they_were(shares: Shares, at: int, data: Any) -> None:
    if shares.takes == "repeats":
        with pytest.raises(ArgumentError, match="repeats= gives exact passes"):
            shares.changed(dict.fromkeys(shares.names, 1), at)
        return
    weights = {name: data.draw(st.floats(0.1, 1.0)) for name in shares.names}
    later = shares.changed(weights, max([at, *shares.schedule, *shares.changes]))
    at = max(later.changes)
    before, after = (MixtureOrder(each, 1, True) for each in (shares, later))
    for epoch in range(4):
        kept = min(max(at - shares.place(epoch), 0), shares.samples(epoch))
        if kept:
            assert later.place(epoch) == shares.place(epoch)
            assert later.samples(epoch) >= kept
            assert [*after.placed(epoch, np.arange(kept))[0]] == [*before.placed(epoch, np.arange(kept))[0]]


@settings(max_examples=40, deadline=None)
@given(shares=some_shares(), epochs=st.integers(1, 3))
def test_a_source_gives_each_sample_once_in_each_pass(shares: Shares, epochs: int) -> None:
    order, had = MixtureOrder(shares, 1, True), Counter[int]()
    by_source: list[list[tuple[int, int]]] = [[] for _ in shares.names]
    for epoch in range(epochs):
        ids, passes = order.placed(epoch, np.arange(shares.samples(epoch)))
        sources = order.source_of(ids)
        for source, i, number in zip(sources.tolist(), ids.tolist(), passes.tolist(), strict=True):
            by_source[source].append((number, i))
        had.update(sources.tolist())
        samples = [samples for samples, _ in order.consumed(epoch, shares.samples(epoch))]
        assert samples == [had[source] for source in range(len(shares.names))]
        if not shares.is_run:
            assert np.bincount(sources, minlength=len(shares.names)).tolist() == counts_of(shares, epoch)
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
    if not shares.is_run:  # counts are rounded, and the epoch holds them
        wanted = np.array(counts_of(shares)) / shares.samples(0)
    for epoch in range(2):
        for block in range(6):
            had = np.array([samples for samples, _ in order.consumed(epoch, block * BLOCK)])
            position = shares.place(epoch, block * BLOCK)
            assert had.sum() == position
            assert np.abs(had - position * wanted).max() < 3


@pytest.mark.parametrize("given", [{"samples": 3 * BLOCK}, {"stop": "first_exhausted"}], ids=str)
def test_the_bound_holds_in_each_stretch_between_changes(given: Any) -> None:
    rng = np.random.default_rng(5)
    names = [f"{source:02}" for source in range(30)]
    drawn = [dict(zip(names, (rng.random(30) ** 4).tolist(), strict=True)) for _ in range(4)]
    drawn[2]["03"] = 0.0
    changes = [0, 2 * BLOCK + 77, 4 * BLOCK, 7 * BLOCK + 4001, 11 * BLOCK]
    shares = Shares.of(dict.fromkeys(names, 10**6), dict(zip(changes[:3], drawn[:3], strict=True)), **given)
    shares = shares.changed(drawn[3], changes[3])
    order = MixtureOrder(shares, 2, True)

    def had(sample: int) -> Any:
        epoch = sample // shares.samples(0) if shares.is_run else 0
        return np.array([samples for samples, _ in order.consumed(epoch, sample - shares.place(epoch))])

    for (begin, end), weights in zip(itertools.pairwise(changes), drawn, strict=True):
        wanted = np.array([*weights.values()]) / sum(weights.values())
        for sample in [*range(-(-begin // BLOCK) * BLOCK, end, BLOCK)]:
            assert had(sample).sum() == sample
            assert np.abs(had(sample) - had(begin) - (sample - begin) * wanted).max() < 3
    assert had(changes[3])[3] == had(changes[2])[3]  # paused


def test_epochs_between_changes_are_found_without_a_walk() -> None:
    sizes = {"a": 10, "b": 20, "c": 5}
    far = Shares.of(sizes, {0: dict.fromkeys(sizes, 1), 10**10: {"a": 1, "b": 2, "c": 0}})
    assert [far.samples(epoch) for epoch in (0, 10**8)] == [15, 15]
    last = 10**10 // 15
    assert far.place(last) == last * 15
    assert far.samples(last) == 10 + 3 * 7  # "a" had 3 of the first ten, and ends the epoch
    assert far.samples(last + 1) == 30
    order = MixtureOrder(far, 0, True)
    assert order.placed(last, [0])[1].tolist() == [last]
    assert dict(zip("abc", order.consumed(last + 2, 0), strict=True))["c"][1] == last + 1


def test_lengths_follow_from_sizes_and_weights_alone() -> None:
    sizes = {"a": 10, "b": 20, "c": 5}
    assert Shares.of(sizes).samples(0) == 35
    assert Shares.of(sizes, {"a": 1, "b": 1, "c": 1}).samples(0) == 15
    assert Shares.of(sizes, {"a": 1, "b": 2, "c": 1}).samples(0) == 20
    assert Shares.of(sizes, {"a": 1, "b": 1, "c": 1}, stop="all_exhausted").samples(0) == 60
    assert counts_of(Shares.of(sizes, {"a": 1, "b": 2, "c": 1}, stop="all_exhausted")) == [10, 20, 10]
    assert Shares.of(sizes, {"a": 9, "b": 1, "c": 1}, stop=STOPS[2]).samples(0) == 35
    assert counts_of(Shares.of(sizes, repeats={"c": 3})) == [10, 20, 15]
    assert Shares.of(sizes, samples=7).samples(0) == 7
    assert counts_of(Shares.of({"a": 100, "b": 300}, {"a": 0.1, "b": 0.3})) == [100, 300]
    assert counts_of(Shares.of({"a": 1000, "b": 3}, {"a": 1, "b": 1e-9})) == [1000, 1]  # no source is left out


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
        ({"weights": {"a": 0, "b": 0}}, "weights must be finite numbers of 0 or more, not all 0"),
        ({"weights": {"a": -1, "b": 1}}, "weights must be finite numbers of 0 or more"),
        ({"weights": {"a": float("inf"), "b": 1}}, "weights must be finite numbers of 0 or more"),
        ({"weights": {"a": "much", "b": 1}}, "weights must be finite numbers of 0 or more"),
        ({"weights": {5: {"a": 1, "b": 1}}}, r"a schedule of weights begins at sample 0 of the run, got \[5\]"),
        ({"weights": {0: {"a": 1, "b": 1}, 9: {"a": 1}}}, "weights must have a number for each source .* check 'b'"),
        ({"repeats": {"a": 1.5}}, "whole numbers of passes"),
        ({"repeats": {"z": 2}}, "check 'z'"),
        ({"repeats": {"a": 0}}, "repeats must be finite numbers above 0"),
        ({"repeats": {"a": 2}, "weights": {"a": 1, "b": 1}}, "repeats= in place of weights="),
        ({"repeats": {"a": 2}, "samples": 4}, "one of stop=, samples= and repeats="),
        ({"stop": "all_exhausted", "samples": 4}, "one of stop=, samples= and repeats="),
        ({"stop": "never"}, "stop must be one of first_exhausted"),
        ({"samples": 0}, "samples must be an integer of 1 or more, got 0"),
        ({"samples": 1 << 51}, "at most 2\\*\\*50 samples"),
    ],
    ids=str,
)
def test_what_makes_no_shares_is_refused(given: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        Shares.of({"a": 3, "b": 4}, **given)


def test_samples_may_be_a_number_of_numpy() -> None:
    takes = Shares.of({"a": 3, "b": 4}, samples=np.int64(5)).takes
    assert (takes, type(takes)) == (5, int)


def test_places_that_there_are_not_are_refused() -> None:
    order = MixtureOrder(Shares.of({"a": 3, "b": 4}), 0, True)
    with pytest.raises(ArgumentError, match=r"positions must be in \[0, 7\), got 7 to 7"):
        order.ids(0, [7])
    with pytest.raises(ArgumentError, match=r"sample ids must be in \[0, 7\), got -1 to 2"):
        order.positions(0, [2, -1])
    endless = MixtureOrder(Shares.of({"a": 3}, samples=1 << 30), 0, True)
    with pytest.raises(ArgumentError, match="is past the 2\\*\\*50 of a Mixture's run"):
        endless.ids(1 << 20, [0])

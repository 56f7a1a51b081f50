"""Mixtures in lanes: against a plain reference, and the shards that ranks read."""

from __future__ import annotations

import itertools
import pickle
from collections import Counter
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feeder.errors import ArgumentError
from feeder.order.lanes import Lanes
from feeder.order.mixture_lanes import MixtureInLanes
from feeder.order.mixture_order import MixtureOrder
from feeder.order.mixture_shares import BLOCK, Shares, source_seed
from feeder.order.sample_order import Order, Window
from feeder.order.split import Split
from feeder.system.arrays import Int64s
from tests.order.test_mixture_order import some_shares

STOPS = ("first_exhausted", "all_exhausted", "all_exhausted_without_replacement")


def whole(order: MixtureOrder, epoch: int) -> list[tuple[int, int]]:
    """(sample id, pass) at each position."""
    ids, passes = order.placed(epoch, np.arange(order.samples_in(epoch)))
    return [*zip(ids.tolist(), passes.tolist(), strict=True)]


def section(
    order: MixtureInLanes, ends: tuple[Fraction, Fraction], passes: int, begun: int, source: int, lane: int
) -> list[tuple[int, int]]:
    """(sample of the source, pass) of all that a lane gives of some passes, one by one."""
    step = int(passes * (5**0.5 - 1) / 2) or 1
    while any(step % d == 0 and passes % d == 0 for d in range(2, passes + 1)):
        step += 1
    assert isinstance(order.shuffle, Lanes)
    seed, found = source_seed(source_seed(order.seed, order.shares.names[source]), str(lane)), []
    for number in range(passes):
        moved = Fraction(step * number % passes, passes)
        start, end = (int(each + moved) for each in ends)
        shards = np.repeat(np.arange(len(order.shards[source])), order.shards[source])[start:end]
        window = order.shuffle.window
        shuffle = Window(window) if end - start > window else True
        sizes = [int((shards == shard).sum()) for shard in np.unique(shards)]
        own = Order(end - start, seed, shuffle, sizes if sizes else ())
        found += [(start + i, begun + number) for i in own.ids(begun + number, np.arange(end - start)).tolist()]
    return found


def reference(order: MixtureInLanes, epoch: int) -> list[tuple[int, int]]:
    """(sample id, pass) at each position of an epoch by a stop rule, gone through sample by sample."""
    shares, count, block = order.shares, order.lanes.count, order.lanes.block
    total, sizes = shares.samples(epoch), shares.sizes.tolist()
    plain = MixtureOrder(shares, 0, False)
    sources = plain.source_of(plain.ids(epoch, np.arange(total))).tolist()
    rounds = total // (count * block)
    divisors = {1: [1], 2: [2], 3: [3], 4: [2, 4], 5: [5], 6: [2, 6]}[count]
    sections = sorted(range(count), key=lambda lane: [lane % divisor for divisor in divisors])

    turn = shares.turn(epoch)[0]
    owners = [
        sections.index(position // block % count) if position // block < rounds * count else count
        for position in range(total)
    ]
    parts: list[list[int]] = [[] for _ in range(count + 1)]
    later = [*(each.start for each in turn.stretches[1:]), total]
    both = zip(turn.stretches, later, strict=True)
    borders = sorted({start for each, end in both for start in each.starts if start < end} | {total})
    for start, end in itertools.pairwise(borders):  # lane after lane
        at = start
        for lane, own in sorted(Counter(owners[start:end]).items()):
            parts[lane] += sources[at : at + own]
            at += own
    had = Counter(sources)
    gives: dict[tuple[int, int], Any] = {}
    done: Counter[int] = Counter()
    for lane, part in enumerate(parts):
        for source, own in sorted(Counter(part).items()):
            ends = tuple(Fraction(sizes[source] * at, had[source]) for at in (done[source], done[source] + own))
            passes = -(-had[source] // sizes[source])
            begun = int(turn.passes[source])
            gives[lane, source] = iter(section(order, ends, passes, begun, source, lane))  # type: ignore[arg-type]
            done[source] += own

    rows, starts = [iter(part) for part in parts], np.cumsum([0, *sizes]).tolist()
    found = []
    for position in range(total):
        lane = owners[position]
        source = next(rows[lane])
        own, at = next(gives[lane, source])
        found.append((starts[source] + own, at))
    return found


def shards_of(sizes: list[int], size: int) -> list[list[int]]:
    return [[size] * (n // size) + [n % size] * (n % size > 0) for n in sizes]


@settings(max_examples=25, deadline=None)
@given(shares=some_shares(), data=st.data())
def test_epochs_by_a_stop_rule_are_those_of_the_reference(shares: Shares, data: Any) -> None:
    lanes = Lanes(data.draw(st.integers(1, 6)), data.draw(st.integers(1, 12)), data.draw(st.integers(1, 7)))
    shards = shards_of(shares.sizes.tolist(), data.draw(st.integers(1, 9)))
    if shares.is_run:
        return
    if shares.changes:
        with pytest.raises(ArgumentError, match=r"set_weights can't change a Mixture in Lanes with stop="):
            MixtureInLanes(shares, 1, lanes, shards)
        return
    order = MixtureInLanes(shares, 1, lanes, shards)
    for epoch in range(2):
        assert whole(order, epoch) == reference(order, epoch)
        assert [each.tolist() for each in order.placed(epoch, [])] == [[], []]


@settings(max_examples=30, deadline=None)
@given(shares=some_shares(), batch=st.sampled_from([None, None, 1, 4, 6]), data=st.data())
def test_each_pass_has_each_sample_once_and_all_are_found_again(shares: Shares, batch: Any, data: Any) -> None:
    lanes = Lanes(data.draw(st.integers(1, 6)), data.draw(st.integers(1, 12)), data.draw(st.integers(1, 7)))
    try:
        shares = shares if batch is None else shares.in_batches(batch)
        order = MixtureInLanes(shares, 1, lanes, shards_of(shares.sizes.tolist(), 4))
    except ArgumentError:  # a batch of more than there is, or a stop rule with changes
        return
    plain, had = MixtureOrder(shares, 1, True), Counter[tuple[int, int]]()
    by_source: Counter[int] = Counter()
    for epoch in range(3):
        found = whole(order, epoch)
        ids = np.array([i for i, _ in found], np.int64)
        places = data.draw(st.permutations(range(len(found)))) if len(found) < 50 else [*range(len(found))][::-1]
        assert order.ids(epoch, places).tolist() == ids[places].tolist()
        for i in {0, order.samples // 2, order.samples - 1}:
            assert sorted(order.positions(epoch, [i]).tolist()) == np.flatnonzero(ids == i).tolist()

        half = len(found) // 2 // shares.unit * shares.unit
        before = Counter(order.source_of(ids[:half]).tolist())
        consumed = [samples for samples, _ in order.consumed(epoch, half)]
        assert consumed == [by_source[s] + before[s] for s in range(len(shares.names))]
        had.update(found)
        by_source.update(order.source_of(ids).tolist())
        if not shares.is_run:  # an epoch has the counts that it has without lanes
            assert [*map(Counter, [order.source_of(ids).tolist()])] == [
                Counter(plain.source_of(plain.ids(epoch, np.arange(len(found)))).tolist())
            ]
    assert max(had.values()) == 1


@pytest.mark.parametrize("shuffle", [True, Window(300), Lanes(4, 100, 16), Lanes(2, 6000, 16)], ids=str)
@pytest.mark.parametrize("given", [{"stop": stop} for stop in STOPS] + [{"samples": 15_000}], ids=str)
def test_many_samples_are_found_at_once_in_epochs_of_several_blocks(given: Any, shuffle: Any) -> None:
    sizes = {"a": 12_000, "b": 4_000, "c": 30}
    schedule: Any = {0: {"a": 3, "b": 2, "c": 0.1}, 9_000: {"a": 1, "b": 1, "c": 0}, 17_000: {"a": 1, "b": 3, "c": 1}}
    kind = MixtureInLanes if isinstance(shuffle, Lanes) else MixtureOrder
    order = kind(Shares.of(sizes, schedule, **given), 4, shuffle, shards_of([*sizes.values()], 70))
    for epoch in range(2):
        ids = order.ids(epoch, np.arange(order.samples_in(epoch)))
        asked = np.arange(0, order.samples, 31)[::-1]
        assert sorted(order.positions(epoch, asked).tolist()) == np.flatnonzero(ids % 31 == 0).tolist()


@pytest.mark.parametrize("given", [{"stop": stop} for stop in STOPS] + [{"repeats": {"b": 5}}], ids=str)
def test_an_epoch_has_the_samples_that_its_stop_rule_says(given: Any) -> None:
    sizes = {"a": 1000, "b": 300, "c": 3}
    weights = None if "repeats" in given else {"a": 0.6, "b": 0.35, "c": 0.05}
    shares = Shares.of(sizes, weights, **given)
    order = MixtureInLanes(shares, 2, Lanes(8, 20, 4), shards_of([*sizes.values()], 20))
    for epoch in range(2):
        times = Counter(i for i, _ in whole(order, epoch))
        each = [[times[i] for i in range(first, first + n)] for first, n in ((0, 1000), (1000, 300), (1300, 3))]
        if given == {"stop": STOPS[2]}:
            assert set(times.values()) == {1}
            assert len(times) == 1303
        elif "repeats" in given:
            assert [set(own) for own in each] == [{1}, {5}, {1}]
        elif given == {"stop": STOPS[0]}:
            assert max(times.values()) == 1
            assert {1} in [set(own) for own in each]
        else:
            assert min(map(min, each)) == 1
            assert max(each[2]) > 1


@pytest.mark.parametrize("given", [{}, {"stop": STOPS[2]}, {"samples": 3333}, {"samples": 5000, "batch": 1}], ids=str)
def test_a_rank_reads_the_same_share_of_the_shards_of_each_source_in_every_epoch(given: Any) -> None:
    sizes, size, block = {"a": 9600, "b": 3200, "c": 640}, 80, 16
    weights, batch = {"a": 0.5, "b": 0.4, "c": 0.1}, given.pop("batch", None)
    shares = Shares.of(sizes, weights, **given)
    for world_size in (1, 2, 4, 8):
        own = shares if batch is None else shares.in_batches(block * world_size)
        order = MixtureInLanes(own, 2, Lanes(8, 64, block), shards_of([*sizes.values()], size))
        first, left = np.cumsum([0, *sizes.values()]), order.samples_in(0) % (order.lanes.count * block)
        for rank in {0, world_size - 1}:
            needed: list[set[int]] = [set() for _ in sizes]
            for epoch in range(4 if "stop" in given or not given else 16):
                split = Split(order.samples_in(epoch), block, rank, world_size, drop_last=True)
                ids = order.ids(epoch, split.run(0, len(split))[0])
                for source, shards in enumerate(needed):
                    of = order.source_of(ids) == source
                    shards.update(((ids[of] - first[source]) // size).tolist())
            for name, shards in zip(sizes, needed, strict=True):
                all_shards = sizes[name] // size
                # The lane of what is left is read by all; sections end within shards, and move by up to 200 samples.
                most = all_shards / world_size + all_shards * left / order.samples_in(0) + 8
                assert len(shards) <= most, (world_size, rank, name)


def test_lanes_have_each_source_by_its_share_and_stay_in_step() -> None:
    sizes = {"a": 50_000, "b": 20_000, "c": 30}
    shares = Shares.of(sizes, {"a": 0.7, "b": 0.29, "c": 0.01}, samples=4 * BLOCK)
    order = MixtureInLanes(shares, 2, Lanes(4, 500, 64))
    had = np.zeros((4, 3), np.int64)
    for epoch in range(12):
        ids, passes = order.placed(epoch, np.arange(order.samples_in(epoch)))
        sources, lanes = order.source_of(ids), np.arange(len(ids)) // 64 % 4
        for lane in range(4):
            own = (lanes == lane) & (np.arange(len(ids)) < 4 * BLOCK)
            had[lane] += np.bincount(sources[own], minlength=3)
        assert np.abs(had - (epoch + 1) * BLOCK * shares.weights).max() < 6  # three at each end of a lane's part
        if epoch:
            assert np.ptp(passes[sources == 2][:20]) <= 4
    assert had[:, 0].min() * 4 > 2.5 * sizes["a"]  # in several passes


def test_weights_that_change_in_a_run_leave_all_before_as_it_was() -> None:
    sizes = {"a": 600, "b": 200, "c": 5}
    before = Shares.of(sizes, {0: {"a": 3, "b": 1, "c": 1}, 150: {"a": 1, "b": 1, "c": 0}}, samples=400)
    after = before.changed({"a": 0, "b": 1, "c": 1}, 777)
    orders = [MixtureInLanes(each, 3, Lanes(4, 16, 8), shards_of([*sizes.values()], 10)) for each in (before, after)]
    rows = [[pair for epoch in range(4) for pair in whole(order, epoch)] for order in orders]
    assert rows[0][:777] == rows[1][:777]
    assert {min(int(i // 600), 1) for i, _ in rows[1][777:]} == {1}
    assert max(Counter(rows[1]).values()) == 1
    assert Counter(orders[1].source_of([i for i, _ in rows[1][150:777]]).tolist())[2] == 0


def test_mixtures_of_many_sources_are_refused() -> None:
    shares = Shares.of({str(i): 100 for i in range(101)}, samples=500)
    with pytest.raises(ArgumentError, match=r"at most 100 sources.*this one has 101.*Window"):
        MixtureInLanes(shares, 0, Lanes(4, 16, 8), shards_of([100] * 101, 10))


def test_copies_and_other_seeds() -> None:
    shares = Shares.of({"a": 300, "b": 200}, samples=250)
    order = MixtureInLanes(shares, 2, Lanes(4, 16, 8), shards_of([300, 200], 10))
    again = pickle.loads(pickle.dumps(order))
    assert whole(again, 1) == whole(order, 1) != whole(order.with_seed(3), 1)
    assert whole(order.with_shuffle(Lanes(4, 16, 5)), 1) != whole(order, 1)


def test_the_order_of_a_seed_never_changes() -> None:
    # Golden: resumed runs depend on these numbers.
    shares = Shares.of({"a": 3000, "b": 2000, "c": 5}, {"a": 0.5, "b": 0.4, "c": 0.1}, samples=2500)
    order = MixtureInLanes(shares, 9, Lanes(8, 64, 16), shards_of([3000, 2000, 5], 70))
    found: Int64s = order.ids(3, [0, 1, 2, 16, 1200, 2499])
    assert found.tolist() == GOLDEN


GOLDEN = [3016, 158, 165, 4114, 2337, 2931]

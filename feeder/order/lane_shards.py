"""The shards of each lane: lane l of L has shards l, l + L, l + 2 L, ... of a set, in this order.

A sample of a lane is called by its offset in the lane: the number of samples that the lane stores before it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from feeder.order.permutation import FEISTEL_ROUNDS, permute_each
from feeder.order.random import Stream, philox
from feeder.order.recent import Recent
from feeder.order.shard_sizes import CompactSizes, EqualSizes, UnequalSizes
from feeder.system.arrays import Int64s, Uint64s

_RUN = 16  # shards of a lane
_BLOCK = 64  # shards that a lane gives one after the other
_CHUNK = 1 << 14  # shards that are looked at together


class Whole(NamedTuple):
    """The shards that each lane keeps whole, its first ones, and the rest of its samples; each int64 [lanes].

    Attributes:
        shards: Number of shards.
        samples: Their samples.
        rest: Number of the lane's other samples.
    """

    shards: Int64s
    samples: Int64s
    rest: Int64s


class EqualShards:
    """Shards of one size, the last one of any size up to that; all by arithmetic.

    Args:
        samples: Number of samples in the set.
        size: Number of samples in a shard.
        lanes: Number of lanes.

    Attributes:
        samples: int64 [lanes], samples that each lane stores.
    """

    def __init__(self, samples: int, size: int, lanes: int) -> None:
        self._size = size
        self._lanes = lanes
        full, last = divmod(samples, size)
        numbers = np.arange(lanes)
        self._full = (full - numbers + lanes - 1) // lanes
        self.samples: Int64s = self._full * size + np.where(numbers == full % lanes, last, 0)
        self._draws: Recent[tuple[Uint64s, Int64s]] = Recent(2)

    def whole(self, samples: Int64s) -> tuple[Int64s, Int64s]:
        """Returns the number of whole shards among the first samples of each lane, and their samples.

        Args:
            samples: int64 [lanes], at most what the lane stores.
        """
        shards = np.minimum(samples // self._size, self._full)
        return shards, shards * self._size

    def offsets(self, seed: int, epoch: int, whole: Whole, lanes: Int64s, turns: Int64s) -> Int64s:
        """Returns the offsets of samples in their lanes, int64 [N].

        In each epoch a lane's whole shards come in another order, with the rest of the lane between two of them.

        Args:
            seed, epoch: See :func:`feeder.order.random.philox`.
            whole: The whole shards of each lane.
            lanes: int64 [N].
            turns: int64 [N], numbers of samples that the lane gives before each of them in this epoch.
        """
        keys, before = self._drawn(seed, epoch, whole, lanes)
        rest = whole.rest[lanes]
        offsets = whole.samples[lanes] + turns - before
        is_whole = (turns < before) | (turns >= before + rest)
        lanes, turns = lanes[is_whole], np.where(turns < before, turns, turns - rest)[is_whole]
        shards = turns // self._size
        # A window has few shards, so each is looked up once.
        found, where = np.unique(lanes << np.int64(46) | shards, return_inverse=True)
        places = permute_each(found & np.int64((1 << 46) - 1), whole.shards, keys, found >> np.int64(46))
        offsets[is_whole] = places[where] * self._size + turns - shards * self._size
        return offsets

    def ids(self, lanes: Int64s, offsets: Int64s) -> Int64s:
        """Returns the numbers of samples in the set, int64 [N]."""
        shards = offsets // self._size
        return (lanes + shards * (self._lanes - 1)) * self._size + offsets

    def turns(self, seed: int, epoch: int, whole: Whole, lanes: Int64s, offsets: Int64s) -> Int64s:
        """Returns the turns of samples by their offsets: the inverse of :meth:`offsets`."""
        keys, before = self._drawn(seed, epoch, whole, lanes)
        turns = before + offsets - whole.samples[lanes]
        is_whole = offsets < whole.samples[lanes]
        lanes, offsets, before = lanes[is_whole], offsets[is_whole], before[is_whole]
        shards = offsets // self._size
        turn = permute_each(shards, whole.shards, keys, lanes, inverse=True) * self._size + offsets % self._size
        turns[is_whole] = np.where(turn < before, turn, turn + whole.rest[lanes])
        return turns

    def places(self, ids: Int64s) -> tuple[Int64s, Int64s]:
        """Returns the lanes and offsets of samples, each int64 [N]: the inverse of :meth:`ids`."""
        shards = ids // self._size
        return shards % self._lanes, shards // self._lanes * self._size + ids % self._size

    def _drawn(self, seed: int, epoch: int, whole: Whole, lanes: Int64s) -> tuple[Uint64s, Int64s]:
        """Returns the order of the lanes' whole shards, see :func:`_draw`, and for each of some lanes, int64 [N], the
        samples of whole shards before the rest, int64 [N]."""
        keys, gaps = self._draws.get((seed, epoch), lambda: _draw(seed, epoch, np.arange(self._lanes), whole.shards))
        return keys, (gaps * self._size)[lanes]


class _Turns(NamedTuple):
    """A lane's order of an epoch.

    Attributes:
        starts: int64 [blocks], samples that the lane's whole shards give before each block of turns.
        keys: uint64 [1, FEISTEL_ROUNDS], the order of the whole shards.
        before: Samples of whole shards that come before the rest.
    """

    starts: Int64s
    keys: Uint64s
    before: int


class _Block(NamedTuple):
    """Whole shards that a lane gives one after the other; each int64 [shards].

    Attributes:
        starts: Samples that the lane's whole shards give before each.
        offsets: Offset of the first sample of each.
    """

    starts: Int64s
    offsets: Int64s


class UnequalShards:
    """Shards of any sizes: beside the sizes half a byte a shard and, for each lane in use, 2 KiB and an eighth of a
    byte for each of its shards.

    Args:
        sizes: The sizes of the shards.
        lanes: Number of lanes.
    """

    def __init__(self, sizes: UnequalSizes, lanes: int) -> None:
        self._sizes = sizes
        self._lanes = lanes
        rounds = -(-len(sizes) // lanes)
        self._runs = -(-rounds // _RUN)
        self._shards = (len(sizes) - np.arange(lanes) + lanes - 1) // lanes
        runs = np.empty((lanes, self._runs), np.int64)
        step = max(1, _CHUNK // (lanes * _RUN))
        for first in range(0, self._runs, step):
            last = min(first + step, self._runs)
            own = sizes.sizes(np.arange(first * _RUN * lanes, last * _RUN * lanes))
            runs[:, first:last] = own.reshape(-1, _RUN, lanes).sum(1).T
        # The first sample of each run of shards, lane after lane.
        self._starts = np.zeros(lanes * self._runs + 1, np.int64)
        np.cumsum(runs, out=self._starts[1:])
        self.samples: Int64s = np.diff(self._starts[:: self._runs])
        self._turns: Recent[_Turns] = Recent(lanes)
        self._blocks: Recent[_Block] = Recent(2 * lanes)

    def whole(self, samples: Int64s) -> tuple[Int64s, Int64s]:
        """See :meth:`EqualShards.whole`."""
        first = np.arange(self._lanes) * self._runs
        ends = self._starts[first] + samples
        runs = np.minimum(np.searchsorted(self._starts, ends, side="right") - 1, first + self._runs - 1)
        within = self._shards_of(runs)[1][:, 1:] + self._starts[runs][:, None] <= ends[:, None]
        shards = np.minimum((runs - first) * _RUN + within.sum(1), self._shards)
        return shards, self._offsets(np.arange(self._lanes), shards)

    def offsets(self, seed: int, epoch: int, whole: Whole, lanes: Int64s, turns: Int64s) -> Int64s:
        """See :meth:`EqualShards.offsets`."""
        offsets = np.empty_like(turns)
        by_lane = np.argsort(lanes, kind="stable")
        found, first = np.unique(lanes[by_lane], return_index=True)
        for lane, own in zip(found.tolist(), np.split(by_lane, first[1:]), strict=True):
            order = self._in_turn(seed, epoch, whole, lane)
            turn, rest = turns[own], int(whole.rest[lane])
            is_later = turn >= order.before + rest
            is_whole = is_later | (turn < order.before)
            offsets[own] = whole.samples[lane] + turn - order.before
            own, turn = own[is_whole], (turn - rest * is_later)[is_whole]
            numbers = np.searchsorted(order.starts, turn, side="right") - 1
            for number in np.unique(numbers).tolist():
                inside = numbers == number
                block = self._block(seed, epoch, whole, lane, number)
                row = np.searchsorted(block.starts, turn[inside], side="right") - 1
                offsets[own[inside]] = block.offsets[row] + turn[inside] - block.starts[row]
        return offsets

    def ids(self, lanes: Int64s, offsets: Int64s) -> Int64s:
        """See :meth:`EqualShards.ids`."""
        shards, rows = self._find(lanes, offsets)
        return self._sizes.starts(shards) + rows

    def turns(self, seed: int, epoch: int, whole: Whole, lanes: Int64s, offsets: Int64s) -> Int64s:
        """See :meth:`EqualShards.turns`."""
        turns = np.empty_like(offsets)
        for lane in np.unique(lanes).tolist():
            own = np.flatnonzero(lanes == lane)
            order = self._in_turn(seed, epoch, whole, lane)
            turns[own] = offsets[own] - whole.samples[lane] + order.before
            own = own[offsets[own] < whole.samples[lane]]
            shards, rows = self._find(lanes[own], offsets[own])
            count = np.array([whole.shards[lane]])
            place = permute_each(shards // self._lanes, count, order.keys, np.zeros(len(own), np.intp), inverse=True)
            for number in np.unique(place // _BLOCK).tolist():
                inside = place // _BLOCK == number
                block = self._block(seed, epoch, whole, lane, number)
                turn = block.starts[place[inside] - number * _BLOCK] + rows[inside]
                turns[own[inside]] = np.where(turn < order.before, turn, turn + whole.rest[lane])
        return turns

    def places(self, ids: Int64s) -> tuple[Int64s, Int64s]:
        """See :meth:`EqualShards.places`."""
        shards = self._sizes.shards_of(ids)
        found, where = np.unique(shards, return_inverse=True)
        offsets = self._offsets(found % self._lanes, found // self._lanes)
        return shards % self._lanes, (offsets - self._sizes.starts(found))[where] + ids

    def _in_turn(self, seed: int, epoch: int, whole: Whole, lane: int) -> _Turns:
        """Returns a lane's order of an epoch."""
        return self._turns.get((seed, epoch, lane), lambda: self._drawn(seed, epoch, whole, lane))

    def _drawn(self, seed: int, epoch: int, whole: Whole, lane: int) -> _Turns:
        count = int(whole.shards[lane])
        keys, gaps = _draw(seed, epoch, np.array([lane]), whole.shards[[lane]])
        gap, before = int(gaps[0]), 0
        sums = [np.zeros(1, np.int64)]
        for first in range(0, count, _CHUNK):
            last = min(first + _CHUNK, count)
            sizes = self._sizes.sizes(self._ordered(lane, count, keys, first, last))
            sums.append(np.add.reduceat(sizes, np.arange(0, last - first, _BLOCK)))
            before += int(sizes[: max(0, gap - first)].sum())
        return _Turns(np.cumsum(np.concatenate(sums))[:-1], keys, before)

    def _block(self, seed: int, epoch: int, whole: Whole, lane: int, number: int) -> _Block:
        """Returns a block of a lane's whole shards in an epoch's order, by its number."""

        def make() -> _Block:
            order, count = self._in_turn(seed, epoch, whole, lane), int(whole.shards[lane])
            first = number * _BLOCK
            shards = self._ordered(lane, count, order.keys, first, min(first + _BLOCK, count))
            sizes = self._sizes.sizes(shards)
            offsets = self._offsets(np.full(len(shards), lane), shards // self._lanes)
            return _Block(order.starts[number] + np.cumsum(sizes) - sizes, offsets)

        return self._blocks.get((seed, epoch, lane, number), make)

    def _ordered(self, lane: int, count: int, keys: Uint64s, first: int, last: int) -> Int64s:
        """Returns some of a lane's whole shards in the order of an epoch, by their turns: numbers in the set."""
        places = np.arange(first, last)
        order = permute_each(places, np.array([count]), keys, np.zeros(len(places), np.intp))
        return lane + order * self._lanes

    def _shards_of(self, runs: Int64s) -> tuple[Int64s, Int64s]:
        """Returns the shards of runs, int64 [N, _RUN], and samples of the run before each and in all, [N, _RUN + 1]."""
        lanes = runs // self._runs
        rows = (runs - lanes * self._runs)[:, None] * _RUN + np.arange(_RUN)
        shards = lanes[:, None] + rows * self._lanes
        starts = np.zeros((len(runs), _RUN + 1), np.int64)
        np.cumsum(self._sizes.sizes(shards), axis=1, out=starts[:, 1:])
        return shards, starts

    def _find(self, lanes: Int64s, offsets: Int64s) -> tuple[Int64s, Int64s]:
        """Returns the shards of samples, int64 [N], and their rows there, int64 [N]."""
        places = self._starts[lanes * self._runs] + offsets
        runs = np.unique(np.searchsorted(self._starts, places, side="right") - 1)
        shards, within = self._shards_of(runs)
        starts = (self._starts[runs][:, None] + within[:, :-1]).reshape(-1)
        found = np.searchsorted(starts, places, side="right") - 1
        return shards.reshape(-1)[found], places - starts[found]

    def _offsets(self, lanes: Int64s, shards: Int64s) -> Int64s:
        """Returns the samples of lanes before their shards, by the shards' numbers in the lanes, each int64 [N]."""
        first = lanes * self._runs
        runs = np.minimum(first + shards // _RUN, first + self._runs - 1)
        within = self._shards_of(runs)[1][np.arange(len(runs)), shards - (runs - first) * _RUN]
        offsets: Int64s = self._starts[runs] + within - self._starts[first]
        return offsets


def shards_in_lanes(sizes: CompactSizes, lanes: int) -> EqualShards | UnequalShards:
    """Returns the shards of each lane.

    Args:
        sizes: Number of samples in each shard of the set, one shard or more.
        lanes: Number of lanes.
    """
    if isinstance(sizes, EqualSizes):
        return EqualShards(sizes.samples, sizes.size, lanes)
    return UnequalShards(sizes, lanes)


def _draw(seed: int, epoch: int, lanes: Int64s, shards: Int64s) -> tuple[Uint64s, Int64s]:
    """Draws the order of each lane's whole shards, uint64 [lanes, FEISTEL_ROUNDS], and the number of shards before the
    rest, int64 [lanes]."""
    words = philox(seed, epoch, lanes, Stream.LANE_SHARDS, FEISTEL_ROUNDS // 2 + 1)
    gaps = words[:, -1].astype(np.int64) * (shards + 1) >> np.int64(32)
    return np.ascontiguousarray(words[:, : 2 * FEISTEL_ROUNDS]).view(np.uint64), gaps

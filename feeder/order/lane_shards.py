"""The shards of each lane: lane l of L has shards l, l + L, l + 2 L, ... of a set, in this order.

A sample of a lane is called by its offset in the lane: the number of samples that the lane stores before it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from feeder.order.permutation import FEISTEL_ROUNDS, permute_each
from feeder.order.random import Stream, philox
from feeder.order.recent import Recent
from feeder.order.shard_sizes import UnequalSizes
from feeder.system.arrays import Int64s, Uint64s

__all__ = ["EqualShards", "UnequalShards", "Whole"]


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
        every = np.arange(self._lanes)
        keys, gaps = self._draws.get((seed, epoch), lambda: _draw(seed, epoch, every, whole.shards))
        before = (gaps * self._size)[lanes]
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
        every = np.arange(self._lanes)
        keys, gaps = self._draws.get((seed, epoch), lambda: _draw(seed, epoch, every, whole.shards))
        before = (gaps * self._size)[lanes]
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


class _Turns(NamedTuple):
    """A lane's order of an epoch.

    Attributes:
        shards: int64 [shards], its whole shards in turn, by their numbers in the lane.
        starts: int64 [shards], samples that these give before each.
        before: Samples of whole shards that come before the rest.
    """

    shards: Int64s
    starts: Int64s
    before: int


class UnequalShards:
    """Shards of any sizes: beside the sizes 8 bytes a shard, and 16 for each whole shard of a lane in use.

    Args:
        sizes: The sizes of the shards.
        lanes: Number of lanes.
    """

    def __init__(self, sizes: UnequalSizes, lanes: int) -> None:
        self._sizes = sizes
        self._lanes = lanes
        self._rounds = -(-len(sizes) // lanes)  # shards of the longest lane; others end with empty ones
        self._shards = (len(sizes) - np.arange(lanes) + lanes - 1) // lanes
        self._starts = np.zeros(lanes * self._rounds + 1, np.int64)  # samples before each shard, lane after lane
        padded = np.zeros(lanes * self._rounds, np.int64)
        padded[: len(sizes)] = np.asarray(sizes)
        np.cumsum(padded.reshape(self._rounds, lanes).T, out=self._starts[1:])
        self.samples: Int64s = np.diff(self._starts[:: self._rounds])
        self._turns: Recent[_Turns] = Recent(lanes)

    def whole(self, samples: Int64s) -> tuple[Int64s, Int64s]:
        """See :meth:`EqualShards.whole`."""
        lanes = np.arange(self._lanes)
        first = lanes * self._rounds
        ends = np.searchsorted(self._starts, self._starts[first] + samples, side="right") - 1
        shards = np.minimum(ends - first, self._shards)
        return shards, self._offsets(lanes, shards)

    def offsets(self, seed: int, epoch: int, whole: Whole, lanes: Int64s, turns: Int64s) -> Int64s:
        """See :meth:`EqualShards.offsets`."""
        offsets = np.empty_like(turns)
        for lane in np.unique(lanes).tolist():
            own = np.flatnonzero(lanes == lane)
            order = self._in_turn(seed, epoch, whole, lane)
            turn, rest = turns[own], int(whole.rest[lane])
            is_later = turn >= order.before + rest
            is_whole = is_later | (turn < order.before)
            offsets[own] = whole.samples[lane] + turn - order.before

            turn = (turn - rest * is_later)[is_whole]
            place = np.searchsorted(order.starts, turn, side="right") - 1
            offsets[own[is_whole]] = self._offsets(lane, order.shards[place]) + turn - order.starts[place]
        return offsets

    def ids(self, lanes: Int64s, offsets: Int64s) -> Int64s:
        """See :meth:`EqualShards.ids`."""
        shards, rows = self._find(lanes, offsets)
        return self._sizes.starts(lanes + shards * self._lanes) + rows

    def turns(self, seed: int, epoch: int, whole: Whole, lanes: Int64s, offsets: Int64s) -> Int64s:
        """See :meth:`EqualShards.turns`."""
        turns = np.empty_like(offsets)
        for lane in np.unique(lanes).tolist():
            own = np.flatnonzero(lanes == lane)
            order = self._in_turn(seed, epoch, whole, lane)
            turns[own] = offsets[own] - whole.samples[lane] + order.before

            own = own[offsets[own] < whole.samples[lane]]
            shards, rows = self._find(lanes[own], offsets[own])
            turn = order.starts[np.argsort(order.shards)[shards]] + rows
            turns[own] = np.where(turn < order.before, turn, turn + whole.rest[lane])
        return turns

    def places(self, ids: Int64s) -> tuple[Int64s, Int64s]:
        """See :meth:`EqualShards.places`."""
        shards = self._sizes.shards_of(ids)
        lanes = shards % self._lanes
        return lanes, self._offsets(lanes, shards // self._lanes) + ids - self._sizes.starts(shards)

    def _in_turn(self, seed: int, epoch: int, whole: Whole, lane: int) -> _Turns:
        """Returns a lane's order of an epoch."""
        return self._turns.get((seed, epoch, lane), lambda: self._drawn(seed, epoch, whole, lane))

    def _drawn(self, seed: int, epoch: int, whole: Whole, lane: int) -> _Turns:
        count = whole.shards[[lane]]
        keys, (gap,) = _draw(seed, epoch, np.array([lane]), count)
        places = np.arange(count[0])
        shards = permute_each(places, count, keys, np.zeros_like(places))
        first = lane * self._rounds + shards
        ends = np.cumsum(self._starts[first + 1] - self._starts[first])
        starts = np.append(0, ends)
        return _Turns(shards, starts[:-1], int(starts[gap]))

    def _find(self, lanes: Int64s, offsets: Int64s) -> tuple[Int64s, Int64s]:
        """Returns the shards of samples, by their numbers in the lanes, and their rows there, each int64 [N]."""
        first = lanes * self._rounds
        places = self._starts[first] + offsets
        found = np.searchsorted(self._starts, places, side="right") - 1
        return found - first, places - self._starts[found]

    def _offsets(self, lanes: Int64s | int, shards: Int64s) -> Int64s:
        """Returns the samples of lanes before their shards, by the shards' numbers in the lanes, int64 [N]."""
        first = lanes * self._rounds
        offsets: Int64s = self._starts[first + shards] - self._starts[first]
        return offsets


def _draw(seed: int, epoch: int, lanes: Int64s, shards: Int64s) -> tuple[Uint64s, Int64s]:
    """Draws the order of each lane's whole shards, uint64 [lanes, FEISTEL_ROUNDS], and the number of shards before the
    rest, int64 [lanes]."""
    words = philox(seed, epoch, lanes, Stream.LANE_SHARDS, FEISTEL_ROUNDS // 2 + 1)
    gaps = words[:, -1].astype(np.int64) * (shards + 1) >> np.int64(32)
    return np.ascontiguousarray(words[:, : 2 * FEISTEL_ROUNDS]).view(np.uint64), gaps

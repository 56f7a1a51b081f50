"""The shards of each lane: lane l of L has shards l, l + L, l + 2 L, ... of a set, in this order.

A sample of a lane is called by its offset in the lane: the number of samples that the lane stores before it.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from feeder.order.permutation import FEISTEL_ROUNDS, permute_each
from feeder.order.random import Stream, philox
from feeder.order.recent import Recent
from feeder.order.shard_sizes import EqualSizes, ShardSizes

__all__ = ["EqualShards", "Int64s", "LaneShards", "UnequalShards", "Whole", "shards_in_lanes"]

Int64s = npt.NDArray[np.int64]


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


class LaneShards(Protocol):
    """The shards of each lane.

    Attributes:
        samples: int64 [lanes], samples that each lane stores.
    """

    samples: Int64s

    def whole(self, samples: Int64s) -> tuple[Int64s, Int64s]:
        """Returns the number of whole shards among the first samples of each lane, and their samples.

        Args:
            samples: int64 [lanes], at most what the lane stores.
        """

    def offsets(self, seed: int, epoch: int, whole: Whole, lanes: Int64s, turns: Int64s) -> Int64s:
        """Returns the offsets of samples in their lanes, int64 [N].

        In each epoch a lane's whole shards come in another order, with the rest of the lane between two of them.

        Args:
            seed, epoch: See :func:`feeder.order.random.philox`.
            whole: The whole shards of each lane.
            lanes: int64 [N].
            turns: int64 [N], numbers of samples that the lane gives before each of them in this epoch.
        """

    def ids(self, lanes: Int64s, offsets: Int64s) -> Int64s:
        """Returns the numbers of samples in the set, int64 [N]."""

    def turns(self, seed: int, epoch: int, whole: Whole, lanes: Int64s, offsets: Int64s) -> Int64s:
        """Returns the turns of samples by their offsets: the inverse of :meth:`offsets`."""

    def places(self, ids: Int64s) -> tuple[Int64s, Int64s]:
        """Returns the lanes and offsets of samples, each int64 [N]: the inverse of :meth:`ids`."""


def shards_in_lanes(sizes: ShardSizes, lanes: int) -> LaneShards:
    """Returns the shards of each lane.

    Args:
        sizes: Number of samples in each shard of the set, one shard or more.
        lanes: Number of lanes.
    """
    if isinstance(sizes, EqualSizes):
        return EqualShards(sizes.samples, sizes.size, lanes)
    return UnequalShards(sizes, lanes)


class EqualShards:
    """Shards of one size, the last one of any size up to that; all by arithmetic.

    Args:
        samples: Number of samples in the set.
        size: Number of samples in a shard.
        lanes: Number of lanes.
    """

    def __init__(self, samples: int, size: int, lanes: int) -> None:
        self._size, self._lanes = size, lanes
        full, last = divmod(samples, size)
        numbers = np.arange(lanes)
        self._full = (full - numbers + lanes - 1) // lanes
        self.samples: Int64s = self._full * size + np.where(numbers == full % lanes, last, 0)
        self._draws: Recent[tuple[npt.NDArray[np.uint64], Int64s]] = Recent(2)

    def whole(self, samples: Int64s) -> tuple[Int64s, Int64s]:
        """See :meth:`LaneShards.whole`."""
        shards = np.minimum(samples // self._size, self._full)
        return shards, shards * self._size

    def offsets(self, seed: int, epoch: int, whole: Whole, lanes: Int64s, turns: Int64s) -> Int64s:
        """See :meth:`LaneShards.offsets`."""
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
        """See :meth:`LaneShards.ids`."""
        shards = offsets // self._size
        return (lanes + shards * (self._lanes - 1)) * self._size + offsets

    def turns(self, seed: int, epoch: int, whole: Whole, lanes: Int64s, offsets: Int64s) -> Int64s:
        """See :meth:`LaneShards.turns`."""
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
        """See :meth:`LaneShards.places`."""
        shards = ids // self._size
        return shards % self._lanes, shards // self._lanes * self._size + ids % self._size


class _Turns(NamedTuple):
    """A lane in an epoch's order, its rest among its whole shards; each int64 [whole shards + 1].

    Attributes:
        starts: Samples that the lane gives before each.
        offsets: Offset of the first sample of each.
    """

    starts: Int64s
    offsets: Int64s


class UnequalShards:
    """Shards of any sizes: 16 bytes for each shard of the set and, in each epoch, of the lanes in use.

    Args:
        sizes: int64 [shards], number of samples in each shard.
        lanes: Number of lanes.
    """

    def __init__(self, sizes: Int64s, lanes: int) -> None:
        by_lane = np.argsort(np.arange(len(sizes)) % lanes, kind="stable")
        self._stored = (np.cumsum(sizes) - sizes)[by_lane]
        self._starts = np.zeros(len(sizes) + 1, np.int64)
        np.cumsum(sizes[by_lane], out=self._starts[1:])
        self._shards = (len(sizes) - np.arange(lanes) + lanes - 1) // lanes
        self._first = np.cumsum(self._shards) - self._shards
        self.samples: Int64s = self._starts[self._first + self._shards] - self._starts[self._first]
        self._turns: Recent[_Turns] = Recent(lanes)

    def whole(self, samples: Int64s) -> tuple[Int64s, Int64s]:
        """See :meth:`LaneShards.whole`."""
        start = self._starts[self._first]
        shards = np.searchsorted(self._starts, start + samples, side="right") - 1 - self._first
        shards = np.minimum(shards, self._shards)
        return shards, self._starts[self._first + shards] - start

    def offsets(self, seed: int, epoch: int, whole: Whole, lanes: Int64s, turns: Int64s) -> Int64s:
        """See :meth:`LaneShards.offsets`."""
        offsets = np.empty_like(turns)
        by_lane = np.argsort(lanes, kind="stable")
        found, first = np.unique(lanes[by_lane], return_index=True)
        for lane, own in zip(found.tolist(), np.split(by_lane, first[1:]), strict=True):
            table = self._turns.get((seed, epoch, lane), lambda lane=lane: self._in_turn(seed, epoch, whole, lane))  # type: ignore[misc]
            turn = turns[own]
            row = np.searchsorted(table.starts, turn, side="right") - 1
            offsets[own] = table.offsets[row] + turn - table.starts[row]
        return offsets

    def _in_turn(self, seed: int, epoch: int, whole: Whole, lane: int) -> _Turns:
        count, first = int(whole.shards[lane]), int(self._first[lane])
        keys, gaps = _draw(seed, epoch, np.array([lane]), whole.shards[[lane]])
        order = first + permute_each(np.arange(count), np.array([count]), keys, np.zeros(count, np.intp))
        gap, rest = int(gaps[0]), int(whole.rest[lane])
        sizes = np.insert(self._starts[order + 1] - self._starts[order], gap, rest)
        offsets = np.insert(self._starts[order] - self._starts[first], gap, whole.samples[lane])
        return _Turns(np.cumsum(sizes) - sizes, offsets)

    def ids(self, lanes: Int64s, offsets: Int64s) -> Int64s:
        """See :meth:`LaneShards.ids`."""
        places = self._starts[self._first[lanes]] + offsets
        shards = np.searchsorted(self._starts, places, side="right") - 1
        ids: Int64s = self._stored[shards] + places - self._starts[shards]
        return ids

    def turns(self, seed: int, epoch: int, whole: Whole, lanes: Int64s, offsets: Int64s) -> Int64s:
        """See :meth:`LaneShards.turns`."""
        turns = np.empty_like(offsets)
        for lane in np.unique(lanes).tolist():
            own = np.flatnonzero(lanes == lane)
            table = self._turns.get((seed, epoch, lane), lambda lane=lane: self._in_turn(seed, epoch, whole, lane))  # type: ignore[misc]
            sizes = np.diff(table.starts, append=whole.samples[lane] + whole.rest[lane])
            stored = np.lexsort((sizes, table.offsets))  # an empty shard before its neighbour
            row = stored[np.searchsorted(table.offsets[stored], offsets[own], side="right") - 1]
            turns[own] = table.starts[row] + offsets[own] - table.offsets[row]
        return turns

    def places(self, ids: Int64s) -> tuple[Int64s, Int64s]:
        """See :meth:`LaneShards.places`."""
        lanes = len(self._shards)
        numbers = np.arange(len(self._stored))
        rows = self._first[numbers % lanes] + numbers // lanes
        starts = self._stored[rows]
        shards = np.searchsorted(starts, ids, side="right") - 1
        own = shards % lanes
        return own, self._starts[rows[shards]] - self._starts[self._first[own]] + ids - starts[shards]


def _draw(seed: int, epoch: int, lanes: Int64s, shards: Int64s) -> tuple[npt.NDArray[np.uint64], Int64s]:
    """Draws the order of each lane's whole shards, uint64 [lanes, FEISTEL_ROUNDS], and the number of shards before the
    rest, int64 [lanes]."""
    words = philox(seed, epoch, lanes, Stream.LANE_SHARDS, FEISTEL_ROUNDS // 2 + 1)
    gaps = words[:, -1].astype(np.int64) * (shards + 1) >> np.int64(32)
    return np.ascontiguousarray(words[:, : 2 * FEISTEL_ROUNDS]).view(np.uint64), gaps

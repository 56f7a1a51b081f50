"""An order in lanes: each rank stays within its share of the shards, in every epoch.

Note [Lanes]
    Positions stand in blocks of B, the batch size, and block b belongs to lane b mod L. Where the world size W divides
    L, rank r takes blocks r, r + W, r + 2 W, ..., so it has the lanes whose number is r modulo W, and no others. Lane l
    has shards l, l + L, l + 2 L, ..., so shards that are added later reach all lanes. A lane gives as many samples as
    it has positions. It may store more: these, the end of its last shards, go to lanes that store less, first to lanes
    whose numbers are equal modulo divisors of L, as these belong to the same rank in a smaller job.

    All that depends on the number of samples, the sizes of the shards, L and B, and on no epoch. In each epoch a lane
    gives its shards in another order and shuffles its samples within windows. A batch of one rank is from one window of
    one lane, and the global batch of W ranks from W of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from feeder.errors import ArgumentError
from feeder.order.lane_shards import Whole, shards_in_lanes
from feeder.order.permutation import FEISTEL_ROUNDS, permute_each
from feeder.order.random import Stream, philox
from feeder.order.shard_sizes import CompactSizes, EqualSizes
from feeder.system.arrays import Int64s
from feeder.system.checks import check_int

_SHARDS = 4  # the fewest of a lane: with fewer, epochs hardly differ in their order


@dataclass(frozen=True)
class Lanes:
    """Shuffles so that each rank reads the same few shards in every epoch, about ``1 / world_size`` of them.

    That holds for world sizes that divide ``count`` and batches of ``block`` samples. With any others the order is the
    same, each sample comes once in an epoch, and ranks read from more shards.

    The order takes no memory for shards of one size. For others it keeps about 3 bytes a shard: 13 MiB for 10**10
    samples in shards of 2,000 to 2,800.

    Args:
        count: Number of lanes, 1 to 65,536. A smaller set has the largest divisor of it with which each lane has four
            shards and a window.
        window: Number of samples of a lane that are shuffled together, 1 to 2**40. A rank has ``count / world_size``
            windows in use at a time.
        block: Batch size that the order is made for, 1 to 2**40; None: that of the run's first loader, which goes into
            its states.

    Raises:
        ArgumentError: if a number is outside its range.
    """

    count: int = 64
    window: int = 2048
    block: int | None = None

    def __post_init__(self) -> None:
        for name, most in (("count", 1 << 16), ("window", 1 << 40), ("block", 1 << 40)):
            value = check_int(f"Lanes({name}=...)", getattr(self, name), 1, most, or_none=name == "block")
            object.__setattr__(self, name, value)


class LaneBlocks:
    """Blocks of positions, of which each lane has one in turn.

    Args:
        count: Number of lanes.
        block: Number of consecutive positions that belong to one lane.
    """

    def __init__(self, count: int, block: int) -> None:
        self.count = count
        self.block = block

    def share(self, batch_size: int, rank: int, world_size: int) -> float:
        """Returns the share of the lanes that a rank takes samples from in a whole, long epoch: 0-1."""
        ring, step = self.count * self.block, batch_size * world_size
        period = math.gcd(ring, step)
        if batch_size >= period:
            return 1.0
        starts = rank * batch_size % period + np.arange(0, ring, period)
        # Batches may reach from one lane into the next.
        first, last = starts // self.block, (starts + batch_size - 1) // self.block
        ends = np.zeros(2 * self.count + 1, np.int64)
        np.add.at(ends, first, 1)
        np.add.at(ends, last + 1, -1)
        touched = np.cumsum(ends)[:-1] > 0
        return float((touched[: self.count] | touched[self.count :]).mean())


class LaneOrder(LaneBlocks):
    """The order of a set's epochs in lanes, see Note [Lanes].

    Args:
        samples: Number of samples, 1 or more.
        seed: 0 to 2**64-1.
        lanes: The lanes, with a block.
        sizes: Number of samples in each shard, in stored order. Empty: each run of a window's samples is a shard.
    """

    def __init__(self, samples: int, seed: int, lanes: Lanes, sizes: CompactSizes) -> None:
        if lanes.block is None:
            raise ArgumentError("Lanes need a block here, the batch size: Lanes(block=256)")
        if not len(sizes):
            sizes = EqualSizes(samples, lanes.window)
        self._seed = seed
        self._window = lanes.window
        super().__init__(fewer_lanes(lanes.count, min(len(sizes) // _SHARDS, samples // lanes.window)), lanes.block)
        self._shards = shards_in_lanes(sizes, self.count)
        rounds, left = divmod(samples, self.count * self.block)
        self._gives = rounds * self.block + np.clip(left - np.arange(self.count) * self.block, 0, self.block)
        shards, whole = self._shards.whole(np.minimum(self._gives, self._shards.samples))
        self._whole = Whole(shards, whole, self._gives - whole)
        over = self._shards.samples - self._gives
        # Both rows are as long: what lanes have too much, and what others lack, lane after lane in this order.
        self._row = by_divisors(self.count)
        self._over_ends = np.cumsum(np.maximum(over, 0)[self._row])
        self._lack_starts = np.empty_like(over)
        self._lack_starts[self._row] = np.cumsum(np.maximum(-over, 0)[self._row]) - np.maximum(-over, 0)[self._row]

    def ids(self, epoch: int, positions: Int64s) -> Int64s:
        """Returns the sample ids at positions, int64 [N] in [0, samples)."""
        blocks = positions // self.block
        rounds = blocks // self.count
        lanes = blocks - rounds * self.count
        turns = self._shuffled(epoch, lanes, positions + (rounds - blocks) * self.block)
        offsets = self._shards.offsets(self._seed, epoch, self._whole, lanes, turns)
        missing = offsets - self._shards.samples[lanes]
        lent = np.flatnonzero(missing >= 0)
        if lent.size:
            places = self._lack_starts[lanes[lent]] + missing[lent]
            rank = np.searchsorted(self._over_ends, places, side="right")
            lanes[lent] = self._row[rank]
            # The last of the lane's samples go last.
            offsets[lent] = self._shards.samples[lanes[lent]] - self._over_ends[rank] + places
        return self._shards.ids(lanes, offsets)

    def positions(self, epoch: int, ids: Int64s) -> Int64s:
        """Returns the positions of sample ids, int64 [N] in [0, samples)."""
        lanes, offsets = self._shards.places(ids)
        lent = np.flatnonzero(offsets >= self._gives[lanes])
        if lent.size:
            owners = lanes[lent]
            rank = np.empty_like(self._row)
            rank[self._row] = np.arange(self.count)
            places = offsets[lent] - self._shards.samples[owners] + self._over_ends[rank[owners]]
            to = self._row[np.searchsorted(self._lack_starts[self._row], places, side="right") - 1]
            lanes[lent] = to
            offsets[lent] = self._shards.samples[to] + places - self._lack_starts[to]
        turns = self._shards.turns(self._seed, epoch, self._whole, lanes, offsets)
        turns = self._shuffled(epoch, lanes, turns, inverse=True)
        rounds = turns // self.block
        return turns + (rounds * (self.count - 1) + lanes) * self.block

    def _shuffled(self, epoch: int, lanes: Int64s, turns: Int64s, *, inverse: bool = False) -> Int64s:
        """Shuffles turns, int64 [N], within the windows of their lanes, or puts them back."""
        windows = turns // self._window
        # Most neighbours are in one window; a window that comes again is drawn again.
        names = lanes << np.int64(46) | windows
        first = np.flatnonzero(np.diff(names, prepend=-1))
        starts = windows[first] * self._window
        sizes = np.minimum(self._window, self._gives[lanes[first]] - starts)
        keys = philox(self._seed, epoch, names[first], Stream.LANE_WINDOW, FEISTEL_ROUNDS // 2).view(np.uint64)
        groups = np.repeat(np.arange(first.size), np.diff(first, append=names.size))
        starts = starts[groups]
        return starts + permute_each(turns - starts, sizes, keys, groups, inverse=inverse)


def fewer_lanes(count: int, most: int) -> int:
    """Returns the largest divisor of a number of lanes that is at most another number; 1 at least."""
    return max(d for d in range(1, count + 1) if count % d == 0 and d <= max(1, most))


def by_divisors(count: int) -> npt.NDArray[np.intp]:
    """Returns the lanes in an order in which those that are equal modulo a divisor of their number stand together."""
    divisors, rest, prime = [1], count, 2
    while rest > 1:
        while rest % prime == 0:
            divisors.append(divisors[-1] * prime)
            rest //= prime
        prime += 1
    return np.lexsort([np.arange(count) % d for d in reversed(divisors)])

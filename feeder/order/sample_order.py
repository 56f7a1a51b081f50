"""The order of an epoch's samples, as a pure function of (seed, epoch, position).

Any process can compute any part of it at any time. It does not depend on the number of workers, the world size, or
where a run was resumed. It takes no memory that grows with the samples; where shards differ in size, windows take 16
bytes for each shard of the set, and as many for those of an epoch in use, and lanes about 3.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from feeder.errors import ArgumentError
from feeder.order.lanes import LaneBlocks, LaneOrder, Lanes
from feeder.order.permutation import FEISTEL_ROUNDS, joined, keys_of, permute, permute_each
from feeder.order.random import Stream, numbers_in, philox
from feeder.order.recent import Recent
from feeder.order.shard_sizes import CompactSizes, ShardSizes, compact_sizes
from feeder.system.arrays import Int64s, Uint64s
from feeder.system.checks import check_int

if TYPE_CHECKING:
    from typing_extensions import TypeIs


def substitute(position: int, attempt: int, n: int, seed: int, epoch: int) -> int:
    """Returns the sample that replaces one that can't be read: a pure function of its arguments.

    Args:
        position: The bad sample's position in the epoch.
        attempt: 0 for the first substitute, 1 for the next if that is bad too, and so on; below 65,536.
        n: Number of samples in the dataset.
        seed: 0 to 2**64-1.
        epoch: 0 to 2**32-1.

    Returns:
        A sample id in [0, n).
    """
    words = philox(seed, epoch, [position], Stream.SUBSTITUTE, attempt + 1)[0, -4:]
    return int((int(words[0]) << 32 | int(words[1])) % n)


@dataclass(frozen=True)
class Window:
    """Shuffles within windows: shards in random order, then samples at random inside consecutive windows.

    Reads stay within a few shards at a time, for disks that are slow at random reads.

    Args:
        samples: Number of consecutive samples that are shuffled together, 1 or more.
    """

    samples: int = 8192

    def __post_init__(self) -> None:
        check_int("Window(samples)", self.samples, 1)


Shuffle: TypeAlias = bool | Window | Lanes
FullShuffle: TypeAlias = Literal["full"]


def goes_by_shard(shuffle: object) -> TypeIs[Window | Lanes]:
    """Returns True for a way to shuffle that takes shards of the stored order one after another."""
    return isinstance(shuffle, (Window, Lanes))


class ShardTurns(NamedTuple):
    """Shards in an order of their own.

    Attributes:
        starts: int64 [shards + 1], the first position of each, and the end.
        stored: int64 [shards], the first stored sample of each.
    """

    starts: Int64s
    stored: Int64s

    @classmethod
    def of(cls, sizes: Int64s, shards: Int64s) -> ShardTurns:
        """Returns the turns of shards in this order, by the sizes of all in stored order, int64 [shards] each."""
        return cls(np.append(0, np.cumsum(sizes[shards])), (np.cumsum(sizes) - sizes)[shards])

    def samples(self, positions: Int64s) -> Int64s:
        """Returns the stored samples at positions, int64 [N]."""
        turn = np.searchsorted(self.starts, positions, side="right") - 1
        return self.stored[turn] + positions - self.starts[turn]

    def positions(self, samples: Int64s) -> Int64s:
        """Returns the positions of stored samples, int64 [N]."""
        by_id = np.lexsort((np.diff(self.starts), self.stored))  # an empty shard before its neighbour
        turn = by_id[np.searchsorted(self.stored[by_id], samples, side="right") - 1]
        return self.starts[turn] + samples - self.stored[turn]


def sizes_of(shard_sizes: Sequence[int] | ShardSizes, samples: int) -> CompactSizes:
    """Returns the sizes of shards with so many samples, if they are known.

    Raises:
        ArgumentError: if they have another number of samples.
    """
    sizes = compact_sizes(shard_sizes)
    if len(sizes) and sizes.samples != samples:
        raise ArgumentError(f"shard_sizes add up to {sizes.samples}, expected {samples} samples")
    return sizes


def window_keys(seeds: Uint64s, epochs: Int64s, windows: Int64s) -> Uint64s:
    """Returns the keys of permutations within windows, uint64 [N, FEISTEL_ROUNDS].

    Args:
        seeds, epochs: Those of the order, uint64 and int64 [N].
        windows: int64 [N]; -1 for those of :func:`feeder.order.permutation.permute` itself.
    """
    # The window's number is mixed into the seed, so that each window has its own permutation.
    words = philox(seeds, epochs, np.maximum(windows, 0), Stream.ORDER, FEISTEL_ROUNDS)
    return keys_of(np.where(windows < 0, seeds, joined(words)), epochs)


def within_windows(
    places: Int64s,
    groups: npt.NDArray[np.intp],
    sizes: Int64s,
    window: int,
    keys_of: Callable[[Int64s, Int64s], Uint64s],
    *,
    inverse: bool = False,
) -> Int64s:
    """Shuffles places within the windows of their sections, or puts them back.

    Args:
        places: int64 [N], each in [0, size of its section).
        groups: intp [N], the section of each place.
        sizes: int64 [sections].
        window: Places in a window; the last one of a section may have less.
        keys_of: Returns the keys of windows, by the section and the number of each, int64 [W].
        inverse: True puts them back.

    Returns:
        int64 [N].
    """
    windows = places // window
    starts, most = windows * window, windows.max() + 1
    names, rows = np.unique(groups * most + windows, return_inverse=True)
    own, numbers = np.divmod(names, most)
    lengths = np.minimum(window, sizes[own] - numbers * window)
    return starts + permute_each(places - starts, lengths, keys_of(own, numbers), rows, inverse=inverse)


def in_blocks(shuffle: Shuffle, batch_size: int | None) -> Shuffle:
    """Returns the way to shuffle of a loader with batches of this size, None for single samples."""
    if isinstance(shuffle, Lanes) and shuffle.block is None:
        return dataclasses.replace(shuffle, block=batch_size or 1)
    return shuffle


@dataclass(eq=False)
class Order:
    """The order of a dataset's epochs: (epoch, position) -> sample id, the same on every rank.

    Args:
        samples: Number of samples, 0 or more.
        seed: 0 to 2**64-1.
        shuffle: True for a full permutation, a :class:`Window`, :class:`Lanes` with a block, or False for the stored
            order.
        shard_sizes: Samples in each shard, in stored order, integers [shards]; used by windows and lanes only.
            Empty: one shard.

    Attributes:
        lanes: The lanes; None for any other order, and without samples.
    """

    samples: int
    seed: int = 0
    shuffle: Shuffle = False
    shard_sizes: Sequence[int] | ShardSizes = ()
    lanes: LaneBlocks | None = field(init=False, repr=False)
    _turns: Recent[ShardTurns] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check_int("seed", self.seed, 0, (1 << 64) - 1)
        self.shard_sizes = sizes_of(self.shard_sizes, self.samples)
        self.lanes = self._lanes_by(self.shuffle) if isinstance(self.shuffle, Lanes) and self.samples else None
        self._turns = Recent(2)

    def _lanes_by(self, lanes: Lanes) -> LaneBlocks:
        return LaneOrder(self.samples, self.seed, lanes, compact_sizes(self.shard_sizes))

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("lanes", "_turns")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.__post_init__()

    def with_seed(self, seed: int) -> Order:
        """Returns the order of the same samples by a seed, 0 to 2**64-1."""
        return self if seed == self.seed else dataclasses.replace(self, seed=seed)

    def with_shuffle(self, shuffle: Shuffle) -> Order:
        """Returns the order of the same samples by another way to shuffle."""
        return dataclasses.replace(self, shuffle=shuffle)

    def samples_in(self, epoch: int) -> int:
        """Returns the number of positions of an epoch."""
        return self.samples

    def ids(self, epoch: int, positions: npt.ArrayLike) -> Int64s:
        """Returns the sample ids at the given positions.

        Args:
            epoch: 0 to 2**32-1.
            positions: integers [N] in [0, samples).

        Returns:
            int64 [N].
        """
        places = numbers_in(self.samples, positions, "positions")
        if self.shuffle is False or not places.size:
            return places
        if self.shuffle is True:
            return permute(places, self.samples, self.seed, epoch)
        if isinstance(self.lanes, LaneOrder):
            return self.lanes.ids(epoch, places)
        assert isinstance(self.shuffle, Window)
        places = self._within_windows(epoch, places, self.shuffle.samples)
        if len(self.shard_sizes) < 2:
            return places
        return self._shards_in_turn(epoch).samples(places)

    def placed(self, epoch: int, positions: npt.ArrayLike) -> tuple[Int64s, Int64s]:
        """Returns the sample ids at positions, and the pass of each sample's source in a mixture, else 0: both int64
        [N]."""
        ids = self.ids(epoch, positions)
        return ids, np.zeros_like(ids)

    def positions(self, epoch: int, ids: npt.ArrayLike) -> Int64s:
        """Returns the positions of sample ids: the inverse of :meth:`ids`, in as little memory.

        Args:
            epoch: 0 to 2**32-1.
            ids: integers [N] in [0, samples).

        Returns:
            int64 [N].
        """
        found = numbers_in(self.samples, ids, "sample ids")
        if self.shuffle is False or not found.size:
            return found
        if self.shuffle is True:
            return permute(found, self.samples, self.seed, epoch, inverse=True)
        if isinstance(self.lanes, LaneOrder):
            return self.lanes.positions(epoch, found)
        assert isinstance(self.shuffle, Window)
        if len(self.shard_sizes) >= 2:
            found = self._shards_in_turn(epoch).positions(found)
        return self._within_windows(epoch, found, self.shuffle.samples, inverse=True)

    def _within_windows(self, epoch: int, places: Int64s, window: int, *, inverse: bool = False) -> Int64s:
        """Shuffles places, int64 [N], within their windows, or puts them back."""
        check_int("epoch", epoch, 0, (1 << 32) - 1)

        def keys_of(_: Int64s, windows: Int64s) -> Uint64s:
            return window_keys(np.full(len(windows), self.seed, np.uint64), np.full(len(windows), epoch), windows)

        groups, sizes = np.zeros(len(places), np.intp), np.array([self.samples])
        return within_windows(places, groups, sizes, window, keys_of, inverse=inverse)

    def _shards_in_turn(self, epoch: int) -> ShardTurns:
        return self._turns.get(epoch, lambda: self._new_turns(epoch))

    def _new_turns(self, epoch: int) -> ShardTurns:
        sizes = np.asarray(self.shard_sizes, np.int64)
        return ShardTurns.of(sizes, permute(np.arange(sizes.size), sizes.size, self.seed, epoch))

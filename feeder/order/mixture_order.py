"""The order of a mixture's epochs, as a pure function of (seed, epoch, position); see Note [Mixtures].

The k-th sample of a source is number k mod n of its pass k div n, and a pass has the order of that epoch of a loader of
the source alone, by the seed of the source: a digest of the mixture's seed and the source's name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import numpy.typing as npt

from feeder.order.lanes import Lanes
from feeder.order.mixture_shares import Block, Shares, in_rows, source_seed
from feeder.order.permutation import FEISTEL_ROUNDS, permute_each
from feeder.order.random import numbers_in
from feeder.order.recent import Recent
from feeder.order.sample_order import (
    Order,
    ShardTurns,
    Shuffle,
    Window,
    goes_by_shard,
    sizes_of,
    window_keys,
    within_windows,
)
from feeder.order.shard_sizes import ShardSizes, compact_sizes
from feeder.system.arrays import Bools, Int64s, Uint64s

PASSES = 1 << 32
_KEPT = 64
_ALL = -1  # in place of a lane or a window: all of the source, or of the section


class MixtureOrder(Order):
    """The order of a mixture's epochs: (epoch, position) -> sample id. The ids count through the sources.

    Args:
        shares: The sources.
        seed, shuffle: See :class:`Order`; for lanes see :class:`feeder.order.mixture_lanes.MixtureInLanes`. The sources
            are mixed at random also with ``shuffle=False``, which keeps the stored order of each.
        shards: Samples in each shard of each source, for windows and lanes; empty: one shard each.
    """

    def __init__(
        self,
        shares: Shares,
        seed: int = 0,
        shuffle: Shuffle = False,
        shards: Sequence[Sequence[int] | ShardSizes] = (),
    ) -> None:
        self.shares = shares
        self.shards = shards
        super().__init__(int(shares.sizes.sum()), seed, shuffle)
        self._starts = np.cumsum(shares.sizes) - shares.sizes
        self._seeds = [source_seed(seed, name) for name in shares.names]
        counts = shares.sizes.tolist()
        self._sizes = [*map(sizes_of, shards, counts)] if goes_by_shard(shuffle) else []
        self._window = shuffle.window if isinstance(shuffle, Lanes) else getattr(shuffle, "samples", 1 << 62)
        self._at_once = 0 if isinstance(shuffle, Window) else self._window  # samples of a section without shards
        sections = len(shares.names) * (self.lanes.count + 1 if self.lanes else 1)
        self._keys: Recent[bytes] = Recent(2 * sections + _KEPT)  # keys of two passes or windows
        self._shards: Recent[ShardTurns] = Recent(sections)

    def with_seed(self, seed: int) -> MixtureOrder:
        """See :meth:`Order.with_seed`."""
        return self if seed == self.seed else type(self)(self.shares, seed, self.shuffle, self.shards)

    def with_shuffle(self, shuffle: Shuffle) -> MixtureOrder:
        """See :meth:`Order.with_shuffle`."""
        return type(self)(self.shares, self.seed, shuffle, self.shards)

    def with_shares(self, shares: Shares) -> MixtureOrder:
        """Returns the order of the same sources by other shares."""
        return self if shares is self.shares else type(self)(shares, self.seed, self.shuffle, self.shards)

    def samples_in(self, epoch: int) -> int:
        """See :meth:`Order.samples_in`."""
        return self.shares.samples(epoch)

    def ids(self, epoch: int, positions: npt.ArrayLike) -> Int64s:
        """See :meth:`Order.ids`."""
        return self.placed(epoch, positions)[0]

    def placed(self, epoch: int, positions: npt.ArrayLike) -> tuple[Int64s, Int64s]:
        """Returns the sample ids at positions, and the pass of each sample's source, both int64 [N]."""
        (turn, first), unit = self.shares.turn(epoch), self.shares.unit
        units, within = np.divmod(numbers_in(self.samples_in(epoch), positions, "positions"), unit)
        sources, numbers = self._numbers(turn.block, units + first)
        numbers = numbers * unit + within
        rounds, places = np.divmod(numbers, self.shares.sizes[sources])
        passes = (turn.passes[sources] + rounds) % PASSES
        return self._starts[sources] + self._in_passes(sources, passes, places), passes

    def source_of(self, ids: npt.ArrayLike) -> Int64s:
        """Returns the number of each sample's source, int64 [N]."""
        return np.searchsorted(self._starts, np.asarray(ids), side="right").astype(np.int64) - 1

    def positions(self, epoch: int, ids: npt.ArrayLike) -> Int64s:
        """Returns all positions that an epoch has of some samples: none, one or several of each, int64 [M]."""
        found = numbers_in(self.samples, ids, "sample ids")

        (turn, first), sizes, unit = self.shares.turn(epoch), self.shares.sizes, self.shares.unit
        begin, end = (self._had(epoch, position) for position in (0, self.samples_in(epoch)))
        sources = self.source_of(found)
        begun = begin // sizes
        rounds = (-(-end // sizes) - begun)[sources]  # the passes that the epoch has a part of
        rows, each = in_rows(rounds)
        sources, own = sources[rows], (found - self._starts[sources])[rows]

        each += begun[sources]
        numbers: Int64s = each * sizes[sources]
        numbers += self._in_passes(sources, (turn.passes[sources] + each) % PASSES, own, inverse=True)
        here = (numbers >= begin[sources]) & (numbers < end[sources])
        found = turn.find(sources[here], numbers[here] // unit, first, first + self.samples_in(epoch) // unit)
        return (found - first) * unit + numbers[here] % unit

    def consumed(self, epoch: int, position: int) -> list[tuple[int, int]]:
        """Returns for each source the samples that the run has had of it before a position, and the passes begun."""
        turn, counts = self.shares.turn(epoch)[0], self._had(epoch, position)
        begun = turn.passes - (-counts // self.shares.sizes)
        return [*zip((turn.had * self.shares.unit + counts).tolist(), begun.tolist(), strict=True)]

    def _had(self, epoch: int, position: int) -> Int64s:
        """Returns the samples of each source that the turn has had before a position of an epoch, int64 [S]."""
        (turn, first), unit = self.shares.turn(epoch), self.shares.unit
        return turn.before(first + position // unit) * unit

    @staticmethod
    def _numbers(find: Callable[[int], tuple[int, Block, int]], units: Int64s) -> tuple[Int64s, Int64s]:
        """Returns the source of each unit, and its number among those of the source, by what finds a unit's block."""
        sources, numbers = np.empty_like(units), np.empty_like(units)
        left = np.ones(len(units), bool)
        while left.any():
            places, block, ends = find(int(units[np.argmax(left)]))
            here = left & (units >= places) & (units < ends)
            sources[here] = block.sources[units[here] - places]
            numbers[here] = block.numbers[units[here] - places]
            left &= ~here
        return sources, numbers

    def _in_passes(self, sources: Int64s, passes: Int64s, places: Int64s, *, inverse: bool = False) -> Int64s:
        """Returns the samples at places of passes, int64 [N] each; or their places, if ``inverse``."""
        pairs, groups = np.unique(sources * PASSES + passes, return_inverse=True)
        source, at = np.divmod(pairs, PASSES)
        sections = np.stack([source, np.full_like(source, _ALL), at, np.zeros_like(source), self.shares.sizes[source]])
        return self._ordered(sections, groups, places, inverse=inverse)

    def _ordered(
        self, sections: Int64s, groups: npt.NDArray[np.intp], places: Int64s, *, inverse: bool = False
    ) -> Int64s:
        """Returns the samples at places of sections in passes, counted from a section's first; or their places.

        Args:
            sections: int64 [5, G], source, lane (-1: none), pass, first sample and samples of each.
            groups: intp [N], the section of each place.
            places: int64 [N].
            inverse: True for the places of samples.
        """
        if self.shuffle is False or not len(places):
            return places
        is_split = sections[4] > self._at_once
        if not is_split.any():
            keys = self._keys_of(np.insert(sections[:3], 3, _ALL, axis=0))
            return permute_each(places, sections[4], keys, groups, inverse=inverse)
        if inverse:
            places = self._by_shard(sections, is_split, groups, places, inverse=True)

        def keys_of(own: Int64s, windows: Int64s) -> Uint64s:
            return self._keys_of(np.vstack([sections[:3, own], np.where(is_split[own], windows, _ALL)]))

        places = within_windows(places, groups, sections[4], self._window, keys_of, inverse=inverse)
        return places if inverse else self._by_shard(sections, is_split, groups, places, inverse=False)

    def _by_shard(
        self, sections: Int64s, is_split: Bools, groups: npt.NDArray[np.intp], places: Int64s, *, inverse: bool
    ) -> Int64s:
        """Returns the stored samples at places of those sections whose shards come in turn, or their places."""
        names = [*map(tuple, sections[:, is_split].T.tolist())]
        all_turns = self._shards.get_all(names, self._new_turns_of)
        found: Int64s = places.copy()
        by_group = np.argsort(groups, kind="stable")
        ends = np.cumsum(np.bincount(groups, minlength=len(is_split)))
        for group, turns in zip(np.flatnonzero(is_split).tolist(), all_turns, strict=True):
            rows = by_group[ends[group - 1] if group else 0 : ends[group]]
            found[rows] = turns.positions(places[rows]) if inverse else turns.samples(places[rows])
        return found

    def _new_turns_of(self, sections: Sequence[tuple[int, ...]]) -> Iterable[ShardTurns]:
        """Returns the shards of sections in their turn in a pass."""
        sizes = [self._shards_in(source, lane, start, size) for source, lane, _, start, size in sections]
        counts = np.array([*map(len, sizes)])
        rows, shards = in_rows(counts)
        keys = self._keys_of(np.insert(np.array(sections).T[:3], 3, _ALL, axis=0))
        shards = permute_each(shards, counts, keys, rows)
        return map(ShardTurns.of, sizes, np.split(shards, np.cumsum(counts)[:-1]))

    def _shards_in(self, source: int, lane: int, start: int, size: int) -> Int64s:
        """Returns the samples of each shard of a section, int64 [shards]."""
        sizes = self._sizes[source] if self._sizes else compact_sizes(())
        if not len(sizes):
            return np.array([size])
        first, last = (0, len(sizes) - 1) if lane == _ALL else sizes.shards_of(np.array([start, start + size - 1]))
        ends: Int64s = np.clip(sizes.starts(np.arange(first, last + 2)), start, start + size)
        return ends[1:] - ends[:-1]

    def _keys_of(self, names: Int64s) -> Uint64s:
        """Returns the keys of permutations, uint64 [N, FEISTEL_ROUNDS], by int64 [4, N]: source, lane, pass and window,
        or -1 for a section's only window, and for its shards."""
        rows = self._keys.get_all([*map(tuple, names.T.tolist())], self._new_keys)
        return np.frombuffer(b"".join(rows), np.uint64).reshape(-1, FEISTEL_ROUNDS)

    def _new_keys(self, names: Sequence[tuple[int, ...]]) -> list[bytes]:
        own = [(self._seeds[source], lane) for source, lane, *_ in names]
        seeds = np.array([seed if lane == _ALL else source_seed(seed, str(lane)) for seed, lane in own], np.uint64)
        passes, windows = np.array(names).T[2:]
        return [row.tobytes() for row in window_keys(seeds, passes, windows)]

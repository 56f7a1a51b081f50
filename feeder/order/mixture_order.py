"""The order of a mixture's epochs, as a pure function of (seed, epoch, position); see Note [Mixtures].

The k-th sample of a source is number k mod n of its pass k div n, and a pass has the order of that epoch of a loader of
the source alone, by the seed of the source: a digest of the mixture's seed and the source's name.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial

import numpy as np
import numpy.typing as npt

from feeder.order.mixture_shares import Block, Shares, source_seed
from feeder.order.permutation import FEISTEL_ROUNDS, permute_each
from feeder.order.random import Stream, numbers_in, philox
from feeder.order.recent import Recent
from feeder.order.sample_order import Order, Shuffle
from feeder.order.shard_sizes import ShardSizes
from feeder.system.arrays import Int64s

PASSES = 1 << 32
_KEPT = 64


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
        self._keys: dict[Hashable, bytes] = {}  # of the permutation of each pass
        self._orders: Recent[Order] = Recent(len(shares.names) if self.lanes is None else 8 * self.lanes.count)

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
        return self._starts[sources] + self._ordered(sources, passes, places), passes

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
        rows = np.repeat(np.arange(len(found)), rounds)
        each = np.arange(len(rows)) - (np.cumsum(rounds) - rounds)[rows]
        sources, own = sources[rows], (found - self._starts[sources])[rows]

        each += begun[sources]
        numbers = each * sizes[sources]
        numbers += self._ordered(sources, (turn.passes[sources] + each) % PASSES, own, inverse=True)
        here = (numbers >= begin[sources]) & (numbers < end[sources])
        pairs = zip(sources[here].tolist(), numbers[here].tolist(), strict=True)
        places = [turn.find(source, number // unit) * unit + number % unit for source, number in pairs]
        return np.array(places, np.int64) - first * unit

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

    def _ordered(self, sources: Int64s, passes: Int64s, places: Int64s, *, inverse: bool = False) -> Int64s:
        """Returns the samples at places of passes, int64 [N] each; or their places, if ``inverse``."""
        if self.shuffle is False or not len(places):
            return places
        pairs, groups = np.unique(sources * PASSES + passes, return_inverse=True)
        if self.shuffle is True:
            kept = self._keys
            rows = b"".join([kept.get(pair) or self._pass_keys(pair) for pair in pairs.tolist()])
            keys = np.frombuffer(rows, np.uint64).reshape(-1, FEISTEL_ROUNDS)
            return permute_each(places, self.shares.sizes[pairs // PASSES], keys, groups, inverse=inverse)

        found = np.empty_like(places)
        for group, (source, epoch) in enumerate(divmod(pair, PASSES) for pair in pairs.tolist()):
            order, rows = self._orders.get(source, partial(self._order_of, source)), groups == group
            found[rows] = (order.positions if inverse else order.ids)(epoch, places[rows])
        return found

    def _pass_keys(self, pair: int) -> bytes:
        """Returns the keys of a pass, as :func:`feeder.order.permutation.permute` draws them."""
        source, epoch = divmod(pair, PASSES)
        return self._new_keys(pair, self._seeds[source], epoch)

    def _new_keys(self, pair: Hashable, seed: int, epoch: int) -> bytes:
        """Keeps the keys of a pass, of which each source, or each lane's section of it, has two at a time."""
        found = philox(seed, epoch, np.arange(FEISTEL_ROUNDS), Stream.ORDER).view(np.uint64)[:, 0]
        if len(self._keys) > 2 * len(self._seeds) * (self.lanes.count + 1 if self.lanes else 1) + _KEPT:
            self._keys.clear()
        return self._keys.setdefault(pair, found.tobytes())

    def _order_of(self, source: int) -> Order:
        shards = self.shards[source] if len(self.shards) else ()
        return Order(int(self.shares.sizes[source]), self._seeds[source], self.shuffle, shards)

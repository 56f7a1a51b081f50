"""The order of a mixture's epochs, as a pure function of (seed, epoch, position).

Note [Mixtures]
    The sources are the leaves of a binary tree, whose nodes halve the weight of their sources as nearly as they can. Of
    the first n samples of a node its lighter side has floor(n * share + phase), and the other side the rest; phases in
    [0, 1) are drawn for each epoch. Both grow by steps of one, so no sample is handed out twice and none is left out.
    A side's error is below one, plus its share of the node's: as a side with several sources has at most two thirds,
    each source is within three samples of its share, and mostly within two. (Rounding the shares of each prefix by
    themselves is not monotone: it hands samples out twice. Equal steps of time for each source are, but then a heavy
    source among many light ones is off by the root of their number.)

    That gives the counts at the borders of blocks of 4,096 samples. A permutation of the block says where each source
    stands, which gives its samples in its own order. Where each sample comes once, an epoch has a part of its own until
    the next source has given all it has: counts at these ends are rounded, and each part is an epoch in little.

    The counts follow from sizes and weights alone, so all ranks know an epoch's length before there is a seed. The k-th
    sample of a source is number k mod n of its pass k div n, and a pass has the order of that epoch of a loader of the
    source alone, by the seed of the source: a digest of the mixture's seed and the source's name.
"""

from __future__ import annotations

import bisect
import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from feeder.errors import ArgumentError
from feeder.order.permutation import FEISTEL_ROUNDS, permute_each
from feeder.order.random import Stream, philox, uniform
from feeder.order.recent import Recent
from feeder.order.sample_order import Order, Shuffle, Window
from feeder.order.shard_sizes import ShardSizes

__all__ = ["BLOCK", "MixtureOrder", "Shares", "source_seed"]

Int64s = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

BLOCK = 4096
_PASSES = 1 << 32
_KEPT = 64
_TINY = 1e-300
_MOST = 1 << 50  # float64 counts them, and the times between them
_STOPS = ("first_exhausted", "all_exhausted", "all_exhausted_without_replacement")


@dataclass(frozen=True, eq=False)
class Shares:
    """The sources of a mixture, and the number of samples that an epoch takes of each.

    Attributes:
        names: Names of the S sources, sorted.
        sizes: int64 [S], samples of each.
        weights: float64 [S], the shares of samples; they add up to 1.
        takes: The stop rule, "repeats", or the samples of an epoch, of which sources go on in the next.
        counts: int64 [S], samples that an epoch takes of each; empty where that depends on the epoch.
    """

    names: tuple[str, ...]
    sizes: Int64s
    weights: Floats
    takes: str | int
    counts: Int64s

    @classmethod
    def of(
        cls,
        sizes: Mapping[str, int],
        weights: Mapping[str, float] | None = None,
        repeats: Mapping[str, int] | None = None,
        stop: str | None = None,
        samples: int | None = None,
    ) -> Shares:
        """Returns the shares by the arguments of :class:`feeder.Mixture`.

        Raises:
            ArgumentError: naming the argument, and the source.
        """
        names = tuple(sorted(sizes))
        if not names:
            raise ArgumentError("a Mixture needs one or more sources: {name: dataset}")
        if empty := [name for name in names if not sizes[name]]:
            raise ArgumentError(f"source {empty[0]!r} has no samples: leave it out of the Mixture")
        if [stop, samples, repeats].count(None) < 2 or (weights is not None and repeats is not None):
            raise ArgumentError("give a Mixture one of stop=, samples= and repeats=, and repeats= in place of weights=")

        n = np.array([sizes[name] for name in names], np.int64)
        w = n / n.sum() if weights is None else _numbers(names, weights, "weights")
        if repeats is not None:
            times = _numbers(names, dict.fromkeys(names, 1) | dict(repeats), "repeats")
            if (times != np.floor(times)).any():
                raise ArgumentError(f"repeats must be whole numbers of passes, got {dict(repeats)!r}")
            counts = _whole(n * times)
            return cls(names, n, counts / counts.sum(), "repeats", counts)
        if samples is not None:
            if type(samples) is not int or samples < 1:
                raise ArgumentError(f"samples must be an integer of 1 or more, got {samples!r}")
            return cls(names, n, w, samples, n[:0])

        stop = _STOPS[0] if stop is None else stop
        if stop not in _STOPS:
            raise ArgumentError(f"stop must be one of {', '.join(map(repr, _STOPS))}, got {stop!r}")
        if stop == _STOPS[2]:
            return cls(names, n, w, stop, n)
        last = int(np.argmin(n / w) if stop == _STOPS[0] else np.argmax(n / w))  # the source that ends the epoch
        counts = _whole(n[last] * (w / w[last]))
        counts = np.clip(counts, 1, n) if stop == _STOPS[0] else np.maximum(counts, n)
        return cls(names, n, w, stop, counts)

    def __post_init__(self) -> None:
        if self.samples > _MOST or self.sizes.sum() > _MOST:
            raise ArgumentError(f"an epoch of a Mixture must have at most 2**50 samples, got {self.samples:,}")

    @property
    def samples(self) -> int:
        """Samples of an epoch."""
        return self.takes if isinstance(self.takes, int) else int(self.counts.sum())

    def identity(self) -> dict[str, Any]:
        """Returns what states and ranks have in common, as JSON takes it."""
        numbers = map(list, zip(self.sizes.tolist(), self.weights.tolist(), strict=True))
        return {"takes": self.takes, "sources": dict(zip(self.names, numbers, strict=True))}


def _whole(counts: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """Returns counts of samples, rounded.

    Raises:
        ArgumentError: for an epoch of too many.
    """
    if not counts.sum() <= _MOST:
        raise ArgumentError(
            f"an epoch of a Mixture must have at most 2**50 samples, got about {counts.sum():.3g}: give weights that "
            "differ less, or samples="
        )
    return np.floor(counts + 0.5).astype(np.int64)


class _Turn(NamedTuple):
    """An epoch of a mixture: int64 [S] the first pass of each source, the samples of it that earlier epochs took, and
    the samples of this one; float64 [S] the phases of the tree's nodes."""

    passes: Int64s
    taken: Int64s
    counts: Int64s
    phases: Floats


class _Block(NamedTuple):
    """The places of a block: int64 [N] the source of each, the number of its sample among those of the epoch, and the
    places source after source; int64 [S] what leads from a number of each source to the latter."""

    sources: Int64s
    numbers: Int64s
    by_source: npt.NDArray[np.intp]
    starts: Int64s


class MixtureOrder(Order):
    """The order of a mixture's epochs: (epoch, position) -> sample id. The ids count through the sources.

    Args:
        shares: The sources.
        seed, shuffle: See :class:`Order`; no lanes. The sources are mixed at random also with ``shuffle=False``, which
            keeps the stored order of each.
        shards: Samples in each shard of each source, for windows; empty: one shard each.
    """

    shares: Shares
    shards: Sequence[Sequence[int] | ShardSizes]
    _starts: Int64s
    _seeds: list[int]
    _ends: Floats  # times at which sources have given all they have, where each sample comes once
    _totals: Int64s  # samples of all before each
    _pace: Order  # permutes positions within blocks
    _epochs: Recent[_Turn]
    _borders: Recent[Int64s]
    _blocks: Recent[_Block]
    _keys: dict[int, bytes]  # of the permutation of each pass
    _orders: Recent[Order]

    def __init__(
        self,
        shares: Shares,
        seed: int = 0,
        shuffle: Shuffle = False,
        shards: Sequence[Sequence[int] | ShardSizes] = (),
    ) -> None:
        super().__init__(shares.samples, seed, shuffle)
        made = {
            "shares": shares,
            "shards": shards,
            "_starts": np.cumsum(shares.sizes) - shares.sizes,
            "_seeds": [source_seed(seed, name) for name in shares.names],
            "_ends": np.append(0.0, np.unique(shares.sizes / shares.weights))[
                : None if shares.takes == _STOPS[2] else 0
            ],
            "_pace": Order(self.samples, seed, Window(BLOCK)),
            "_epochs": Recent(2),
            "_borders": Recent(8),
            "_blocks": Recent(8),
            "_keys": {},
            "_orders": Recent(len(shares.names)),
        }
        for name, value in made.items():
            object.__setattr__(self, name, value)
        object.__setattr__(self, "_totals", np.array([self._until(end).sum() for end in self._ends[1:]]))

    def with_seed(self, seed: int) -> MixtureOrder:
        """See :meth:`Order.with_seed`."""
        return self if seed == self.seed else MixtureOrder(self.shares, seed, self.shuffle, self.shards)

    def ids(self, epoch: int, positions: npt.ArrayLike) -> Int64s:
        """See :meth:`Order.ids`."""
        return self.placed(epoch, positions)[0]

    def placed(self, epoch: int, positions: npt.ArrayLike) -> tuple[Int64s, Int64s]:
        """Returns the sample ids at positions, and the pass of each sample's source, both int64 [N]."""
        turn = self._turn(epoch)
        sources, numbers = self._numbers(epoch, positions)
        rounds, places = np.divmod(turn.taken[sources] + numbers, self.shares.sizes[sources])
        passes = (turn.passes[sources] + rounds) % _PASSES
        return self._starts[sources] + self._ordered(sources, passes, places), passes

    def source_of(self, ids: npt.ArrayLike) -> Int64s:
        """Returns the number of each sample's source, int64 [N]."""
        return np.searchsorted(self._starts, np.asarray(ids), side="right").astype(np.int64) - 1

    def positions(self, epoch: int, ids: npt.ArrayLike) -> Int64s:
        """Returns all positions that an epoch has of some samples: none, one or several of each, int64 [M]."""
        found = np.array(ids, dtype=np.int64, ndmin=1)
        total = int(self.shares.sizes.sum())
        if found.size and (found.min() < 0 or found.max() >= total):
            raise ArgumentError(f"sample ids must be in [0, {total}), got {found.min()} to {found.max()}")

        turn, sizes = self._turn(epoch), self.shares.sizes
        sources = self.source_of(found)
        rounds = -(-(turn.taken + turn.counts) // sizes)  # the passes that the epoch has a part of
        rows = np.repeat(np.arange(len(found)), rounds[sources])
        first = np.cumsum(rounds[sources]) - rounds[sources]
        sources, own, rounds = sources[rows], (found - self._starts[sources])[rows], np.arange(len(rows)) - first[rows]

        places = self._ordered(sources, (turn.passes[sources] + rounds) % _PASSES, own, inverse=True)
        numbers = rounds * sizes[sources] + places - turn.taken[sources]
        here = (numbers >= 0) & (numbers < turn.counts[sources])
        return self._positions(epoch, sources[here], numbers[here])

    def consumed(self, epoch: int, position: int) -> list[tuple[int, int]]:
        """Returns for each source the samples that the run has had of it before a position, and the passes begun."""
        turn, block = self._turn(epoch), position // BLOCK
        counts = self._border(epoch, block)
        if rest := min(position, self.samples) - block * BLOCK:
            counts = counts + np.bincount(self._block(epoch, block).sources[:rest], minlength=len(counts))
        begun = turn.passes - (-(turn.taken + counts) // self.shares.sizes)
        goes_on = isinstance(self.shares.takes, int)
        before = turn.passes * self.shares.sizes + turn.taken if goes_on else epoch * self.shares.counts
        return [*zip((before + counts).tolist(), begun.tolist(), strict=True)]

    def _numbers(self, epoch: int, positions: npt.ArrayLike) -> tuple[Int64s, Int64s]:
        """Returns the source at each position, and the sample's number among those that the epoch has of it."""
        found = np.array(positions, dtype=np.int64, ndmin=1)
        if found.size and (found.min() < 0 or found.max() >= self.samples):
            raise ArgumentError(f"positions must be in [0, {self.samples}), got {found.min()} to {found.max()}")
        sources, numbers = np.empty_like(found), np.empty_like(found)
        blocks = found // BLOCK
        for number in np.unique(blocks).tolist():
            here = blocks == number
            block, places = self._block(epoch, number), found[here] - number * BLOCK
            sources[here] = block.sources[places]
            numbers[here] = block.numbers[places]
        return sources, numbers

    def _positions(self, epoch: int, sources: Int64s, numbers: Int64s) -> Int64s:
        """Undoes :meth:`_numbers`."""
        found = []
        for source, number in zip(sources.tolist(), numbers.tolist(), strict=True):
            blocks = range(-(-self.samples // BLOCK))
            at = bisect.bisect_right(blocks, number, key=lambda block: self._border(epoch, block)[source]) - 1
            block = self._block(epoch, at)
            found.append(at * BLOCK + int(block.by_source[block.starts[source] + number]))
        return np.array(found, np.int64)

    def _block(self, epoch: int, number: int) -> _Block:
        return self._blocks.get((epoch, number), lambda: self._new_block(epoch, number))

    def _new_block(self, epoch: int, number: int) -> _Block:
        before = self._border(epoch, number)
        counts = self._border(epoch, number + 1) - before
        places = np.arange(int(counts.sum()))
        slots = self._pace.ids(epoch, number * BLOCK + places) - number * BLOCK
        sources = np.repeat(np.arange(len(counts)), counts)[slots]

        by_source = np.argsort(sources, kind="stable")  # in the source's own order
        starts = np.cumsum(counts) - counts - before
        numbers = np.empty_like(places)
        numbers[by_source] = places - starts[sources[by_source]]
        return _Block(sources, numbers, by_source, starts)

    def _border(self, epoch: int, block: int) -> Int64s:
        """Returns the samples of each source before a block, int64 [S]."""
        return self._borders.get((epoch, block), lambda: self._new_border(epoch, min(block * BLOCK, self.samples)))

    def _new_border(self, epoch: int, total: int) -> Int64s:
        turn = self._turn(epoch)
        if not len(self._ends):
            return _first(total, turn.counts, turn.counts, turn.phases)
        part = int(np.searchsorted(self._totals, total, side="right"))
        before, after = (self._until(self._ends[at]) for at in (part, min(part + 1, len(self._totals))))
        return before + _first(total - int(before.sum()), after - before, after - before, turn.phases)

    def _until(self, time: float) -> Int64s:
        """Returns the samples of each source until one of them has given all it has, where each comes once."""
        return np.minimum(np.floor(time * self.shares.weights + 0.5).astype(np.int64), self.shares.sizes)

    def _turn(self, epoch: int) -> _Turn:
        return self._epochs.get(epoch, lambda: self._new_turn(epoch))

    def _new_turn(self, epoch: int) -> _Turn:
        shares, sizes, nodes = self.shares, self.shares.sizes, np.arange(len(self.shares.sizes))
        phases = uniform(self.seed, epoch, nodes, Stream.MIXTURE, 1)[:, 0]
        if not isinstance(shares.takes, int):
            return _Turn(epoch * -(-shares.counts // sizes), np.zeros_like(sizes), shares.counts, phases)

        total = epoch * shares.takes
        if total + shares.takes > _MOST:
            raise ArgumentError(f"epoch {epoch} of {shares.takes:,} samples is past the 2**50 of a Mixture's run")
        steady = uniform(self.seed, 0, nodes, Stream.MIXTURE_RUN, 1)[:, 0]
        most = np.full(len(sizes), float(_MOST))
        before, after = (_first(end, shares.weights, most, steady) for end in (total, total + shares.takes))
        return _Turn(before // sizes, before % sizes, after - before, phases)

    def _ordered(self, sources: Int64s, passes: Int64s, places: Int64s, *, inverse: bool = False) -> Int64s:
        """Returns the samples at places of passes, int64 [N] each; or their places, if ``inverse``."""
        if self.shuffle is False or not len(places):
            return places
        pairs, groups = np.unique(sources * _PASSES + passes, return_inverse=True)
        if self.shuffle is True:
            kept = self._keys
            rows = b"".join([kept.get(pair) or self._pass_keys(pair) for pair in pairs.tolist()])
            keys = np.frombuffer(rows, np.uint64).reshape(-1, FEISTEL_ROUNDS)
            return permute_each(places, self.shares.sizes[pairs // _PASSES], keys, groups, inverse=inverse)

        found = np.empty_like(places)
        for group, (source, epoch) in enumerate(divmod(pair, _PASSES) for pair in pairs.tolist()):
            order, rows = self._orders.get(source, partial(self._order_of, source)), groups == group
            found[rows] = (order.positions if inverse else order.ids)(epoch, places[rows])
        return found

    def _pass_keys(self, pair: int) -> bytes:
        """Returns the keys of a pass, as :func:`feeder.order.permutation.permute` draws them."""
        source, epoch = divmod(pair, _PASSES)
        found = philox(self._seeds[source], epoch, np.arange(FEISTEL_ROUNDS), Stream.ORDER).view(np.uint64)[:, 0]
        if len(self._keys) > 2 * len(self._seeds) + _KEPT:
            self._keys.clear()
        return self._keys.setdefault(pair, found.tobytes())

    def _order_of(self, source: int) -> Order:
        shards = self.shards[source] if len(self.shards) else ()
        return Order(int(self.shares.sizes[source]), self._seeds[source], self.shuffle, shards)


def source_seed(seed: int, name: str) -> int:
    """Returns the seed of a source's order and augmentation, 0 to 2**64-1."""
    return int.from_bytes(hashlib.blake2b(f"{seed} {name}".encode(), digest_size=8).digest(), "little")


def _first(total: int, weights: npt.NDArray[Any], most: npt.NDArray[Any], phases: Floats) -> Int64s:
    """Returns the samples of each source among the first of an epoch; see Note [Mixtures].

    Args:
        total: Number of samples.
        weights: [S], 0 or more.
        most: [S], the samples that there are of each source.
        phases: float64 [S], those of the nodes, by their second side's first source.

    Returns:
        int64 [S].
    """
    by_weight = np.argsort(-weights, kind="stable")
    ends, limits = (np.append(0.0, np.cumsum(each[by_weight])) for each in (weights, most))
    found = np.empty(len(weights), np.int64)
    starts, stops, totals = np.array([0]), np.array([len(weights)]), np.array([total])

    while len(starts):
        is_leaf = stops - starts == 1
        found[by_weight[starts[is_leaf]]] = totals[is_leaf]
        starts, stops, totals = (each[~is_leaf] for each in (starts, stops, totals))

        half = (ends[starts] + ends[stops]) / 2
        after = np.clip(np.searchsorted(ends, half), starts + 1, stops - 1)
        before = np.maximum(after - 1, starts + 1)
        middle = np.where(half - ends[before] <= ends[after] - half, before, after)

        one, other = ends[middle] - ends[starts], ends[stops] - ends[middle]
        lighter = np.floor(totals * (np.minimum(one, other) / np.maximum(one + other, _TINY)) + phases[middle])
        ones = np.where(one <= other, lighter, totals - lighter)
        ones = np.clip(ones, totals - (limits[stops] - limits[middle]), limits[middle] - limits[starts]).astype(
            np.int64
        )
        totals = np.concatenate([ones, totals - ones])
        starts, stops = np.concatenate([starts, middle]), np.concatenate([middle, stops])
    return found


def _numbers(names: Sequence[str], given: Mapping[str, float], what: str) -> Floats:
    """Returns a number above 0 for each source; weights add up to 1."""
    if not isinstance(given, Mapping) or set(given) != set(names):
        known = set(given) if isinstance(given, Mapping) else set()
        wrong = sorted(known.symmetric_difference(names), key=str)
        raise ArgumentError(f"{what} must have a number for each source of the Mixture, by name; check {wrong[0]!r}")
    try:
        found = np.array([float(given[name]) for name in names])
    except (TypeError, ValueError):
        found = np.full(len(names), math.nan)
    if not (np.isfinite(found) & (found > 0)).all():
        raise ArgumentError(f"{what} must be finite numbers above 0, got {dict(given)!r:.120}")
    return found if what == "repeats" else found / math.fsum(found)  # the same on every machine

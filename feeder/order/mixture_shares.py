"""The source of each sample of a mixture, from sizes and weights alone, as a pure function of (epoch, position).

Note [Mixtures]
    The sources are the leaves of a binary tree, whose nodes halve the weight of their sources as nearly as they can. Of
    the first n samples of a node its lighter side has floor(n * share + phase), and the other side the rest; phases in
    [0, 1) are drawn. Both grow by steps of one, so no sample is handed out twice and none is left out. A side's error
    is below one, plus its share of the node's: as a side with several sources has at most two thirds, each source is
    within three samples of its share, and mostly within two. (Rounding the shares of each prefix by themselves is not
    monotone: it hands samples out twice. Equal steps of time for each source are, but then a heavy source among many
    light ones is off by the root of their number.)

    That gives the counts at the borders of blocks of 4,096 samples, and at the end of each epoch. A permutation of the
    block says where each source stands, which gives its samples in its own order. Where each sample comes once, a
    stretch has a part of its own until the next source has given all it has: counts at these ends are rounded, and each
    part is an epoch in little.

    A stretch goes from one change of the weights to the next. It is planned as if no change
    followed, so a change leaves all samples before it as they were; what sources have left there decides about the rest
    of the epoch. Phases and permutations are drawn without the run's seed: so the lengths of all epochs follow from
    sizes and weights, and ranks know them before there is a seed, although a change may come at any sample. Epochs
    without a change in them are equal, so the epoch of a sample is found by one division for each change.
"""

from __future__ import annotations

import bisect
import dataclasses
import functools
import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from feeder.errors import ArgumentError
from feeder.order.permutation import joined, keys_of, permute_each
from feeder.order.random import Stream, philox, uniform
from feeder.order.recent import Recent
from feeder.system.arrays import AnyArray, Float64s, Int64s
from feeder.system.checks import check_int, check_one_of

BLOCK = 4096
_AT_ONCE = 32  # blocks that are drawn at a time
_EPOCHS = 1 << 32
_TINY = 1e-300
_MOST = 1 << 50  # float64 counts them, and the times between them
_STOPS = ("first_exhausted", "all_exhausted", "all_exhausted_without_replacement")


class Block(NamedTuple):
    """The places of a block: the source of each, and the number of its sample among those of the turn, int64 [N]."""

    sources: Int64s
    numbers: Int64s


class Stretch:
    """The samples from a change of the weights on, as if no other followed.

    Args:
        number: The turn's number, by which is drawn.
        start: Position in the turn.
        had: int64 [S], samples of each source that the turn has had before.
        counts: [S], samples of each, or weights in a run that has no end.
        times: float64 [S], the pace where each sample comes once, else None.
        length: Samples in all.
        period: Samples of an epoch, at whose end a block ends.

    Attributes:
        starts: Positions from which on it mixes alike: the first, and those at which a source has given all it has.
    """

    def __init__(
        self,
        number: int,
        start: int,
        had: Int64s,
        counts: AnyArray,
        times: Float64s | None,
        length: int,
        period: int,
    ) -> None:
        self.start = start
        self.had = had
        self.end = start + length
        self._number = number
        self._counts = counts
        self._most = counts if counts.dtype == np.int64 else np.full(len(counts), float(_MOST))
        self._weights = times
        self._times = np.zeros(0)
        if times is not None:
            paced = counts > 0
            self._times = np.append(0.0, np.unique(counts[paced] / times[paced]))
        self._totals = np.array([self._until(time).sum() for time in self._times[1:]], np.int64)
        self.starts = [start, *(start + self._totals[:-1]).tolist()]

        seed = source_seed(0, str(start)) if start else 0
        self._phases = uniform(seed, number, np.arange(len(counts)), Stream.MIXTURE, 1)[:, 0]
        self._period = period
        self._in_period = -(-period // BLOCK)
        self._trees: Recent[_Tree] = Recent(8)  # by the part of an epoch in which all sources go on
        self._blocks: Recent[Block] = Recent(8)

    def keep(self, blocks: int) -> None:
        """Keeps so many blocks that were used last."""
        self._blocks = Recent(blocks)

    def block(self, position: int) -> tuple[int, Block, int]:
        """Returns the block that has a position of the turn, and the first and the end of its positions."""
        begin, end = self._begins(self._at(np.array([position])) + np.arange(2)).tolist()
        return begin, self._blocks.get(begin, lambda: self._new_block(begin, end)), end

    def before(self, positions: Int64s) -> Int64s:
        """Returns the samples of each source that the turn has had before positions of it, int64 [N, S]."""
        if len(positions) > _AT_ONCE:
            return np.concatenate([*map(self.before, np.split(positions, range(_AT_ONCE, len(positions), _AT_ONCE)))])
        begins, ends = (self._begins(self._at(positions) + more) for more in (0, 1))
        had, counts = self._counted(begins, ends)
        rests = np.minimum(positions, self.end) - begins
        rows, places = in_rows(rests)
        slots = self._permuted(begins, ends, rows, places)
        borders = np.cumsum(counts, axis=1) + np.arange(len(rests))[:, None] * BLOCK
        cells = np.searchsorted(borders.ravel(), slots + rows * BLOCK, side="right")
        return self.had + had + np.bincount(cells, minlength=had.size).reshape(had.shape)

    def find(self, sources: Int64s, numbers: Int64s, low: Int64s, high: Int64s) -> Int64s:
        """Returns the positions in the turn of samples by their sources and numbers in the turn, int64 [N].

        Args:
            sources, numbers: int64 [N] each.
            low, high: int64 [N] each, positions in the turn between which each is.
        """
        if len(sources) > _AT_ONCE:
            pieces = np.split(np.stack([sources, numbers, low, high]), range(_AT_ONCE, len(sources), _AT_ONCE), axis=1)
            return np.concatenate([self.find(*piece) for piece in pieces])
        own, all_rows = numbers - self.had[sources], np.arange(len(sources))
        low, high = self._at(low), self._at(high) + 1
        while (high - low > 1).any():
            middle = (low + high) // 2
            is_before = self._first(self._begins(middle) - self.start)[all_rows, sources] <= own
            low, high = np.where(is_before, middle, low), np.where(is_before, high, middle)

        begins, ends = self._begins(low), self._begins(low + 1)
        had, counts = self._counted(begins, ends)
        sizes = counts[all_rows, sources]
        rows, slots = in_rows(sizes)
        slots += (np.cumsum(counts, axis=1) - counts)[rows, sources[rows]]
        places: Int64s = np.sort(self._permuted(begins, ends, rows, slots, inverse=True) + rows * BLOCK) % BLOCK
        return begins + places[np.cumsum(sizes) - sizes + own - had[all_rows, sources]]

    def _at(self, positions: Int64s) -> Int64s:
        """Returns the numbers of the blocks that have positions, int64 [N]."""
        periods = positions // self._period
        return periods * self._in_period + (positions - periods * self._period) // BLOCK

    def _begins(self, blocks: Int64s) -> Int64s:
        """Returns the first positions of blocks, int64 [N]."""
        periods, rests = np.divmod(blocks, self._in_period)
        found: Int64s = np.minimum(np.maximum(periods * self._period + rests * BLOCK, self.start), self.end)
        return found

    def _counted(self, begins: Int64s, ends: Int64s) -> tuple[Int64s, Int64s]:
        """Returns the samples of each source before and in blocks, int64 [N, S]."""
        before, after = np.split(self._first(np.concatenate([begins, ends]) - self.start), 2)
        return before, after - before

    def _permuted(self, begins: Int64s, ends: Int64s, rows: Int64s, places: Int64s, *, inverse: bool = False) -> Int64s:
        """Returns the slots of places in blocks, int64 [N], or places of slots; those of a source stand together."""
        seeds = joined(philox(0, self._number, begins, Stream.MIXTURE_RUN)[:, :2])
        keys = keys_of(seeds, np.full(len(begins), self._number))
        return permute_each(places, ends - begins, keys, rows, inverse=inverse)

    def _new_block(self, begin: int, end: int) -> Block:
        begins, ends, places = np.array([begin]), np.array([end]), np.arange(end - begin)
        before, counts = (each[0] for each in self._counted(begins, ends))
        slots = self._permuted(begins, ends, np.zeros_like(places), places)
        sources = np.repeat(np.arange(len(counts)), counts)[slots]

        by_source = np.argsort(sources, kind="stable")  # in the source's own order
        starts = np.cumsum(counts) - counts - before - self.had
        numbers = np.empty_like(places)
        numbers[by_source] = places - starts[sources[by_source]]
        return Block(sources, numbers)

    def _first(self, totals: Int64s) -> Int64s:
        """Returns the samples of each source among the first of the stretch, int64 [N, S]."""
        if self._weights is None:
            return self._trees.get(0, lambda: _Tree(self._counts, self._most, self._phases)).first(totals)
        found = np.empty((len(totals), len(self._counts)), np.int64)
        parts = np.searchsorted(self._totals, totals, side="right")
        for part in np.unique(parts).tolist():
            before, after = (self._until(self._times[at]) for at in (part, min(part + 1, len(self._totals))))
            tree = self._trees.get(part, partial(_Tree, after - before, after - before, self._phases))
            found[parts == part] = before + tree.first(totals[parts == part] - before.sum())
        return found

    def _until(self, time: float) -> Int64s:
        """Returns the samples of each source until one of them has given all it has, where each comes once."""
        assert self._weights is not None
        return np.minimum(np.floor(time * self._weights + 0.5).astype(np.int64), self._counts)


@dataclass(frozen=True, eq=False)
class Turn:
    """An epoch, or with a number of samples an epoch the whole run; in units of :class:`Shares`.

    Attributes:
        start: The run's samples before.
        passes: int64 [S], the first pass of each source.
        had: int64 [S], samples of each before.
        stretches: Its stretches.
        end: Its samples.
        counts: int64 [S], samples of each; of a run those before its last change.
    """

    start: int
    passes: Int64s
    had: Int64s
    stretches: list[Stretch]
    end: int
    counts: Int64s

    def before(self, position: int) -> Int64s:
        """Returns the samples of each source before a position, int64 [S]."""
        return self.stretches[self._at(position)].before(np.array([position])).reshape(-1)

    def block(self, position: int) -> tuple[int, Block, int]:
        """Returns the block that has a position, and the first and the end of the positions that it has."""
        at = self._at(position)
        first, block, end = self.stretches[at].block(position)
        return first, block, min([end, *(each.start for each in self.stretches[at + 1 : at + 2])])

    def _at(self, position: int) -> int:
        return bisect.bisect_right(self.stretches, position, key=lambda each: each.start) - 1

    def find(self, sources: Int64s, numbers: Int64s, low: int, high: int) -> Int64s:
        """Returns the positions of samples that are between two, by their sources and numbers, see :class:`Stretch`."""
        at = sum(each.had[sources] <= numbers for each in self.stretches) - np.ones_like(sources)
        found = np.empty_like(sources)
        for number in np.unique(at).tolist():
            here = at == number
            ends = (np.full(here.sum(), end) for end in (low, high))
            found[here] = self.stretches[number].find(sources[here], numbers[here], *ends)
        return found


class _Era(NamedTuple):
    """Epochs that are equal but for what is drawn: the first, the run's samples and each source's passes and samples
    before it, and the weights; ``turn`` if a change is in it."""

    epoch: int
    start: int
    passes: Int64s
    had: Int64s
    weights: Float64s
    turn: Turn | None


@dataclass(frozen=True, eq=False)
class Shares:
    """The sources of a mixture, and the samples that epochs take of each.

    Attributes:
        names: Names of the S sources, sorted.
        sizes: int64 [S], samples of each.
        weights: float64 [S], the shares of samples that a run begins with; they add up to 1.
        takes: The stop rule, "repeats", or the samples of an epoch, of which sources go on in the next.
        passes: int64 [S], those of an epoch with "repeats"; else empty.
        schedule: The weights from samples of the run on that it was made with, after the first.
        changes: Those that were set later, which replace the schedule's at the same sample.
        batch: Samples of a global batch, which are of one source; None: batches are mixed. Units of counts and
            positions in turns are such batches, or samples.
    """

    names: tuple[str, ...]
    sizes: Int64s
    weights: Float64s
    takes: str | int
    passes: Int64s
    schedule: Mapping[int, Float64s] = field(default_factory=dict)
    changes: Mapping[int, Float64s] = field(default_factory=dict)
    batch: int | None = None
    _turns: Recent[Turn] = field(default_factory=lambda: Recent(2), init=False, repr=False)

    @classmethod
    def of(
        cls,
        sizes: Mapping[str, int],
        weights: Mapping[str, float] | Mapping[int, Mapping[str, float]] | None = None,
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
        schedule = {0: n / n.sum()} if weights is None else _schedule(names, weights)
        first = schedule.pop(0)
        if repeats is not None:
            times = _numbers(names, dict.fromkeys(names, 1) | dict(repeats), "repeats")
            if (times != np.floor(times)).any():
                raise ArgumentError(f"repeats must be whole numbers of passes, got {dict(repeats)!r}")
            counts = _whole(n * times)
            return cls(names, n, counts / counts.sum(), "repeats", times.astype(np.int64))
        if samples is not None:
            samples = check_int("samples", samples, 1)
            return cls(names, n, first, samples, n[:0], schedule)

        stop = _STOPS[0] if stop is None else stop
        check_one_of("stop", stop, _STOPS)
        return cls(names, n, first, stop, n[:0], schedule)

    def __post_init__(self) -> None:
        if self.batch is not None and self.takes in (_STOPS[0], _STOPS[2], "repeats"):
            is_taken = np.any([self.weights, *self.schedule.values(), *self.changes.values()], axis=0)
            has = np.where(is_taken, self.sizes * (self.passes if len(self.passes) else 1), _MOST)
            least = int(np.argmin(has))
            if has[least] < self.batch:
                raise ArgumentError(
                    f"an epoch has {has[least]} samples of source {self.names[least]!r}, and a batch of all ranks "
                    f"takes {self.batch} of one source: give smaller batches, stop='all_exhausted', or samples="
                )
        if self.batch is not None and isinstance(self.takes, int) and self.takes < self.batch:
            raise ArgumentError(f"samples={self.takes} is less than a batch of all ranks, {self.batch}: give more")
        if self.samples(0) > _MOST or self.sizes.sum() > _MOST:
            raise ArgumentError(f"an epoch of a Mixture must have at most 2**50 samples, got {self.samples(0):,}")

    @property
    def unit(self) -> int:
        """Samples of a unit."""
        return self.batch or 1

    @property
    def is_run(self) -> bool:
        """True if sources go on in the next epoch where they stood: all epochs are one turn."""
        return isinstance(self.takes, int)

    def samples(self, epoch: int) -> int:
        """Returns the samples of an epoch."""
        return (self.takes // self.unit if isinstance(self.takes, int) else self._turn(epoch).end) * self.unit

    def place(self, epoch: int, position: int = 0) -> int:
        """Returns the run's samples before a position of an epoch."""
        return (epoch * self.samples(0) if self.is_run else self._turn(epoch).start * self.unit) + position

    def turn(self, epoch: int) -> tuple[Turn, int]:
        """Returns the turn that an epoch belongs to, and the epoch's first position there.

        Raises:
            ArgumentError: for an epoch past the end of the run.
        """
        if not isinstance(self.takes, int):
            return self._turn(epoch), 0
        first = epoch * (self.takes // self.unit)
        if (first + self.takes) * self.unit > _MOST:
            raise ArgumentError(f"epoch {epoch} of {self.takes:,} samples is past the 2**50 of a Mixture's run")
        return self._turn(0), first

    def changed(self, weights: Mapping[str, float], at_sample: int) -> Shares:
        """Returns the shares with other weights from a sample of the run on.

        Raises:
            ArgumentError: for weights that are none, or where passes are exact.
        """
        if self.takes == "repeats":
            raise ArgumentError("repeats= gives exact passes, and weights would change them: make a Mixture by weights")
        at_sample = check_int("at_sample", at_sample, 0)
        return self.with_changes({**self.changes, at_sample: _numbers(self.names, weights, "weights")})

    def with_changes(self, changes: Mapping[int, Float64s]) -> Shares:
        """Returns the shares with these changes alone beside the schedule."""
        return dataclasses.replace(self, changes=dict(sorted(changes.items())))

    def in_batches(self, batch: int) -> Shares:
        """Returns the shares with global batches of one source, of this many samples."""
        return self if batch == self.batch else dataclasses.replace(self, batch=batch)

    def identity(self) -> dict[str, Any]:
        """Returns what states and ranks have in common, as JSON takes it."""
        numbers = map(list, zip(self.sizes.tolist(), self.weights.tolist(), strict=True))
        found: dict[str, Any] = {"takes": self.takes, "sources": dict(zip(self.names, numbers, strict=True))}
        found |= {"schedule": self._listed(self.schedule)} if self.schedule else {}
        found |= {"passes": self.passes.tolist()} if len(self.passes) else {}
        return found | ({"batch": self.batch} if self.batch else {})

    def state(self) -> list[Any]:
        """Returns the changes that were set later, as JSON takes them: [sample of the run, {name: share}] each."""
        return self._listed(self.changes)

    def of_state(self, state: Any) -> Shares:
        """Returns the shares with the changes that :meth:`state` gave.

        Raises:
            ArgumentError: for anything else.
        """
        try:
            return self.with_changes({int(at): _numbers(self.names, given, "weights") for at, given in state or ()})
        except (ArgumentError, TypeError, ValueError) as error:
            raise ArgumentError(f"this state is damaged: its weights are {state!r:.100}") from error

    def _listed(self, changes: Mapping[int, Float64s]) -> list[Any]:
        return [[at, dict(zip(self.names, each.tolist(), strict=True))] for at, each in changes.items()]

    @functools.cached_property
    def _steps(self) -> list[tuple[int, Float64s]]:
        """The weights from units of the run on, but for the first."""
        merged = {**self.schedule, **self.changes}
        steps = {-(-at // self.unit): merged[at] for at in sorted(merged)}
        return [*steps.items()]

    @functools.cached_property
    def _sizes(self) -> Int64s:
        """Units of each source: all that can be without another pass, or as many as have all samples."""
        return -(-self.sizes // self.unit) if self.takes == _STOPS[1] else self.sizes // self.unit

    @functools.cached_property
    def _eras(self) -> list[_Era]:
        """The epochs up to each change, and those with changes in them."""
        found: list[_Era] = []
        epoch, start, none = 0, 0, np.zeros_like(self.sizes)
        passes, had, left = none, none, [*self._steps]
        weights = self.weights
        while True:
            while left and left[0][0] <= start:
                weights = left.pop(0)[1]
            plain = _Era(epoch, start, passes, had, weights, None)
            counts = self._planned(epoch, 0, none, weights)[0].astype(np.int64)
            if not left or (left[0][0] - start) // int(counts.sum()) >= _EPOCHS - epoch:
                return [*found, plain]

            whole, inside = divmod(left[0][0] - start, int(counts.sum()))
            if whole:
                found.append(plain)
                epoch += whole
                start, passes, had = self._later(start, passes, had, counts, whole)
            if inside:
                turn = self._new_turn(epoch, start, passes, had)
                found.append(_Era(epoch, start, passes, had, weights, turn))
                epoch += 1
                start, passes, had = self._later(start, passes, had, turn.counts, 1)

    def _turn(self, epoch: int) -> Turn:
        return self._turns.get(epoch, lambda: self._made_turn(epoch))

    def _made_turn(self, epoch: int) -> Turn:
        none = np.zeros_like(self.sizes)
        if self.is_run:
            return self._new_turn(0, 0, none, none)
        era = self._eras[bisect.bisect_right(self._eras, epoch, key=lambda each: each.epoch) - 1]
        if era.turn is not None:
            return era.turn
        counts = self._planned(epoch, 0, none, era.weights)[0].astype(np.int64)
        return self._new_turn(epoch, *self._later(era.start, era.passes, era.had, counts, epoch - era.epoch))

    def _later(
        self, start: int, passes: Int64s, had: Int64s, counts: Int64s, epochs: int
    ) -> tuple[int, Int64s, Int64s]:
        """Returns the run's samples, and the passes and samples of each source, before what follows some epochs.

        Args:
            start, passes, had: The same before the first of them.
            counts: int64 [S], samples of each source in one of them.
            epochs: Their number.
        """
        passes = passes - epochs * (-(counts * self.unit) // self.sizes)
        return start + epochs * int(counts.sum()), passes, had + epochs * counts

    def _new_turn(self, epoch: int, start: int, passes: Int64s, before: Int64s) -> Turn:
        stretches: list[Stretch] = []
        position, had = 0, np.zeros_like(before)
        period = self.takes // self.unit if isinstance(self.takes, int) else _MOST
        steps = [(at - start, each) for at, each in self._steps if at > start]
        weights = [self.weights, *(each for at, each in self._steps if at <= start)][-1]
        while True:
            counts, times, length = self._planned(epoch, position, had, weights)
            stretches.append(Stretch(epoch, position, had, counts, times, length, period))
            if not steps or steps[0][0] >= position + length:
                had = had if self.is_run else had + counts
                return Turn(start, passes, before, stretches, position + length, had)
            (end, weights), steps = steps[0], steps[1:]
            had = stretches[-1].before(np.array([end]))[0]
            position = end

    def _planned(
        self, epoch: int, position: int, had: Int64s, weights: Float64s
    ) -> tuple[AnyArray, Float64s | None, int]:
        """Returns what :class:`Stretch` takes of an epoch's rest, as if its weights stayed: counts, pace and length."""
        if self.is_run:
            return weights, None, _MOST - position
        if self.takes == "repeats":
            counts = self.sizes * self.passes // self.unit
            return counts, None, int(counts.sum())

        left, is_on = np.maximum(self._sizes - had, 0), weights > 0
        if self.takes == _STOPS[2]:
            counts = left * is_on
            return counts, weights, int(counts.sum())
        is_first = self.takes == _STOPS[0]
        times = np.where(is_on, left / np.where(is_on, weights, 1.0), np.inf if is_first else -1.0)
        last = int(np.argmin(times) if is_first else np.argmax(times))  # the source that ends the epoch
        counts = _whole(left[last] * (weights / weights[last]))
        if is_first and left[last]:
            counts = np.clip(counts, 0 if position else np.minimum(left, is_on), left)
        elif not is_first:
            counts = np.maximum(counts, left * is_on)
        return counts, None, int(counts.sum())


def source_seed(seed: int, name: str) -> int:
    """Returns a seed for what has a name, 0 to 2**64-1."""
    return int.from_bytes(hashlib.blake2b(f"{seed} {name}".encode(), digest_size=8).digest(), "little")


def _whole(counts: Float64s) -> Int64s:
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


class _Level(NamedTuple):
    """Nodes of a tree at one depth: which of them are leaves, and the sources of those; of the others the share and the
    phase of the lighter side, whether it is the first one, and the samples that there are of each side."""

    is_leaf: npt.NDArray[np.bool_]
    sources: npt.NDArray[np.intp]
    shares: Float64s
    phases: Float64s
    is_first: npt.NDArray[np.bool_]
    most: tuple[AnyArray, AnyArray]


class _Tree:
    """The tree of some sources; see Note [Mixtures].

    Args:
        weights: [S], 0 or more.
        most: [S], the samples that there are of each source.
        phases: float64 [S], those of the nodes, by their second side's first source.
    """

    def __init__(self, weights: AnyArray, most: AnyArray, phases: Float64s) -> None:
        by_weight = np.argsort(-weights, kind="stable")[: max(1, np.count_nonzero(weights))]  # others have no samples
        ends, limits = (np.append(0.0, np.cumsum(each[by_weight])) for each in (weights, most))
        self._sources = len(weights)
        self._levels: list[_Level] = []
        starts, stops = np.array([0]), np.array([len(by_weight)])

        while len(starts):
            is_leaf = stops - starts == 1
            sources = by_weight[starts[is_leaf]]
            starts, stops = starts[~is_leaf], stops[~is_leaf]

            half = (ends[starts] + ends[stops]) / 2
            after = np.clip(np.searchsorted(ends, half), starts + 1, stops - 1)
            before = np.maximum(after - 1, starts + 1)
            middle = np.where(half - ends[before] <= ends[after] - half, before, after)

            one, other = ends[middle] - ends[starts], ends[stops] - ends[middle]
            shares = np.minimum(one, other) / np.maximum(one + other, _TINY)
            sides = limits[middle] - limits[starts], limits[stops] - limits[middle]
            self._levels.append(_Level(is_leaf, sources, shares, phases[middle], one <= other, sides))
            starts, stops = np.concatenate([starts, middle]), np.concatenate([middle, stops])

    def first(self, totals: Int64s) -> Int64s:
        """Returns the samples of each source among the first of an epoch, int64 [N, S]."""
        found = np.zeros((len(totals), self._sources), np.int64)
        totals = totals[:, None]
        for level in self._levels:
            found[:, level.sources] = totals[:, level.is_leaf]
            totals = totals[:, ~level.is_leaf]

            lighter = np.floor(totals * level.shares + level.phases)
            ones = np.where(level.is_first, lighter, totals - lighter)
            ones = np.clip(ones, totals - level.most[1], level.most[0]).astype(np.int64)
            totals = np.concatenate([ones, totals - ones], axis=1)
        return found


def in_rows(lengths: Int64s) -> tuple[Int64s, Int64s]:
    """Returns the row and the number of each entry of rows of these lengths, int64 [N]."""
    rows = np.repeat(np.arange(len(lengths)), lengths)
    return rows, np.arange(len(rows)) - (np.cumsum(lengths) - lengths)[rows]


def _numbers(names: Sequence[str], given: Mapping[str, float], what: str) -> Float64s:
    """Returns a number for each source; weights add up to 1."""
    if not isinstance(given, Mapping) or set(given) != set(names):
        known = set(given) if isinstance(given, Mapping) else set()
        wrong = sorted(known.symmetric_difference(names), key=str)
        raise ArgumentError(f"{what} must have a number for each source of the Mixture, by name; check {wrong[0]!r}")
    try:
        found = np.array([float(given[name]) for name in names])
    except (TypeError, ValueError):
        found = np.full(len(names), math.nan)
    if what == "repeats" and not (np.isfinite(found) & (found > 0)).all():
        raise ArgumentError(f"repeats must be finite numbers above 0, got {dict(given)!r:.120}")
    if not (np.isfinite(found) & (found >= 0)).all() or not found.any():
        raise ArgumentError(f"{what} must be finite numbers of 0 or more, not all 0, got {dict(given)!r:.120}")
    return found if what == "repeats" else found / math.fsum(found)  # the same on every machine


def _schedule(names: Sequence[str], given: Any) -> dict[int, Float64s]:
    """Returns weights by the samples of the run that they begin at; plain ones begin at 0."""
    if not isinstance(given, Mapping) or not given or any(type(at) is not int for at in given):
        given = {0: given}
    if min(given) != 0:
        raise ArgumentError(f"a schedule of weights begins at sample 0 of the run, got {sorted(given)!r:.60}")
    return {at: _numbers(names, given[at], "weights") for at in sorted(given)}

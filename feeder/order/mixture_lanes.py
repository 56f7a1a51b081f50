"""The order of a mixture in lanes: each rank stays within its share of the shards of each source, in every epoch.

Note [Mixtures in lanes]
    Positions belong to lanes as in Note [Lanes], in whole rounds of the lanes; what is left of an epoch is a lane of its
    own, the last. Each lane goes through a part of its own of the mixture: of the epoch, whose samples are dealt as if
    lane came after lane, or of a run without an end. So the samples that a lane has had of a source at any position are
    those before it, less those before the lane's part, see Note [Mixtures].

    Each lane has a section of each source: consecutive samples in stored order. Those of lanes that are equal modulo
    divisors of their number stand together, as these belong to the same rank in a smaller job. With N samples of the
    source, a section goes from N * a to N * b, where a and b are the shares of it that are given before the lane and
    after it. These are fractions. In a pass all borders move by one fraction of a sample and are rounded down, so each
    sample belongs to one lane. The fractions of M passes are j / M for each j below M, so over M passes a border at x
    has floor(M * x) samples before it (Hermite's identity): lanes have what they give, and don't drift apart. They come
    in steps of the golden ratio; their sum up to any pass is a sum of floors, in O(log M). A section of one pass is a
    small set with windows.

    With batches of one source a lane is a part of the batch, and has as much of each source as any other.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from feeder.errors import ArgumentError
from feeder.order.lanes import LaneBlocks, Lanes, by_divisors, fewer_lanes
from feeder.order.mixture_order import PASSES, MixtureOrder
from feeder.order.mixture_shares import BLOCK, Turn, source_seed
from feeder.order.random import numbers_in
from feeder.order.recent import Recent
from feeder.order.sample_order import Order, Window
from feeder.order.shard_sizes import compact_sizes
from feeder.system.arrays import Int64s


_MOST = (1 << 61) - 1  # passes of a run, at most; a prime
_STEP = (math.sqrt(5) - 1) / 2


class _Stretch(NamedTuple):
    """The lanes in a stretch of the weights.

    Attributes:
        starts: int64 [lanes], the place in the stretch of each lane's first position in the turn.
        bases: int64 [lanes, S], what leads from a source's numbers in the stretch to those in the lane.
        had: int64 [lanes, S], samples that the lanes have had of each source before.
    """

    starts: Int64s
    bases: Int64s
    had: Int64s


class _Section(NamedTuple):
    """A lane's section of a source, from ``low / of`` to ``high / of``, in which borders move by ``step / passes`` of a
    sample from pass to pass, modulo 1."""

    low: int
    high: int
    of: int
    step: int
    passes: int

    def before(self, number: int) -> int:
        """Returns the samples that the lane gives of the passes before one."""
        low, high = (
            _floor_sum(number, self.of * self.passes, self.step * self.of, end * self.passes)
            for end in (self.low, self.high)
        )
        return high - low

    def pass_of(self, number: int) -> int:
        """Returns the pass of the lane's sample with a number."""
        guess, reach = number * self.of // (self.high - self.low), 1
        while not self.before(max(0, guess - reach)) <= number < self.before(guess + reach):
            reach *= 2
        passes = range(max(0, guess - reach), guess + reach)
        return passes[bisect.bisect_right(passes, number, key=self.before) - 1]

    def span(self, number: int) -> tuple[int, int]:
        """Returns the first sample of a pass, and the end of its samples."""
        moved = self.step * number % self.passes * self.of
        low, high = ((end * self.passes + moved) // (self.of * self.passes) for end in (self.low, self.high))
        return low, high


class MixtureInLanes(MixtureOrder):
    """The order of a mixture's epochs in lanes; see :class:`MixtureOrder` and Note [Mixtures in lanes].

    Raises:
        ArgumentError: if the weights change within an epoch by a stop rule.
    """

    lanes: LaneBlocks

    def _lanes_by(self, lanes: Lanes) -> LaneBlocks:
        shares = self.shares
        if shares.batch is None and not shares.is_run and (shares.schedule or shares.changes):
            raise ArgumentError(
                "the weights of a Mixture in Lanes change only where it has samples=, as stop= counts on the parts that "
                "lanes have of an epoch: give samples=, batching='per_source' or shuffle=feeder.Window()"
            )
        samples, block = shares.samples(0), lanes.block or 1
        if shares.batch is not None:
            block = math.gcd(shares.batch, block)
            count, self._dealt = shares.batch // block, PASSES << 30
        else:
            count = fewer_lanes(lanes.count, samples // max(lanes.window, block))
            self._dealt = samples // (count * block) * count * block

        self._each = np.append(np.full(count, self._dealt // count), samples - self._dealt)  # positions in an epoch
        self._row = by_divisors(count)  # the lanes in the order of their sections
        self._sections = np.argsort(self._row)
        self._stretches: Recent[list[_Stretch]] = Recent(4)
        self._within: Recent[tuple[int, Order]] = Recent(8 * count + 8)
        self._sizes = [compact_sizes(sizes) for sizes in self.shards]
        return LaneBlocks(count, block)

    def placed(self, epoch: int, positions: npt.ArrayLike) -> tuple[Int64s, Int64s]:
        """See :meth:`MixtureOrder.placed`."""
        sources, lanes, numbers = self._dealt_at(epoch, numbers_in(self.samples_in(epoch), positions, "positions"))
        ids, passes = np.empty_like(numbers), np.empty_like(numbers)
        begun = self.shares.turn(epoch)[0].passes
        groups = sources * len(self._each) + lanes
        by_group = np.argsort(groups, kind="stable")
        found, first = np.unique(groups[by_group], return_index=True)

        for group, rows in zip(found.tolist(), np.split(by_group, first[1:]), strict=True):
            source, lane = divmod(group, len(self._each))
            section = self._section(epoch, source, lane)
            while len(rows):
                number = section.pass_of(int(numbers[rows].min()))
                is_here = numbers[rows] < section.before(number + 1)
                here, rows = rows[is_here], rows[~is_here]
                start, order = self._pass_of(source, lane, section.span(number))
                passes[here] = at = (int(begun[source]) + number) % PASSES
                ids[here] = self._starts[source] + start + order.ids(at, numbers[here] - section.before(number))
        return ids, passes

    def positions(self, epoch: int, ids: npt.ArrayLike) -> Int64s:
        """See :meth:`MixtureOrder.positions`."""
        found = numbers_in(self.samples, ids, "sample ids")
        begun = self.shares.turn(epoch)[0].passes
        begins, ends = (self._had_in_lanes(epoch, position) for position in (0, self.samples_in(epoch)))
        sources, places = self.source_of(found), []

        for source, own in zip(sources.tolist(), (found - self._starts[sources]).tolist(), strict=True):
            for lane in np.flatnonzero(begins[:, source] < ends[:, source]).tolist():
                section, begin, end = self._section(epoch, source, lane), begins[lane, source], ends[lane, source]
                if not section.low // section.of <= own <= section.high // section.of:
                    continue
                for number in range(section.pass_of(int(begin)), section.pass_of(int(end) - 1) + 1):
                    start, past = section.span(number)
                    if start <= own < past:
                        order = self._pass_of(source, lane, (start, past))[1]
                        at = int(order.positions((int(begun[source]) + number) % PASSES, [own - start])[0])
                        at += section.before(number)
                        places += [self._position(epoch, source, lane, at)] if begin <= at < end else []
        return np.array(places, np.int64)

    def _had(self, epoch: int, position: int) -> Int64s:
        """See :meth:`MixtureOrder._had`."""
        return super()._had(epoch, position) if self.shares.batch else self._had_in_lanes(epoch, position).sum(0)

    def _dealt_at(self, epoch: int, positions: Int64s) -> tuple[Int64s, Int64s, Int64s]:
        """Returns the source and the lane at each position, and the sample's number among those of the source that the
        lane has in the turn."""
        (turn, first), shares, block = self.shares.turn(epoch), self.shares, self.lanes.block
        blocks = positions // block
        rounds = blocks // self.lanes.count
        is_left = positions >= self._dealt
        lanes = np.where(is_left, self.lanes.count, self._sections[blocks - rounds * self.lanes.count])
        if shares.batch is not None:
            sources, numbers = self._numbers(turn.block, positions // shares.batch + first)
            return sources, lanes, numbers * block + positions - blocks * block

        turns = np.where(is_left, positions - self._dealt, positions + (rounds - blocks) * block)
        turns += epoch * self._each[lanes] * shares.is_run
        sources, numbers = np.empty_like(positions), np.empty_like(positions)
        at = np.searchsorted([each.start for each in turn.stretches], positions + first, side="right") - 1
        for number in np.unique(at).tolist():
            here, stretch = np.flatnonzero(at == number), self._laid(epoch, turn)[number]
            places = stretch.starts[lanes[here]] + turns[here]
            sources[here], found = self._numbers(turn.stretches[number].block, places)
            numbers[here] = found - stretch.bases[lanes[here], sources[here]]
        return sources, lanes, numbers

    def _position(self, epoch: int, source: int, lane: int, number: int) -> int:
        """Returns the position in an epoch of a lane's sample of a source: the inverse of :meth:`_dealt_at`."""
        (turn, first), block = self.shares.turn(epoch), self.lanes.block
        if self.shares.batch is not None:
            batch, within = divmod(number, block)
            return (turn.find(source, batch) - first) * self.shares.batch + int(self._row[lane]) * block + within

        laid = self._laid(epoch, turn)
        at = bisect.bisect_right(laid, number, key=lambda each: int(each.had[lane, source])) - 1
        place = turn.stretches[at].find(source, number + int(laid[at].bases[lane, source]))
        own = place - int(laid[at].starts[lane]) - epoch * int(self._each[lane]) * self.shares.is_run
        if lane == self.lanes.count:
            return self._dealt + own
        rounds, within = divmod(own, block)
        return (rounds * self.lanes.count + int(self._row[lane])) * block + within

    def _laid(self, epoch: int, turn: Turn) -> list[_Stretch]:
        """Returns the lanes in each stretch of an epoch's turn."""
        return self._stretches.get(0 if self.shares.is_run else epoch, partial(self._newly_laid, turn))

    def _newly_laid(self, turn: Turn) -> list[_Stretch]:
        laid: list[_Stretch] = []
        had = np.zeros((len(self._each), len(self.shares.names)), np.int64)
        for number, stretch in enumerate(turn.stretches):
            stretch.keep(2 * len(self._each))
            begun = self._turns_before(stretch.start)
            if number:
                had = self._counts(turn, number - 1, laid[-1], begun)
            begin, length = stretch.start, self._dealt // self.lanes.count
            if self.shares.is_run:  # which has room, also for lanes that begin with a block
                begin = -(-begin // BLOCK) * BLOCK
                length = (stretch.end - begin) // len(self._each) // BLOCK * BLOCK
            begins = begin + np.arange(len(self._each)) * length
            bases = np.stack([stretch.before(int(place)) for place in begins]) - had
            laid.append(_Stretch(begins - begun, bases, had))
        return laid

    @staticmethod
    def _counts(turn: Turn, number: int, laid: _Stretch, turns: Int64s) -> Int64s:
        """Returns the samples that each lane has had of each source before so many of its positions, by a stretch."""
        places = (laid.starts + turns).tolist()
        return np.stack([turn.stretches[number].before(place) for place in places]) - laid.bases

    def _had_in_lanes(self, epoch: int, position: int) -> Int64s:
        """Returns the samples of each source that each lane has had in the turn before a position of an epoch, int64
        [lanes, S]; of a batch of one source before its begin."""
        turn, first = self.shares.turn(epoch)
        if self.shares.batch is not None:
            had = turn.before(first + position // self.shares.batch) * self.lanes.block
            return np.concatenate([np.tile(had, (self.lanes.count, 1)), had[None] * 0])
        place = first + position
        number = bisect.bisect_right(turn.stretches, place, key=lambda each: each.start) - 1
        return self._counts(turn, number, self._laid(epoch, turn)[number], self._turns_before(place))

    def _turns_before(self, place: int) -> Int64s:
        """Returns the positions of each lane before a place in the turn, int64 [lanes]."""
        epochs, rest = divmod(place, self.shares.samples(0)) if self.shares.is_run else (0, place)
        block, count = self.lanes.block, self.lanes.count
        rounds, left = divmod(min(rest, self._dealt), count * block)
        found = rounds * block + np.clip(left - self._row * block, 0, block)
        return np.append(found, max(0, rest - self._dealt)) + epochs * self._each

    def _section(self, epoch: int, source: int, lane: int) -> _Section:
        """Returns a lane's section of a source in an epoch."""
        turn, size = self.shares.turn(epoch)[0], int(self.shares.sizes[source])
        if self.shares.batch is not None:
            of = self.lanes.count
            ends = lane, min(lane + 1, of)
        elif self.shares.is_run:
            of = self.shares.samples(0)
            ends = lane * self._dealt // self.lanes.count, (lane + 1) * self._dealt // self.lanes.count
        else:
            of, bases = int(turn.counts[source]), self._laid(epoch, turn)[0].bases[:, source]
            ends = int(bases[lane]), int(bases[min(lane + 1, self.lanes.count)])
        high = of if lane == self.lanes.count else ends[1]
        passes = _MOST if self.shares.is_run else -(-int(turn.counts[source]) * self.shares.unit // size)
        step = int(passes * _STEP) or 1
        while math.gcd(step, passes) > 1:
            step += 1
        return _Section(size * ends[0], size * high, of, step, passes)

    def _pass_of(self, source: int, lane: int, span: tuple[int, int]) -> tuple[int, Order]:
        """Returns the first sample of a section of one pass, and the order there."""
        return self._within.get((source, lane, span), partial(self._new_pass, source, lane, *span))

    def _new_pass(self, source: int, lane: int, start: int, end: int) -> tuple[int, Order]:
        assert isinstance(self.shuffle, Lanes)
        sizes: Sequence[int] | Int64s = ()
        if self._sizes and len(self._sizes[source]):
            first, last = self._sizes[source].shards_of(np.array([start, end - 1]))
            sizes = np.diff(np.clip(self._sizes[source].starts(np.arange(first, last + 2)), start, end))
        seed = source_seed(self._seeds[source], str(lane))
        return start, Order(end - start, seed, Window(self.shuffle.window), sizes)


def _floor_sum(count: int, of: int, step: int, start: int) -> int:
    """Returns the sum of ``(start + step * j) // of`` over j below a count, in O(log count)."""
    found = 0
    while count:
        found += count * (count - 1) // 2 * (step // of) + count * (start // of)
        step, start = step % of, start % of
        count, start = divmod(start + step * count, of)
        of, step = step, of
    return found

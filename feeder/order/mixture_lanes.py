"""The order of a mixture in lanes: each rank stays within its share of the shards of each source, in every epoch.

Note [Mixtures in lanes]
    Positions belong to lanes as in Note [Lanes], in whole rounds of the lanes; what is left of an epoch is the last
    lane. Each lane goes through a part of its own of the mixture: of the epoch, as if lane came after lane, or of a run
    without an end. So what a lane has had of a source at any position are the samples before it, less those before
    the lane's part, see Note [Mixtures]. Where the mix changes within an epoch, each piece is dealt by itself.

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
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from feeder.errors import ArgumentError
from feeder.order.lanes import LaneBlocks, Lanes, by_divisors, fewer_lanes
from feeder.order.mixture_order import PASSES, MixtureOrder
from feeder.order.mixture_shares import Stretch, Turn
from feeder.order.random import numbers_in
from feeder.order.recent import Recent
from feeder.system.arrays import Int64s

_KEPT = 1 << 15  # sections, at least
_MOST_SOURCES = 100
_MOST = (1 << 61) - 1  # passes of a run, at most; a prime
_STEP = (math.sqrt(5) - 1) / 2


class _Piece(NamedTuple):
    """Positions of a turn that are mixed alike, and the lanes there.

    Attributes:
        start: The first of them.
        stretch: The stretch that they are of.
        starts: int64 [lanes], the place in the stretch of each lane's first position in the turn, by which the others
            follow.
        bases: int64 [lanes, S], what leads from a source's numbers in the stretch to those in the lane.
        had: int64 [lanes, S], samples that the lanes have had of each source before.
    """

    start: int
    stretch: Stretch
    starts: Int64s
    bases: Int64s
    had: Int64s

    def counts(self, turns: Int64s) -> Int64s:
        """Returns the samples that the lanes have had of each source before so many of their positions, [lanes, S]."""
        return self.stretch.before(self.starts + turns) - self.bases


@dataclass
class _Section:
    """A lane's section of a source, from ``low / divisor`` to ``high / divisor``. Its borders move by ``step / passes``
    of a sample from pass to pass, modulo 1; ``latest`` is what was last looked for."""

    low: int
    high: int
    divisor: int
    step: int
    passes: int
    latest: tuple[int, int, int, int, int] = (0, 0, 0, 0, 0)

    def before(self, number: int) -> int:
        """Returns the samples that the lane gives of the passes before one."""
        until = partial(_floor_sum, number, self.divisor * self.passes, self.step * self.divisor)
        return until(self.high * self.passes) - until(self.low * self.passes)

    def around(self, number: int) -> tuple[int, int, int, int, int]:
        """Returns the pass of the lane's sample with a number: the first number in it, the end of them, the pass, its
        first sample, and the end of its samples."""
        guess, reach = number * self.divisor // (self.high - self.low), 0
        while not self.before(max(0, guess - reach)) <= number < self.before(guess + reach + 1):
            reach += reach + 1
        passes = range(max(0, guess - reach), guess + reach + 1)
        at = passes[bisect.bisect_right(passes, number, 1, key=self.before) - 1]

        moved = self.step * at % self.passes * self.divisor
        low, high = ((end * self.passes + moved) // (self.divisor * self.passes) for end in (self.low, self.high))
        first = self.before(at)
        self.latest = first, first + high - low, at, low, high
        return self.latest


class MixtureInLanes(MixtureOrder):
    """The order of a mixture's epochs in lanes; see :class:`MixtureOrder` and Note [Mixtures in lanes].

    Raises:
        ArgumentError: for more than 100 sources, or if weights were set later, and epochs end by a stop rule.
    """

    lanes: LaneBlocks

    def _lanes_by(self, lanes: Lanes) -> LaneBlocks:
        shares = self.shares
        if len(shares.names) > _MOST_SOURCES:
            raise ArgumentError(
                f"a Mixture in Lanes has at most {_MOST_SOURCES} sources, as each lane counts what it has of each, and "
                f"this one has {len(shares.names):,}: join some by ConcatDataset, or give shuffle=feeder.Window()"
            )
        if shares.batch is None and not shares.is_run and shares.changes:
            raise ArgumentError(
                "set_weights can't change a Mixture in Lanes with stop=, as lanes have parts of the epoch as it was: "
                "give these weights as a schedule, or samples=, batching='per_source' or shuffle=feeder.Window()"
            )
        samples, block = shares.samples(0), lanes.block or 1
        if shares.batch is not None:
            block = math.gcd(shares.batch, block)
            count = shares.batch // block
        else:
            count = fewer_lanes(lanes.count, samples // max(lanes.window, block))

        self._count = count + 1
        self._row = by_divisors(count)  # the lanes in the order of their sections
        self._sections = np.argsort(self._row)
        self._turns_laid: Recent[list[_Piece]] = Recent(4)
        self._made: Recent[_Section] = Recent(_KEPT)
        return LaneBlocks(count, block)

    def placed(self, epoch: int, positions: npt.ArrayLike) -> tuple[Int64s, Int64s]:
        """See :meth:`MixtureOrder.placed`."""
        places = numbers_in(self.samples_in(epoch), positions, "positions")
        if not len(places):
            return places, places
        sources, lanes, numbers = self._dealt_at(epoch, places)
        found, groups = np.unique(sources * self._count + lanes, return_inverse=True)
        sections = [self._section(epoch, *divmod(group, self._count)) for group in found.tolist()]
        rows = np.array([section.latest for section in sections], np.int64)[groups].T
        while (left := np.flatnonzero((numbers < rows[0]) | (rows[1] <= numbers))).size:
            own, first, again = np.unique(groups[left], return_index=True, return_inverse=True)
            at = zip(own.tolist(), numbers[left[first]].tolist(), strict=True)
            rows[:, left] = np.array([sections[group].around(number) for group, number in at])[again].T

        begins, _, passes, starts, ends = rows
        passes = (self.shares.turn(epoch)[0].passes[sources] + passes) % PASSES
        _, first, groups = np.unique(groups * PASSES + passes, return_index=True, return_inverse=True)
        each = np.stack([sources, lanes, passes, starts, ends - starts])[:, first]
        return self._starts[sources] + starts + self._ordered(each, groups, numbers - begins), passes

    def positions(self, epoch: int, ids: npt.ArrayLike) -> Int64s:
        """See :meth:`MixtureOrder.positions`."""
        found = numbers_in(self.samples, ids, "sample ids")
        begun = self.shares.turn(epoch)[0].passes.tolist()
        begins, ends = (self._had_in_lanes(epoch, position) for position in (0, self.samples_in(epoch)))
        sources, all_lanes = self.source_of(found), range(self._count)
        rows: list[tuple[int, ...]] = []

        for source, own in zip(sources.tolist(), (found - self._starts[sources]).tolist(), strict=True):
            sections = partial(self._section, epoch, source)
            least = bisect.bisect_left(all_lanes, own, key=lambda each: sections(each).high // sections(each).divisor)
            for lane in all_lanes[least:]:
                section = sections(lane)
                if section.low // section.divisor > own:
                    break
                number, end = int(begins[lane, source]), int(ends[lane, source])
                while number < end:
                    first, number, at, start, past = section.around(number)
                    if start <= own < past:
                        at_pass = (begun[source] + at) % PASSES
                        rows.append((source, lane, at_pass, start, past - start, first, own - start))

        columns = np.array(rows, np.int64).reshape(-1, 7).T
        numbers = self._ordered(columns[:5], np.arange(len(rows)), columns[6], inverse=True) + columns[5]
        sources, lanes = columns[:2]
        here = (begins[lanes, sources] <= numbers) & (numbers < ends[lanes, sources])
        return self._positions(epoch, sources[here], lanes[here], numbers[here])

    def _had(self, epoch: int, position: int) -> Int64s:
        """See :meth:`MixtureOrder._had`."""
        return super()._had(epoch, position) if self.shares.batch else self._had_in_lanes(epoch, position).sum(0)

    def _dealt_at(self, epoch: int, positions: Int64s) -> tuple[Int64s, Int64s, Int64s]:
        """Returns the source and the lane at each position, and the sample's number among those of the source that the
        lane has in the turn."""
        (turn, first), shares, block = self.shares.turn(epoch), self.shares, self.lanes.block
        blocks = positions // block
        rounds = blocks // self.lanes.count
        each = self._each(epoch)
        dealt = int(each[0]) * self.lanes.count
        is_left = positions >= dealt
        lanes = np.where(is_left, self.lanes.count, self._sections[blocks - rounds * self.lanes.count])
        if shares.batch is not None:
            sources, numbers = self._numbers(turn.block, positions // shares.batch + first)
            return sources, lanes, numbers * block + positions - blocks * block

        turns = np.where(is_left, positions - dealt, positions + (rounds - blocks) * block)
        turns += epoch * each[lanes] * shares.is_run
        sources, numbers = np.empty_like(positions), np.empty_like(positions)
        pieces = self._laid(epoch)
        at = np.searchsorted([each.start for each in pieces], positions + first, side="right") - 1
        for number in np.unique(at).tolist():
            here, piece = np.flatnonzero(at == number), pieces[number]
            sources[here], found = self._numbers(piece.stretch.block, piece.starts[lanes[here]] + turns[here])
            numbers[here] = found - piece.bases[lanes[here], sources[here]]
        return sources, lanes, numbers

    def _positions(self, epoch: int, sources: Int64s, lanes: Int64s, numbers: Int64s) -> Int64s:
        """Returns the positions in an epoch of samples of lanes, int64 [N]: the inverse of :meth:`_dealt_at`."""
        (turn, first), block, count = self.shares.turn(epoch), self.lanes.block, self.lanes.count
        rows: Int64s = np.append(self._row, 0)[lanes]
        if batch := self.shares.batch:
            found = turn.find(sources, numbers // block, first, first + self.samples_in(epoch) // batch)
            return (found - first) * batch + rows * block + numbers % block

        each, own = self._each(epoch), np.empty_like(numbers)
        pieces = self._laid(epoch)
        at = sum(piece.had[lanes, sources] <= numbers for piece in pieces) - np.ones_like(numbers)
        for number in np.unique(at).tolist():
            here, piece = np.flatnonzero(at == number), pieces[number]
            lane, source = lanes[here], sources[here]
            low = piece.starts[lane] + epoch * each[lane] * self.shares.is_run
            found = piece.stretch.find(source, numbers[here] + piece.bases[lane, source], low, low + each[lane])
            own[here] = found - low
        rounds, within = np.divmod(own, block)
        return np.where(lanes == count, int(each[0]) * count + own, (rounds * count + rows) * block + within)

    def _laid(self, epoch: int) -> list[_Piece]:
        """Returns the pieces of an epoch's turn, and one at its end, if it has one."""
        key = 0 if self.shares.is_run else epoch
        return self._turns_laid.get(key, partial(self._newly_laid, key, self.shares.turn(epoch)[0]))

    def _newly_laid(self, epoch: int, turn: Turn) -> list[_Piece]:
        pieces: list[_Piece] = []
        had = np.zeros((self._count, len(self.shares.names)), np.int64)
        later = [*(each.start for each in turn.stretches[1:]), turn.end]
        both = zip(turn.stretches, later, strict=True)
        starts = [(start, each) for each, end in both for start in each.starts if start < end]

        for stretch in turn.stretches:
            stretch.keep(2 * self._count)
        for (start, stretch), end in zip(starts, [*(start for start, _ in starts[1:]), turn.end], strict=True):
            begun = self._turns_before(epoch, start)
            had = pieces[-1].counts(begun) if pieces else had
            if self.shares.is_run:  # it has room for lanes that begin with an epoch, too
                period = self.shares.samples(0)
                begins = np.arange(self._count) * ((stretch.end - start) // self._count // period * period)
                begins += -(-start // period) * period
            else:
                lengths = self._turns_before(epoch, end) - begun
                begins = start + np.cumsum(lengths) - lengths

            bases = stretch.before(begins) - had
            pieces.append(_Piece(start, stretch, begins - begun, bases, had))
        if not self.shares.is_run:
            last = pieces[-1]
            pieces.append(last._replace(start=turn.end, had=last.counts(self._turns_before(epoch, turn.end))))
        return pieces

    def _had_in_lanes(self, epoch: int, position: int) -> Int64s:
        """Returns the samples of each source that each lane has had in the turn before a position of an epoch, int64
        [lanes, S]; of a batch of one source before its begin."""
        turn, first = self.shares.turn(epoch)
        if self.shares.batch is not None:
            had = turn.before(first + position // self.shares.batch) * self.lanes.block
            return np.concatenate([np.tile(had, (self.lanes.count, 1)), had[None] * 0])
        pieces, place = self._laid(epoch), first + position
        piece = pieces[bisect.bisect_right(pieces, place, key=lambda each: each.start) - 1]
        return piece.had if piece.start == place else piece.counts(self._turns_before(epoch, place))

    def _each(self, epoch: int) -> Int64s:
        """Returns the positions of each lane in an epoch, int64 [lanes]."""
        samples, count = self.samples_in(epoch), self.lanes.count
        length = samples // (count * self.lanes.block) * self.lanes.block
        return np.append(np.full(count, length), samples - count * length)

    def _turns_before(self, epoch: int, place: int) -> Int64s:
        """Returns the positions of each lane before a place in the turn of an epoch, int64 [lanes]."""
        each, block, count = self._each(epoch), self.lanes.block, self.lanes.count
        epochs, rest = divmod(place, int(each.sum())) if self.shares.is_run else (0, place)
        rounds, left = divmod(min(rest, int(each[0]) * count), count * block)
        found = rounds * block + np.clip(left - self._row * block, 0, block)
        return np.append(found, max(0, rest - int(each[0]) * count)) + epochs * each

    def _section(self, epoch: int, source: int, lane: int) -> _Section:
        """Returns a lane's section of a source in an epoch."""
        key = 0 if self.shares.is_run else epoch, source, lane
        return self._made.get(key, partial(self._new_section, epoch, source, lane))

    def _new_section(self, epoch: int, source: int, lane: int) -> _Section:
        turn, size = self.shares.turn(epoch)[0], int(self.shares.sizes[source])
        if self.shares.batch is not None:
            divisor = self.lanes.count
            ends = lane, min(lane + 1, divisor)
        elif self.shares.is_run:
            divisor = self.shares.samples(0)
            length = int(self._each(epoch)[0])
            ends = lane * length, (lane + 1) * length
        else:
            divisor, had = max(1, int(turn.counts[source])), self._laid(epoch)[-1].had[:, source]
            ends = int(had[:lane].sum()), int(had[: lane + 1].sum())
        high = divisor if lane == self.lanes.count else ends[1]
        passes = _MOST if self.shares.is_run else -(-int(turn.counts[source]) * self.shares.unit // size)
        step = int(passes * _STEP) or 1
        while math.gcd(step, passes) > 1:
            step += 1
        return _Section(size * ends[0], size * high, divisor, step, passes)


def _floor_sum(count: int, divisor: int, step: int, start: int) -> int:
    """Returns the sum of ``(start + step * j) // divisor`` over j below a count, in O(log count)."""
    found = 0
    while count:
        found += count * (count - 1) // 2 * (step // divisor) + count * (start // divisor)
        step, start = step % divisor, start % divisor
        count, start = divmod(start + step * count, divisor)
        divisor, step = step, divisor
    return found

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
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from feeder.errors import ArgumentError
from feeder.order.lanes import LaneBlocks, Lanes, by_divisors, fewer_lanes
from feeder.order.mixture_order import PASSES, MixtureOrder
from feeder.order.mixture_shares import Stretch, Turn, source_seed
from feeder.order.permutation import FEISTEL_ROUNDS, permute_each
from feeder.order.random import numbers_in
from feeder.order.recent import Recent
from feeder.order.sample_order import Order, Window
from feeder.order.shard_sizes import compact_sizes
from feeder.system.arrays import Int64s

_KEPT = 1 << 16
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
        places = (self.starts + turns).tolist()
        return np.stack([self.stretch.before(place) for place in places]) - self.bases


class _Laid(NamedTuple):
    """The pieces of a turn, and int64 [lanes, S], the samples of each source in the lanes up to each in an epoch."""

    pieces: list[_Piece]
    ends: Int64s


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
        self._turns_laid: Recent[_Laid] = Recent(4)
        self._window = lanes.window
        self._made: dict[tuple[int, int, int], _Section] = {}
        self._sizes = [compact_sizes(sizes) for sizes in self.shards]
        return LaneBlocks(count, block)

    def placed(self, epoch: int, positions: npt.ArrayLike) -> tuple[Int64s, Int64s]:
        """See :meth:`MixtureOrder.placed`."""
        sources, lanes, numbers = self._dealt_at(epoch, numbers_in(self.samples_in(epoch), positions, "positions"))
        begun = self.shares.turn(epoch)[0].passes.tolist()
        ids, passes, bases = np.empty_like(numbers), np.empty_like(numbers), self._starts[sources]
        drawn = np.full(len(ids), -1, np.intp)
        sizes: list[int] = []
        keys: list[bytes] = []
        groups = sources * self._count + lanes
        by_group = np.argsort(groups, kind="stable")
        found, first = np.unique(groups[by_group], return_index=True)

        for group, rows in zip(found.tolist(), np.split(by_group, first[1:]), strict=True):
            source, lane = divmod(group, self._count)
            section = self._section(epoch, source, lane)
            while len(rows):
                number = section.pass_of(int(numbers[rows].min()))
                is_here = numbers[rows] < section.before(number + 1)
                here, rows = rows[is_here], rows[~is_here]
                start, end = section.span(number)
                bases[here] += start
                ids[here] = numbers[here] - section.before(number)
                passes[here] = at = (begun[source] + number) % PASSES
                if end - start > self._window:
                    ids[here] = self._order_in(source, lane, start, end).ids(at, ids[here])
                    continue
                drawn[here] = len(keys)  # at once, below
                sizes.append(end - start)
                keys.append(self._keys.get((source, lane, at)) or self._section_keys(source, lane, at))

        here, tables = np.flatnonzero(drawn >= 0), np.frombuffer(b"".join(keys), np.uint64).reshape(-1, FEISTEL_ROUNDS)
        ids[here] = permute_each(ids[here], np.array(sizes, np.int64), tables, drawn[here])
        return ids + bases, passes

    def positions(self, epoch: int, ids: npt.ArrayLike) -> Int64s:
        """See :meth:`MixtureOrder.positions`."""
        found = numbers_in(self.samples, ids, "sample ids")
        begun = self.shares.turn(epoch)[0].passes.tolist()
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
                        order, at = self._order_in(source, lane, start, past), (begun[source] + number) % PASSES
                        at = section.before(number) + int(order.positions(at, [own - start])[0])
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
        pieces = self._laid(epoch).pieces
        at = np.searchsorted([each.start for each in pieces], positions + first, side="right") - 1
        for number in np.unique(at).tolist():
            here, piece = np.flatnonzero(at == number), pieces[number]
            sources[here], found = self._numbers(piece.stretch.block, piece.starts[lanes[here]] + turns[here])
            numbers[here] = found - piece.bases[lanes[here], sources[here]]
        return sources, lanes, numbers

    def _position(self, epoch: int, source: int, lane: int, number: int) -> int:
        """Returns the position in an epoch of a lane's sample of a source: the inverse of :meth:`_dealt_at`."""
        (turn, first), block = self.shares.turn(epoch), self.lanes.block
        if self.shares.batch is not None:
            batch, within = divmod(number, block)
            return (turn.find(source, batch) - first) * self.shares.batch + int(self._row[lane]) * block + within

        pieces = self._laid(epoch).pieces
        piece = pieces[bisect.bisect_right(pieces, number, key=lambda each: int(each.had[lane, source])) - 1]
        place = piece.stretch.find(source, number + int(piece.bases[lane, source]))
        each = self._each(epoch)
        own = place - int(piece.starts[lane]) - epoch * int(each[lane]) * self.shares.is_run
        if lane == self.lanes.count:
            return int(each[0]) * lane + own
        rounds, within = divmod(own, block)
        return (rounds * self.lanes.count + int(self._row[lane])) * block + within

    def _laid(self, epoch: int) -> _Laid:
        """Returns the lanes in an epoch's turn."""
        key = 0 if self.shares.is_run else epoch
        return self._turns_laid.get(key, partial(self._newly_laid, key, self.shares.turn(epoch)[0]))

    def _newly_laid(self, epoch: int, turn: Turn) -> _Laid:
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
            if self.shares.is_run:  # which has room, also for lanes that begin with an epoch
                period = self.shares.samples(0)
                begins = np.arange(self._count) * ((stretch.end - start) // self._count // period * period)
                begins += -(-start // period) * period
            else:
                lengths = self._turns_before(epoch, end) - begun
                begins = start + np.cumsum(lengths) - lengths

            bases = np.stack([stretch.before(place) for place in begins.tolist()]) - had
            pieces.append(_Piece(start, stretch, begins - begun, bases, had))
        if not self.shares.is_run:
            had = np.cumsum(pieces[-1].counts(self._turns_before(epoch, turn.end)), axis=0)
        return _Laid(pieces, had)

    def _had_in_lanes(self, epoch: int, position: int) -> Int64s:
        """Returns the samples of each source that each lane has had in the turn before a position of an epoch, int64
        [lanes, S]; of a batch of one source before its begin."""
        turn, first = self.shares.turn(epoch)
        if self.shares.batch is not None:
            had = turn.before(first + position // self.shares.batch) * self.lanes.block
            return np.concatenate([np.tile(had, (self.lanes.count, 1)), had[None] * 0])
        pieces, place = self._laid(epoch).pieces, first + position
        at = bisect.bisect_right(pieces, place, key=lambda each: each.start) - 1
        return pieces[at].counts(self._turns_before(epoch, place))

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
        if key not in self._made:
            if len(self._made) > _KEPT:
                self._made.clear()
            self._made[key] = self._new_section(epoch, source, lane)
        return self._made[key]

    def _new_section(self, epoch: int, source: int, lane: int) -> _Section:
        turn, size = self.shares.turn(epoch)[0], int(self.shares.sizes[source])
        if self.shares.batch is not None:
            of = self.lanes.count
            ends = lane, min(lane + 1, of)
        elif self.shares.is_run:
            of = self.shares.samples(0)
            length = int(self._each(epoch)[0])
            ends = lane * length, (lane + 1) * length
        else:
            of, up_to = int(turn.counts[source]), self._laid(epoch).ends[:, source]
            ends = int(up_to[lane - 1]) if lane else 0, int(up_to[lane])
        high = of if lane == self.lanes.count else ends[1]
        passes = _MOST if self.shares.is_run else -(-int(turn.counts[source]) * self.shares.unit // size)
        step = int(passes * _STEP) or 1
        while math.gcd(step, passes) > 1:
            step += 1
        return _Section(size * ends[0], size * high, of, step, passes)

    def _section_keys(self, source: int, lane: int, number: int) -> bytes:
        """Returns the keys of a pass of a section that is one window, see :func:`feeder.order.permutation.permute`."""
        return self._new_keys((source, lane, number), source_seed(self._seeds[source], str(lane)), number)

    def _order_in(self, source: int, lane: int, start: int, end: int) -> Order:
        """Returns the order in a section, by its samples in a pass."""
        return self._orders.get((source, lane, start, end), partial(self._new_order, source, lane, start, end))

    def _new_order(self, source: int, lane: int, start: int, end: int) -> Order:
        seed = source_seed(self._seeds[source], str(lane))
        inside: Int64s = np.zeros(0, np.int64)
        if end - start <= self._window:
            return Order(end - start, seed, shuffle=True)
        if self._sizes and len(self._sizes[source]):
            sizes = self._sizes[source]
            first, last = sizes.shards_of(np.array([start, end - 1]))
            ends: Int64s = np.clip(sizes.starts(np.arange(first, last + 2)), start, end)
            inside = ends[1:] - ends[:-1]
        return Order(end - start, seed, Window(self._window), inside)


def _floor_sum(count: int, of: int, step: int, start: int) -> int:
    """Returns the sum of ``(start + step * j) // of`` over j below a count, in O(log count)."""
    found = 0
    while count:
        found += count * (count - 1) // 2 * (step // of) + count * (start // of)
        step, start = step % of, start % of
        count, start = divmod(start + step * count, of)
        of, step = step, of
    return found

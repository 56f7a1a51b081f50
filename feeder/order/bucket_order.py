"""The order of an epoch in buckets, as a pure function of (seed, epoch, samples consumed of each bucket).

Note [Order of buckets]
    The samples stand bucket after bucket: position p of an epoch belongs to the bucket that has p between its first
    position and that of the next. Each bucket is permuted by itself, and its samples are consumed in that order, G at
    a time: the global batch. Before each step its bucket is drawn, with odds in proportion to the full batches that
    each bucket has left. So the sequence of batches is a random permutation of them, and yet the samples consumed of
    each bucket tell all that follows. Once no bucket has G samples, the remainders stand in one row, from the widest
    bucket to the tallest, and are cut into the last batches; such a batch has the size of its middle sample.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from feeder.errors import ArgumentError
from feeder.order.buckets import Buckets
from feeder.order.gaps import Gaps
from feeder.order.permutation import permute
from feeder.order.random import Stream, numbers_in, philox, uniform
from feeder.order.sample_order import Order, substitute
from feeder.order.split import Split
from feeder.system.arrays import Int32s, Int64s, Uint32s

_AT_ONCE = 1 << 16
_DRAWN_AT_ONCE = 1024


class BucketTable:
    """The samples of each bucket, 4 bytes a sample.

    Args:
        members: uint32 [N], sample ids, bucket after bucket; ascending in each.
        starts: int64 [buckets + 1], first position of each bucket, and N.
    """

    def __init__(self, members: Uint32s, starts: Int64s) -> None:
        self.members = members
        self.starts = starts

    @classmethod
    def of(cls, buckets: Buckets, samples: int, sizes: Callable[[Int64s], Int32s]) -> BucketTable:
        """Returns the table of a dataset.

        Args:
            buckets: The buckets.
            samples: Number of samples, below 2**32.
            sizes: Returns the upright (height, width) of sample ids, int32 [N, 2]; of the same ids always the same.

        Raises:
            ArgumentError: if there are too many samples.
        """
        if samples >= 1 << 32:
            raise ArgumentError(f"buckets are for fewer than 2**32 samples, got {samples:,}")

        def chosen(ids: Int64s) -> npt.NDArray[np.uint16]:
            return buckets.nearest(sizes(ids)).astype(np.uint16)  # numpy sorts 16 bits by radix

        # The sizes are asked for twice, so that no bucket of a sample is kept between counting and placing.
        counts = np.zeros(len(buckets), np.int64)
        for ids in id_runs(samples):
            counts += np.bincount(chosen(ids), minlength=len(buckets))
        starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
        members, ends = np.empty(samples, np.uint32), starts[:-1].copy()
        for ids in id_runs(samples):
            found = chosen(ids)
            counts = np.bincount(found, minlength=len(buckets))
            shifts = ends - (np.cumsum(counts) - counts)
            members[np.repeat(shifts, counts) + np.arange(len(ids))] = ids[np.argsort(found, kind="stable")]
            ends += counts
        return cls(members, starts)

    def __len__(self) -> int:
        return len(self.members)

    @property
    def buckets(self) -> int:
        """Number of buckets."""
        return len(self.starts) - 1

    def bucket_at(self, positions: npt.ArrayLike) -> npt.NDArray[np.intp]:
        """Returns the buckets that positions, integers [N] in [0, samples), belong to: intp [N]."""
        return np.searchsorted(self.starts, np.asarray(positions), side="right") - 1

    def substitute_buckets(self, position: int, buckets: Buckets) -> list[int]:
        """Returns the buckets that substitutes are taken of, those of the first one before those of the next: the
        position's own, if it has another sample, then all others that have samples, the nearest in aspect first."""
        own = int(self.bucket_at([position])[0])
        sizes = np.diff(self.starts)
        return [each for each in buckets.neighbors(own) if sizes[each] > (each == own)]

    def substitute(self, position: int, attempt: int, seed: int, epoch: int, bucket: int | None = None) -> int:
        """Returns a sample of a bucket that has some, or of the position's own; see
        :func:`feeder.order.sample_order.substitute`."""
        bucket = int(self.bucket_at([position])[0]) if bucket is None else bucket
        start, end = self.starts[bucket : bucket + 2].tolist()
        return int(self.members[start + substitute(position, attempt, end - start, seed, epoch)])


def id_runs(samples: int) -> Iterator[Int64s]:
    """Yields the ids of all samples, some at a time, so that no array but the table grows with them."""
    for first in range(0, samples, _AT_ONCE):
        yield np.arange(first, min(samples, first + _AT_ONCE), dtype=np.int64)


class BucketOrder(Order):
    """The order of a dataset in buckets; see Note [Order of buckets].

    Args:
        table: The samples of each bucket.
        seed: 0 to 2**64-1.
        shuffle: False leaves each bucket in the stored order.
    """

    def __init__(self, table: BucketTable, seed: int = 0, shuffle: bool = False) -> None:
        super().__init__(len(table), seed, shuffle)
        self.table = table

    def with_seed(self, seed: int) -> BucketOrder:
        """See :meth:`Order.with_seed`."""
        return self if seed == self.seed else BucketOrder(self.table, seed, bool(self.shuffle))

    def ids(self, epoch: int, positions: npt.ArrayLike) -> Int64s:
        """See :meth:`Order.ids`."""
        places = numbers_in(self.samples, positions, "positions")
        if self.shuffle:
            owners = self.table.bucket_at(places)
            for bucket in np.unique(owners).tolist():
                start, end = self.table.starts[bucket : bucket + 2].tolist()
                own = owners == bucket
                places[own] = start + permute(places[own] - start, end - start, self._seed_of(bucket, epoch), epoch)
        return self.table.members[places].astype(np.int64)

    def positions(self, epoch: int, ids: npt.ArrayLike) -> Int64s:
        """See :meth:`Order.positions`."""
        wanted = numbers_in(self.samples, ids, "sample ids")
        found = np.empty_like(wanted)
        for bucket, (start, end) in enumerate(itertools.pairwise(self.table.starts.tolist())):
            if end == start:
                continue
            members = self.table.members[start:end]
            place = np.minimum(np.searchsorted(members, wanted), end - start - 1)
            own = members[place] == wanted
            if self.shuffle and own.any():
                found[own] = start + permute(place[own], end - start, self._seed_of(bucket, epoch), epoch, inverse=True)
            else:
                found[own] = start + place[own]
        return found

    def _seed_of(self, bucket: int, epoch: int) -> int:
        """Returns the seed that a bucket is permuted by in an epoch."""
        high, low = philox(self.seed, epoch, [bucket], Stream.BUCKET)[0, :2].tolist()
        return int(high << 32 | low)


@dataclass(frozen=True)
class _Chunk:
    """Full batches that were drawn together.

    Attributes:
        begin: Number of the first of them.
        buckets, firsts: The bucket of each batch, and its first sample there.
        left, next: Of each bucket, full batches and first sample that come after them.
    """

    begin: int
    buckets: list[int]
    firsts: list[int]
    left: list[int]
    next: list[int]


class BucketSplit(Split):
    """Divides an epoch in buckets among steps and ranks; see Note [Order of buckets].

    Steps, their sizes, padding and the number of samples consumed are those of :class:`Split`; the samples are others.
    Padding repeats samples of the last batch.

    Args:
        order: The order.
        epoch: The epoch, as the sequence of batches is drawn for it.
        batch_size, rank, world_size, drop_last: See :class:`Split`.
        consumed: Samples of each bucket that the job has consumed already, or passed over; empty: none.
        gaps: See :class:`Split`.
    """

    def __init__(
        self,
        order: BucketOrder,
        epoch: int,
        batch_size: int,
        rank: int = 0,
        world_size: int = 1,
        drop_last: bool = False,
        consumed: Sequence[int] = (),
        gaps: Gaps | None = None,
    ) -> None:
        starts = order.table.starts
        done = np.array(consumed, np.int64) if len(consumed) else np.zeros(len(starts) - 1, np.int64)
        if done.shape != (len(starts) - 1,) or (done < 0).any() or (done > np.diff(starts)).any():
            raise ArgumentError(
                f"consumed must have a number of samples for each of the {len(starts) - 1} buckets, at most "
                f"{np.diff(starts).tolist()}, got {list(consumed)!r}"
            )
        super().__init__(order.samples, batch_size, rank, world_size, drop_last, int(done.sum()), gaps)

        self._order = order
        self._epoch = epoch
        self._consumed = done
        # Counts of the positions that the epoch keeps: those before each bucket, and those consumed of each.
        self._first = starts if gaps is None else gaps.places(starts)
        self._kept_consumed = self._kept_of(done)
        left = np.diff(self._first) - self._kept_consumed
        self._rests = left % self._global_batch  # samples of each bucket after its last full batch
        full = left // self._global_batch
        self._full = int(full.sum())  # number of full batches
        # Grows as steps are asked for, by several threads: what each adds follows from what stands before it.
        self._chunks = {-1: _Chunk(0, [], [], full.tolist(), self._kept_consumed.tolist())}

    def positions(self, step: int) -> Int64s:
        """See :meth:`Split.positions`."""
        first, size = self._share(step)
        begin = self._begin + step * self._global_batch
        offsets = first - begin + np.arange(size, dtype=np.int64)
        if step < self._full:
            chunk = self._chunk_of(step)
            number = step - chunk.begin
            return self._positions(int(self._first[chunk.buckets[number]]) + chunk.firsts[number] + offsets)
        return self._shared(begin + offsets % min(self._global_batch, self.kept - begin))

    def run(self, first_step: int, end_step: int) -> tuple[Int64s, Int64s]:
        """See :meth:`Split.run`."""
        pieces = [self.positions(step) for step in range(first_step, end_step)]
        return np.concatenate(pieces), np.array([len(piece) for piece in pieces], np.int64)

    def bucket(self, step: int) -> int:
        """Returns the bucket whose size the batch at a step has."""
        begin = self._begin + step * self._global_batch
        self._share(step)
        if step < self._full:
            chunk = self._chunk_of(step)
            return chunk.buckets[step - chunk.begin]
        middle = begin + min(self._global_batch, self.kept - begin) // 2
        return int(self._order.table.bucket_at(self._shared(np.array([middle])))[0])

    def consumed(self, steps: int) -> int:
        """See :meth:`Split.consumed`."""
        return super().consumed(steps) if self.gaps is None else sum(self.consumed_by_bucket(steps))

    def consumed_by_bucket(self, steps: int) -> list[int]:
        """Returns the samples of each bucket that the whole job has consumed, or passed over, after ``steps`` steps
        from ``start``."""
        full = min(steps, self._full)
        chunk = self._chunk_of(full - 1)
        later = np.bincount(chunk.buckets[full - chunk.begin :], minlength=len(self._consumed))
        done = np.array(chunk.next) - self._global_batch * later
        shared = min(self.kept - self._begin, steps * self._global_batch) - full * self._global_batch
        before = np.cumsum(self._rests) - self._rests
        done = done + np.clip(shared - before, 0, self._rests)
        if self.gaps is None:
            return [*map(int, done)]
        sizes, starts = np.diff(self._order.table.starts).tolist(), self._order.table.starts.tolist()
        ends = [self._after(place) for place in (self._first[:-1] + done).tolist()]
        found = []
        for bucket, (number, size) in enumerate(zip(done.tolist(), sizes, strict=True)):
            if number == self._kept_consumed[bucket]:
                found.append(int(self._consumed[bucket]))
            else:
                is_over = self._first[bucket] + number == self._first[bucket + 1]
                found.append(size if is_over else ends[bucket] - starts[bucket])
        return found

    def steps_before(self, start: int, by_bucket: Sequence[int] = ()) -> int:
        """See :meth:`Split.steps_before`."""
        done = self._kept_of(np.array(by_bucket, np.int64)) if len(by_bucket) else np.zeros(1, np.int64)
        return -(-(int(done.sum()) - self._begin) // self._global_batch)

    @property
    def _begin(self) -> int:
        return int(self._kept_consumed.sum())

    def _kept_of(self, consumed: Int64s) -> Int64s:
        """Returns how many of the samples consumed of each bucket the epoch has."""
        ends = self._order.table.starts[:-1] + consumed
        return consumed if self.gaps is None else self.gaps.places(ends) - self._first[:-1]

    def _shared(self, places: Int64s) -> Int64s:
        """Returns the positions of samples in the last batches, given their numbers among all samples consumed."""
        row = places - (self._begin + self._full * self._global_batch)
        ends = np.cumsum(self._rests)
        owners = np.searchsorted(ends, row, side="right")
        return self._positions(self._first[owners + 1] - ends[owners] + row)

    def _chunk_of(self, step: int) -> _Chunk:
        """Returns the full batches that were drawn together with a step's; none for the step before the first, -1."""
        wanted = step // _DRAWN_AT_ONCE
        last = next(each for each in range(wanted, -2, -1) if each in self._chunks)
        for number in range(last + 1, wanted + 1):
            self._chunks[number] = self._draw_chunk(number, self._chunks[number - 1])
        return self._chunks[wanted]

    def _draw_chunk(self, number: int, before: _Chunk) -> _Chunk:
        first, size = number * _DRAWN_AT_ONCE, self._global_batch
        drawn = _Chunk(first, [], [], before.left.copy(), before.next.copy())
        consumed = self._begin + size * np.arange(first, min(self._full, first + _DRAWN_AT_ONCE))
        odds = uniform(self._order.seed, self._epoch, consumed, Stream.BUCKET_SEQUENCE, 1)[:, 0].tolist()
        for each in odds if self._order.shuffle else [0.0] * len(odds):
            ends = list(itertools.accumulate(drawn.left))
            bucket = bisect.bisect_right(ends, int(each * ends[-1]))
            drawn.buckets.append(bucket)
            drawn.firsts.append(drawn.next[bucket])
            drawn.left[bucket] -= 1
            drawn.next[bucket] += size
        return drawn

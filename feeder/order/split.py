"""The positions of an epoch that each rank takes at each step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from feeder.errors import ArgumentError
from feeder.order.gaps import Gaps
from feeder.order.sample_order import Order
from feeder.system.arrays import Int64s
from feeder.system.checks import check_int

_ORDERED_AT_ONCE = 4096


@dataclass(eq=False)
class Split:
    """Divides an epoch's positions among steps and ranks.

    Step t of a job with the global batch G = world_size * batch_size takes the G positions from ``start + t * G``;
    rank r takes the r-th slice. Where fewer than G are left, each rank takes an equal share of them, and positions past
    the end wrap around to the epoch's first ones (padding, at most world_size - 1 in an epoch). Every rank has the
    same number of batches of the same sizes. The rest after any step is a plain range of positions, which can be
    split again for any world size and batch size. Positions in gaps are passed over, as if the epoch went without them.

    Args:
        samples: Positions in the epoch, 0 or more.
        batch_size: Samples in a rank's batch, 1 or more.
        rank: This rank, 0 to world_size - 1.
        world_size: Number of ranks, 1 or more.
        drop_last: True to leave out a last step that can't fill every rank's batch.
        start: Positions that the job has consumed already, or passed over.
        gaps: Positions that the epoch goes without; None: it has all.
    """

    samples: int
    batch_size: int
    rank: int = 0
    world_size: int = 1
    drop_last: bool = False
    start: int = 0
    gaps: Gaps | None = None

    def __post_init__(self) -> None:
        check_int("batch_size", self.batch_size, 1)
        if self.world_size < 1 or not 0 <= self.rank < self.world_size:
            raise ArgumentError(f"rank must be 0 to world_size - 1, got rank {self.rank} of {self.world_size}")
        check_int("start", self.start, 0, self.samples)

    def __len__(self) -> int:
        """Number of steps from ``start`` to the end; the same on every rank."""
        full, rest = divmod(self.kept - self._begin, self._global_batch)
        return full + (1 if rest and not self.drop_last else 0)

    def positions(self, step: int) -> Int64s:
        """Returns the positions of this rank's batch at a step: int64 [at most batch_size], in [0, samples)."""
        first, size = self._share(step)
        return self._positions((first + np.arange(size, dtype=np.int64)) % self.kept)

    def run(self, first_step: int, end_step: int) -> tuple[Int64s, Int64s]:
        """Returns the positions of this rank's batches at some steps, one after another, int64 [N], and the number of
        positions in each, int64 [steps]."""
        full = max(first_step, min(end_step, len(self) - 1))  # the last one may have fewer
        firsts = self._begin + np.arange(first_step, full, dtype=np.int64) * self._global_batch
        firsts += self.rank * self.batch_size
        places = (firsts[:, None] + np.arange(self.batch_size, dtype=np.int64)).reshape(-1) % max(1, self.kept)
        pieces = [self._positions(places), *(self.positions(step) for step in range(full, end_step))]
        sizes = [self.batch_size] * (full - first_step) + [len(piece) for piece in pieces[1:]]
        return np.concatenate(pieces), np.array(sizes, np.int64)

    def padding(self, step: int) -> int:
        """Returns the number of positions at the end of this rank's batch that are padding."""
        first, size = self._share(step)
        return min(size, max(0, first + size - self.kept))

    def consumed(self, steps: int) -> int:
        """Returns the number of positions that the whole job has consumed or passed over after ``steps`` steps from
        ``start``."""
        if self.gaps is None:
            return min(self.samples, self.start + steps * self._global_batch)
        place = self._begin + steps * self._global_batch
        return self.start if not steps else self.samples if place >= self.kept else self._after(place)

    def steps_before(self, start: int, by_bucket: Sequence[int] = ()) -> int:
        """Returns the number of steps from ``start`` until the job has consumed the positions before another start.

        Args:
            start: The other start.
            by_bucket: Those of each bucket, whose sum it is, with buckets.
        """
        return -(-(self._place(start) - self._begin) // self._global_batch)

    @property
    def kept(self) -> int:
        """Number of positions that the epoch has."""
        return self.samples - (0 if self.gaps is None else len(self.gaps))

    def samples_here(self) -> int:
        """Returns the number of samples that this rank takes from ``start``, padding included."""
        steps = len(self)
        return (steps - 1) * self.batch_size + self._share(steps - 1)[1] if steps else 0

    @property
    def _global_batch(self) -> int:
        return self.batch_size * self.world_size

    def _share(self, step: int) -> tuple[int, int]:
        check_int("step", step, 0, len(self) - 1)
        base = self._begin + step * self._global_batch
        size = min(self.batch_size, -(-(self.kept - base) // self.world_size))
        return base + self.rank * size, size

    @property
    def _begin(self) -> int:
        """Number of positions before ``start`` that the epoch has."""
        return self._place(self.start)

    def _place(self, position: int) -> int:
        """Returns the number of positions before one that the epoch has."""
        return position if self.gaps is None else int(self.gaps.places(position))

    def _positions(self, places: Int64s) -> Int64s:
        return places if self.gaps is None else self.gaps.positions(places)

    def _after(self, place: int) -> int:
        """Returns the end of the first ``place`` positions that the epoch has."""
        return 0 if not place else int(self._positions(np.array([place - 1]))[0]) + 1


def ordered_batches(order: Order, epoch: int, split: Split, first_step: int = 0) -> Iterator[tuple[Int64s, ...]]:
    """Yields the positions of each of a rank's batches, and the ids and passes of :meth:`Order.placed`, int64 [N]."""
    # Computing the ids of one batch takes nearly as long as those of several.
    steps = max(1, _ORDERED_AT_ONCE // split.batch_size)
    for first in range(first_step, len(split), steps):
        positions, sizes = split.run(first, min(first + steps, len(split)))
        ends = np.cumsum(sizes)[:-1]
        yield from zip(*(np.split(each, ends) for each in (positions, *order.placed(epoch, positions))), strict=True)

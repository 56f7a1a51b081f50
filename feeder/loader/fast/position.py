"""Places in a run, and the progress of an iterator from one."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from feeder.errors import ArgumentError
from feeder.loader.fast.part_report import Substitution
from feeder.loader.fast.sampler_replay import Replay, check_replay_state
from feeder.order.bucket_order import BucketOrder, BucketSplit
from feeder.order.sample_order import Order
from feeder.order.split import Split
from feeder.system.text import count, printable
from feeder.system.warning import warn


@dataclass(frozen=True)
class Place:
    """A place in the run at which an iteration starts.

    Attributes:
        epoch: The epoch.
        start: Positions of the whole job that were consumed before, or, with an explicit sampler, batches.
        by_bucket: Those of each bucket, whose sum ``start`` is; empty at the start of an epoch, and without buckets.
        sampler: State of an explicit sampler, see :meth:`feeder.loader.fast.sampler_replay.Replay.state`; None:
            unknown.
    """

    epoch: int = 0
    start: int = 0
    by_bucket: tuple[int, ...] = ()
    sampler: Mapping[str, Any] | None = None

    @classmethod
    def of_state(cls, state: Mapping[str, Any], order: Order, *, own_order: bool) -> Place:
        """Returns the place that a state is of.

        Args:
            state: The state.
            order: The loader's order.
            own_order: False with an explicit sampler.

        Raises:
            ArgumentError: if the state is damaged, or was saved with a sampler and there is none, or the other way
                around.
        """
        epoch, start = state.get("epoch"), state.get("consumed" if own_order else "batches")
        if type(epoch) is not int or not 0 <= epoch < 1 << 32:
            raise ArgumentError(f"this state is damaged: expected an epoch of 0 to 2**32-1, got {epoch!r}")
        most = order.samples_in(epoch)
        if type(start) is not int or start < 0 or (own_order and start > most):
            raise ArgumentError(
                f"this state does not fit: it was saved {'with' if own_order else 'without'} an explicit sampler, "
                f"or is damaged (at {start!r} of {most})"
            )
        if own_order:
            return cls(epoch, start, _consumed_by_bucket(state, order, epoch, start))
        check_replay_state(state.get("sampler"))
        return cls(epoch, start, sampler=state["sampler"])

    def consumed(self, order: Order) -> dict[str, Any]:
        """Returns the part of a state that says what was consumed before, in feeder's own order."""
        if not isinstance(order, BucketOrder):
            return {"consumed": self.start}
        return {"consumed": self.start, "consumed_by_bucket": list(self.by_bucket) or [0] * order.table.buckets}


@dataclass
class EpochProgress:
    """Progress of an iterator. Outlives the iterator, so that the loader knows of a loop that was broken off.

    Attributes:
        place: The place that it started at.
        split: This rank's share of the epoch from there; None with an explicit sampler.
        replay: The explicit sampler's epoch from there; None with feeder's own order.
        order: Feeder's own order; None with an explicit sampler.
        ordered: Number of batches whose samples were looked up, to be made.
        steps: Number of batches handed out.
        exhausted: True once the epoch is over.
        asked: True once a batch was asked for.
        samples: Number of samples handed out.
        skipped: Number of samples that took the place of bad ones.
        first_skipped: The first bad sample.
        moved: Set when ``steps`` or ``exhausted`` has changed.
    """

    place: Place
    split: Split | None
    replay: Replay | None = None
    order: Order | None = None
    ordered: int = 0
    steps: int = 0
    exhausted: bool = False
    asked: bool = False
    samples: int = 0
    skipped: int = 0
    first_skipped: Substitution | None = None
    moved: threading.Event = field(default_factory=threading.Event, repr=False, compare=False)

    def follow(self, order: Order, split: Split) -> None:
        """Sets the order and its split for the steps ahead; both begin as those before."""
        self.order = order
        self.split = split

    def ordered_until(self) -> int:
        """Returns the epoch's positions that the job has ordered: all, once no batch is left to order."""
        assert self.split is not None
        return self.split.samples if self.ordered >= len(self.split) else self.split.consumed(self.ordered)

    def now(self) -> Place:
        """Returns the place at which the next iteration goes on after the batches that were handed out."""
        split = self.split
        start = self.place.start + self.steps if split is None else split.consumed(self.steps)
        by_bucket = split.consumed_by_bucket(self.steps) if isinstance(split, BucketSplit) else ()
        return Place(self.place.epoch, start, tuple(by_bucket))

    def __len__(self) -> int:
        """Number of batches that are left.

        Raises:
            TypeError: if the explicit sampler has no length.
        """
        if self.split is not None:
            return max(0, len(self.split) - self.steps)
        assert self.replay is not None
        return max(0, len(self.replay) - self.place.start - self.steps)

    def warn_of_skipped(self) -> None:
        """Warns at the end of an epoch, if samples were replaced by others, how many."""
        first = self.first_skipped
        if first is None:
            return
        share = self.skipped / self.samples
        warn(
            f"{self.skipped:,} of {count(self.samples, 'sample')} of epoch {self.place.epoch} ({share:.2%}) were bad, "
            f"and others took their place (on_error='skip'); the first: {printable(first.key or 'no key')}: "
            f"{printable(first.reason)}; stats()['substitutions'] lists them, and `feeder inspect --verify` those of a "
            "shard set"
        )

    @property
    def is_midway(self) -> bool:
        """True if a batch was asked for, and batches are left, as far as is known."""
        return not self.exhausted and self.asked and (self.split is None or self.steps < len(self.split))


def _consumed_by_bucket(state: Mapping[str, Any], order: Order, epoch: int, consumed: int) -> tuple[int, ...]:
    """Returns the samples consumed of each bucket, of so many in all, as a state has them; () without buckets."""
    if not isinstance(order, BucketOrder):
        return ()
    found = state.get("consumed_by_bucket")
    if not isinstance(found, list) or not all(type(each) is int for each in found) or sum(found) != consumed:
        raise ArgumentError(f"this state is damaged: of {consumed} samples consumed, the buckets have {found!r}")
    BucketSplit(order, epoch, 1, consumed=found)  # checks the numbers
    return tuple(found)

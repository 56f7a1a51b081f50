"""The ways in which a run was split into batches: what the batch of any step had.

Note [Spans]
    The samples of a batch follow from the order, the epoch, the samples that were consumed before it, and from batch
    size and world size. Those two may change when a run is resumed, also within an epoch. So a state lists spans: from
    which place on the run had which of them, and what it left out. A span lasts until the next one, over any number of
    epochs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from feeder.errors import ArgumentError
from feeder.loader.fast.position import Place
from feeder.order.bucket_order import BucketSplit
from feeder.order.skip import Skip
from feeder.order.split import Split
from feeder.system.text import count


@dataclass(frozen=True)
class Span:
    """A part of a run with one batch size.

    Attributes:
        place: The place at which it begins.
        batch_size: Samples in a rank's batch.
        world_size: Number of ranks.
        drop_last: True if the last batch of an epoch is left out where it is not full.
        skip: What epochs leave out; None: nothing.
    """

    place: Place
    batch_size: int
    world_size: int
    drop_last: bool
    skip: Skip | None = None

    def state(self) -> dict[str, Any]:
        """Returns it as JSON takes it."""
        place = self.place
        consumed: dict[str, Any] = {"epoch": place.epoch, "consumed": place.start}
        if place.by_bucket:
            consumed["consumed_by_bucket"] = list(place.by_bucket)
        shares = {"batch_size": self.batch_size, "world_size": self.world_size, "drop_last": self.drop_last}
        return consumed | shares | ({"skip": self.skip.state()} if self.skip else {})


class Spans:
    """The spans of a run, in order; see Note [Spans].

    Args:
        spans: The spans that are known.
    """

    def __init__(self, spans: Sequence[Span] = ()) -> None:
        self._spans = list(spans)

    @classmethod
    def of_state(cls, state: Mapping[str, Any]) -> Spans:
        """Returns the spans that a state has.

        Raises:
            ArgumentError: if they are damaged.
        """
        try:
            return cls([_span(**each) for each in state.get("spans", [])])
        except (ArgumentError, TypeError, ValueError) as error:
            raise ArgumentError(f"this state is damaged: its spans are {str(state['spans'])[:60]}") from error

    def state(self) -> list[dict[str, Any]]:
        """Returns them as JSON takes them."""
        return [span.state() for span in self._spans]

    def begin(self, span: Span) -> None:
        """Adds a span, in place of those that begin there or later; none if the one before goes on."""
        while self._spans and _begins(self._spans[-1]) >= _begins(span):
            self._spans.pop()
        last = self._spans[-1] if self._spans else None
        if last is None or _shares(last) != _shares(span):
            self._spans.append(span)

    def find(self, epoch: int, step: int, split: Callable[[Span, Place], Split]) -> tuple[Span, Place]:
        """Returns the span that a batch is of, and the place at which the batch begins.

        Args:
            epoch: The epoch.
            step: Number of the batch in it, from 0.
            split: Returns a span's split of an epoch from a place on.

        Raises:
            ArgumentError: if the batch is not known.
        """
        steps = 0
        for span, found, here in self._of_epoch(epoch, split):
            if 0 <= step - steps < here:
                by_bucket = found.consumed_by_bucket(step - steps) if isinstance(found, BucketSplit) else ()
                return span, Place(epoch, found.consumed(step - steps), tuple(by_bucket))
            steps += here
        raise ArgumentError(f"step must be 0 to {steps - 1}, as epoch {epoch} has {count(steps, 'step')}, got {step}")

    def steps(self, epoch: int, split: Callable[[Span, Place], Split]) -> int:
        """Returns the number of batches of an epoch; arguments and errors are those of :meth:`find`."""
        return sum(here for *_, here in self._of_epoch(epoch, split))

    def _of_epoch(self, epoch: int, split: Callable[[Span, Place], Split]) -> Iterator[tuple[Span, Split, int]]:
        """Yields the spans of an epoch, the split of each, and its number of batches in the epoch."""
        before = [each for each in self._spans if _begins(each) <= (epoch, 0)]
        if not before:
            oldest = self._spans[0].place if self._spans else None
            since = (
                "no batch was taken yet"
                if oldest is None
                else f"it is known from {count(oldest.start, 'sample')} into epoch {oldest.epoch} on"
            )
            raise ArgumentError(f"the batches of epoch {epoch} are not known: {since}")

        # The epoch begins with the last span before it; those that begin inside it follow.
        begun = [(before[-1], Place(epoch))]
        begun += [(each, each.place) for each in self._spans if each.place.epoch == epoch and each.place.start]
        for number, (span, place) in enumerate(begun):
            found = split(span, place)
            here = len(found)
            if number + 1 < len(begun):
                end = begun[number + 1][1]
                here = found.steps_before(end.start, end.by_bucket)
            yield span, found, here


def _span(
    epoch: int,
    consumed: int,
    batch_size: int,
    world_size: int,
    drop_last: bool,
    consumed_by_bucket: Sequence[int] = (),
    skip: Any = None,
) -> Span:
    numbers = (epoch, consumed, batch_size, world_size, *consumed_by_bucket)
    if any(type(number) is not int for number in numbers) or min(numbers) < 0 or batch_size < 1 or world_size < 1:
        raise ValueError
    place = Place(epoch, consumed, tuple(consumed_by_bucket))
    return Span(place, batch_size, world_size, bool(drop_last), Skip.of_state(skip))


def _begins(span: Span) -> tuple[int, int]:
    return span.place.epoch, span.place.start


def _shares(span: Span) -> tuple[int, int, bool, Skip | None]:
    return span.batch_size, span.world_size, span.drop_last, span.skip or None

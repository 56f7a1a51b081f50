"""Samples and spans that a loader leaves out of its epochs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from feeder.errors import ArgumentError
from feeder.order.gaps import Gaps
from feeder.order.sample_order import Order
from feeder.system.arrays import AnyArray, Int64s

_EPOCHS = 1 << 32


class Skip:
    """Samples and spans that a loader leaves out of its epochs, for ``DataLoader(skip=...)``.

    All other samples come in the order that they would have without it, with the same augmentation, and move up into
    the places that come free.

    Args:
        ids: Ids of samples that no epoch has: integers [N], in any order; of a Subset those in the whole dataset.
        spans: Parts of single epochs: (epoch, first position, end), the end not included, as
            :meth:`feeder.DataLoader.span_of` gives them.

    Attributes:
        ids: int64 [N], sorted, without repeats.
        spans: The spans, sorted.

    Raises:
        ArgumentError: if an id or a span is none.
    """

    def __init__(self, ids: Iterable[int] | AnyArray = (), spans: Iterable[Sequence[int]] = ()) -> None:
        self.ids = _checked_ids(ids)
        self.spans = tuple(sorted(_checked_span(span) for span in spans))

    @classmethod
    def of(cls, given: Any) -> Skip | None:
        """Returns the value of a loader's argument: a Skip, or the ids of samples; None for None."""
        return given if given is None or isinstance(given, Skip) else cls(given)

    @classmethod
    def of_state(cls, value: Any) -> Skip | None:
        """Returns what :meth:`state` gave; None for None.

        Raises:
            ArgumentError: if it is something else.
        """
        if value is None:
            return None
        try:
            if not isinstance(value, Mapping):
                raise ArgumentError("no dict")
            return cls(value["ids"], value["spans"])
        except (ArgumentError, KeyError, TypeError) as error:
            raise ArgumentError(f"this state is damaged: what it skips is {value!r:.200}") from error

    def state(self) -> dict[str, Any]:
        """Returns it as JSON takes it."""
        return {"ids": self.ids.tolist(), "spans": [list(span) for span in self.spans]}

    def summary(self) -> str:
        """Returns its size and a digest, by which ranks compare what they skip."""
        digest = hashlib.blake2b(repr((self.ids.tolist(), self.spans)).encode(), digest_size=8).hexdigest()
        return f"{len(self.ids)} ids and {len(self.spans)} spans, digest {digest}"

    def __bool__(self) -> bool:
        return bool(len(self.ids) or self.spans)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Skip) and np.array_equal(self.ids, other.ids) and self.spans == other.spans

    def __hash__(self) -> int:
        return hash((self.ids.tobytes(), self.spans))

    def __repr__(self) -> str:
        return f"Skip({len(self.ids)} ids, spans={list(self.spans)})"

    def gaps(self, order: Order, epoch: int, ids: Int64s) -> Gaps | None:
        """Returns the positions that an epoch goes without; None if it has all.

        Args:
            order: The order.
            epoch: The epoch.
            ids: int64 [N], the samples of :attr:`ids` as the order knows them.
        """
        ranges = [(first, min(end, order.samples_in(epoch))) for at, first, end in self.spans if at == epoch]
        gaps = Gaps(order.positions(epoch, ids), ranges) if len(ids) or ranges else None
        return gaps or None


def _checked_ids(given: Any) -> Int64s:
    found = np.asarray([*given] if not isinstance(given, np.ndarray) and isinstance(given, Iterable) else given)
    if not found.size and found.ndim == 1:
        return np.zeros(0, np.int64)
    if found.ndim != 1 or found.dtype.kind not in "iu" or isinstance(given, (str, bytes)) or found.min() < 0:
        raise ArgumentError(
            f"skip must be ids of samples, integers of 0 or more, or a feeder.Skip(ids, spans), got {given!r:.200}"
        )
    ordered = np.sort(found.astype(np.int64))  # np.unique takes a second for a million
    apart: Int64s = ordered[np.diff(ordered, prepend=-1) != 0]
    return apart


def _checked_span(span: Any) -> tuple[int, int, int]:
    try:
        epoch, first, end = (int(each) for each in span if not isinstance(each, (str, float)))
    except (TypeError, ValueError):
        epoch, first, end = -1, 0, 0
    if not 0 <= epoch < _EPOCHS or not 0 <= first <= end:
        raise ArgumentError(
            f"a span of Skip(spans=) must be (epoch, first position, end), integers, got {span!r:.200}; "
            "loader.span_of(epoch, first_step, end_step) gives it"
        )
    return epoch, first, end

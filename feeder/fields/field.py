"""The base of the kinds of fields."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from feeder.errors import ArgumentError


class MissingValueError(ValueError):
    """The member lacks the value that is asked for; a sample without the member has none either."""


class BatchEntry:
    """Base of what a sample has beside its image and label: an entry of the batch."""

    @property
    def columns(self) -> tuple[tuple[Any, ...], ...]:
        """(shape, dtype name) of each array that a sample's value fills; empty if values travel as Python objects."""
        return ()

    @property
    def is_ragged(self) -> bool:
        """True if a value is made of tensors whose number or shapes are the sample's own."""
        return False

    def gather(self, tensors: tuple[Any, ...]) -> Any:
        """Returns the batch's entry, or a sample's.

        Args:
            tensors: One for each column: [N, *shape] for a batch, [*shape] for a sample.
        """
        return tensors[0] if len(tensors) == 1 else tensors

    def collate(self, values: list[Any]) -> Any:
        """Returns the batch's entry for N values without columns.

        Raises:
            ValueError: if they do not go together.
        """
        return values

    def sample(self, value: Any) -> Any:
        """Returns the entry of ``dataset[i]`` for a sample's value."""
        if not self.columns:
            return value
        import torch

        return self.gather(tuple(map(torch.as_tensor, value)))


@dataclass(frozen=True, kw_only=True)
class Field(BatchEntry):
    """A kind of field: turns the bytes of a sample's member into a value.

    Args:
        optional: True if samples may lack the member or its value; False makes that an error, which names the sample.
        fill: Value of these samples.

    Raises:
        ArgumentError: if there is a ``fill``, but the field is not optional, or if it is none of the kind's values.
    """

    optional: bool = False
    fill: Any = None
    fill_types: ClassVar[tuple[type, ...]] = ()  # types of the values that ``fill`` may have; empty: any

    def __post_init__(self) -> None:
        if self.fill is not None and not self.optional:
            raise ArgumentError(f"{type(self).__name__}(fill=...) is for samples without the field: add optional=True")
        if self.fill is not None and self.fill_types and not isinstance(self.fill, self.fill_types):
            known = " or ".join(each.__name__ for each in self.fill_types)
            raise ArgumentError(f"{type(self).__name__}(fill=...) must be {known}, got {self.fill!r}")

    @property
    def is_drawn(self) -> bool:
        """True if the value depends on a number that is drawn for each sample and epoch."""
        return False

    def parse(self, data: bytes, draw: float = 0.0) -> Any:
        """Returns the value: a tuple of one for each of :attr:`columns`, or any object if there are none.

        Args:
            data: The member's bytes.
            draw: The drawn number, 0 to 1 (exclusive); of no effect unless :attr:`is_drawn`.

        Raises:
            MissingValueError: if the value is not in them.
            ValueError: if the bytes are damaged, or of another kind.
        """
        raise NotImplementedError

    def missing(self) -> Any:
        """Returns the value of a sample without the member, as :meth:`parse` does."""
        return (self.fill,) if self.columns else self.fill


def is_held(value: float, dtype: npt.DTypeLike) -> bool:
    """Returns whether a dtype holds a number: an integer or boolean dtype exactly, others within their range."""
    try:
        with np.errstate(all="ignore"):
            held = np.array(value).astype(dtype)
    except (OverflowError, ValueError):  # Python's integers beyond 64 bits
        return False
    return bool(held == value) if held.dtype.kind in "biu" else bool(np.isfinite(held) or not np.isfinite(value))


def shown(value: Any) -> str:
    """Returns the start of a value's ``repr``, for messages."""
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}..."

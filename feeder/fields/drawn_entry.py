"""Fields of which each epoch has another entry."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from feeder.errors import ArgumentError
from feeder.fields.field import Field, MissingValueError, shown
from feeder.fields.function_field import kind_of

__all__ = ["Choice"]


@dataclass(frozen=True)
class Choice(Field):
    """One entry of a list, such as one of several captions, drawn for each sample and epoch. A batch has a list of N.
    A sample with an empty list lacks the value.

    Under :class:`feeder.DataLoader` the draw is a function of (seed, epoch, sample), as augmentation is: the same with
    any number of workers or ranks and after a resume. Fields of a sample with equally long lists draw the same entry.

    Args:
        of: The kind, or a function of the member's bytes, that gives the list: ``Lines()``, ``Json("captions")``.
        optional, fill: See :class:`Field`.

    Raises:
        ArgumentError: if ``of`` is no kind, or has ``optional=True``, which is for the choice itself.
    """

    of: Field | Callable[[bytes], Any]

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "of", kind_of(self.of))
        if self._lists.optional or self._lists.columns:
            raise ArgumentError(f"Choice(...) takes a kind that gives a list for each sample, got {self.of!r}")

    @property
    def _lists(self) -> Field:
        assert isinstance(self.of, Field)
        return self.of

    @property
    def is_drawn(self) -> bool:
        return True

    def parse(self, data: bytes, draw: float = 0.0) -> Any:
        found = self._lists.parse(data, draw)
        if not isinstance(found, (list, tuple)):
            raise ValueError(f"expected a list to choose from, got {shown(found)}")
        if not found:
            raise MissingValueError("is an empty list, of which none can be drawn; optional=True takes such samples")
        return found[int(draw * len(found))]

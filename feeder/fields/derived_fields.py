"""Fields made of other values: by a function of the caller's, or as one entry of a list."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from feeder.errors import ArgumentError
from feeder.fields.field import Field, MissingValueError, shown


@dataclass(frozen=True)
class Apply(Field):
    """The value that a function of the member's bytes returns, made in the workers. A batch has a list of N.

    A module's function can be pickled; with a ``lambda``, a local function or one of the script itself, workers are
    forked. Its exceptions become a DecodeError that names the sample, so ``on_error="skip"`` replaces such samples.

    Args:
        function: Takes bytes; returns any object that can be pickled.
        optional, fill: See :class:`Field`.

    Raises:
        ArgumentError: if it is no function.
    """

    function: Callable[[bytes], Any]

    def __post_init__(self) -> None:
        super().__post_init__()
        if not callable(self.function):
            raise ArgumentError(f"Apply takes a function of a member's bytes, got {self.function!r}")

    def parse(self, data: bytes, draw: float = 0.0) -> Any:
        try:
            return self.function(data)
        except Exception as error:
            name = getattr(self.function, "__qualname__", type(self.function).__qualname__)
            raise ValueError(f"{name} raised {type(error).__name__}: {error}") from error


def kind_of(kind: Any) -> Field:
    """Returns a kind, or the kind of a function of bytes.

    Raises:
        ArgumentError: for anything else.
    """
    if isinstance(kind, Field):
        return kind
    if isinstance(kind, type) and issubclass(kind, Field):
        raise ArgumentError(f"{kind.__name__} is a class; write {kind.__name__}()")
    if callable(kind):
        return Apply(kind)
    raise ArgumentError(f"expected a kind such as feeder.fields.Text(), or a function of bytes, got {kind!r}")


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
    is_drawn = True

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "of", kind_of(self.of))
        if self._lists.optional or self._lists.columns:
            raise ArgumentError(f"Choice(...) takes a kind that gives a list for each sample, got {self.of!r}")

    @property
    def _lists(self) -> Field:
        assert isinstance(self.of, Field)
        return self.of

    def parse(self, data: bytes, draw: float = 0.0) -> Any:
        found = self._lists.parse(data, draw)
        if not isinstance(found, (list, tuple)):
            raise ValueError(f"expected a list to choose from, got {shown(found)}")
        if not found:
            raise MissingValueError("is an empty list, of which none can be drawn; optional=True takes such samples")
        return found[int(draw * len(found))]

"""The values of a sample beside its image and label: its targets and further fields. Needs no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from feeder.dataset.reader import Reader
from feeder.errors import ArgumentError, DecodeError
from feeder.fields.field import BatchEntry, Field, MissingValueError
from feeder.shard.format.index_file import NUMBER_FIELDS
from feeder.system.arrays import AnyArray, Size
from feeder.transforms import Draws

# The ``fields`` of a dataset: names, or the kind of each; None for the value that the name alone gives.
Fields = Sequence[str] | Mapping[str, Field | Callable[[bytes], Any] | None]


class Column(NamedTuple):
    """An array that one sample fills in the slot of its batch.

    Attributes:
        shape: Shape for one sample.
        dtype: numpy dtype name.
        image: Number of the sample's image or view whose (height, width) is the shape, in each batch another one where
            batches differ in size; None: the shape is always this one.
        fill: Value of what a smaller array leaves of its row, right and below; None: arrays have the row's shape.
    """

    shape: tuple[int, ...]
    dtype: str
    image: int | None = None
    fill: int | None = None

    def at(self, sizes: Sequence[Size | None]) -> Column:
        """Returns the column for a batch with images of these (height, width), of which those that a column follows
        are known."""
        if self.image is None:
            return self
        size = sizes[self.image]
        assert size is not None
        return self._replace(shape=size)

    def put(self, value: Any, array: AnyArray, row: int) -> None:
        """Writes a sample's value into its row of the slot's array."""
        if self.fill is None:
            array[row] = value
            return
        height, width = value.shape
        array[row, height:] = self.fill
        array[row, :height, width:] = self.fill
        array[row, :height, :width] = value


class Extra(BatchEntry):
    """Base of the values of a sample beside its image and label; cheap to pickle, and equal to another one alike.

    Attributes:
        name: Its name.
    """

    name: str

    @property
    def member(self) -> str:
        """Name of the member, or of the reader's own field, that the value is made from."""
        return self.name

    @property
    def columns(self) -> tuple[Column, ...]:
        """The arrays that a sample's value fills in the slot; empty if values travel as Python objects."""
        return ()

    @property
    def follows_draws(self) -> bool:
        """True if the value depends on its sample's drawn parameters."""
        return True

    @property
    def replaces_label(self) -> bool:
        """True if samples have the value in place of feeder's label."""
        return False

    def read(self, reader: Reader, i: int) -> Any:
        """Reads the value of sample ``i``, before any draw.

        Raises:
            DecodeError: if the sample is bad; ``on_error`` decides what follows.
        """
        raise NotImplementedError

    def finish(self, value: Any, draws: Draws, row: int) -> Any:
        """Returns the value that goes with the drawn parameters of a sample: a tuple of arrays or numbers, one for each
        column, or any value without columns.

        Args:
            value: What :meth:`read` has returned.
            draws: Drawn parameters of N samples.
            row: The sample's row among them.
        """
        return value

    def finish_views(self, value: Any, draws: Sequence[Draws], row: int) -> Any:
        """Returns the value as :meth:`finish` does, for the drawn parameters of each view; none are needed unless
        :attr:`follows_draws`."""
        return self.finish(value, draws[0], row)

    def arrange(self, entries: tuple[Any, ...], *, is_batch: bool) -> Any:
        """Returns a sample or a batch in another form than ``(image, label, *targets, *fields)``."""
        return entries


@dataclass(frozen=True)
class NamedField(Extra):
    """A field as the reader has it, see :meth:`feeder.dataset.reader.Reader.field`."""

    name: str
    follows_draws = False

    @property
    def columns(self) -> tuple[Column, ...]:
        return (Column((), "int64"),) if self.name in NUMBER_FIELDS else ()

    def read(self, reader: Reader, i: int) -> Any:
        value = reader.field(i, self.name)
        return (value,) if self.columns else value

    def finish_views(self, value: Any, draws: Sequence[Draws], row: int) -> Any:
        return value

    def sample(self, value: Any) -> Any:
        return int(value[0]) if self.columns else value


@dataclass(frozen=True)
class MemberField(Extra):
    """A field that a kind of :mod:`feeder.fields` makes from the member's bytes."""

    name: str
    kind: Field

    @cached_property
    def columns(self) -> tuple[Column, ...]:  # asked for once a sample
        return tuple(Column(*column) for column in self.kind.columns)

    @property
    def follows_draws(self) -> bool:
        return self.kind.is_drawn

    @property
    def is_ragged(self) -> bool:
        return self.kind.is_ragged

    def read(self, reader: Reader, i: int) -> bytes | None:
        data = reader.member(i, self.member)
        if data is None and not self.kind.optional:
            raise DecodeError(
                f"field {self.name!r}: the sample has no such member; {type(self.kind).__name__}(optional=True) takes "
                "samples without it"
            )
        return data

    def finish_views(self, value: bytes | None, draws: Sequence[Draws], row: int) -> Any:
        return self._value(value, float(draws[0].choices[row]) if self.kind.is_drawn else 0.0)

    def _value(self, data: bytes | None, draw: float) -> Any:
        if data is None:
            return self.kind.missing()
        try:
            return self._parse(data, draw)
        except ValueError as error:
            if self.kind.optional and isinstance(error, MissingValueError):
                return self.kind.missing()
            raise DecodeError(f"field {self.name!r}: {error}") from error

    def _parse(self, data: bytes, draw: float) -> Any:
        return self.kind.parse(data, draw)

    def gather(self, tensors: tuple[Any, ...]) -> Any:
        return self.kind.gather(tensors)

    def collate(self, values: list[Any]) -> Any:
        try:
            return self.kind.collate(values)
        except ValueError as error:
            raise ArgumentError(f"field {self.name!r}: {error}") from None

    def sample(self, value: Any) -> Any:
        return self.kind.sample(value)

    def column(self, reader: Reader) -> AnyArray | list[Any]:
        """Returns the field of all N samples: an array [N, *shape] for a kind of one column, else a list.

        Raises:
            ArgumentError: for a field that is drawn.
            DecodeError: for the first bad sample, naming it.
        """
        if self.kind.is_drawn:
            raise ArgumentError(
                f"field {self.name!r} is drawn for each epoch, so it has no column; that of a dataset without fields= "
                "has the members' bytes"
            )
        values = []
        for i in range(len(reader)):
            try:
                values.append(self._value(self.read(reader, i), 0.0))
            except DecodeError as error:
                raise reader.at(error, i) from None
        if len(self.columns) != 1:
            return [self.sample(value) for value in values]
        column, *_ = self.columns
        found = np.empty((len(values), *column.shape), column.dtype)
        for row, (value,) in enumerate(values):
            found[row] = value
        return found


def arranged(extras: Sequence[Extra], entries: Any) -> Any:
    """Returns a sample, ``(image, label, *targets, *fields)``, in the form that its extras give it."""
    for extra in extras:
        entries = extra.arrange(entries, is_batch=False)
    return entries


def sample_entries(
    extras: Sequence[Extra], further: Sequence[AnyArray], lists: Sequence[Sequence[Any]]
) -> list[list[Any]]:
    """Returns the entries of N samples, as ``dataset[i]`` has them, for each extra.

    Args:
        extras: The extras.
        further: An array [N, *shape] for each of their columns.
        lists: N values for each that has no column.
    """
    arrays, rest = iter(further), iter(lists)
    found = []
    for extra in extras:
        columns = [next(arrays) for _ in extra.columns]
        found.append([extra.sample(value) for value in (zip(*columns, strict=True) if columns else next(rest))])
    return found


@dataclass(frozen=True)
class SourceNumber(Extra):
    """The number of a mixture's source that a sample is of, which the loader fills in."""

    name = "source"
    columns = (Column((), "int64"),)

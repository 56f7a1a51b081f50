"""The values of a sample beside its image and label: its targets and further fields. Needs no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy.typing as npt

from feeder.dataset.reader import check_fields
from feeder.shard.format.index import NUMBER_FIELDS

if TYPE_CHECKING:
    from feeder.dataset.reader import Reader
    from feeder.transforms import Draws

__all__ = ["Column", "Extra", "NamedField", "named_fields", "sample_entries"]


class Column(NamedTuple):
    """An array that one sample fills in the slot of its batch.

    Attributes:
        shape: Shape for one sample.
        dtype: numpy dtype name.
    """

    shape: tuple[int, ...]
    dtype: str


class Extra:
    """Base of the values of a sample beside its image and label; cheap to pickle, and equal to another one alike.

    Attributes:
        name: Name of the member or field that the value is made from.
    """

    name: str

    @property
    def columns(self) -> tuple[Column, ...]:
        """The arrays that a sample's value fills in the slot; empty if values travel as Python objects."""
        return ()

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

    def gather(self, tensors: tuple[Any, ...]) -> Any:
        """Returns the batch's entry, or a sample's.

        Args:
            tensors: One for each column: [N, *shape] for a batch, [*shape] for a sample.
        """
        return tensors[0] if len(tensors) == 1 else tensors

    def collate(self, values: list[Any]) -> Any:
        """Returns the batch's entry for N values without columns."""
        return values

    def sample(self, value: Any) -> Any:
        """Returns the entry of ``dataset[i]`` for what :meth:`finish` has returned."""
        if not self.columns:
            return value
        import torch

        return self.gather(tuple(map(torch.as_tensor, value)))


@dataclass(frozen=True)
class NamedField(Extra):
    """A field as the reader has it, see :meth:`feeder.dataset.reader.Reader.field`."""

    name: str

    @property
    def columns(self) -> tuple[Column, ...]:
        return (Column((), "int64"),) if self.name in NUMBER_FIELDS else ()

    def read(self, reader: Reader, i: int) -> Any:
        value = reader.field(i, self.name)
        return (value,) if self.columns else value

    def sample(self, value: Any) -> Any:
        return int(value[0]) if self.columns else value


def named_fields(names: Sequence[str]) -> tuple[Extra, ...]:
    """Returns the fields of these names.

    Raises:
        ArgumentError: for a name that is none, or whose format can run code.
    """
    from feeder.dataset.drawn_fields import DRAWN_FIELDS

    return tuple(DRAWN_FIELDS.get(name) or NamedField(name) for name in check_fields(names))


def sample_entries(
    extras: Sequence[Extra], further: Sequence[npt.NDArray[Any]], lists: Sequence[Sequence[Any]]
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

"""The types of a set's columns, the values of ``json`` and arrays, which samples that are added must have, too.

Neither a set nor a source names them, so some samples of each show them. A column whose values are of several types
there has none, and fits any other.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from feeder.errors import SourceError
from feeder.fields.npy import npy_header
from feeder.shard.format.set_index import SetIndex
from feeder.shard.format.shard_index import ShardIndex
from feeder.shard.source.source import Source
from feeder.shard.write.set_copy import SetCopy

__all__ = ["refuse_other_types"]

_SAMPLES = 16  # that are looked at, of the set the first ones, of the source some from all of it
_JSON = {bool: "true or false", int: "a number", float: "a number", str: "text", list: "a list", dict: "an object"}

_Fields = list[tuple[str, bytes]]


class _Type(NamedTuple):
    """The type of a column: its name, and the shape of arrays, with None for axes of several lengths."""

    name: str
    shape: tuple[int | None, ...] = ()

    def __str__(self) -> str:
        shape = ", ".join("N" if length is None else str(length) for length in self.shape)
        return f"{self.name} [{shape}]" if shape else self.name


def refuse_other_types(folder: SetCopy, index: SetIndex, source: Source) -> None:
    """Returns if the columns of a source have the types that those of the same names have in a set.

    Raises:
        SourceError: naming the first column that has not.
    """
    if not any(map(_has_type, index.fields)):
        return
    found = _types(_of_source(source))
    if not found:
        return
    for name, expected in _types(_of_set(folder, index)).items():
        own = found.get(name, expected)
        if not _fit(own, expected):
            raise SourceError(
                f"{source.root}: its column {name!r} holds {own}, that of the set {expected}; convert "
                "it, or give it another name"
            )


def _has_type(field: str) -> bool:
    return field == "json" or field.endswith((".json", ".npy")) or field == "npy"


def _of_source(source: Source) -> Iterator[_Fields]:
    """Yields the fields of some samples of a source that have a type."""
    count = len(source.table)
    for i in sorted({k * count // _SAMPLES for k in range(_SAMPLES)}):
        parts = [part for part in source.table.parts(i) if _has_type(part.field)]
        try:
            yield [(part.field, source.read_part(part)) for part in parts]
        except ValueError:  # too long: it is rejected when its turn comes
            continue


def _of_set(folder: SetCopy, index: SetIndex) -> Iterator[_Fields]:
    """Yields the fields of some samples of a set that have a type."""
    numbers = range(index.shard_count)
    number = next((n for n in numbers if index.header.shard(n).samples), None)
    if number is None:
        return
    shard = index.header.shard(number)
    name = index.header.index_name(number)
    folder.fetch(name)
    own = ShardIndex(folder.file(name), shard=shard)
    for row in range(min(own.samples, _SAMPLES)):
        members = ((own.fields[field], offset, length) for field, offset, length in own.members(row))
        yield [
            (name, folder.read(shard.name, offset, offset + length))
            for name, offset, length in members
            if _has_type(name)
        ]


def _types(samples: Iterable[_Fields]) -> dict[str, _Type]:
    """Returns the type of each column that has one."""
    found: dict[str, list[_Type]] = {}
    for fields in samples:
        for field, data in fields:
            for name, own in _columns(field, data):
                found.setdefault(name, []).append(own)
    return {name: joined for name, each in found.items() if (joined := _joined(each)) is not None}


def _columns(field: str, data: bytes) -> Iterator[tuple[str, _Type]]:
    """Yields the columns of a field, each with its type; none of what can't be read, or is null."""
    try:
        if field.rpartition(".")[2] == "npy":
            header = npy_header(data)
            yield field, _Type(f"arrays of {header.dtype}", header.shape)
            return
        value = json.loads(data)
    except (ValueError, RecursionError):
        return
    values = {f"{field}:{key}": each for key, each in value.items()} if isinstance(value, dict) else {field: value}
    yield from ((name, _Type(_JSON[type(each)])) for name, each in values.items() if each is not None)


def _joined(each: list[_Type]) -> _Type | None:
    """Returns the type that all values of a column have; None if they differ."""
    name, shape = each[0]
    if any((own.name, len(own.shape)) != (name, len(shape)) for own in each):
        return None
    # The first axis of tables, such as boxes, and the only one of few rows may well have this length by chance.
    varies = len(shape) > 1 or len(each) < 2
    lengths = [{own.shape[axis] for own in each} for axis in range(len(shape))]
    return _Type(
        name,
        tuple(None if len(found) > 1 or (varies and axis == 0) else shape[axis] for axis, found in enumerate(lengths)),
    )


def _fit(one: _Type, other: _Type) -> bool:
    if (one.name, len(one.shape)) != (other.name, len(other.shape)):
        return False
    return all(a == b or None in (a, b) for a, b in zip(one.shape, other.shape, strict=True))

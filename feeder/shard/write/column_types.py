"""The types of a set's columns, the values of ``json`` and arrays, which samples that are added must have, too.

Neither a set nor a source names them, so some samples of each show them. A column whose values are of several types
there has none, and fits any other.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

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
                f"{source.root}: its column {name!r} holds {_text(own)}, that of the set {_text(expected)}; convert "
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


def _types(samples: Iterable[_Fields]) -> dict[str, Any]:
    """Returns the type of each column that has one: text for a value of JSON, (dtype, shape) for arrays of one dtype,
    the shape with None for axes of several lengths."""
    found: dict[str, list[Any]] = {}
    for fields in samples:
        for field, data in fields:
            for name, own in _columns(field, data):
                found.setdefault(name, []).append(own)
    return {name: joined for name, each in found.items() if (joined := _joined(each)) is not None}


def _columns(field: str, data: bytes) -> Iterator[tuple[str, Any]]:
    """Yields the columns of a field, each with its type; none of what can't be read, or is null."""
    try:
        if field.rpartition(".")[2] == "npy":
            header = npy_header(data)
            yield field, (str(header.dtype), header.shape)
            return
        value = json.loads(data)
    except (ValueError, RecursionError):
        return
    if isinstance(value, dict):
        yield from ((f"{field}:{key}", _JSON[type(each)]) for key, each in value.items() if each is not None)
    elif value is not None:
        yield field, _JSON[type(value)]


def _joined(each: list[Any]) -> Any:
    if isinstance(each[0], str):
        return each[0] if len({*each}) == 1 else None
    if len({(dtype, len(shape)) for dtype, shape in each}) != 1:
        return None
    dtype, shape = each[0]
    lengths = [{own[axis] for _, own in each} for axis in range(len(shape))]
    # The first axis of tables, such as boxes, and the only one of few rows may well have this length by chance.
    varies = len(shape) > 1 or len(each) < 2
    return dtype, tuple(
        None if len(found) > 1 or (varies and axis == 0) else shape[axis] for axis, found in enumerate(lengths)
    )


def _fit(one: Any, other: Any) -> bool:
    if isinstance(one, str) or isinstance(other, str):
        return bool(one == other)
    return (
        one[0] == other[0]
        and len(one[1]) == len(other[1])
        and all(a == b or a is None or b is None for a, b in zip(one[1], other[1], strict=True))
    )


def _text(own: Any) -> str:
    """Returns the name of a type to show."""
    if isinstance(own, str):
        return own
    shape = ", ".join("N" if length is None else str(length) for length in own[1])
    return f"arrays of {own[0]} [{shape}]"

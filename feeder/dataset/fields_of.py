"""The fields of a dataset, by the names that it is given. Needs no torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from feeder.dataset.drawn_fields import DRAWN_FIELDS
from feeder.dataset.extras import Extra, Fields, MemberField, NamedField
from feeder.dataset.reader import check_fields, member_and_key
from feeder.errors import ArgumentError
from feeder.fields.derived_fields import kind_of
from feeder.fields.field import Field
from feeder.fields.text_fields import Json
from feeder.shard.format.index_file import NUMBER_FIELDS


@dataclass(frozen=True)
class KeyField(MemberField):
    """A field that a kind of :mod:`feeder.fields` makes from the value of a key, named as "json:caption".

    The kind parses the value's text in UTF-8, or its JSON if it is no text; the kind Json always has its JSON. A sample
    without the key, or with null, lacks the value.
    """

    @property
    def member(self) -> str:
        return member_and_key(self.name)[0]

    def _parse(self, data: bytes, draw: float) -> Any:
        value = Json(member_and_key(self.name)[1]).parse(data)
        is_text = isinstance(value, str) and not isinstance(self.kind, Json)
        return super()._parse(value.encode() if is_text else json.dumps(value).encode(), draw)


def fields_of(fields: Fields) -> tuple[Extra, ...]:
    """Returns the fields of a dataset.

    Raises:
        ArgumentError: for a name that is none, or whose format can run code, or for a kind that is none.
    """
    kinds: dict[str, Any] = dict(fields) if isinstance(fields, Mapping) else {}
    found: list[Extra] = []
    for name in check_fields(list(kinds) if isinstance(fields, Mapping) else fields):
        kind = kinds.get(name)
        if member_and_key(name)[1] is not None:
            found.append(KeyField(name, _kind(name, Json() if kind is None else kind)))
        elif kind is not None:
            found.append(MemberField(name, _kind(name, kind)))
        else:
            found.append(DRAWN_FIELDS.get(name) or NamedField(name))
    return tuple(found)


def _kind(name: str, kind: Any) -> Field:
    if name in ("key", "path", *NUMBER_FIELDS):
        raise ArgumentError(f"field {name!r} is no member with bytes to parse; ask for it by {{{name!r}: None}}")
    try:
        return kind_of(kind)
    except ArgumentError as error:
        raise ArgumentError(f"field {name!r}: {error}") from None

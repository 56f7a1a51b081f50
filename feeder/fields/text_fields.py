"""Fields of text, JSON and plain bytes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, ClassVar

from feeder.errors import ArgumentError
from feeder.fields.field import Field, MissingValueError, shown
from feeder.system.text import BOM, without_bom

__all__ = ["Bytes", "Json", "Lines", "Text"]


@dataclass(frozen=True, kw_only=True)
class Bytes(Field):
    """The member's bytes as they are. A batch has a list of N.

    Args:
        optional, fill: See :class:`Field`.
    """

    fill_types: ClassVar[tuple[type, ...]] = (bytes,)

    def parse(self, data: bytes, draw: float = 0.0) -> bytes:
        return data


@dataclass(frozen=True, kw_only=True)
class Text(Field):
    """The member as text, in UTF-8, with blanks and line ends as they are. A batch has a list of N.

    Args:
        optional, fill: See :class:`Field`.
    """

    fill_types: ClassVar[tuple[type, ...]] = (str,)

    def parse(self, data: bytes, draw: float = 0.0) -> str:
        return data.decode("utf-8-sig")


@dataclass(frozen=True, kw_only=True)
class Lines(Field):
    """The lines of the member's text, in UTF-8, without blanks around them and without empty ones. A batch has a list
    of N lists.

    Args:
        optional, fill: See :class:`Field`.
    """

    fill_types: ClassVar[tuple[type, ...]] = (list,)

    def parse(self, data: bytes, draw: float = 0.0) -> list[str]:
        lines = (each.strip().removeprefix(BOM).strip() for each in data.decode("utf-8-sig").splitlines())
        return [line for line in lines if line]


@dataclass(frozen=True)
class Json(Field):
    """The member as parsed JSON. A batch has a list of N.

    Args:
        key: Key of the object, whose value is the field's; a sample without the key, or with null, lacks the value.
            None for all.
        optional, fill: See :class:`Field`.

    Raises:
        ArgumentError: if the key is no text.
    """

    key: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.key, (str, type(None))):
            raise ArgumentError(f"Json takes a key of the JSON's object, such as 'caption', got {self.key!r}")

    def parse(self, data: bytes, draw: float = 0.0) -> Any:
        try:
            value = json.loads(data)
            if b"ufeff" in data.lower() or BOM.encode() in data:
                value = without_bom(value)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"is not JSON: {error}") from None
        if self.key is None:
            return value
        if not isinstance(value, dict):
            raise ValueError(f"expected an object with the key {self.key!r}, got {shown(value)}")
        if value.get(self.key) is None:
            known = "is null" if self.key in value else f"its keys are {', '.join(map(repr, value)) or 'none'}"
            raise MissingValueError(f"has no {self.key!r}: {known}; optional=True takes samples without it")
        return value[self.key]

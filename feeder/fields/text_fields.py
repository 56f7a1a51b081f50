"""Fields of plain bytes and of text: text itself, lines, JSON and numbers."""

from __future__ import annotations

import codecs
import json
import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from feeder.errors import ArgumentError
from feeder.fields.field import Field, MissingValueError, is_held, shown
from feeder.system.text import BOM, without_bom


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


_LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True, kw_only=True)
class _Number(Field):
    """Base of the fields of one number: a tensor of one dtype, or Python numbers where some are None."""

    dtype: ClassVar[str]

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.fill is not None and not is_held(self.fill, self.dtype):
            raise ArgumentError(f"{type(self).__name__}(fill={self.fill!r}) does not fit into {self.dtype}")

    @property
    def columns(self) -> tuple[tuple[tuple[int, ...], str], ...]:
        return () if self.optional and self.fill is None else (((), self.dtype),)


@dataclass(frozen=True, kw_only=True)
class Int(_Number):
    """An integer, written as text. A batch has int64 [N]; a list with None if samples may lack it without ``fill``.

    Args:
        optional, fill: See :class:`Field`.

    Raises:
        ArgumentError: if the tensor can't hold ``fill``.
    """

    fill_types: ClassVar[tuple[type, ...]] = (int,)
    dtype = "int64"

    def parse(self, data: bytes, draw: float = 0.0) -> Any:
        number = int(_text(data, "an integer"))
        if not -(1 << 63) <= number < 1 << 63:
            raise ValueError(f"{number} does not fit into int64")
        return (number,) if self.columns else number

    def sample(self, value: Any) -> Any:
        return int(value[0]) if self.columns else value


@dataclass(frozen=True, kw_only=True)
class Float(_Number):
    """A number, written as text. A batch has float32 [N]; a list with None if samples may lack it without ``fill``.

    Args:
        optional, fill: See :class:`Field`.

    Raises:
        ArgumentError: if the tensor can't hold ``fill``.
    """

    fill_types: ClassVar[tuple[type, ...]] = (int, float)
    dtype = "float32"

    def parse(self, data: bytes, draw: float = 0.0) -> Any:
        number = float(_text(data, "a number"))
        if math.isfinite(number) and abs(number) > _LARGEST:
            raise ValueError(f"{number} does not fit into float32")
        return (np.float32(number),) if self.columns else number

    def missing(self) -> Any:
        return None if self.fill is None else (np.float32(self.fill),)


def _text(data: bytes, what: str) -> str:
    """Returns the text of a number.

    Raises:
        MissingValueError: if it is empty, as a cell of a CSV may be.
        ValueError: if it is longer than any number.
    """
    data = data.removeprefix(codecs.BOM_UTF8)
    text = data[:100].decode("ascii", "backslashreplace").strip()
    if len(data) > 100:
        raise ValueError(f"expected {what}, got {len(data)} bytes: {text[:40]!r}...")
    if not text:
        raise MissingValueError(f"expected {what}, got an empty text; optional=True takes samples without it")
    return text

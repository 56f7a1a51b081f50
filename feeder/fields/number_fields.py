"""Fields that are one number, written as text."""

from __future__ import annotations

import codecs
import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from feeder.errors import ArgumentError
from feeder.fields.field import Field, MissingValueError, is_held

__all__ = ["Float", "Int"]

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

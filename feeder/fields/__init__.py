"""Kinds of fields: from the bytes of a sample's member to a value, in the workers. Needs no torch at import.

Names load their module on first use, as many loaders have no fields.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from feeder.fields.array_field import Array
    from feeder.fields.derived_fields import Apply, Choice
    from feeder.fields.field import Field
    from feeder.fields.text_fields import Bytes, Float, Int, Json, Lines, Text
    from feeder.fields.tokens import Tokens

__all__ = ["Apply", "Array", "Bytes", "Choice", "Field", "Float", "Int", "Json", "Lines", "Text", "Tokens"]

_HOMES = {
    "Apply": "derived_fields",
    "Array": "array_field",
    "Bytes": "text_fields",
    "Choice": "derived_fields",
    "Field": "field",
    "Float": "text_fields",
    "Int": "text_fields",
    "Json": "text_fields",
    "Lines": "text_fields",
    "Text": "text_fields",
    "Tokens": "tokens",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

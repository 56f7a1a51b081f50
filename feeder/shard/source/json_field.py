"""Values as a sample's ``json`` field, also those that JSON lacks: no sample is lost for a column that nobody uses."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

__all__ = ["json_field", "without_nan"]


def json_field(value: Any, default: Callable[[Any], Any] | None = None) -> bytes:
    """Returns a value as JSON in UTF-8: NaN is null, an infinity is the text "inf" or "-inf", and bytes that are no
    UTF-8 stay as they are; half of a surrogate pair is escaped.

    Args:
        value: The value.
        default: Converts a value of a type that JSON lacks.

    Raises:
        TypeError, ValueError: if it can't be converted, or is too deep.
    """
    try:
        text = _dumps(value, default)
    except (RecursionError, ValueError):  # NaN, an infinity, or a value that contains itself
        text = _dumps(without_nan(value), default)
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return json.dumps(json.loads(text), separators=(",", ":")).encode()


def without_nan(value: Any) -> Any:
    """Returns a value with None for NaN, and text for infinities, at any depth of lists and dicts.

    Raises:
        ValueError: if it is too deep, or contains itself.
    """
    try:
        if isinstance(value, dict):
            return {key: without_nan(each) for key, each in value.items()}
        if isinstance(value, list | tuple):
            return [without_nan(each) for each in value]
    except RecursionError:
        raise ValueError("it is too deep, or contains itself") from None
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    return value


def _dumps(value: Any, default: Callable[[Any], Any] | None) -> str:
    return json.dumps(value, ensure_ascii=False, default=default, allow_nan=False, separators=(",", ":"))

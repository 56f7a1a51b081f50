"""Values as a sample's ``json`` field, also those that JSON lacks: no sample is lost for a column that nobody uses."""

from __future__ import annotations

import base64
import datetime
import decimal
import json
import math
import uuid
from typing import Any


def json_field(value: Any) -> bytes:
    """Returns a value as JSON in UTF-8: NaN is null, an infinity is the text "inf" or "-inf", and text with bytes that
    are no UTF-8 stays as it is; half of a surrogate pair is escaped. Arrays and tensors are lists, bytes base64, times
    and decimals text.

    Raises:
        TypeError, ValueError: if it can't be converted, or is too deep.
    """
    try:
        text = _dumps(value)
    except (RecursionError, ValueError):  # NaN, an infinity, or a value that contains itself
        text = _dumps(without_nan(value))
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


def _dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=_plain, allow_nan=False, separators=(",", ":"))


def _plain(value: Any) -> Any:
    """Converts a value of a type that JSON lacks."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if hasattr(value, "tolist"):
        return value.tolist()
    if not isinstance(value, (datetime.date, datetime.time, datetime.timedelta, decimal.Decimal, uuid.UUID)):
        raise TypeError(f"a {type(value).__name__} is no value that JSON can hold")
    return str(value)

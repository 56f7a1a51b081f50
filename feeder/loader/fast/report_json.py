"""A part's report as JSON, as a server of the input service answers it."""

from __future__ import annotations

import base64
import binascii
import math
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from feeder.dataset.extras_json import is_json
from feeder.errors import DecodeError
from feeder.loader.fast.part_report import SUMS, PartReport, Substitution
from feeder.loader.observe.meter import LONGEST, METER_WORDS, STAGE_WORDS, Meter
from feeder.system.arrays import AnyArray
from feeder.transforms.recipe_json import single_entry

_BYTES, _ARRAY, _LIST, _DICT = "bytes", "array", "list", "dict"
_ARRAYS = "biufc"  # kinds of dtypes
_MOST_ARRAY_BYTES = 1 << 30
_MOST = 1 << 62  # numbers below it can be added without overflow


def report_to_json(report: PartReport, meter: Meter) -> dict[str, Any]:
    """Returns a report as JSON, with what its stages took: the words of the meter that are not 0, and their places.

    Raises:
        ValueError: for a value of a field that can't be sent.
    """
    places = np.flatnonzero(meter.words)
    return {
        "extras": [[_to_json(value) for value in values] for values in report.extras],
        "substitutions": [list(each) for each in report.substitutions],
        "stages": [places.tolist(), meter.words[places].tolist()],
        **{name: getattr(report, name) for name in SUMS},
    }


def report_from_json(value: Mapping[str, Any], rows: int, columns: int) -> PartReport:
    """Returns the report of a part.

    Args:
        value: The JSON; trusted in nothing.
        rows: Number of the part's samples.
        columns: Number of fields without an array.

    Raises:
        ValueError: if it is not such JSON.
    """
    extras, substitutions = value.get("extras"), value.get("substitutions")
    if not isinstance(extras, list) or len(extras) != columns or not isinstance(substitutions, list):
        raise ValueError("a report without fields")
    if not all(isinstance(each, list) and len(each) == rows for each in extras) or len(substitutions) > rows:
        raise ValueError("a report with fields of other samples")
    if not all(type(value.get(name)) is int and 0 <= value[name] < _MOST for name in SUMS):
        raise ValueError("a report without numbers")
    return PartReport(
        extras=[[_from_json(each) for each in values] for values in extras],
        substitutions=[_substitution(each) for each in substitutions],
        **{name: value[name] for name in SUMS},
    )


def add_stages(meter: Meter, value: Any) -> None:
    """Adds what the stages of a part took to a meter.

    Args:
        meter: The meter.
        value: Places and words of another one, as JSON; trusted in nothing.

    Raises:
        ValueError: if it is not such JSON.
    """
    places, words = value if isinstance(value, list) and len(value) == 2 else (None, None)
    if not isinstance(places, list) or not isinstance(words, list) or len(places) != len(words):
        raise ValueError("a report without stages")
    if not all(type(place) is int and 0 <= place < METER_WORDS for place in places) or not all(
        type(word) is int and abs(word) < _MOST for word in words
    ):
        raise ValueError("a report with stages that there are not")

    numbers: Any = memoryview(meter.words)  # type: ignore[arg-type]
    for place, word in zip(places, words, strict=True):
        # A stage's longest time is the maximum of both; all other words add up.
        numbers[place] = max(numbers[place], word) if place % STAGE_WORDS == LONGEST else numbers[place] + word


def error_from_json(value: Mapping[str, Any]) -> DecodeError | None:
    """Returns the error of a bad sample; None if a part failed for any other reason."""
    found = value.get("decode")
    if not isinstance(found, list) or len(found) != 4 or not isinstance(found[0], str):
        return None
    reason, key, shard, offset = found
    if not all(each is None or isinstance(each, str) for each in (key, shard)) or type(offset) not in (int, type(None)):
        return None
    return DecodeError(reason, key=key, shard=shard, offset_bytes=offset)


def _to_json(value: Any) -> Any:
    """Returns the value of a field as JSON: [value] if JSON has it, else {kind: content}, as bytes and arrays need it.

    The list of one tells a user's JSON, which may look like anything, from these.

    Raises:
        ValueError: if it can't be sent.
    """
    if isinstance(value, bytes):
        return {_BYTES: base64.b64encode(value).decode()}
    if isinstance(value, np.ndarray):
        if value.dtype.kind not in _ARRAYS:
            raise ValueError(f"an array of {value.dtype} can't be sent")
        array = np.ascontiguousarray(value, value.dtype.newbyteorder("<"))
        packed = zlib.compress(array.tobytes(), 1)  # class numbers of masks take a fiftieth
        return {_ARRAY: [array.dtype.str, list(value.shape), base64.b64encode(packed).decode()]}
    if is_json(value):
        return [value]
    if type(value) is list:
        return {_LIST: [_to_json(each) for each in value]}
    if type(value) is dict and all(type(key) is str for key in value):
        return {_DICT: {key: _to_json(each) for key, each in value.items()}}
    raise ValueError(f"a field's value of {type(value).__name__} can't be sent: {str(value)[:100]}")


def _from_json(value: Any) -> Any:
    """Returns the value of a field that :func:`_to_json` gave; raises ValueError for anything else."""
    if isinstance(value, list) and len(value) == 1:
        return value[0]
    kind, held = single_entry(value)
    try:
        if kind == _BYTES and isinstance(held, str):
            return base64.b64decode(held, validate=True)
        if kind == _ARRAY and isinstance(held, list) and len(held) == 3:
            return _array(*held)
    except (binascii.Error, zlib.error, TypeError, ValueError, OverflowError):
        raise ValueError("a field that is damaged") from None
    if kind == _LIST and isinstance(held, list):
        return [_from_json(each) for each in held]
    if kind == _DICT and isinstance(held, dict):
        return {key: _from_json(each) for key, each in held.items()}
    raise ValueError("a field that is none")


def _array(name: Any, shape: Any, packed: Any) -> AnyArray:
    """Returns an array by its dtype's name, its shape and its bytes; raises an error for anything that is damaged."""
    dtype = np.dtype(name)
    if dtype.kind not in _ARRAYS or not all(type(side) is int and side >= 0 for side in shape):
        raise ValueError("no array")
    size_bytes = math.prod(shape) * dtype.itemsize
    if size_bytes > _MOST_ARRAY_BYTES:
        raise ValueError("an array that is too large")
    # No more than the array takes is ever unpacked.
    data = zlib.decompressobj().decompress(base64.b64decode(packed, validate=True), max(1, size_bytes))
    if len(data) != size_bytes:
        raise ValueError("an array of another size")
    array: AnyArray = np.frombuffer(bytearray(data), dtype).reshape(shape)
    return array.astype(dtype.newbyteorder("="), copy=False)


def _substitution(value: Any) -> Substitution:
    """Returns a substitution; raises ValueError for JSON of anything else."""
    if not isinstance(value, list) or len(value) != 6:
        raise ValueError("a substitution that is none")
    position, key, shard, offset, reason, substitute = value
    texts, numbers = (key, shard), (position, substitute)
    if (
        not isinstance(reason, str)
        or not all(each is None or isinstance(each, str) for each in texts)
        or not all(type(each) is int and 0 <= each < _MOST for each in numbers)
        or not (offset is None or (type(offset) is int and 0 <= offset < _MOST))
    ):
        raise ValueError("a substitution that is none")
    return Substitution(position, key, shard, offset, reason, substitute)

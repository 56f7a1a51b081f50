"""Boxes and keypoints as JSON: an object with a list of them, and further lists of the same length."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from feeder.decoders.decoder import Buffer
from feeder.errors import DecodeError
from feeder.system.arrays import AnyArray, Float32s, Int64s, Size

_MAX_POINTS = 65_535


class Annotations(NamedTuple):
    """A sample's boxes or keypoints.

    Attributes:
        values: float32 [K, 4] of boxes, [K, 2] or [K, P, 2] of keypoints.
        rest: The object's other values: "labels" as int64 [K], other lists, which have K elements, and any other value
            as it is.
    """

    values: Float32s
    rest: dict[str, Any]

    def keep(self, values: Float32s, kept: Int64s) -> Annotations:
        """Returns other values with the elements of the lists that belong to them; ``kept`` has their numbers."""
        if len(kept) == len(self.values):
            return Annotations(values, dict(self.rest))
        rows = kept.tolist()
        rest = {
            name: value[kept] if isinstance(value, np.ndarray) else [value[row] for row in rows]
            for name, value in self.rest.items()
            if isinstance(value, (list, np.ndarray))
        }
        return Annotations(values, self.rest | rest)


def decode_boxes(data: Buffer | dict[str, Any]) -> Annotations:
    """Parses ``{"boxes": [[4 numbers], ...], "labels": [int, ...], <further lists>}``.

    A dict that was parsed already is changed: its boxes are removed, and it becomes the result's ``rest``.

    Raises:
        DecodeError: saying what else it is.
    """
    return _decode(data, "boxes", "[[4 numbers], ...]", lambda shape: len(shape) == 2 and shape[1] == 4, (0, 4))


def decode_points(data: Buffer | dict[str, Any]) -> Annotations:
    """Parses ``{"keypoints": [[x, y], ...] or [[[x, y], ...], ...], <further lists>}`` as :func:`decode_boxes` does.

    An empty list has the shape [0, 2], or [0, P, 2] if the object has ``"points_per_group": P``.

    Raises:
        DecodeError: saying what else it is.
    """
    expected = "[[x, y], ...] or, for groups of equal length, [[[x, y], ...], ...]"
    found = _decode(data, "keypoints", expected, lambda shape: len(shape) in (2, 3) and shape[-1] == 2, (0, 2))
    points = found.rest.get("points_per_group")
    if points is None:
        return found
    if not isinstance(points, int) or isinstance(points, bool) or not 1 <= points <= _MAX_POINTS:
        raise DecodeError(f"'points_per_group' must be an int from 1 to {_MAX_POINTS:,}, got {_short(points)}")
    if not len(found.values):
        return Annotations(np.empty((0, points, 2), np.float32), found.rest)
    if found.values.shape[1:] != (points, 2):
        raise DecodeError(f"'points_per_group' is {points}, and the keypoints have the shape {found.values.shape}")
    return found


def _decode(
    data: Buffer | dict[str, Any],
    key: str,
    expected: str,
    fits: Callable[[tuple[int, ...]], bool],
    empty: Size,
) -> Annotations:
    try:
        # An array, as of a mask, is no JSON: it is named below.
        found: Any = data if isinstance(data, (dict, np.ndarray)) else json.loads(bytes(data))
    except (ValueError, RecursionError) as error:
        raise DecodeError(f"not JSON: {error}") from None
    if not isinstance(found, dict) or not isinstance(found.get(key), list):
        has = f"an object with {', '.join(map(repr, found)) or 'no keys'}" if isinstance(found, dict) else _short(found)
        raise DecodeError(f'expected {{"{key}": {expected}, "labels": [int, ...]}}, got {has}')

    values = _numbers(found.pop(key))  # what is left is the rest
    if values is not None and not values.size and values.shape[0] == 0:
        values = values.reshape(empty)
    if values is not None and values.dtype.kind in "iuf":
        with np.errstate(over="ignore"):
            values = values.astype(np.float32)
    if values is None or not fits(values.shape) or values.dtype != np.float32 or not np.isfinite(values).all():
        raise DecodeError(f"{key!r} must be {expected}, all finite")

    for name, value in found.items():
        if isinstance(value, list) and len(value) != len(values):
            raise DecodeError(f"{name!r} has {len(value)} elements, and there are {len(values)} {key}")
    if "labels" in found:
        labels = _numbers(found["labels"])
        if labels is None or labels.ndim != 1 or (len(labels) and labels.dtype.kind != "i"):
            raise DecodeError(f"'labels' must be a list of ints, one for each of the {key}")
        found["labels"] = labels.astype(np.int64)
    return Annotations(values, found)


def _numbers(value: Any) -> AnyArray | None:
    """Returns a list of numbers, or of lists of equal length of them, as an array; None if it is none."""
    try:
        return np.array(value)
    except (ValueError, OverflowError):
        return None


def _short(value: object) -> str:
    return f"{str(value)[:40]!r}"

"""The rows of seekable JPEGs: where they lie, and which of an image's bytes a crop needs."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from feeder.index import Index

__all__ = ["WHOLE", "Extents", "extents", "row_places"]

# In place of a row's number: all of the image's bytes.
WHOLE = -1
# Fewer bytes than this are read along rather than left out: it takes as long.
_WORTH_BYTES = 8192
# The chroma sample beside the crop is needed, too, and is for so many pixels at most.
_MARGIN_PX = 4
# In front of every band but the first.
_MARKER_BYTES = 2


class Extents(NamedTuple):
    """Which bytes of N images are needed: the first ``header``, and those from ``begin`` to ``end``.

    Attributes:
        first_row: int32 [N], the row of pixels that the bytes from ``begin`` start with, after the marker in front of
            it. For row 0 they start with the header, and ``header`` is 0. :data:`WHOLE`: all bytes are needed.
        header, begin, end: int64 [N].
    """

    first_row: npt.NDArray[np.int32]
    header: npt.NDArray[np.int64]
    begin: npt.NDArray[np.int64]
    end: npt.NDArray[np.int64]


def row_places(data: bytes) -> bytes:
    """What an index keeps of an image in ``row_data``: nothing, unless it is a seekable JPEG and complete."""
    if data[:2] != b"\xff\xd8":
        return b""
    try:
        from feeder import _native
    except ImportError:  # such an index makes nobody read less, that is all
        return b""
    places = _native.row_places(data)
    return b"" if places is None else np.frombuffer(places, np.uint32).astype("<u4").tobytes()


def extents(index: Index, ids: npt.NDArray[np.int64], rows: npt.NDArray[np.int32]) -> Extents:
    """Which bytes of N images are needed for some of their rows.

    Args:
        index: Says where they lie.
        ids: int64 [N].
        rows: int32 [N, 2], first and end row, in pixels as stored.
    """
    starts, places = index.column("row_start"), index.column("row_data")
    base, after = starts[ids].astype(np.int64), starts[ids + 1].astype(np.int64)
    length = index.length[ids].astype(np.int64)
    first_row = np.full(len(ids), WHOLE, np.int32)
    header, begin, end = np.zeros(len(ids), np.int64), np.zeros(len(ids), np.int64), length.copy()
    known = np.flatnonzero((base >= 0) & (base < after) & (after <= len(places)))
    known = known[after[known] - base[known] > 2]
    if len(known) == 0:
        return Extents(first_row, header, begin, end)
    base, length = base[known], length[known]
    count = after[known] - base - 2  # of bands
    height = np.maximum(places[base].astype(np.int64), 1)
    first = np.clip((rows[known, 0] - _MARGIN_PX) // height, 0, count - 1)
    last = np.clip((rows[known, 1] + _MARGIN_PX - 1) // height, first, count - 1)
    head, stop = places[base + 1].astype(np.int64), places[base + last + 2].astype(np.int64)
    start = places[base + 1 + first].astype(np.int64) - _MARKER_BYTES
    first[start - head < _WORTH_BYTES] = 0
    head[first == 0] = start[first == 0] = 0
    row_px = first * height
    fits = (start >= head) & (stop >= start) & (stop <= length) & (row_px <= np.iinfo(np.int32).max)
    worth = (first > 0) | (length - stop >= _WORTH_BYTES)
    use = np.flatnonzero(fits & worth)
    there = known[use]
    first_row[there], header[there], begin[there], end[there] = row_px[use], head[use], start[use], stop[use]
    return Extents(first_row, header, begin, end)

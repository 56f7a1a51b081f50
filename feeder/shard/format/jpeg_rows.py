"""The places of rows in seekable JPEGs, and the bytes of an image that a crop needs."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from feeder.shard.format.index import Index

__all__ = ["extents", "row_data"]


def row_data(data: bytes) -> bytes:
    """An image's entry in the column of that name; empty unless it is a complete seekable JPEG."""
    if data[:2] != b"\xff\xd8":
        return b""
    try:
        from feeder import _native
    except ImportError:  # crops will read the whole image
        return b""
    places = _native.row_places(data)
    return b"" if places is None else np.frombuffer(places, np.uint32).astype("<u4").tobytes()


def extents(index: Index, ids: npt.NDArray[np.int64], rows: npt.NDArray[np.int32]) -> npt.NDArray[np.int64] | None:
    """Bytes of N images that some of their rows need.

    Args:
        index: The images' index.
        ids: int64 [N].
        rows: int32 [N, 2], first and end row, in pixels as stored.

    Returns:
        int64 [N, 4], see :func:`feeder._native.row_extents`; None if all bytes of all images are needed.
    """
    starts, places = index.column("row_start"), index.column("row_data")
    if len(places) == 0:
        return None
    from feeder import _native

    found = _native.row_extents(
        places, starts[ids], starts[ids + 1], index.length[ids], index.height[ids], np.ascontiguousarray(rows)
    )
    return found if (found[:, 0] >= 0).any() else None

"""The rows of seekable JPEGs: where they lie, and which of an image's bytes a crop needs."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from feeder.shard.format.index import Index

__all__ = ["extents", "row_data"]


def row_data(data: bytes) -> bytes:
    """What an index keeps of an image under that name: nothing, unless it is a seekable JPEG and complete."""
    if data[:2] != b"\xff\xd8":
        return b""
    try:
        from feeder import _native
    except ImportError:  # more will be read than need be, and that is all
        return b""
    places = _native.row_places(data)
    return b"" if places is None else np.frombuffer(places, np.uint32).astype("<u4").tobytes()


def extents(index: Index, ids: npt.NDArray[np.int64], rows: npt.NDArray[np.int32]) -> npt.NDArray[np.int64] | None:
    """Which bytes of N images are needed for some of their rows.

    Args:
        index: Says where they lie.
        ids: int64 [N].
        rows: int32 [N, 2], first and end row, in pixels as stored.

    Returns:
        int64 [N, 4], see :func:`feeder._native.row_extents`; None: all bytes of all of them.
    """
    starts, places = index.column("row_start"), index.column("row_data")
    if len(places) == 0:
        return None
    from feeder import _native

    found = _native.row_extents(
        places, starts[ids], starts[ids + 1], index.length[ids], index.height[ids], np.ascontiguousarray(rows)
    )
    return found if (found[:, 0] >= 0).any() else None

"""The kinds of trouble by which samples are shown, with the words of the page."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["KINDS", "is_of_size", "is_unlabelled"]

# An index of a set tells them without a look at the images.
KINDS = {
    "turned": "with an orientation other than 1",
    "unlabelled": "without a label",
    "small": "with a side below 64 pixels",
    "large": "of more than 20 megapixels",
    "gone": "that were taken down, in whose places others stand",
}
_SMALL_PX, _LARGE_PX = 64, 20_000_000


def is_of_size(kind: str, orientations: npt.NDArray[np.uint8], sizes: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
    """Returns for each image if it is "turned", "small" or "large", bool [N].

    Args:
        kind: One of these.
        orientations: uint8 [N], 1-8.
        sizes: Upright (height, width), int32 [N, 2], pixels.
    """
    if kind == "turned":
        return np.asarray(orientations != 1)
    if kind == "small":
        return np.asarray(sizes.min(axis=1) < _SMALL_PX)
    return np.asarray(sizes.prod(axis=1, dtype=np.int64) > _LARGE_PX)


def is_unlabelled(labels: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Returns for each label if there is none, bool [N].

    Args:
        labels: int64 [N], or float32 [N] or [N, K].
    """
    if labels.dtype == np.int64:
        return np.asarray(labels < 0)
    return np.asarray(np.isnan(labels.reshape(len(labels), -1)).all(axis=1))

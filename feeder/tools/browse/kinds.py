"""The kinds of samples that the page counts and shows, with its words for them."""

from __future__ import annotations

import numpy as np

from feeder.system.arrays import AnyArray, Bools, Float64s, Int32s, Int64s, Uint8s
from feeder.tools.browse.box_kinds import BOX_KINDS

# An index of a set tells them without a look at the images; but for those of boxes.
GROUPS = {
    "To look at": {
        "turned": "with an orientation other than 1",
        "unlabelled": "without a label",
        "small": "with a side below 64 pixels",
        "large": "of more than 20 megapixels",
        "gone": "that were taken down, in whose places others stand",
    },
    "Shorter side": {
        "side-0": "below 128 pixels",
        "side-128": "128 to 255 pixels",
        "side-256": "256 to 511 pixels",
        "side-512": "512 to 1,023 pixels",
        "side-1024": "1,024 pixels and more",
    },
    "Shape": {
        "tall": "taller than 1:2",
        "upright": "taller than 4:5",
        "square": "4:5 to 5:4",
        "wide": "wider than 5:4",
        "panorama": "wider than 2:1",
    },
    "Boxes": BOX_KINDS,
}
KINDS = {kind: words for group in GROUPS.values() for kind, words in group.items()}
ORDERS = {
    "smallest": "smallest first",
    "largest": "largest first",
    "tallest": "tallest first",
    "widest": "widest first",
}
_BOUNDS = {  # from the first value on, and below the second
    "small": (0, 64),
    "side-0": (0, 128),
    "side-128": (128, 256),
    "side-256": (256, 512),
    "side-512": (512, 1024),
    "side-1024": (1024, np.inf),
    "tall": (0, 0.5),
    "upright": (0.5, 0.8),
    "square": (0.8, 1.25),
    "wide": (1.25, 2),
    "panorama": (2, np.inf),
}
_LARGE_PX = 20_000_000


def fits(kind: str, orientations: Uint8s, sizes: Int32s) -> Bools:
    """Returns for each image if it is of a kind, bool [N].

    Args:
        kind: One of :data:`KINDS`, but for "unlabelled", "gone" and those of boxes.
        orientations: uint8 [N], 1-8.
        sizes: Upright (height, width), int32 [N, 2], pixels.
    """
    if kind == "turned":
        return np.asarray(orientations != 1)
    if kind == "large":
        return np.asarray(sizes.prod(axis=1, dtype=np.int64) > _LARGE_PX)
    value = _aspect(sizes) if kind in GROUPS["Shape"] else sizes.min(axis=1)
    low, high = _BOUNDS[kind]
    return np.asarray((low <= value) & (value < high))


def order_of(order: str, sizes: Int32s) -> Int64s:
    """Returns the places of images in one of :data:`ORDERS`, int64 [N]; of equals the first comes first.

    Args:
        order: Which.
        sizes: Upright (height, width), int32 [N, 2], pixels.
    """
    value = sizes.prod(axis=1, dtype=np.int64) if order in ("smallest", "largest") else _aspect(sizes)
    return np.argsort(-value if order in ("largest", "widest") else value, kind="stable")


def _aspect(sizes: Int32s) -> Float64s:
    """Returns width by height, float64 [N]."""
    return np.asarray(sizes[:, 1] / np.maximum(sizes[:, 0], 1))


def is_unlabelled(labels: AnyArray) -> Bools:
    """Returns for each label if there is none, bool [N].

    Args:
        labels: int64 [N], or float32 [N] or [N, K].
    """
    if labels.dtype == np.int64:
        return np.asarray(labels < 0)
    return np.asarray(np.isnan(labels.reshape(len(labels), -1)).all(axis=1))

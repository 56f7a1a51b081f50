"""Boxes and turns of images as they are stored.

Note [Stored pixels]
    Decoders crop the image as it is stored, so boxes are converted from upright to stored pixels here. The rest of
    the EXIF orientation, together with the flip, is one of eight turns, applied to the resized image at the end: bit 0
    mirrors the stored image left to right, bit 1 top to bottom, and bit 2 then swaps rows and columns.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from feeder.system.arrays import Float64s, Int32s, Uint8s
from feeder.transforms import Draws

# The turn of each EXIF orientation without a flip; entry 0 is no orientation.
_TURNS = np.array([0, 0, 1, 3, 2, 4, 6, 7, 5], np.uint8)


def turn_codes(orientations: Uint8s, flips: Uint8s) -> Uint8s:
    """Returns the turns to apply after the resize, uint8 [N]; see Note [Stored pixels].

    Args:
        orientations: uint8 [N], EXIF orientation 1-8.
        flips: uint8 [N], 1 where the upright output is mirrored.
    """
    return flipped_turns(_TURNS[orientations], flips)


def flipped_turns(turns: Uint8s, flips: Uint8s) -> Uint8s:
    """Returns turns, uint8 [N], that mirror their output left to right where ``flips`` is 1."""
    # Mirroring after rows and columns were swapped is mirroring the other axis before.
    return turns ^ np.where(flips != 0, np.where(turns & 4, 2, 1), 0).astype(np.uint8)


def stored_boxes(draws: Draws, orientations: Uint8s) -> tuple[Int32s, Float64s]:
    """Returns the support and source boxes in stored pixels: (left, top, right, bottom), int32 and float64 [N, 4].

    Args:
        draws: Boxes in upright pixels.
        orientations: uint8 [N], EXIF orientation 1-8.
    """
    turns = _TURNS[orientations]
    swapped = (turns & 4) != 0
    stored_size = np.where(swapped[:, None], draws.image_size[:, ::-1], draws.image_size).astype(np.float64)
    boxes = []
    for upright in (draws.support_box.astype(np.float64), draws.source_box):
        box = np.where(swapped[:, None], upright[:, [1, 0, 3, 2]], upright)
        for bit, axis, length in ((1, 0, stored_size[:, 1]), (2, 1, stored_size[:, 0])):
            mirrored = (turns & bit) != 0
            low, high = box[:, axis].copy(), box[:, axis + 2].copy()
            box[:, axis] = np.where(mirrored, length - high, low)
            box[:, axis + 2] = np.where(mirrored, length - low, high)
        boxes.append(box)
    return boxes[0].astype(np.int32), boxes[1]


def stored_rows(views: Sequence[Draws], orientations: Uint8s) -> Int32s:
    """Returns the (first, end) rows in stored pixels that all views of N images need, int32 [N, 2].

    Args:
        views: Draws of each view, boxes in upright pixels.
        orientations: uint8 [N], EXIF orientation 1-8.
    """
    upright = (orientations == 1).all()
    boxes = [draws.support_box if upright else stored_boxes(draws, orientations)[0] for draws in views]
    if len(boxes) == 1:
        return boxes[0][:, 1::2]
    first, end = (np.stack([box[:, side] for box in boxes]) for side in (1, 3))
    return np.stack([first.min(axis=0), end.max(axis=0)], axis=1)

"""The check that a backend's images and the targets of the same draws show the same places."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from feeder import transforms as T
from feeder.decoders.decoder import Decoder
from feeder.decoders.targets.mask import move_mask
from feeder.errors import BackendError
from feeder.transforms.boxes import Boxes, SampleBoxes, move_boxes
from feeder.transforms.moves import Moves, drawn_moves, upright
from feeder.transforms.points import move_points

__all__ = ["check_targets_on", "target_image"]

_HEIGHT, _WIDTH = 120, 160
_SCALE = 60
# Number, then left, top, right and bottom: on whole blocks of a JPEG, so that edges are sharp.
_RECTANGLES = ((1, 16, 24, 64, 72), (2, 96, 8, 136, 56), (3, 80, 72, 144, 112))
_RECIPES: list[list[T.Op]] = [
    [T.RandomCrop((90, 100)), T.RandomHorizontalFlip()],
    [T.Resize((96, 96)), T.RandomHorizontalFlip(), T.RandomCrop((80, 90))],
    [T.RandomResizedCrop(64, (0.4, 1.0)), T.RandomHorizontalFlip()],
    [T.RandomIoUCrop(), T.RandomHorizontalFlip(1.0), T.Resize((64, 80))],
    [T.RandomResizedCrop(64, (0.6, 1.0)), T.RandomVerticalFlip(), T.RandomRotation(40)],
    [T.Resize((72, 72)), T.RandomAffine(20, (0.1, 0.1), (0.8, 1.2), 10, "bilinear"), T.Pad((3, 5))],
    [T.Resize((72, 72)), T.RandomPerspective(0.4, 1.0), T.CenterCrop(60)],
    [T.RandomZoomOut(side_range=(1.0, 1.5), p=1.0), T.RandomResizedCrop(64, (0.7, 1.0))],
]


def check_targets_on(decoder: Decoder, encoded: dict[int, bytes]) -> None:
    """Holds the images of several recipes against a mask, boxes and points of the same draws.

    Args:
        decoder: The backend; recipes that it refuses are left out.
        encoded: The image of :func:`target_image`, by EXIF orientation.
    """
    ran = 0
    for ops in _RECIPES:
        recipe = T.Recipe.of(ops)
        try:
            decoder.check(recipe)
        except BackendError:
            continue
        ran += 1
        turns = np.array(list(encoded), np.uint8)
        sizes = np.array([(_WIDTH, _HEIGHT) if turn > 4 else (_HEIGHT, _WIDTH) for turn in encoded])
        boxes = [Boxes(np.array([each[1:] for each in _RECTANGLES], np.float32)) for _ in encoded]
        turned = [move_boxes(each, _upright(turn))[0] for each, turn in zip(boxes, encoded, strict=True)]
        draws = recipe.draw(3, 1, np.arange(len(encoded)), sizes, SampleBoxes(turned))
        out = np.zeros((len(encoded), 3, *draws.output_size[0].tolist()), np.uint8)
        assert decoder.decode(list(encoded.values()), turns, recipe, draws, out) == [None] * len(encoded)
        for row, turn in enumerate(encoded):
            size = int(sizes[row][0]), int(sizes[row][1])

            def moves(row: int = row, turn: int = turn, size: tuple[int, int] = size) -> Moves:
                return itertools.chain(_upright(turn), drawn_moves(recipe.ops, draws.ops, row, size))  # noqa: B023

            _check(out[row], move_mask(target_mask(), 0, moves()), boxes[row], moves, f"{ops} orientation {turn}")
    assert ran >= 4


def _check(image: npt.NDArray[np.uint8], mask: npt.NDArray[Any], boxes: Boxes, moves: object, what: str) -> None:
    """Edges may differ by a pixel: images are filtered, masks are not."""
    assert callable(moves)
    seen = np.rint(image.mean(axis=0) / _SCALE)
    inner = np.ones(mask.shape, np.bool_)
    for dy, dx in itertools.product((-2, 0, 2), repeat=2):
        inner &= np.roll(mask, (dy, dx), (0, 1)) == mask
    inner[[0, 1, -2, -1]], inner[:, [0, 1, -2, -1]] = False, False
    assert inner.mean() > 0.3, what
    assert (seen[inner] == mask[inner]).mean() > 0.995, what
    after = move_boxes(boxes, moves())[0].values
    centers = np.array([[(x0 + x1) / 2, (y0 + y1) / 2] for _, x0, y0, x1, y1 in _RECTANGLES], np.float32)
    for (number, *_), box, (x, y) in zip(_RECTANGLES, after, move_points(centers, moves())[0], strict=True):
        rows, columns = np.nonzero(mask == number)
        # RandomIoUCrop empties the boxes whose center it cuts off.
        if len(rows) and (box[2] - box[0] > 0 or "RandomIoUCrop" not in what):
            # A tilted rectangle's box has room around it. Of two resamplings each may move an edge by a pixel.
            found = np.array([columns.min(), rows.min(), columns.max() + 1, rows.max() + 1])
            assert (box[:2] - found[:2] <= 2).all(), what
            assert (found[2:] - box[2:] <= 2).all(), what
        if 3 <= x < mask.shape[1] - 3 and 3 <= y < mask.shape[0] - 3:
            assert mask[int(y), int(x)] == number, what


def _upright(orientation: int) -> Moves:
    return upright(orientation, (_HEIGHT, _WIDTH))


def target_mask() -> npt.NDArray[np.uint8]:
    """The mask in stored pixels."""
    mask = np.zeros((_HEIGHT, _WIDTH), np.uint8)
    for number, left, top, right, bottom in _RECTANGLES:
        mask[top:bottom, left:right] = number
    return mask


def target_image() -> Image.Image:
    """The image in stored pixels."""
    return Image.fromarray(np.repeat(target_mask()[..., None] * np.uint8(_SCALE), 3, axis=2))

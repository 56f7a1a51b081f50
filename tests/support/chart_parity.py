"""Charts of known content: they show if a backend's images agree with masks, boxes and keypoints of the same draws."""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from feeder import transforms as T
from feeder.decoders.decoder import Decoder, View
from feeder.decoders.targets.mask import move_mask
from feeder.errors import BackendError
from feeder.transforms.boxes import Boxes, SampleBoxes, move_boxes, move_points
from feeder.transforms.moves import Moves, drawn_moves, upright

if TYPE_CHECKING:
    from PIL import Image

__all__ = ["TARGET_RECIPES", "Chart", "TargetFigures", "compare_targets"]

# Windows, flips and resizes, each kind of warp and border, and ops on targets, at sizes that suit charts of all sizes.
TARGET_RECIPES: tuple[tuple[T.Op, ...], ...] = (
    (T.RandomResizedCrop((90, 100), (0.3, 1.0)), T.RandomHorizontalFlip()),
    (T.Resize((96, 96)), T.RandomHorizontalFlip(), T.RandomCrop((80, 90))),
    (T.RandomIoUCrop(), T.RandomHorizontalFlip(1.0), T.Resize((64, 80))),
    (T.RandomResizedCrop(64, (0.6, 1.0)), T.RandomVerticalFlip(), T.RandomRotation(40)),
    (T.Resize((72, 72)), T.RandomAffine(20, (0.1, 0.1), (0.8, 1.2), 10, "bilinear"), T.Pad((3, 5))),
    (T.Resize((72, 72)), T.RandomPerspective(0.4, 1.0), T.CenterCrop(60)),
    (T.RandomZoomOut(side_range=(1.0, 1.5), p=1.0), T.RandomResizedCrop(64, (0.7, 1.0))),
    (T.ScaleJitter((112, 128), (0.7, 1.3)), T.RandomHorizontalFlip()),
    (T.RandomShortestSize((72, 88, 104)), T.RandomHorizontalFlip(), T.CenterCrop(68), T.ClampBoundingBoxes("hard")),
    (T.RandomResizedCrop(64, (0.1, 0.3)), T.SanitizeBoundingBoxes(4), T.SanitizeKeyPoints()),
)
_TILTING = (T.RandomAffine, T.RandomPerspective, T.RandomRotation)
_LEAST_SIDE = 64
# Left, top, right and bottom of each rectangle, as fractions of the sides.
_RECTANGLES = ((0.1, 0.2, 0.4, 0.6), (0.6, 0.07, 0.85, 0.47), (0.5, 0.6, 0.9, 0.93))
_BLOCK = 8  # edges between a JPEG's blocks stay sharp
_DARK, _BRIGHT = 40, 220
# Images are filtered and masks are not, so pixels this close to an edge may differ.
_EDGE = 2
_OUTSIDE = 255  # in masks: area from outside the image


@dataclass(frozen=True)
class Chart:
    """A dark image with three rectangles: number k is bright in color k (1: red, 2: green, 3: blue).

    Args:
        height, width: Size as stored, pixels, 64 or more.
        orientation: EXIF orientation by which it is turned.
    """

    height: int
    width: int
    orientation: int = 1

    @classmethod
    def like(cls, height: int, width: int, orientation: int) -> Chart:
        """Returns a chart of an image's stored size, or a larger one where that is too small."""
        return cls(max(height, _LEAST_SIDE), max(width, _LEAST_SIDE), orientation)

    @property
    def upright_size(self) -> tuple[int, int]:
        """(height, width) after orientation."""
        return (self.width, self.height) if self.orientation > 4 else (self.height, self.width)

    @property
    def boxes(self) -> Boxes:
        """The box of each number, in stored pixels."""
        sides = np.array([self.width, self.height, self.width, self.height])
        return Boxes((np.rint(np.array(_RECTANGLES) * sides / _BLOCK) * _BLOCK).astype(np.float32))

    def mask(self) -> npt.NDArray[np.uint8]:
        """Returns the number of each stored pixel, 0 outside of the rectangles: uint8 [height, width]."""
        mask = np.zeros((self.height, self.width), np.uint8)
        for number, (left, top, right, bottom) in enumerate(self.boxes.values.astype(int).tolist(), 1):
            mask[top:bottom, left:right] = number
        return mask

    def image(self) -> Image.Image:
        """Returns the stored image."""
        from PIL import Image

        levels = np.full((4, 3), _DARK, np.uint8)
        levels[1:][np.eye(3, dtype=np.bool_)] = _BRIGHT
        return Image.fromarray(levels[self.mask()])

    def jpeg(self) -> bytes:
        """Returns the image as a JPEG with sharp colors."""
        file = io.BytesIO()
        self.image().save(file, "JPEG", quality=95, subsampling="4:4:4")
        return file.getvalue()

    def turn(self) -> Moves:
        """Returns the moves from stored to upright pixels."""
        return upright(self.orientation, (self.height, self.width))

    def __str__(self) -> str:
        return f"chart of {self.width}x{self.height} pixels, orientation {self.orientation}"


def numbers_in(pixels: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Returns the number that each pixel of a chart's image shows: uint8 [H, W] of uint8 [3, H, W]."""
    bright = pixels.max(axis=0) > (_DARK + _BRIGHT) / 2
    return np.where(bright, pixels.argmax(axis=0) + 1, 0).astype(np.uint8)


@dataclass
class TargetFigures:
    """Differences of the images of charts from the targets of the same draws.

    Attributes:
        charts: Number of charts.
        images: Number of images compared: of each chart by each recipe.
        refused: Ops that the backend refuses, whose recipes are left out.
        failed: Charts that the backend could not decode, with the reason.
        redone: Number of images that the CPU decoded after the backend had failed: they say nothing about it.
        mask_share: Largest share of an image's pixels, off edges, that show another number than the mask has.
        boxes: Number of boxes compared.
        box_px: Longest distance of a box's edge from that of its rectangle in the image, pixels. A box around a tilted
            rectangle may be larger.
        keypoints: Number of keypoints compared: the middles of the rectangles.
        keypoints_off: Number of these at which the image does not show the rectangle.
        mask_share_bound, box_px_bound: Upper limits; of ``keypoints_off`` it is 0.
    """

    charts: int = 0
    images: int = 0
    refused: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    redone: int = 0
    mask_share: float = 0.0
    boxes: int = 0
    box_px: float = 0.0
    keypoints: int = 0
    keypoints_off: int = 0
    mask_share_bound: float = 0.005
    box_px_bound: float = 2.0

    @property
    def passed(self) -> bool:
        """True if all figures are within their bounds, and there are some of each kind, had without help."""
        compared = min(self.images, self.boxes, self.keypoints) > 0 and not self.failed and not self.redone
        within = self.mask_share <= self.mask_share_bound and self.box_px <= self.box_px_bound
        return compared and within and not self.keypoints_off

    def add(self, chart: Chart, pixels: npt.NDArray[np.uint8], recipe: T.Recipe, draws: T.Draws, row: int) -> None:
        """Compares an image with a mask, boxes and keypoints that went through the same draws.

        Args:
            chart: The chart.
            pixels: uint8 [3, H, W], its image by the backend.
            recipe: The ops.
            draws: Their drawn parameters.
            row: The image's row in these.
        """

        def moves() -> Moves:
            return itertools.chain(chart.turn(), drawn_moves(recipe.ops, draws.ops, row, chart.upright_size))

        seen = numbers_in(pixels)
        self.images += 1
        mask = move_mask(chart.mask(), _OUTSIDE, moves())
        self._add_mask(seen, np.where(mask == _OUTSIDE, 0, mask))
        is_tilted = any(isinstance(op, _TILTING) for op in recipe.ops)
        boxes = chart.boxes
        middles = boxes.values.reshape(-1, 2, 2).mean(axis=1, dtype=np.float32)
        if any(isinstance(op, T.ClampBoundingBoxes) for op in recipe.ops):
            boxes = boxes._replace(clamping_mode=None)  # that op alone cuts them
        found, numbers = move_boxes(boxes, moves())
        self._add_boxes(seen, zip((numbers + 1).tolist(), found.values, strict=True), is_tilted)
        points, numbers = move_points(middles, moves())
        self._add_points(seen, zip((numbers + 1).tolist(), points.astype(int).tolist(), strict=True), mask == _OUTSIDE)

    def _add_mask(self, seen: npt.NDArray[np.uint8], mask: npt.NDArray[np.generic]) -> None:
        inner = np.zeros(mask.shape, np.bool_)
        inner[_EDGE:-_EDGE, _EDGE:-_EDGE] = True
        for dy, dx in itertools.product((-_EDGE, 0, _EDGE), repeat=2):
            inner &= np.roll(mask, (dy, dx), (0, 1)) == mask
        if inner.any():
            self.mask_share = max(self.mask_share, float((seen[inner] != mask[inner]).mean()))

    def _add_boxes(
        self, seen: npt.NDArray[np.uint8], boxes: Iterable[tuple[int, npt.NDArray[np.float32]]], is_tilted: bool
    ) -> None:
        for number, box in boxes:
            rows, columns = np.nonzero(seen == number)
            if not len(rows) or box[2] <= box[0]:  # out of sight, or emptied by RandomIoUCrop
                continue
            found = np.array([columns.min(), rows.min(), columns.max() + 1, rows.max() + 1])
            outside = np.concatenate([box[:2] - found[:2], found[2:] - box[2:]])
            self.boxes += 1
            self.box_px = max(self.box_px, float((outside if is_tilted else np.abs(outside)).max()))

    def _add_points(
        self, seen: npt.NDArray[np.uint8], points: Iterable[tuple[int, list[int]]], outside: npt.NDArray[np.bool_]
    ) -> None:
        height, width = seen.shape
        for number, (x, y) in points:
            is_inside = _EDGE < x < width - 1 - _EDGE and _EDGE < y < height - 1 - _EDGE
            # A crop may have cut off what a later warp brings back as an empty corner.
            if is_inside and not outside[y - _EDGE : y + _EDGE + 1, x - _EDGE : x + _EDGE + 1].any():
                self.keypoints += 1
                self.keypoints_off += int(seen[y, x] != number)


def compare_targets(
    decoder: Decoder,
    charts: Iterable[Chart],
    recipes: Sequence[Sequence[T.Op]] = TARGET_RECIPES,
    *,
    seed: int = 0,
    encode: Callable[[Chart], bytes] = Chart.jpeg,
) -> TargetFigures:
    """Compares a backend's images of charts with masks, boxes and keypoints of the same draws.

    Args:
        decoder: The backend.
        charts: The charts.
        recipes: Ops that end in uint8 images.
        seed: Seed of the draws.
        encode: Returns a chart's encoded image.
    """
    figures = TargetFigures()
    taken, refused = [], []
    for ops in recipes:
        recipe = T.Recipe.of(tuple(ops))
        try:
            decoder.check(recipe)
        except BackendError:
            refused.append(type(recipe.rest[0]).__name__)
        else:
            taken.append(recipe)
    figures.refused = tuple(dict.fromkeys(refused))
    before = decoder.redone_images
    for chart in charts:
        figures.charts += 1
        data, turns = encode(chart), np.array([chart.orientation], np.uint8)
        turned = SampleBoxes([move_boxes(chart.boxes, chart.turn())[0]])
        for recipe in taken:
            draws = recipe.draw(seed, 0, [figures.charts], [chart.upright_size], turned)
            out = np.zeros((1, 3, *draws.output_size[0].tolist()), np.uint8)
            (error,) = decoder.decode([data], turns, [View(recipe, draws, out)]).errors
            if error is None:
                figures.add(chart, out[0], recipe, draws, 0)
            else:
                figures.failed += (f"{chart}: {error.reason}",)
                break
    figures.redone = decoder.redone_images - before
    return figures

"""Pictures for the page: images of the set, small ones, with masks and boxes over them."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, ImageDraw, ImageOps

from feeder import transforms as T
from feeder.dataset.base import FeederDataset
from feeder.dataset.reader import SWAPPING_ORIENTATIONS
from feeder.decoders.decode import decode
from feeder.decoders.targets.annotations import Annotations, decode_boxes, decode_points
from feeder.decoders.targets.mask import MaskArray, check_mask, decode_mask, move_mask
from feeder.errors import DecodeError
from feeder.system.arrays import AnyArray, Uint8s
from feeder.system.checks import check_one_of
from feeder.system.text import count
from feeder.tools.browse.set_view import SetView
from feeder.transforms.boxes import Boxes, move_boxes, move_points
from feeder.transforms.moves import Moves, upright

SMALL_PX = 192
_SHOWN_PX = 1600  # longer sides are shown smaller
_CANVASES = ("stored", "upright")  # as of targets, see feeder.transforms.Mask
_COLORS = ("#e6194b", "#3cb44b", "#4363d8", "#f58231", "#911eb4", "#46f0f0", "#f032e6", "#bcf60c", "#fabebe", "#008080")
_PALETTE = np.array([[int(color[k : k + 2], 16) for k in (1, 3, 5)] for color in _COLORS], np.uint8)
_IGNORED = 255  # by convention, of a mask
_BOXES, _POLYGONS = "boxes.json", "segmentation.json"
_POINTS = ("keypoints.json", "kp.json")  # as feeder shard names those of COCO


class Pictures:
    """Pictures of a set's samples.

    Args:
        view: The set.
    """

    def __init__(self, view: SetView) -> None:
        self._view = view
        small = T.Compose([T.Resize(SMALL_PX), T.CenterCrop(SMALL_PX)])
        self._small: FeederDataset = view.open(small)

    @property
    def has_overlays(self) -> bool:
        """True if samples may have masks, boxes or keypoints."""
        return any(map(_is_overlay, self._view.reader.field_names()))

    def small(self, i: int, is_marked: bool = False) -> bytes:
        """Returns a sample's image as a small, square JPEG; with its masks, boxes and keypoints over it if wanted.

        Raises:
            DecodeError: if it can't be decoded.
        """
        with self._view.lock:
            if not is_marked:
                return jpeg(_pixels(self._small[i][0]), 80)
            image = self.overlays(i).over(
                Image.fromarray(_pixels(self._view.dataset[i][0])), self._view.dataset.classes
            )
        return jpeg(np.asarray(ImageOps.fit(image, (SMALL_PX, SMALL_PX))), 80)

    def whole(self, i: int, canvas: str = "") -> bytes:
        """Returns a sample's image as a JPEG, upright, at most 1,600 pixels wide and high.

        Args:
            i: The sample.
            canvas: One of :data:`_CANVASES` to draw its masks and boxes over it; else none.

        Raises:
            ArgumentError: for another canvas.
            DecodeError: if it can't be decoded.
        """
        with self._view.lock:
            pixels = _pixels(self._view.dataset[i][0])
        image = Image.fromarray(pixels)
        if canvas:
            image = self._overlays(i, (image.height, image.width), canvas).over(image, self._view.dataset.classes)
        image.thumbnail((_SHOWN_PX, _SHOWN_PX))
        return jpeg(np.asarray(image), 90)

    def crop(self, i: int, pixels: Uint8s, moves: Callable[[], Moves], canvas: str = "") -> bytes:
        """Returns a crop of a sample as a PNG.

        Args:
            i: The sample.
            pixels: The crop, uint8 [H, W, 3].
            moves: Begins the moves from the upright image to the crop.
            canvas: As for :meth:`whole`.
        """
        if not canvas:
            return png(pixels)
        moved = self.overlays(i, canvas).moved(moves)
        return png(np.asarray(moved.over(Image.fromarray(pixels), self._view.dataset.classes)))

    def member(self, i: int, name: str) -> bytes:
        """Returns a further image of a sample, or a mask in colors, as a JPEG or PNG.

        Raises:
            DecodeError: if it is neither, or can't be decoded.
        """
        with self._view.lock:
            data = self._view.reader.member(i, name)
        if data is None:
            raise DecodeError(f"the sample has no member {name!r}")
        if _is_overlay(name):
            with contextlib.suppress(DecodeError):
                return png(_in_colors(decode_mask(data, "int32")))
        image = Image.fromarray(_pixels(decode([data], [])[0]))
        image.thumbnail((_SHOWN_PX, _SHOWN_PX))
        return jpeg(np.asarray(image), 90)

    def overlays(self, i: int, canvas: str = "") -> Overlays:
        """Returns the masks and boxes of a sample; none if its image can't be read.

        Args:
            i: The sample.
            canvas: As for :meth:`whole`; empty for the one in which most of them fit.
        """
        with self._view.lock:
            size = self._view.upright_size(i)
        if size is None:
            return Overlays(_CANVASES[0], {}, {})
        choices = [self._overlays(i, size, each) for each in ((canvas,) if canvas else _CANVASES)]
        return max(choices, key=lambda each: len(each.drawn))  # the first of equals

    def _overlays(self, i: int, size: tuple[int, int], canvas: str) -> Overlays:
        check_one_of("canvas", canvas, _CANVASES)
        reader, found = self._view.reader, list[tuple[str, bytes]]()
        with self._view.lock:
            for name in filter(_is_overlay, reader.field_names()):
                with contextlib.suppress(DecodeError):  # the page names it among the members
                    data = reader.member(i, name)
                    found += [] if data is None else [(name, data)]
            orientation = reader.orientation(i)
        return Overlays.of(found, orientation, size, canvas)


def _pixels(image: Any) -> Uint8s:
    """Returns a sample's image, uint8 [3, H, W], as [H, W, 3]."""
    return np.ascontiguousarray(image.numpy().transpose(1, 2, 0))


def jpeg(pixels: Uint8s, quality: int) -> bytes:
    """Returns pixels, uint8 [H, W, 3], as a JPEG."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=quality)
    return file.getvalue()


def png(pixels: Uint8s) -> bytes:
    """Returns pixels, uint8 [H, W, 3], as a PNG."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG", compress_level=1)
    return file.getvalue()


class Overlays(NamedTuple):
    """The masks and boxes of a sample.

    Attributes:
        canvas: Pixels in which they are taken to be given: "stored" for those of the file, which are turned with it,
            "upright" for those of the image as it is seen.
        drawn: Those that can be drawn, by name, in upright pixels.
        refused: The others, with the reason.
    """

    canvas: str
    drawn: dict[str, MaskArray | Annotations]
    refused: dict[str, str]

    @classmethod
    def of(cls, members: Iterable[tuple[str, bytes]], orientation: int, size: tuple[int, int], canvas: str) -> Overlays:
        """Reads the masks and boxes among some members.

        Args:
            members: Name and bytes of each.
            orientation: EXIF orientation of the image, 1-8.
            size: Upright (height, width) of the image.
            canvas: One of :data:`_CANVASES`.
        """
        found = cls(canvas, {}, {})
        stored = size[::-1] if orientation in SWAPPING_ORIENTATIONS else size
        turn, given = (orientation, stored) if canvas == "stored" else (1, size)
        for name, data in members:
            try:
                if name.endswith(_BOXES):
                    found.drawn[name] = decode_boxes(data)
                elif name.endswith(_POINTS):
                    found.drawn[name] = decode_points(data)
                elif name.endswith(_POLYGONS):
                    found.drawn[name], others = _decode_polygons(data)
                    if others:
                        found.refused[name] = f"{count(others, 'object')} as RLE; `--instance-masks` makes masks of it"
                else:
                    check_mask(data, [given])
                    found.drawn[name] = decode_mask(data, "int32")
            except DecodeError as error:
                found.refused[name] = error.reason
        return found.moved(lambda: upright(turn, given))

    def moved(self, moves: Callable[[], Moves]) -> Overlays:
        """Returns them where moves, which are begun anew for each, bring them."""
        drawn = dict[str, MaskArray | Annotations]()
        for name, value in self.drawn.items():
            if not isinstance(value, Annotations):
                drawn[name] = move_mask(value, 0, moves())
            elif name.endswith(_BOXES):
                boxes, kept = move_boxes(Boxes(value.values), moves())
                drawn[name] = value.keep(boxes.values, kept)
            else:
                drawn[name] = value.keep(*move_points(value.values, moves()))
        return self._replace(drawn=drawn)

    def over(self, image: Image.Image, classes: list[str] | None = None) -> Image.Image:
        """Returns the image, which is upright, with all of them over it.

        Args:
            image: The image.
            classes: Names of the classes of boxes, by their labels; None: their numbers are drawn.
        """
        # Areas first, as they would cover lines and points.
        for name, value in sorted(self.drawn.items(), key=lambda each: each[0].endswith((_BOXES, *_POINTS))):
            if not isinstance(value, Annotations):
                image = _with_mask(image, value)
            elif name.endswith(_BOXES):
                image = _with_boxes(image, value, classes or [])
            elif name.endswith(_POLYGONS):
                image = _with_polygons(image, value)
            else:
                image = _with_points(image, value)
        return image


def _is_overlay(name: str) -> bool:
    """Returns True for the name of a member that may be a mask, boxes, polygons or keypoints."""
    return name.endswith((_BOXES, _POLYGONS, *_POINTS, ".png"))


def _decode_polygons(data: bytes) -> tuple[Annotations, int]:
    """Parses COCO's segmentations, a list with an element for each object: polygons, None or RLE.

    Returns:
        The corners of all polygons, float32 [K, 2], with the numbers of their polygons and objects in ``rest``; and the
        number of objects that are RLE.

    Raises:
        DecodeError: saying what else it is.
    """
    expected = "expected a list of polygons [x, y, x, y, x, y, ...] for each object"
    corners, places, others = list[float](), list[tuple[int, int]](), 0
    try:
        objects = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise DecodeError(f"not JSON: {error}") from None
    if not isinstance(objects, list):
        raise DecodeError(f"{expected}, got {str(objects)[:40]!r}")

    for number, polygons in enumerate(objects):
        others += isinstance(polygons, dict)
        for polygon in polygons if isinstance(polygons, list) else ():
            if not (isinstance(polygon, list) and all(type(each) in (int, float) for each in polygon)):
                raise DecodeError(f"{expected}, got {str(polygon)[:40]!r} of object {number}")
            if len(polygon) >= 6 and len(polygon) % 2 == 0:
                places += [(len(places), number)] * (len(polygon) // 2)
                corners += polygon
    try:
        with np.errstate(over="ignore"):
            values = np.array(corners, np.float32).reshape(-1, 2)
    except OverflowError:
        raise DecodeError("a corner of a polygon is beyond all numbers") from None
    if not np.isfinite(values).all():
        raise DecodeError("the corners of polygons must be finite")
    numbers = np.array(places, np.int64).reshape(-1, 2)
    return Annotations(values, {"polygon": numbers[:, 0], "object": numbers[:, 1]}), others


def _with_boxes(image: Image.Image, boxes: Annotations, classes: list[str]) -> Image.Image:
    drawn = image.copy()
    pen, width = ImageDraw.Draw(drawn), max(2, image.width // 300)
    labels = boxes.rest.get("labels")
    numbers = [0] * len(boxes.values) if labels is None else labels.tolist()
    corners = boxes.values.reshape(-1, 2, 2).clip(-1, image.size)
    for ((left, top), (right, bottom)), label in zip(corners.tolist(), numbers, strict=True):
        if left < right and top < bottom:
            color = _COLORS[label % len(_COLORS)]
            pen.rectangle((left, top, right, bottom), outline=color, width=width)
            if labels is not None:
                name = classes[label] if 0 <= label < len(classes) else str(label)
                place = (max(left, 0) + 2 * width, max(top, 0) + width)
                pen.text(place, name, "white", font_size=12 + image.width // 50, stroke_width=width, stroke_fill=color)
    return drawn


def _with_points(image: Image.Image, points: Annotations) -> Image.Image:
    drawn = image.copy()
    pen, radius = ImageDraw.Draw(drawn), max(3, image.width // 120)
    is_seen = np.ones(points.values.shape[:-1], bool)
    with contextlib.suppress(OverflowError, TypeError, ValueError):  # COCO's: 0 for a point that is not labelled
        is_seen &= np.array(points.rest.get("visibility", 1)) != 0
    for number, group in enumerate(points.values.clip(-radius, [side + radius for side in image.size])):
        for point in group[is_seen[number]].reshape(-1, 2).tolist():
            pen.circle(point, radius, _COLORS[number % len(_COLORS)], "white")
    return drawn


def _with_polygons(image: Image.Image, corners: Annotations) -> Image.Image:
    drawn = image.copy()
    pen, width = ImageDraw.Draw(drawn, "RGBA"), max(2, image.width // 300)
    values = corners.values.clip([-side for side in image.size], [2 * side for side in image.size])
    starts = np.flatnonzero(np.diff(corners.rest["polygon"], prepend=-1))
    for start, polygon in zip(starts.tolist(), np.split(values, starts[1:]), strict=True):
        color = _COLORS[int(corners.rest["object"][start]) % len(_COLORS)]
        if len(polygon) > 1:  # else its other corners left the image
            pen.polygon([*map(tuple, polygon.tolist())], f"{color}60", color, width)
    return drawn


def _in_colors(mask: MaskArray) -> Uint8s:
    """Returns a mask in the colors in which it is drawn over an image, uint8 [H, W, 3]: class 0 black, 255 white."""
    colors = _PALETTE[mask % len(_PALETTE)]
    colors[mask <= 0], colors[mask == _IGNORED] = 0, 255
    return colors


def _with_mask(image: Image.Image, classes: AnyArray) -> Image.Image:
    pixels = np.asarray(image, np.float32)
    marked = (classes > 0) & (classes != _IGNORED)
    mixed = np.where(marked[..., None], 0.5 * pixels + 0.5 * _PALETTE[classes % len(_PALETTE)], pixels)
    mixed[classes == _IGNORED] *= 0.4
    return Image.fromarray(mixed.astype(np.uint8))

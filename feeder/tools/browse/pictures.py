"""Pictures for the page: images of the set, small ones, with masks and boxes over them."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

from feeder import transforms as T
from feeder.dataset.base import FeederDataset
from feeder.dataset.reader import SWAPPING_ORIENTATIONS
from feeder.decoders.decode import decode
from feeder.decoders.targets.annotations import Annotations, decode_boxes
from feeder.decoders.targets.mask import MaskArray, check_mask, decode_mask, move_mask
from feeder.errors import ArgumentError, DecodeError
from feeder.tools.browse.set_view import SetView
from feeder.transforms.boxes import Boxes, move_boxes
from feeder.transforms.moves import upright

__all__ = ["SMALL_PX", "Overlays", "Pictures", "jpeg", "png"]

SMALL_PX = 192
_SHOWN_PX = 1600  # longer sides are shown smaller
_CANVASES = ("stored", "upright")  # as of targets, see feeder.transforms.Mask
_COLORS = ("#e6194b", "#3cb44b", "#4363d8", "#f58231", "#911eb4", "#46f0f0", "#f032e6", "#bcf60c", "#fabebe", "#008080")
_PALETTE = np.array([[int(color[k : k + 2], 16) for k in (1, 3, 5)] for color in _COLORS], np.uint8)
_IGNORED = 255  # by convention, of a mask


class Pictures:
    """Pictures of a set's samples.

    Args:
        view: The set.
    """

    def __init__(self, view: SetView) -> None:
        self._view = view
        small = T.Compose([T.Resize(SMALL_PX), T.CenterCrop(SMALL_PX)])
        self._small: FeederDataset = view.open(small)

    def small(self, i: int) -> bytes:
        """Returns a sample's image as a small, square JPEG.

        Raises:
            DecodeError: if it can't be decoded.
        """
        with self._view.lock:
            return jpeg(_pixels(self._small[i][0]), 80)

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
            image = self._overlays(i, (image.height, image.width), canvas).over(image)
        image.thumbnail((_SHOWN_PX, _SHOWN_PX))
        return jpeg(np.asarray(image), 90)

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
        return max(choices, key=lambda each: len(each.drawn))  # of equals the first

    def _overlays(self, i: int, size: tuple[int, int], canvas: str) -> Overlays:
        if canvas not in _CANVASES:
            raise ArgumentError(f"canvas must be one of {', '.join(_CANVASES)}, got {canvas!r}")
        reader, found = self._view.reader, list[tuple[str, bytes]]()
        with self._view.lock:
            for name in filter(_is_overlay, reader.field_names()):
                with contextlib.suppress(DecodeError):  # the page names it among the members
                    data = reader.member(i, name)
                    found += [] if data is None else [(name, data)]
            orientation = reader.orientation(i)
        return Overlays.of(found, orientation, size, canvas)


def _pixels(image: Any) -> npt.NDArray[np.uint8]:
    """Returns a sample's image, uint8 [3, H, W], as [H, W, 3]."""
    return np.ascontiguousarray(image.numpy().transpose(1, 2, 0))


def jpeg(pixels: npt.NDArray[np.uint8], quality: int) -> bytes:
    """Returns pixels, uint8 [H, W, 3], as a JPEG."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=quality)
    return file.getvalue()


def png(pixels: npt.NDArray[np.uint8]) -> bytes:
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
                if name.endswith(".json"):
                    boxes = decode_boxes(data)
                    moved, _ = move_boxes(Boxes(boxes.values), upright(turn, given))
                    found.drawn[name] = boxes._replace(values=moved.values)
                else:
                    check_mask(data, [given])
                    found.drawn[name] = move_mask(decode_mask(data, "int32"), 0, upright(turn, given))
            except DecodeError as error:
                found.refused[name] = error.reason
        return found

    def over(self, image: Image.Image) -> Image.Image:
        """Returns the image, which is upright, with all of them over it."""
        for value in self.drawn.values():
            image = _with_boxes(image, value) if isinstance(value, Annotations) else _with_mask(image, value)
        return image


def _is_overlay(name: str) -> bool:
    """Returns True for the name of a member that may be a mask or boxes."""
    return name.endswith(("boxes.json", ".png"))


def _with_boxes(image: Image.Image, boxes: Annotations) -> Image.Image:
    drawn = image.copy()
    pen = ImageDraw.Draw(drawn)
    labels = boxes.rest.get("labels", np.zeros(len(boxes.values), np.int64))
    corners = boxes.values.reshape(-1, 2, 2).clip(-1, image.size)
    for ((left, top), (right, bottom)), label in zip(corners.tolist(), labels.tolist(), strict=True):
        if left < right and top < bottom:
            color = _COLORS[label % len(_COLORS)]
            pen.rectangle((left, top, right, bottom), outline=color, width=max(2, image.width // 300))
    return drawn


def _in_colors(mask: MaskArray) -> npt.NDArray[np.uint8]:
    """Returns a mask in the colors in which it is drawn over an image, uint8 [H, W, 3]: class 0 black, 255 white."""
    colors = _PALETTE[mask % len(_PALETTE)]
    colors[mask <= 0], colors[mask == _IGNORED] = 0, 255
    return colors


def _with_mask(image: Image.Image, classes: npt.NDArray[Any]) -> Image.Image:
    pixels = np.asarray(image, np.float32)
    marked = (classes > 0) & (classes != _IGNORED)
    mixed = np.where(marked[..., None], 0.5 * pixels + 0.5 * _PALETTE[classes % len(_PALETTE)], pixels)
    mixed[classes == _IGNORED] *= 0.4
    return Image.fromarray(mixed.astype(np.uint8))

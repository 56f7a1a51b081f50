"""Masks and boxes, drawn over their image."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

from feeder.dataset.reader import SWAPPING_ORIENTATIONS
from feeder.decoders.image_header import image_info
from feeder.decoders.targets.annotations import Annotations, decode_boxes
from feeder.decoders.targets.mask import MaskArray, decode_mask, move_mask
from feeder.errors import DecodeError
from feeder.transforms.boxes import Boxes, move_boxes
from feeder.transforms.moves import upright

__all__ = ["CANVASES", "Overlays", "in_colors", "is_overlay"]

CANVASES = ("stored", "upright")  # as of targets, see feeder.transforms.Mask
_COLORS = ("#e6194b", "#3cb44b", "#4363d8", "#f58231", "#911eb4", "#46f0f0", "#f032e6", "#bcf60c", "#fabebe", "#008080")
_PALETTE = np.array([[int(color[k : k + 2], 16) for k in (1, 3, 5)] for color in _COLORS], np.uint8)
_IGNORED = 255  # by convention, of a mask


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
            canvas: One of :data:`CANVASES`.
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
                    found.drawn[name] = move_mask(_mask(data, given), 0, upright(turn, given))
            except DecodeError as error:
                found.refused[name] = error.reason
        return found

    def over(self, image: Image.Image) -> Image.Image:
        """Returns the image, which is upright, with all of them over it."""
        for value in self.drawn.values():
            image = _with_boxes(image, value) if isinstance(value, Annotations) else _with_mask(image, value)
        return image


def is_overlay(name: str) -> bool:
    """Returns True for the name of a member that may be a mask or boxes."""
    return name.endswith(("boxes.json", ".png"))


def _mask(data: bytes, size: tuple[int, int]) -> MaskArray:
    """Decodes a mask of a (height, width).

    Raises:
        DecodeError: if it is another size's, or no mask.
    """
    try:
        found = image_info(data)
    except ValueError as error:
        raise DecodeError(str(error)) from None
    if (found.height_px, found.width_px) != size:
        raise DecodeError(f"it has {found.width_px}x{found.height_px} pixels, the image {size[1]}x{size[0]}")
    return decode_mask(data, "int32")


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


def in_colors(mask: MaskArray) -> npt.NDArray[np.uint8]:
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

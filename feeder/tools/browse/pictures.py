"""Pictures for the page: images of the set, small ones, masks and boxes drawn over them, differences."""

from __future__ import annotations

import contextlib
import io
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

from feeder import transforms as T
from feeder.dataset.base import FeederDataset
from feeder.decoders.targets.annotations import Annotations, decode_boxes
from feeder.decoders.targets.mask import decode_mask
from feeder.errors import DecodeError
from feeder.tools.browse.set_view import SetView

__all__ = ["SMALL_PX", "Pictures", "difference", "jpeg", "png"]

SMALL_PX = 192
_SHOWN_PX = 1600  # longer sides are shown smaller
_COLORS = ("#e6194b", "#3cb44b", "#4363d8", "#f58231", "#911eb4", "#46f0f0", "#f032e6", "#bcf60c", "#fabebe", "#008080")
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

    def whole(self, i: int, *, is_drawn_over: bool) -> bytes:
        """Returns a sample's image as a JPEG, upright, at most 1,600 pixels wide and high.

        Args:
            i: The sample.
            is_drawn_over: True to draw its masks and boxes over it.

        Raises:
            DecodeError: if it can't be decoded.
        """
        with self._view.lock:
            pixels = _pixels(self._view.dataset[i][0])
        image = Image.fromarray(pixels)
        if is_drawn_over:
            for member in self._view.members(i):
                with self._view.lock:
                    data = self._view.reader.member(i, member.name)
                image = _over(image, member.name, data)
        image.thumbnail((_SHOWN_PX, _SHOWN_PX))
        return jpeg(np.asarray(image), 90)

    def can_draw_over(self, i: int) -> bool:
        """Returns True if the sample has masks or boxes that fit its image as it is shown."""
        names = [member.name for member in self._view.members(i)]
        return any(map(_is_drawn, names)) and self._view.numbers(i).get("orientation", "1") == "1"


def _pixels(image: Any) -> npt.NDArray[np.uint8]:
    """Returns a sample's image, uint8 [3, H, W], as [H, W, 3]."""
    return np.ascontiguousarray(image.numpy().transpose(1, 2, 0))


def _is_drawn(name: str) -> bool:
    return name.endswith(("boxes.json", ".png"))


def _over(image: Image.Image, name: str, data: bytes) -> Image.Image:
    """Returns an image with a mask or boxes over it; as it is, if the member is neither."""
    with contextlib.suppress(DecodeError):
        if name.endswith("boxes.json"):
            return _with_boxes(image, decode_boxes(data))
        if name.endswith(".png"):
            mask = decode_mask(data, "int32", image.width * image.height)
            if mask.shape == (image.height, image.width):
                return _with_mask(image, mask)
    return image


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


def _with_mask(image: Image.Image, classes: npt.NDArray[Any]) -> Image.Image:
    palette = np.array([[int(color[k : k + 2], 16) for k in (1, 3, 5)] for color in _COLORS], np.float32)
    pixels = np.asarray(image, np.float32)
    marked = (classes > 0) & (classes != _IGNORED)
    mixed = np.where(marked[..., None], 0.5 * pixels + 0.5 * palette[classes % len(palette)], pixels)
    mixed[classes == _IGNORED] *= 0.4
    return Image.fromarray(mixed.astype(np.uint8))


def difference(first: npt.NDArray[np.uint8], second: npt.NDArray[np.uint8], times: int = 16) -> npt.NDArray[np.uint8]:
    """Returns the difference of two images of one size about grey, amplified: uint8 [H, W, 3]."""
    found = 128 + times * (first.astype(np.int32) - second.astype(np.int32))
    return found.clip(0, 255).astype(np.uint8)


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

"""Pictures for the page: images of the set, small ones, with masks and boxes over them, differences."""

from __future__ import annotations

import contextlib
import io
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from feeder import transforms as T
from feeder.dataset.base import FeederDataset
from feeder.decoders.decode import decode
from feeder.decoders.targets.mask import decode_mask
from feeder.errors import ArgumentError, DecodeError
from feeder.tools.browse.overlays import CANVASES, Overlays, in_colors, is_overlay
from feeder.tools.browse.set_view import SetView

__all__ = ["SMALL_PX", "Pictures", "difference", "jpeg", "png"]

SMALL_PX = 192
_SHOWN_PX = 1600  # longer sides are shown smaller


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
            canvas: One of :data:`feeder.tools.browse.overlays.CANVASES` to draw its masks and boxes over it; else none.

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
        if is_overlay(name):
            with contextlib.suppress(DecodeError):
                return png(in_colors(decode_mask(data, "int32")))
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
            return Overlays(CANVASES[0], {}, {})
        choices = [self._overlays(i, size, each) for each in ((canvas,) if canvas else CANVASES)]
        return max(choices, key=lambda each: len(each.drawn))  # of equals the first

    def _overlays(self, i: int, size: tuple[int, int], canvas: str) -> Overlays:
        if canvas not in CANVASES:
            raise ArgumentError(f"canvas must be one of {', '.join(CANVASES)}, got {canvas!r}")
        reader, found = self._view.reader, list[tuple[str, bytes]]()
        with self._view.lock:
            for name in filter(is_overlay, reader.field_names()):
                with contextlib.suppress(DecodeError):  # the page names it among the members
                    data = reader.member(i, name)
                    found += [] if data is None else [(name, data)]
            orientation = reader.orientation(i)
        return Overlays.of(found, orientation, size, canvas)


def _pixels(image: Any) -> npt.NDArray[np.uint8]:
    """Returns a sample's image, uint8 [3, H, W], as [H, W, 3]."""
    return np.ascontiguousarray(image.numpy().transpose(1, 2, 0))


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

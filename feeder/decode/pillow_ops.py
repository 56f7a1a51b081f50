"""Every op of :mod:`feeder.transforms` on a Pillow image or, after ToDtype, on a float array: the reference."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from feeder.errors import DecodeError
from feeder.transforms import (
    CenterCrop,
    Op,
    Pad,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    Resize,
)

__all__ = ["ARRAY_OPS", "IMAGE_OPS", "FloatImage", "Row"]

# One sample's drawn parameters by name.
Row = Mapping[str, Any]

# float32 [3, H, W].
FloatImage = npt.NDArray[np.float32]

_RESAMPLING = {
    "nearest": Image.Resampling.NEAREST,
    "nearest-exact": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "box": Image.Resampling.BOX,
    "hamming": Image.Resampling.HAMMING,
    "lanczos": Image.Resampling.LANCZOS,
}


def _window(image: Image.Image, row: Row) -> Image.Image:
    """The drawn window; Pillow fills with zeros what lies outside the image."""
    top, left, height, width = (int(row[name]) for name in ("top", "left", "height", "width"))
    return image.crop((left, top, left + width, top + height))


def _resize(image: Image.Image, interpolation: str, row: Row) -> Image.Image:
    size = int(row["resized_width"]), int(row["resized_height"])
    return image if size == image.size else image.resize(size, _RESAMPLING[interpolation])


def _random_resized_crop(image: Image.Image, op: RandomResizedCrop, row: Row) -> Image.Image:
    return _resize(_window(image, row), op.interpolation, row)


def _resize_op(image: Image.Image, op: Resize, row: Row) -> Image.Image:
    return _resize(image, op.interpolation, row)


def _center_crop(image: Image.Image, op: CenterCrop, row: Row) -> Image.Image:
    return _window(image, row)


def _flip(image: Image.Image, op: RandomHorizontalFlip, row: Row) -> Image.Image:
    return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if row["flip"] else image


def _pad_image(
    image: Image.Image, padding: tuple[int, int, int, int], fill: tuple[int, int, int], padding_mode: str
) -> Image.Image:
    left, top, right, bottom = padding
    if padding_mode == "constant":
        padded = Image.new("RGB", (image.width + left + right, image.height + top + bottom), fill)
        padded.paste(image, (left, top))
        return padded
    mode: Any = padding_mode
    return Image.fromarray(np.pad(np.asarray(image), ((top, bottom), (left, right), (0, 0)), mode=mode))


def _pad(image: Image.Image, op: Pad, row: Row) -> Image.Image:
    return _pad_image(image, op.padding, op.fill, op.padding_mode)


def _random_crop(image: Image.Image, op: RandomCrop, row: Row) -> Image.Image:
    if "padding" in row:
        left, top, right, bottom = (int(side) for side in row["padding"])
        image = _pad_image(image, (left, top, right, bottom), op.fill, op.padding_mode)
    if image.height < op.size[0] or image.width < op.size[1]:
        raise DecodeError(
            f"RandomCrop of {op.size[0]}x{op.size[1]} (height x width) is larger than the image, "
            f"{image.height}x{image.width}; resize first, or set pad_if_needed=True"
        )
    return _window(image, row)


def _flip_array(array: FloatImage, op: RandomHorizontalFlip, row: Row) -> FloatImage:
    return array[:, :, ::-1] if row["flip"] else array


IMAGE_OPS: dict[type[Op], Callable[[Image.Image, Any, Row], Image.Image]] = {
    CenterCrop: _center_crop,
    Pad: _pad,
    RandomCrop: _random_crop,
    RandomHorizontalFlip: _flip,
    RandomResizedCrop: _random_resized_crop,
    Resize: _resize_op,
}

ARRAY_OPS: dict[type[Op], Callable[[FloatImage, Any, Row], FloatImage]] = {
    RandomHorizontalFlip: _flip_array,
}

"""What an encoded image is, from its header: format, size and orientation, without decoding a pixel."""

from __future__ import annotations

import io
import struct
import warnings
import zlib
from typing import NamedTuple

__all__ = ["IMAGE_EXTENSIONS", "ImageInfo", "check_complete", "image_info", "is_image_field", "jpeg_has_end"]

# Extension that we write -> the others that mean the same.
_EXTENSIONS = {
    "jpg": ("jpeg", "jpe", "jfif"),
    "png": (),
    "webp": (),
    "bmp": ("dib",),
    "gif": (),
    "tiff": ("tif",),
    "ppm": ("pgm", "pbm", "pnm"),
}
IMAGE_EXTENSIONS: frozenset[str] = frozenset(_EXTENSIONS).union(*_EXTENSIONS.values())

_PILLOW_FORMATS = {"PNG": "png", "WEBP": "webp", "BMP": "bmp", "GIF": "gif", "TIFF": "tiff", "PPM": "ppm"}
_ORIENTATION_TAG = 0x0112
_STANDALONE_MARKERS = frozenset([0x01, *range(0xD0, 0xD8)])
_SOF_MARKERS = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}


class ImageInfo(NamedTuple):
    """An image's header.

    Attributes:
        extension: The file extension of its format: "jpg", "png", "webp", "bmp", "gif", "tiff" or "ppm".
        width_px: Width as stored, before orientation.
        height_px: Height as stored, before orientation.
        orientation: EXIF orientation 1-8; 1 if there is none or it is out of range, and for TIFF, which Pillow turns
            upright while loading it; the size is then the upright one.
    """

    extension: str
    width_px: int
    height_px: int
    orientation: int


def is_image_field(field: str) -> bool:
    """Whether a WebDataset field name ("jpg", "left.png") holds an image by its last extension."""
    return field.rpartition(".")[2].lower() in IMAGE_EXTENSIONS


def image_info(data: bytes) -> ImageInfo:
    """Reads an encoded image's header.

    Args:
        data: The whole file.

    Raises:
        ValueError: saying why it is no image that we can read.
    """
    if not data:
        raise ValueError("empty file")
    if data[:2] == b"\xff\xd8":
        return _jpeg_info(data)
    if data[:8] == b"\x89PNG\r\n\x1a\n" and data[12:16] == b"IHDR" and b"eXIf" not in data[: 1 << 16]:
        width, height = struct.unpack_from(">II", data, 16) if len(data) >= 33 else (0, 0)
        return _checked("png", width, height, 1)
    return _pillow_info(data)


def check_complete(data: bytes, info: ImageInfo) -> None:
    """Checks that an encoded image was not cut off.

    JPEG by its end marker and PNG by its chunks' checksums, which costs no decoding; where they are not right, and for
    other formats, by decoding the image.

    Raises:
        ValueError: saying what is wrong.
    """
    if info.extension == "jpg" and jpeg_has_end(data):
        return
    if info.extension == "png" and _png_is_whole(data):
        return
    from PIL import Image

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with Image.open(io.BytesIO(data)) as image:
                image.load()
    except Exception as error:  # Pillow raises nearly every kind on damaged files
        raise ValueError(f"truncated or damaged {info.extension}: {error}") from None


def jpeg_has_end(data: bytes) -> bool:
    """Whether a JPEG whose header can be read has its end marker."""
    return data[-2:] == b"\xff\xd9" or data.rfind(b"\xff\xd9", _scan_start(data)) > 0


def _png_is_whole(data: bytes) -> bool:
    """Whether all chunks up to the end marker are there and have the right checksums."""
    position = 8
    while position + 12 <= len(data):
        length = int.from_bytes(data[position : position + 4], "big")
        end = position + 8 + length
        if end + 4 > len(data) or zlib.crc32(data[position + 4 : end]) != int.from_bytes(data[end : end + 4], "big"):
            return False
        if data[position + 4 : position + 8] == b"IEND":
            return True
        position = end + 4
    return False


def _checked(extension: str, width: int, height: int, orientation: int) -> ImageInfo:
    if width < 1 or height < 1:
        raise ValueError(f"damaged {extension} header: size {width}x{height}")
    return ImageInfo(extension, width, height, orientation if 1 <= orientation <= 8 else 1)


def _jpeg_info(data: bytes) -> ImageInfo:
    position, end = 2, len(data)
    orientation = 1
    while position + 4 <= end:
        if data[position] != 0xFF:
            raise ValueError(f"damaged jpg: no marker at byte {position}")
        marker = data[position + 1]
        if marker == 0xFF:  # fill byte
            position += 1
            continue
        if marker in _STANDALONE_MARKERS:
            position += 2
            continue
        if marker in (0xD9, 0xDA):
            raise ValueError(f"damaged jpg: no frame header before byte {position}")
        length = data[position + 2] << 8 | data[position + 3]
        if marker in _SOF_MARKERS:
            if length < 8 or position + 9 > end:
                break
            height, width = struct.unpack_from(">HH", data, position + 5)
            return _checked("jpg", width, height, orientation)
        if marker == 0xE1 and data[position + 4 : position + 10] == b"Exif\0\0":
            orientation = _tiff_orientation(data[position + 10 : position + 2 + length])
        position += 2 + length
    raise ValueError("truncated jpg: ends inside its header")


def _scan_start(data: bytes) -> int:
    """Where the first scan's entropy-coded data starts: a thumbnail's end marker before it is not the image's."""
    position, end = 2, len(data)
    while position + 4 <= end:
        marker = data[position + 1]
        if marker == 0xFF:
            position += 1
        elif marker in _STANDALONE_MARKERS:
            position += 2
        else:
            position += 2 + (data[position + 2] << 8 | data[position + 3])
            if marker == 0xDA:
                return position
    return end


def _tiff_orientation(tiff: bytes) -> int:
    """The orientation tag of an EXIF block's first directory; 1 if there is none."""
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(tiff[:4])
    if order is None or len(tiff) < 10:
        return 1
    (start,) = struct.unpack_from(order + "I", tiff, 4)
    if start + 2 > len(tiff):
        return 1
    (count,) = struct.unpack_from(order + "H", tiff, start)
    for entry in range(start + 2, min(start + 2 + 12 * count, len(tiff) - 11), 12):
        tag, kind = struct.unpack_from(order + "HH", tiff, entry)
        if tag == _ORIENTATION_TAG:
            value = struct.unpack_from(order + ("I" if kind == 4 else "H"), tiff, entry + 8)[0]
            return value if 1 <= value <= 8 else 1
    return 1


def _pillow_info(data: bytes) -> ImageInfo:
    from PIL import Image, UnidentifiedImageError

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with Image.open(io.BytesIO(data), formats=list(_PILLOW_FORMATS)) as image:
                # Pillow turns a TIFF upright as it loads it, and gives the size after that.
                orientation = 1 if image.format == "TIFF" else image.getexif().get(_ORIENTATION_TAG, 1)
                return _checked(
                    _PILLOW_FORMATS[str(image.format)],
                    image.width,
                    image.height,
                    orientation if isinstance(orientation, int) else 1,
                )
    except UnidentifiedImageError:
        raise ValueError(f"not an image: starts with {data[:8]!r}") from None
    except Exception as error:  # Pillow raises nearly every kind on damaged files
        raise ValueError(f"damaged image: {error}") from None

"""Facts about an encoded image from its header: format, size and orientation, without decoding a pixel."""

from __future__ import annotations

import importlib.util
import io
import re
import struct
import sys
import threading
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from feeder.decoders.decoder import MAX_PIXELS, Buffer
from feeder.decoders.packed import check_packed, is_packed, packed_head
from feeder.system.arrays import Size
from feeder.system.text import count

if TYPE_CHECKING:
    from PIL import Image

IMAGE_EXTENSIONS = frozenset(
    [
        "jpg",
        "jpeg",
        "jpe",
        "jfif",
        "fpk",
        "png",
        "webp",
        "avif",
        "bmp",
        "dib",
        "gif",
        "tiff",
        "tif",
        "ppm",
        "pgm",
        "pbm",
        "pnm",
    ]
)

# The formats that Pillow may open, wherever it does: some others start programs (EPS), or are rarely tested.
# (MPO, several JPEGs in a file, opens as JPEG.)
PILLOW_FORMATS: tuple[str, ...] = ("JPEG", "PNG", "WEBP", "BMP", "DIB", "GIF", "TIFF", "PPM")
_PILLOW = importlib.util.find_spec("PIL")  # not imported here
if _PILLOW and any(Path(each, "AvifImagePlugin.py").exists() for each in _PILLOW.submodule_search_locations or ()):
    # Since Pillow 11.3; earlier ones fail on an unknown name.
    PILLOW_FORMATS = (*PILLOW_FORMATS, "AVIF")
# The extension of each that is not read natively.
_NAMED_FORMATS = {name: name.lower() for name in PILLOW_FORMATS if name not in ("JPEG", "DIB")}
_ORIENTATION_TAG = 0x0112
_STANDALONE_MARKERS = frozenset([0x01, *range(0xD0, 0xD8)])
_SOF_MARKERS = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}

EXIF_HEAD = b"Exif\0\0"
_XMP_HEAD = b"http://ns.adobe.com/xap/1.0/\0"
# First bytes of files that people take for images.
_OTHER_FILES = {
    re.compile(rb"....ftyp(hei|hev|mif1|msf1)", re.DOTALL): "HEIC, which feeder does not decode: convert it to JPEG",
    re.compile(rb"....ftypavi", re.DOTALL): "AVIF, which this Pillow does not decode: install Pillow 11.3",
    re.compile(rb"PK\x03\x04"): "a zip: unzip it first",
}
# Bytes of one value, by its TIFF type.
_TIFF_UNITS = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4, 16: 8}
_TIFF_SHORT = 3

PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_PNG_TEXTS = (b"tEXt", b"zTXt", b"iTXt")
_PNG_ORIENTED_TEXTS = (b"Raw profile type exif\0", b"XML:com.adobe.xmp\0")


class ImageInfo(NamedTuple):
    """An image's header.

    Attributes:
        extension: File extension of its format: "jpg", "png", "webp", "avif", "bmp", "gif", "tiff" or "ppm";
            "fpk" for a packed JPEG.
        width_px: Width as stored, before orientation.
        height_px: Height as stored, before orientation.
        orientation: EXIF orientation 1-8, as ``PIL.ImageOps.exif_transpose`` finds it in EXIF or XMP. 1 if there is
            none, if it is out of range, if the EXIF data can't be read (``exif_transpose`` fails then), and for TIFF,
            which Pillow turns upright while loading it; the size is then the upright one.
    """

    extension: str
    width_px: int
    height_px: int
    orientation: int

    @property
    def upright_size(self) -> Size:
        """(height, width) after orientation, pixels."""
        is_turned = self.orientation >= 5  # 5 to 8 swap width and height
        return (self.width_px, self.height_px) if is_turned else (self.height_px, self.width_px)

    @property
    def sizes(self) -> tuple[Size, ...]:
        """(height, width) as stored and, where it differs, after orientation, pixels."""
        return tuple(dict.fromkeys(((self.height_px, self.width_px), self.upright_size)))


def is_image_field(field: str) -> bool:
    """Returns whether a WebDataset field name ("jpg", "left.png") holds an image by its last extension."""
    return field.rpartition(".")[2].lower() in IMAGE_EXTENSIONS


def image_info(data: bytes) -> ImageInfo:
    """Reads an encoded image's header.

    Args:
        data: The whole file.

    Raises:
        ValueError: with the reason why it is no readable image.
    """
    if not data:
        raise ValueError("empty file")
    if data[:2] == b"\xff\xd8":
        return _jpeg_info(data)
    if is_packed(data):
        return _jpeg_info(packed_head(data).jpeg_header)._replace(extension="fpk")
    if data[:8] == PNG_SIGNATURE and data[12:16] == b"IHDR" and len(data) >= 33:
        oriented = _png_oriented(data)
        if oriented is None:
            width, height = struct.unpack_from(">II", data, 16)
            return _checked("png", width, height, 1)
        return _pillow_info(data, whole=oriented)
    return _pillow_info(data)


def is_whole(data: bytes, info: ImageInfo) -> bool:
    """Returns whether an encoded image was not cut off; False if only decoding it can tell.

    A JPEG by its end marker, a packed one by its lengths, and a PNG by its chunks' checksums.

    Raises:
        ValueError: if a packed JPEG is damaged.
    """
    if info.extension == "fpk":
        check_packed(data)
        return True
    return (info.extension == "jpg" and jpeg_has_end(data)) or (info.extension == "png" and _png_is_whole(data))


def jpeg_has_end(data: bytes) -> bool:
    """Returns whether a JPEG whose header can be read has its end marker."""
    return data[-2:] == b"\xff\xd9" or data.rfind(b"\xff\xd9", _scan_start(data)) > 0


def png_chunks(data: Buffer) -> Iterator[tuple[bytes, int, int]]:
    """Yields the kind of each of a PNG's chunks, and where its data starts and ends, which may be behind the file."""
    start = len(PNG_SIGNATURE) + 8
    while start <= len(data):
        length, kind = struct.unpack_from(">I4s", data, start - 8)
        yield kind, start, start + length
        start += length + 12


def _png_is_whole(data: bytes) -> bool:
    """Returns whether all chunks up to the end marker are present with the right checksums."""
    for kind, start, end in png_chunks(data):
        if end + 4 > len(data) or zlib.crc32(data[start - 4 : end]) != int.from_bytes(data[end : end + 4], "big"):
            return False
        if kind == b"IEND":
            return True
    return False


def _checked(extension: str, width: int, height: int, orientation: int) -> ImageInfo:
    if width < 1 or height < 1:
        raise ValueError(f"damaged {extension} header: size {width}x{height}")
    return ImageInfo(extension, width, height, orientation if 1 <= orientation <= 8 else 1)


def _jpeg_segments(data: bytes) -> Iterator[tuple[int, int]]:
    """Yields the code and the position of each marker with a segment, up to the first scan's header or an end marker.

    Bytes between segments, which some cameras pad with, are skipped, as libjpeg and Pillow do it.
    """
    position = data.find(b"\xff", 2)
    while 0 <= position <= len(data) - 4:
        marker = data[position + 1]
        if marker == 0xFF:  # fill byte
            position += 1
            continue
        if marker == 0 or marker in _STANDALONE_MARKERS:
            position = data.find(b"\xff", position + 2)
            continue
        yield marker, position
        if marker in (0xD9, 0xDA):
            return
        position = data.find(b"\xff", _segment_end(data, position))


def _segment_end(data: bytes, position: int) -> int:
    return position + 2 + (data[position + 2] << 8 | data[position + 3])


def _jpeg_info(data: bytes) -> ImageInfo:
    size: Size | None = None
    exif: list[bytes] = []
    xmp: bytes | None = None
    for marker, position in _jpeg_segments(data):
        end = _segment_end(data, position)
        if marker in (0xD9, 0xDA):
            if size is None:
                raise ValueError(f"damaged jpg: no frame header before byte {position}")
            return _checked("jpg", *size, jpeg_orientation(exif, xmp))
        if marker in _SOF_MARKERS:
            if end - position < 10 or position + 9 > len(data):
                break
            height, width = struct.unpack_from(">HH", data, position + 5)
            size = size or (width, height)
        elif marker == 0xE1:
            if data.startswith(EXIF_HEAD, position + 4):
                exif.append(data[position + 4 : end])
            elif data.startswith(_XMP_HEAD, position + 4):
                xmp = data[position + 4 + len(_XMP_HEAD) : end]
    raise ValueError("truncated jpg: ends inside its header")


def _scan_start(data: bytes) -> int:
    """Returns the position of the first scan's entropy-coded data: an end marker before it is a thumbnail's."""
    return next((_segment_end(data, at) for marker, at in _jpeg_segments(data) if marker == 0xDA), len(data))


def is_plain_jpeg(data: bytes) -> bool:
    """Returns whether a JPEG whose header can be read is gray or YCbCr, 8 bits, Huffman-coded and without padding.

    Every JPEG decoder decodes these alike.
    """
    end, adobe_rgb = 2, False
    for marker, position in _jpeg_segments(data):
        if data[end:position].strip(b"\xff"):
            return False
        end = _segment_end(data, position)
        if marker == 0xEE and data.startswith(b"Adobe", position + 4) and end - position >= 16:
            adobe_rgb = data[position + 15] == 0
        elif marker in _SOF_MARKERS:
            components = data[position + 9]
            ids = bytes(data[position + 10 : position + 10 + 3 * components : 3])
            is_color = components == 3 and not adobe_rgb and ids != b"RGB"
            return marker in (0xC0, 0xC1, 0xC2) and data[position + 4] == 8 and (components == 1 or is_color)
    return False


def jpeg_orientation(exif: list[bytes], xmp: bytes | None) -> int:
    """Returns the orientation that Pillow finds in a JPEG.

    Args:
        exif: The payloads of its EXIF segments, each with its "Exif" head.
        xmp: Its last XMP packet, if it has one.

    Returns:
        1 to 8.
    """
    if not exif and xmp is None:
        return 1
    if len(exif) == 1:
        found = _plain_orientation(exif[0][len(EXIF_HEAD) :])
        if found is not None and (found or xmp is None):
            return found or 1
    from PIL import Image

    image = Image.new("1", (1, 1))
    if exif:  # Pillow takes the first segment, followed by the others
        image.info["exif"] = exif[0] + b"".join(segment[len(EXIF_HEAD) :] for segment in exif[1:])
    if xmp is not None:
        image.info["xmp"] = xmp
    with quiet_pillow():
        return _orientation_of(image)


def _plain_orientation(tiff: bytes) -> int | None:
    """Returns the orientation tag in an EXIF block's first directory; 0 without one, None if Pillow must look."""
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(tiff[:4])
    if order is None or len(tiff) < 10:
        return None
    (start,) = struct.unpack_from(order + "I", tiff, 4)
    if start + 2 > len(tiff):
        return None
    (count,) = struct.unpack_from(order + "H", tiff, start)
    if start + 2 + 12 * count > len(tiff):
        return None
    orientation = 0
    for entry in range(start + 2, start + 2 + 12 * count, 12):
        tag, kind, values, offset = struct.unpack_from(order + "HHII", tiff, entry)
        if tag == _ORIENTATION_TAG:
            if kind != _TIFF_SHORT or values != 1:
                return None
            (orientation,) = struct.unpack_from(order + "H", tiff, entry + 8)
            if not 1 <= orientation <= 8:
                return None
        size = _TIFF_UNITS.get(kind, 0) * values
        if size > 4 and offset + size > len(tiff):  # Pillow reads no further
            return None
    return orientation


def _orientation_of(image: Image.Image) -> int:
    """Returns the orientation that Pillow finds in an image's EXIF data, or else in its XMP packet."""
    from PIL import Image

    try:
        # Not the override for PNG, which decodes the image where it has no eXIf chunk.
        value: Any = Image.Image.getexif(image).get(_ORIENTATION_TAG, 1)
    except Exception:  # Pillow raises nearly every kind on damaged data
        return 1
    return next((known for known in range(1, 9) if known == value), 1)


def _png_oriented(data: bytes) -> bool | None:
    """Returns None if no chunk of a PNG can hold an orientation, else whether one is behind the pixels or damaged."""
    oriented: bool | None = None
    has_pixels = False
    for kind, start, _ in png_chunks(data):
        if kind == b"IEND":
            break
        has_pixels = has_pixels or kind == b"IDAT"
        if kind == b"eXIf" or (kind in _PNG_TEXTS and data.startswith(_PNG_ORIENTED_TEXTS, start)):
            if has_pixels:
                return True
            oriented = False
    return oriented


def _pillow_info(data: bytes, *, whole: bool = False) -> ImageInfo:
    """Reads the header with Pillow; ``whole``: of a PNG whose chunks behind the pixels count."""
    from PIL import Image, UnidentifiedImageError

    try:
        with quiet_pillow(), Image.open(io.BytesIO(data), formats=list(_NAMED_FORMATS)) as image:
            if whole and image.width * image.height <= MAX_PIXELS:
                image.load()
            # Pillow turns a TIFF upright as it loads it, and gives the size after that.
            orientation = 1 if image.format == "TIFF" else _orientation_of(image)
            return _checked(_NAMED_FORMATS[str(image.format)], image.width, image.height, orientation)
    except UnidentifiedImageError:
        known = next((kind for head, kind in _OTHER_FILES.items() if head.match(data)), None)
        raise ValueError(f"not an image: starts with {data[:8]!r}" if known is None else f"is {known}") from None
    except Exception as error:  # Pillow raises nearly every kind on damaged files
        raise ValueError(f"damaged image: {error}") from None


def clipped_warning(images: int) -> str:
    """Returns the warning for a number of images, at least one, that lost range: more than 8 bits a sample."""
    return (
        f"{count(images, 'image')} of more than 8 bits a sample clipped to 0-255, as Pillow does it: integers above "
        "255 become 255, floats lose their fraction; convert them to 8 bits first, or leave them out with "
        "`feeder shard --reject-deep`"
    )


_quiet_lock = threading.Lock()
_quiet_depth = 0
_quiet_context: warnings.catch_warnings[Any] | None = None


@contextmanager
def quiet_pillow() -> Iterator[None]:
    """Silences Pillow's warnings about odd files, for all threads inside at the same time.

    ``warnings.catch_warnings`` restores the filters that it found, so of overlapping threads only the first may enter
    it, and only the last may leave it; but on a free-threaded Python, where each thread has filters of its own.
    """
    global _quiet_context, _quiet_depth
    if getattr(sys.flags, "context_aware_warnings", False):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=r"PIL\.")
            yield
        return
    with _quiet_lock:
        _quiet_depth += 1
        if _quiet_depth == 1:
            _quiet_context = warnings.catch_warnings()
            _quiet_context.__enter__()
            warnings.filterwarnings("ignore", module=r"PIL\.")
    try:
        yield
    finally:
        with _quiet_lock:
            _quiet_depth -= 1
            if _quiet_depth == 0 and _quiet_context is not None:
                _quiet_context.__exit__(None, None, None)
                _quiet_context = None

"""The EXIF data of an image, as text."""

from __future__ import annotations

import io
from typing import Any

from PIL import ExifTags, Image

from feeder.decoders.image_header import PILLOW_FORMATS, quiet_pillow
from feeder.decoders.packed import is_packed, packed_head

__all__ = ["exif_of"]

_MOST_TAGS = 200
_MOST_CHARS = 200
_DIRECTORIES = {ExifTags.IFD.Exif: ExifTags.TAGS, ExifTags.IFD.GPSInfo: ExifTags.GPSTAGS}


def exif_of(data: bytes) -> dict[str, str]:
    """Returns the tags of an image's main, Exif and GPS directories; those that can't be read are left out.

    Args:
        data: The image as it is stored, also packed.
    """
    found: dict[str, str] = {}
    try:
        stored = packed_head(data).jpeg_header if is_packed(data) else data
        with (
            quiet_pillow(),
            Image.open(io.BytesIO(stored), formats=PILLOW_FORMATS) as image,
        ):
            # Not the override for PNG, which decodes the image where it has no eXIf chunk.
            exif = Image.Image.getexif(image)
            found |= {_name(ExifTags.TAGS, tag): _text(exif[tag]) for tag in [*exif] if tag not in _DIRECTORIES}
            for directory, names in _DIRECTORIES.items():
                tags = exif.get_ifd(directory)
                found |= {_name(names, tag): _text(value) for tag, value in tags.items()}
    except Exception:  # Pillow raises nearly every kind on damaged data
        pass
    return dict(list(found.items())[:_MOST_TAGS])


def _name(names: dict[int, str], tag: int) -> str:
    return names.get(tag, f"tag {tag:#06x}")


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        text = value.rstrip(b"\0")
        if not text.isascii() or not text.decode().isprintable():
            return f"{len(value):,} bytes"
        value = text.decode()
    shown = ", ".join(map(str, value)) if isinstance(value, tuple) else str(value).rstrip("\0 ")
    return shown if len(shown) <= _MOST_CHARS else f"{shown[:_MOST_CHARS]} ..."

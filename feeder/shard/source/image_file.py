"""Files of encoded images: limits on their size, and a reader that checks the first bytes of large ones."""

from __future__ import annotations

import os

from feeder.decoders.image_header import IMAGE_EXTENSIONS
from feeder.system.files import open_regular

__all__ = [
    "LARGE_BYTES",
    "MAX_FILE_BYTES",
    "check_size",
    "check_start",
    "looks_like_image",
    "read_image",
    "unpacked_limit",
]

# Three float32 channels of the largest image that can be decoded, 89 million pixels.
MAX_FILE_BYTES = 1 << 30

# Smaller files are read without a check of their first bytes; photos are nearly always smaller.
LARGE_BYTES = 16 << 20
# First bytes of the formats that can be decoded, as Pillow knows them; the last is that of `--encode raw`.
_MAGICS = (b"\xff\xd8", b"\x89PNG", b"RIFF", b"BM", b"GIF8", b"II", b"MM", b"P", b"\x93NUMPY")
_MAGIC_BYTES = 8
# Images hardly compress, and labels and headers not this much; a file of zeros shrinks a thousandfold.
UNPACKED_TIMES = 100
# Formats that feeder does not decode, though such a file claims to be an image.
_OTHER_IMAGE_EXTENSIONS = {"avif", "cr2", "dng", "heic", "heif", "ico", "j2k", "jp2", "jxl", "nef", "psd", "tga"}


def check_size(descriptor: int, offset: int, length: int, *, max_bytes: int = MAX_FILE_BYTES) -> None:
    """Checks, before memory is allocated for an image, that it is not too large and, if large, begins like an image.

    Args:
        descriptor: An open file.
        offset: Start of the image, bytes.
        length: Size of the image that an index or a header claims, bytes.
        max_bytes: The largest size allowed.

    Raises:
        OSError: if its first bytes can't be read.
        ValueError: if it is too large, or not an image.
    """
    if length > max_bytes:
        raise ValueError(f"{length:,} bytes are more than the {max_bytes:,} that an image may have")
    if length > LARGE_BYTES:
        check_start(os.pread(descriptor, _MAGIC_BYTES, offset))


def check_start(head: bytes) -> None:
    """Checks that the first bytes of a large image are those of one.

    Raises:
        ValueError: if they are not.
    """
    if not head.startswith(_MAGICS):
        raise ValueError(f"not an image: starts with {head!r}")


def read_image(path: str, *, max_bytes: int = MAX_FILE_BYTES) -> bytes:
    """Reads an image file.

    Args:
        path: The file.
        max_bytes: The largest size allowed.

    Raises:
        OSError: if it can't be read, or is not a regular file.
        ValueError: as :func:`check_size` does.
        MemoryError: naming the file.
    """
    descriptor = open_regular(path)
    try:
        size = os.fstat(descriptor).st_size
        check_size(descriptor, 0, size, max_bytes=max_bytes)
        data = os.read(descriptor, size)
        while len(data) < size and (more := os.read(descriptor, size - len(data))):  # a server may return less
            data += more
        return data
    except MemoryError:
        raise MemoryError(f"{path}: not enough memory for its {size:,} bytes") from None
    except OSError as error:  # an error of a descriptor has no file name
        raise OSError(error.errno, error.strerror, path) from None
    finally:
        os.close(descriptor)


def looks_like_image(path: str | bytes) -> bool:
    """Returns whether a file's name claims that it is an image."""
    return os.fsdecode(path).rpartition(".")[2].lower() in IMAGE_EXTENSIONS | _OTHER_IMAGE_EXTENSIONS


def unpacked_limit(packed_bytes: int, least_bytes: int) -> int:
    """Returns the bytes that a file of ``packed_bytes`` may unpack to, at least ``least_bytes``."""
    return max(least_bytes, UNPACKED_TIMES * packed_bytes)

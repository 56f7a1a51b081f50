"""Encoded images as they come from files: of a bearable size, and read only if they begin as images do."""

from __future__ import annotations

import os

from feeder.system.files import open_regular

__all__ = ["LARGE_BYTES", "MAX_FILE_BYTES", "check_size", "read_image"]

# The largest image that can be decoded, 89 million pixels, takes as much uncompressed as three float32 channels.
MAX_FILE_BYTES = 1 << 30

# Below this a file is read at once, whatever it is; photos are nearly always smaller.
LARGE_BYTES = 16 << 20
# As Pillow tells the formats that can be decoded; the last is that of `feeder shard --encode raw`.
_MAGICS = (b"\xff\xd8", b"\x89PNG", b"RIFF", b"BM", b"GIF8", b"II", b"MM", b"P", b"\x93NUMPY")
_MAGIC_BYTES = 8


def check_size(descriptor: int, offset: int, length: int, *, max_bytes: int = MAX_FILE_BYTES) -> None:
    """Checks, before memory is taken for it, that a large image is not too large and begins as an image does.

    Args:
        descriptor: An open file.
        offset: Where the image starts, bytes.
        length: Its size in bytes, as somebody says.
        max_bytes: The largest size to be borne.

    Raises:
        OSError: if its first bytes can't be read.
        ValueError: saying what is wrong.
    """
    if length > max_bytes:
        raise ValueError(f"{length:,} bytes are more than the {max_bytes:,} that an image may have")
    if length > LARGE_BYTES:
        head = os.pread(descriptor, _MAGIC_BYTES, offset)
        if not head.startswith(_MAGICS):
            raise ValueError(f"not an image: starts with {head!r}")


def read_image(path: str, *, max_bytes: int = MAX_FILE_BYTES) -> bytes:
    """Reads an image's file.

    Args:
        path: The file.
        max_bytes: The largest size to be borne.

    Raises:
        OSError: if it can't be read, or is no regular file.
        ValueError: as :func:`check_size` does.
        MemoryError: naming the file.
    """
    descriptor = open_regular(path)
    try:
        size = os.fstat(descriptor).st_size
        check_size(descriptor, 0, size, max_bytes=max_bytes)
        data = os.read(descriptor, size)
        while len(data) < size and (more := os.read(descriptor, size - len(data))):  # a server may give it in parts
            data += more
        return data
    except MemoryError:
        raise MemoryError(f"{path}: not enough memory for its {size:,} bytes") from None
    except OSError as error:  # which has no name where a descriptor was read
        raise OSError(error.errno, error.strerror, path) from None
    finally:
        os.close(descriptor)

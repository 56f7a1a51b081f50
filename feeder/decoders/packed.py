"""Packed JPEGs: coefficients without Huffman codes, from which the JPEG comes back to the byte.

docs/packed-format.md describes the files byte by byte.
"""

from __future__ import annotations

import base64
import hashlib
import re
import struct
from collections.abc import Iterable
from typing import NamedTuple

from feeder.errors import DecodeError

# The name of a codebook's member in a tar. The webdataset library passes over such names.
CODEBOOK_NAME = re.compile(r"__codebook-([0-9a-f]{16})__")

# The most of a set. One takes 82 KB in every process: a damaged index of a few MB could claim gigabytes.
MOST_CODEBOOKS = 1024

_MAGIC = b"FPK"
_CODEBOOK_MAGIC = b"FPC\1"
_VERSION = 1
_HEAD = struct.Struct("<4s8s32sIIIIx?2x")
_ID_BYTES = 8


class PackedHead(NamedTuple):
    """The head of a packed JPEG.

    Attributes:
        codebook: The id of its codebook.
        sha256: The JPEG's SHA-256.
        jpeg_bytes: The JPEG's length.
        jpeg_header: The JPEG's header, up to its entropy-coded data.
        sequential_copy: True if the JPEG is a sequential copy of a progressive file, False if it is the file.
    """

    codebook: bytes
    sha256: bytes
    jpeg_bytes: int
    jpeg_header: bytes
    sequential_copy: bool = False


def is_packed(data: bytes | bytearray | memoryview) -> bool:
    """Returns whether the bytes start like a packed JPEG."""
    return bytes(data[:3]) == _MAGIC


def is_packed_field(field: str) -> bool:
    """Returns whether a WebDataset field name holds a packed JPEG by its last extension."""
    return field.rpartition(".")[2].lower() == "fpk"


def packed_head(data: bytes) -> PackedHead:
    """Reads the head of a packed JPEG.

    Raises:
        ValueError: if it is damaged, or of another version.
    """
    if len(data) < _HEAD.size or not is_packed(data):
        raise ValueError(f"not a packed JPEG, or cut off: starts with {bytes(data[:8])!r}")
    magic, codebook, sha256, jpeg_bytes, header_bytes, _, _, sequential_copy = _HEAD.unpack_from(data)
    if magic[3] != _VERSION:
        raise ValueError(f"packed JPEG of version {magic[3]}, this feeder reads version {_VERSION}; update feeder")
    header = bytes(data[_HEAD.size : _HEAD.size + header_bytes])
    if len(header) != header_bytes:
        raise ValueError("damaged packed JPEG: it ends inside its head")
    return PackedHead(codebook, sha256, jpeg_bytes, header, sequential_copy)


def codebook_id(codebook: bytes) -> bytes:
    """Returns the id of a codebook: the first 8 bytes of its SHA-256."""
    return hashlib.sha256(codebook).digest()[:_ID_BYTES]


def codebook_name(codebook: bytes) -> str:
    """Returns the name of a codebook's member in a tar."""
    return f"__codebook-{codebook_id(codebook).hex()}__"


def read_codebooks(texts: Iterable[str]) -> tuple[bytes, ...]:
    """Reads codebooks in base64, as indexes have them.

    Raises:
        TypeError, ValueError: for one that is none, or too many.
    """
    found: list[bytes] = []
    for text in texts:
        if len(found) == MOST_CODEBOOKS:
            raise ValueError(f"more than {MOST_CODEBOOKS:,} codebooks of packed JPEGs")
        codebook = base64.b64decode(text, validate=True)
        shapes = codebook[4] + codebook[5] + 2 if len(codebook) > 5 else 0
        if codebook[:4] != _CODEBOOK_MAGIC or len(codebook) != 6 + 3 * shapes:
            raise ValueError(f"not a codebook of packed JPEGs: {len(codebook)} bytes that start with {codebook[:6]!r}")
        found.append(codebook)
    return tuple(found)


def check_packed(data: bytes) -> None:
    """Checks that a packed JPEG was not cut off.

    Raises:
        ValueError: if it was.
    """
    from feeder import _native

    if _native.row_places(data) is None:
        raise ValueError("truncated or damaged packed JPEG")


def add_codebooks(codebooks: Iterable[bytes]) -> None:
    """Makes codebooks known to all decoders of this process.

    Raises:
        ValueError: for one that is none.
    """
    from feeder import _native

    for codebook in codebooks:
        _native.add_codebook(codebook_id(codebook), codebook)


def unpack(data: bytes | bytearray | memoryview, codebook: bytes | None = None) -> bytes:
    """Returns the JPEG that was packed, without a look at its SHA-256.

    Args:
        data: The packed JPEG.
        codebook: Its codebook, if that is not known to the decoders.

    Raises:
        DecodeError: if the packed JPEG is damaged.
        ValueError: for a codebook that is none.
    """
    from feeder import _native

    try:
        return _native.unpack(data, codebook)
    except _native.Unsupported as error:
        raise DecodeError(str(error)) from None


def unpack_checked(data: bytes, codebook: bytes | None = None) -> bytes:
    """Returns the JPEG that was packed, and compares it with its SHA-256.

    Args:
        data: The packed JPEG.
        codebook: Its codebook, if that is not known to the decoders.

    Raises:
        DecodeError: if the packed JPEG is damaged.
        ValueError: for a codebook that is none.
    """
    head = _head(data)
    jpeg = unpack(data, codebook)
    if hashlib.sha256(jpeg).digest() != head.sha256:
        raise DecodeError("packed JPEG: damaged: the JPEG in it does not match its SHA-256")
    return jpeg


def _head(data: bytes) -> PackedHead:
    try:
        return packed_head(data)
    except ValueError as error:
        raise DecodeError(str(error)) from None


def decode_packed(data: bytes, codebooks: bytes | Iterable[bytes]) -> bytes:
    """Returns the JPEG that was packed, to the byte.

    Args:
        data: The packed JPEG, of a sample's field "fpk".
        codebooks: The codebooks that it may need, or the one. They are the first members of a shard,
            ``__codebook-*__``.

    Raises:
        DecodeError: if the packed JPEG is damaged, or its codebook is not among the given ones, naming it.
        ValueError: for a codebook that is none.
    """
    given = [bytes(codebooks)] if isinstance(codebooks, (bytes, bytearray, memoryview)) else codebooks
    known = {codebook_id(each): each for each in given}
    wanted = _head(data).codebook
    if wanted not in known:
        raise DecodeError(
            f"packed JPEG: codebook {wanted.hex()} is not among the {len(known)} given; it is a first member of the "
            "image's shard"
        )
    # Not made known to the decoders, which never forget one: codebooks may come from anywhere.
    return unpack_checked(data, known[wanted])

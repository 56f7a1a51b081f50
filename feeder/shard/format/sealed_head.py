"""The first bytes of an index: a JSON head with its own hash.

Note [Sealed head]
    byte 0   8 bytes   magic
    byte 8   8 bytes   length H of the head, unsigned, little-endian
    byte 16  16 bytes  hash of the head
    byte 32  H bytes   head, JSON, padded with spaces to a multiple of 64 bytes from the file's start
A hash is always the first 16 bytes of a SHA-256.
"""

from __future__ import annotations

import hashlib
import json
import os
from typing import Any

from feeder.errors import FormatError
from feeder.system.files import open_regular
from feeder.system.limit_errors import explained
from feeder.system.mapping import map_file

HASH_BYTES = 16
PREFIX_BYTES = 32
_ALIGN = 64
# A shard's head names fields, targets and groups: this is enough for 65,536 fields of 60 bytes each, the most
# that it can number. A damaged or hostile file may claim gigabytes.
_HEAD_BYTES = 4 << 20
_BEFORE_PAGE = b"\xef\xbb\xbf \t\r\n"  # may stand before the first tag of HTML


def mapped_file(path: str, descriptor: int | None = None) -> memoryview:
    """Maps a whole file for reading.

    Args:
        path: The file.
        descriptor: The same file, open, which stays so; None: the one at the path.

    Raises:
        OSError: if it can't be opened or mapped, with the limit of this process that is reached.
    """
    opened = open_regular(path) if descriptor is None else descriptor
    try:
        with explained():
            return map_file(opened, os.fstat(opened).st_size)
    finally:
        if descriptor is None:
            os.close(opened)


def short_hash(data: bytes | memoryview) -> bytes:
    """Returns the first 16 bytes of the SHA-256."""
    return hashlib.sha256(data).digest()[:HASH_BYTES]


def sealed(magic: bytes, head: dict[str, Any], *, most_bytes: int = _HEAD_BYTES) -> bytes:
    """Returns the first bytes of a file, see Note [Sealed head].

    Args:
        magic: Its magic.
        head: Its head.
        most_bytes: Size of the largest head that readers take.

    Raises:
        FormatError: if the head would be larger.
    """
    text = json.dumps(head, separators=(",", ":")).encode()
    if len(text) + _ALIGN > most_bytes:
        raise FormatError(
            f"the index would begin with {len(text):,} bytes of names, expected at most {most_bytes:,}: use fewer or "
            "shorter names of classes, fields and targets"
        )
    text = text.ljust(len(text) + -(PREFIX_BYTES + len(text)) % _ALIGN)
    return magic + len(text).to_bytes(8, "little") + short_hash(text) + text


def read_head(
    path: str, magic: bytes, data: memoryview, *, most_bytes: int = _HEAD_BYTES
) -> tuple[dict[str, Any], bytes, int]:
    """Reads the head of a file.

    Args:
        path: The file, for errors.
        magic: Its magic.
        data: Its bytes, at least to the end of the head.
        most_bytes: Size of the largest head that such a file can need.

    Returns:
        The head, its hash, and the offset of its end.

    Raises:
        FormatError: if it is another file, or damaged.
    """
    if len(data) < PREFIX_BYTES or data[:8] != magic:
        found = bytes(data[:16])
        if found.lstrip(_BEFORE_PAGE).startswith(b"<"):
            raise FormatError(
                f"{path}: a page came, which starts with {found!r}, in place of a file that starts with {magic!r}: the "
                "URL is wrong, or a proxy or a login has answered for the server; open the URL in a browser"
            )
        raise FormatError(
            f"{path}: expected a file that starts with {magic!r}, found {found[:8]!r}, or one that was cut off; give "
            "the shards' folder, restore the file, rebuild it with `feeder index`, or shard the dataset again"
        )

    length = int.from_bytes(data[8:16], "little")
    if length > most_bytes:
        raise damaged(path, f"its head would have {length:,} bytes, expected at most {most_bytes:,}")

    end = PREFIX_BYTES + length
    text = data[PREFIX_BYTES:end]
    expected = bytes(data[PREFIX_BYTES - HASH_BYTES : PREFIX_BYTES])
    if len(data) < end or short_hash(text) != expected:
        raise damaged(path, "its head does not match its hash")
    try:
        head = json.loads(bytes(text))
    except (ValueError, RecursionError) as error:
        raise damaged(path, f"its head is not JSON: {error}") from None
    if not isinstance(head, dict):
        raise damaged(path, "its head is not a JSON object")
    return head, expected, end


def damaged(path: str, reason: str) -> FormatError:
    """Returns the error for a damaged file."""
    return FormatError(
        f"{path}: damaged: {reason}; restore the file, rebuild it with `feeder index`, or shard the dataset again"
    )

"""The index file: its layout, its header, and its writer.

Note [Index file]
    byte 0   8 bytes  magic ``FEEDERIX``
    byte 8   8 bytes  length H of the header, unsigned, little-endian
    byte 16  H bytes  header, JSON, padded with spaces to a multiple of 64 bytes from the file's start
    then     columns  little-endian, each at its offset (from the file's start, a multiple of 64)
The header has header_crc32, version, samples (N), shards [{name, size_bytes}], fields (names), columns {name: {dtype,
count, offset, crc32}} and, in some indexes, image_of {identity, left_out}, classes and targets.
A column's crc32 is the CRC-32 of its bytes. header_crc32 is the CRC-32 of bytes 0 to 16+H, computed with zeros in the
place of its own digits. Each is a string of eight hexadecimal digits. Older indexes have neither; an index that has
only some of them is damaged.
Columns of N samples: shard u32; field u16 (of the image, a number in `fields`); offset u64 and length u64 (of the
encoded image in its shard, bytes); label i64 (-1: none); width u32 and height u32 (as stored, before orientation);
orientation u8 (EXIF, 1-8); source_bytes u64 (size of the sample's source, before any re-encoding); crc32 u32 (of the
image's bytes followed by those of the other fields). A text is a start u64 [N+1] and bytes: `key_start`, `key_data`,
`path_start`, `path_data` (the original path, in the file system's bytes). The other fields of sample i are rows
member_start[i] to member_start[i+1] of member_field u16, member_offset u64, member_length u64.
`row_data` u32 has the places of the rows of pixels of a seekable or packed JPEG, which are stored in bands. Its
elements row_start[i] to row_start[i+1] are the height of a band in pixels, the offset of each band in the image's
bytes, and the offset of the end of the last band, with its marker. It is empty for other images; older indexes lack
both columns.
With `image_of`, the image is another field than in the index that this one was made from. `identity` is the hash of
that index, in hexadecimal digits, and `left_out` the number of its samples that are left out, as they have no readable
image in that field. The rows of member_* are then all fields of the sample, the image included, and crc32 covers these.
`classes` has the class names, by label. `codebooks` has those of packed JPEGs, each in base64. `targets` has the names
of K numbers that each sample has in place of a label. The version is then 2, so that older readers refuse the index;
the column `target` f32 has K numbers for each sample, NaN for none; and `label` is -1. `source_row` u64 [N] has the row
number, from 0, of samples from rows of a table.
"""

from __future__ import annotations

import base64
import json
import math
import os
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from feeder.errors import FormatError
from feeder.system.files import atomic_file, open_regular

__all__ = [
    "COLUMNS",
    "INDEX_MAGIC",
    "INDEX_NAME",
    "OPTIONAL_COLUMNS",
    "STARTS",
    "ImageOf",
    "ShardEntry",
    "column_view",
    "hex_crc32",
    "read_header",
    "version_for",
    "write_index",
]

INDEX_NAME = "index.bin"
_MAX_HEADER_BYTES = 1 << 28  # enough for a million shards; a damaged file may claim gigabytes
INDEX_MAGIC = b"FEEDERIX"
_VERSION = 1
_VERSION_WITH_TARGETS = 2
_ALIGN = 64
# Columns and their dtypes, in the order of the file.
COLUMNS = {
    "shard": "<u4",
    "field": "<u2",
    "offset": "<u8",
    "length": "<u8",
    "label": "<i8",
    "width": "<u4",
    "height": "<u4",
    "orientation": "|u1",
    "source_bytes": "<u8",
    "crc32": "<u4",
    "key_start": "<u8",
    "key_data": "|u1",
    "path_start": "<u8",
    "path_data": "|u1",
    "member_start": "<u8",
    "member_field": "<u2",
    "member_offset": "<u8",
    "member_length": "<u8",
    "row_start": "<u8",
    "row_data": "<u4",
}
# Columns that some indexes have.
OPTIONAL_COLUMNS = {"target": "<f4", "source_row": "<u8"}
_HEADER_CRC = b'"header_crc32":"'
_NO_CRC = "00000000"
# Start columns, and the column whose length is their last value.
STARTS = {"key_start": "key_data", "path_start": "path_data", "member_start": "member_field", "row_start": "row_data"}


class ShardEntry(NamedTuple):
    """A shard: its file name, relative to the index's folder, and its size."""

    name: str
    size_bytes: int


class ImageOf(NamedTuple):
    """Origin of an index in which another field is the image.

    Attributes:
        identity: Identity of the index that it was made from, hexadecimal.
        left_out: Number of samples of that index that have no readable image in that field.
    """

    identity: str
    left_out: int


def write_index(
    path: str,
    shards: Sequence[ShardEntry],
    fields: Sequence[str],
    columns: Mapping[str, Iterable[npt.NDArray[Any]]],
    counts: dict[str, int],
    image_of: ImageOf | None = None,
    *,
    targets: Sequence[str] = (),
    classes: Sequence[str] | None = None,
    codebooks: Sequence[bytes] = (),
) -> None:
    """Writes an index file atomically.

    Args:
        path: The file.
        shards: The shards, by number.
        fields: Names of the fields, by number.
        columns: Each column, in pieces.
        counts: Number of values in each column.
        image_of: Origin of the index, if another field is the image; see Note [Index file].
        targets: Names of the numbers in the column "target".
        classes: Class names by label, to store in the index.
        codebooks: Codebooks of packed JPEGs.
    """
    header: dict[str, Any] = {
        "header_crc32": _NO_CRC,
        "version": version_for(targets),
        "samples": counts["shard"],
        "fields": list(fields),
        "shards": [shard._asdict() for shard in shards],
    }
    if image_of is not None:
        header["image_of"] = image_of._asdict()
    if targets:
        header["targets"] = list(targets)
    if classes is not None:
        header["classes"] = list(classes)
    if codebooks:
        header["codebooks"] = [base64.b64encode(codebook).decode() for codebook in codebooks]
    dtypes = {name: dtype for name, dtype in (COLUMNS | OPTIONAL_COLUMNS).items() if name in counts}
    # The header holds offsets, whose digits change its length: lay out with a guess, then with the real length.
    start = _ALIGN
    while True:
        offset = start
        layout: dict[str, dict[str, Any]] = {}
        for name, dtype in dtypes.items():
            layout[name] = {"dtype": dtype, "count": counts[name], "offset": offset, "crc32": _NO_CRC}
            offset = _aligned(offset + counts[name] * np.dtype(dtype).itemsize)
        text = json.dumps(header | {"columns": layout}, separators=(",", ":")).encode()
        if _aligned(16 + len(text)) <= start:
            break
        start = _aligned(16 + len(text))
    with atomic_file(path) as file:
        file.write(b"\0" * start)
        for name in dtypes:
            file.write(b"\0" * (layout[name]["offset"] - file.tell()))
            checksum = 0
            for piece in columns[name]:
                data = np.ascontiguousarray(piece).data
                checksum = zlib.crc32(data, checksum)
                file.write(data)
            layout[name]["crc32"] = hex_crc32(checksum)
        file.write(b"\0" * (offset - file.tell()))
        text = json.dumps(header | {"columns": layout}, separators=(",", ":")).encode()
        raw = INDEX_MAGIC + (start - 16).to_bytes(8, "little") + text.ljust(start - 16)
        file.seek(0)
        file.write(raw.replace(_HEADER_CRC + _NO_CRC.encode(), _HEADER_CRC + hex_crc32(zlib.crc32(raw)).encode(), 1))


def version_for(targets: Sequence[str]) -> int:
    """Returns the version of an index with these targets. Older readers, which don't know targets, refuse version 2."""
    return _VERSION_WITH_TARGETS if targets else _VERSION


def column_view(path: str, data: npt.NDArray[np.uint8], name: str, entry: dict[str, Any]) -> npt.NDArray[Any]:
    """Returns a view of a column of a mapped index file.

    Args:
        path: The file, for errors.
        data: All its bytes.
        name: The column.
        entry: The header's entry for it.

    Raises:
        FormatError: if the entry does not fit the file.
    """
    expected = (COLUMNS | OPTIONAL_COLUMNS)[name]
    dtype, count, offset = np.dtype(expected), int(entry["count"]), int(entry["offset"])
    end = offset + count * dtype.itemsize
    if entry["dtype"] != expected or count < 0 or offset < 0 or offset % _ALIGN or end > data.size:
        raise FormatError(
            f"{path}: column {name!r} (dtype {entry['dtype']}, {count} rows at byte {offset}) does not fit the file of "
            f"{data.size} bytes; it was cut off or damaged: rebuild it with `feeder index`"
        )
    return data[offset:end].view(dtype)


def hex_crc32(checksum: int) -> str:
    """Returns a CRC-32 as the header has it: eight hexadecimal digits."""
    return f"{checksum:08x}"


def _aligned(offset: int) -> int:
    return math.ceil(offset / _ALIGN) * _ALIGN


def read_header(path: str) -> dict[str, Any]:
    """Reads the header of an index file.

    Raises:
        FormatError: if there is no such file, or it is damaged or of another version.
    """
    try:
        with open(path, "rb", opener=open_regular) as file:
            size = os.fstat(file.fileno()).st_size
            head = file.read(16)
            length = int.from_bytes(head[8:16], "little")
            if head[:8] != INDEX_MAGIC or length > min(size - 16, _MAX_HEADER_BYTES):
                raise FormatError(
                    f"{path}: not a feeder index (starts with {head[:8]!r}), or cut off; give the shards' folder, or "
                    "rebuild its index with `feeder index`"
                )
            text = file.read(length)
            header = json.loads(text)
    except IsADirectoryError:
        raise FormatError(f"{path}: is a folder, expected an index file") from None
    except (FileNotFoundError, NotADirectoryError):
        folder = os.path.dirname(path) if os.path.basename(path) == INDEX_NAME else ""
        if folder and os.path.isdir(folder):
            found = f"{folder}: no {INDEX_NAME} in this folder, so it is not a shard set; make one"
        else:
            found = f"{path}: no such folder or index; make a shard set"
        raise FormatError(f"{found} with `feeder shard`, or index tars with `feeder index`") from None
    except OSError as error:
        raise FormatError(f"{path}: this index can't be read: {error.strerror}") from None
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise FormatError(f"{path}: damaged index header: {error}; rebuild it with `feeder index`") from None
    version = header.get("version", _VERSION) if isinstance(header, dict) else _VERSION
    if version not in (_VERSION, _VERSION_WITH_TARGETS):
        raise FormatError(
            f"{path}: index version {version}, this feeder reads versions {_VERSION} and {_VERSION_WITH_TARGETS}; "
            "update feeder, or rebuild it with `feeder index`"
        )
    if not isinstance(header, dict) or not _is_as_written(head + text, header):
        raise FormatError(
            f"{path}: damaged index header; restore the file, rebuild it with `feeder index`, or shard the dataset "
            "again"
        )
    return header


def _is_as_written(raw: bytes, header: dict[str, Any]) -> bool:
    """Returns whether a header matches its checksum, or belongs to an older index, which has none."""
    if "header_crc32" not in header:
        return b'"crc32":"' not in raw
    start = raw.find(_HEADER_CRC) + len(_HEADER_CRC)
    zeroed = raw[:start] + _NO_CRC.encode() + raw[start + len(_NO_CRC) :]
    return bool(header["header_crc32"] == hex_crc32(zlib.crc32(zeroed)))

"""The flat, memory-mapped index of a shard set: one row a sample, never a Python object a sample.

Note [Index file]
    byte 0   8 bytes  magic ``FEEDERIX``
    byte 8   8 bytes  length H of the header, unsigned, little-endian
    byte 16  H bytes  header, JSON: header_crc32, version, samples, shards [{name, size_bytes}], fields, columns
                      {name: {dtype, count, offset, crc32}}, and image_of {identity, left_out} where another field is
                      the image than in the index that it was made from; padded with spaces to a multiple of 64 bytes
                      from the file's start
    then     columns  little-endian, each at its offset (from the file's start, a multiple of 64)
A column's crc32 is the CRC-32 of its bytes, header_crc32 that of bytes 0 to 16+H with its own digits taken as zeros:
each is a string of eight hexadecimal digits. Older indexes have neither; one that has only some of them is damaged.
Columns of N samples: shard u32; field u16 (of the image, a number in `fields`); offset u64 and length u64 (of the
encoded image in its shard, bytes); label i64 (-1: none); width u32 and height u32 (as stored, before orientation);
orientation u8 (EXIF, 1-8); source_bytes u64 (size of the sample's source, before any re-encoding); crc32 u32 (of the
image's bytes followed by the other fields'). Texts are a start u64 [N+1] and bytes: `key_start`, `key_data`,
`path_start`, `path_data` (the original path, in the file system's bytes). The other fields of sample i are rows
member_start[i] to member_start[i+1] of member_field u16, member_offset u64, member_length u64. Of a seekable JPEG
row_data u32 has, from row_start[i] to row_start[i+1], where its rows lie, in bands: the height of a band in pixels, the
offset of each in the image's bytes, and that of the end of the last one's marker. Of other images there is nothing, and
older indexes lack both columns.
Where the header has image_of, the rows of member_* are all fields of the sample, the image too, and crc32 is that of
these alone. `identity` tells the index that it was made from, in hexadecimal digits, and `left_out` how many of that
one's samples are left out, as they have no readable image in that field.
Where labels have names, the header may have `classes`, the names by label. Where the samples' targets are numbers and
no classes, the header has `targets`, the names of K columns of numbers, and version 2, which a reader that knows no
targets refuses; the column `target` f32 then has K numbers for each sample, NaN for none, and `label` is -1. Of samples
that came from rows of a table, `source_row` u64 [N] has the row's number, from 0.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from feeder.errors import FormatError
from feeder.system.files import atomic_file, open_regular
from feeder.system.limits import explained

__all__ = [
    "COLUMNS",
    "INDEX_NAME",
    "NUMBER_FIELDS",
    "OPTIONAL_COLUMNS",
    "ImageOf",
    "Index",
    "ShardEntry",
    "write_index",
]

INDEX_NAME = "index.bin"
_T = TypeVar("_T")
_MAX_HEADER_BYTES = 1 << 28  # a million shards; a file of zeros may claim gigabytes
_MAGIC = b"FEEDERIX"
_VERSION = 1
_VERSION_WITH_TARGETS = 2
_ALIGN = 64
_ROWS_HASHED = 16  # each may be a page that is read from a slow disk
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
_MEMBER_COLUMNS = ("member_start", "member_field", "member_offset", "member_length")
_ROWS = ("row_start", "row_data")  # an older index lacks both; one alone says nothing
# Columns that an index has where they are needed.
OPTIONAL_COLUMNS = {"target": "<f4", "source_row": "<u8"}
# A dataset checks these when it is opened: what they say wrongly nothing else notices. At a million samples that takes
# 15 ms; all columns would take 70 ms, and from a slow disk the time of reading 180 MB instead of 39 MB.
_SAMPLE_COLUMNS = ("shard", "field", "offset", "length", "label", "width", "height", "orientation", "target")
_HEADER_CRC = b'"header_crc32":"'
_NO_CRC = "00000000"
# Start columns -> the column that their last value is the length of.
_STARTS = {"key_start": "key_data", "path_start": "path_data", "member_start": "member_field", "row_start": "row_data"}


class ShardEntry(NamedTuple):
    """A shard: its file name, relative to the index's folder, and its size."""

    name: str
    size_bytes: int


class ImageOf(NamedTuple):
    """Origin of an index in which another field is the image.

    Attributes:
        identity: That of the index that it was made from, hexadecimal.
        left_out: Number of that one's samples that have no readable image in that field.
    """

    identity: str
    left_out: int


class Index:
    """A memory-mapped index file; cheap to pickle, as it travels by its path.

    Attributes:
        path: The index file.
        shards: The shards, by number.
        fields: Names of the fields, by number.
        shard, field, offset, length, label, width, height, orientation, source_bytes, crc32: arrays [N]; what they
            hold and their dtypes stand in Note [Index file].
        classes: Class names by label; None if the index has none.
        targets: Names of the numbers that each sample has in place of a label; empty if there are none.
        identity: A hash of the header and of some rows, by which an index is told from one that took its place.
        image_of: Where it comes from, if another field is the image than in the index that it was made from; else None.
        has_checksums: Whether it says what the CRC-32 of each column is, as older ones do not.
    """

    shard: npt.NDArray[np.uint32]
    field: npt.NDArray[np.uint16]
    offset: npt.NDArray[np.uint64]
    length: npt.NDArray[np.uint64]
    label: npt.NDArray[np.int64]
    width: npt.NDArray[np.uint32]
    height: npt.NDArray[np.uint32]
    orientation: npt.NDArray[np.uint8]
    source_bytes: npt.NDArray[np.uint64]
    crc32: npt.NDArray[np.uint32]

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        header = _read_header(self.path)
        try:
            self.targets = tuple(str(name) for name in header.get("targets", ()))
            if header["version"] != (_VERSION_WITH_TARGETS if self.targets else _VERSION):
                raise ValueError(f"version {header['version']} with targets {self.targets}")
            names = header.get("classes")
            self.classes = None if names is None else [str(name) for name in names]
            self.shards = tuple(ShardEntry(str(s["name"]), int(s["size_bytes"])) for s in header["shards"])
            self.fields = tuple(str(name) for name in header["fields"])
            self._samples = int(header["samples"])
            origin = header.get("image_of")
            self.image_of = None if origin is None else ImageOf(str(origin["identity"]), int(origin["left_out"]))
            with explained():
                mapped = np.memmap(self.path, np.uint8, "r")
            data = mapped.view(np.ndarray)  # whose elements are had in half the time
            columns = header["columns"]
            self.has_checksums = "header_crc32" in header
            has_rows = all(name in columns for name in _ROWS)
            absent = () if has_rows else _ROWS
            present = [*COLUMNS, *(name for name in OPTIONAL_COLUMNS if name in columns)]
            self._columns = {name: self._view(data, name, columns[name]) for name in present if name not in absent}
            self._checksums = {name: columns[name]["crc32"] for name in self._columns if self.has_checksums}
            if not has_rows:
                self._columns["row_start"] = np.broadcast_to(np.uint64(0), self._samples + 1)
                self._columns["row_data"] = np.zeros(0, np.uint32)
        except (KeyError, OverflowError, TypeError, ValueError) as error:
            raise FormatError(f"{self.path}: damaged index header: {error!r}; rebuild it with `feeder index`") from None
        for name in COLUMNS:
            if not name.endswith(("_start", "_data")) and not name.startswith("member_"):
                self._check_count(name, self._samples)
                setattr(self, name, self._columns[name])
        if self.targets:
            self._check_count("target", self._samples * len(self.targets))
            self._columns["target"] = self._columns["target"].reshape(self._samples, len(self.targets))
        if self.has_column("source_row"):
            self._check_count("source_row", self._samples)
        for start, target in _STARTS.items():
            self._check_count(start, self._samples + 1)
            self._check_count(target, int(self._columns[start][-1]))
        for name in ("member_offset", "member_length"):
            self._check_count(name, len(self._columns["member_field"]))
        for shard in self.shards:
            if os.path.isabs(shard.name) or ".." in Path(shard.name).parts:
                raise FormatError(f"{self.path}: shard name {shard.name!r} leads out of the index's folder")
            if "\0" in shard.name or not _is_encodable(shard.name):
                raise FormatError(f"{self.path}: shard name {shard.name!r} can't be a file's; the index is damaged")
        self.identity = self._hashed(json.dumps(header))

    def __len__(self) -> int:
        return self._samples

    def __reduce__(self) -> tuple[type[Index], tuple[str]]:
        return Index, (self.path,)

    def shard_path(self, shard: int) -> str:
        """Full path of a shard, by its number."""
        return os.path.join(os.path.dirname(self.path), self.shard_name(shard))

    def shard_name(self, shard: int) -> str:
        """File name of a shard, by its number.

        Raises:
            FormatError: if there is no such shard.
        """
        return self._named(self.shards, shard, "shard").name

    def shard_counts(self) -> npt.NDArray[np.int64]:
        """Samples in each shard: int64 [shards].

        Raises:
            FormatError: if a sample stands in a shard that is not there.
        """
        if len(self):
            self.shard_name(int(self.shard.max()))  # first, as counting takes memory up to the largest number
        return np.bincount(self.shard, minlength=len(self.shards))

    def key(self, i: int) -> str:
        """The sample's WebDataset key."""
        return self._text("key", i).decode("utf-8", "surrogateescape")

    def source_path(self, i: int) -> str:
        """The sample's original path; undecodable bytes as surrogates, as in :func:`os.fsdecode`."""
        return os.fsdecode(self._text("path", i))

    def row_data(self, i: int) -> bytes:
        """Where the sample's rows lie, as Note [Index file] has it; nothing if that is not known."""
        return self._text("row", i)

    def members(self, i: int) -> list[tuple[str, int, int]]:
        """The sample's fields besides the image: (field, offset, length) in its shard, bytes."""
        start, end = (int(v) for v in self._columns["member_start"][i : i + 2])
        rows = zip(
            *(self._columns[f"member_{name}"][start:end].tolist() for name in ("field", "offset", "length")),
            strict=True,
        )
        return [(self.field_name(field), offset, length) for field, offset, length in rows]

    def parts(self, i: int) -> list[tuple[str, int, int]]:
        """All fields of the sample, in the order of its checksum: (field, offset, length) in its shard, bytes."""
        members = self.members(i)
        if self.image_of is not None:
            return members
        return [(self.image_field(i), int(self.offset[i]), int(self.length[i])), *members]

    def image_field(self, i: int) -> str:
        """Name of the sample's image field, such as "jpg"."""
        return self.field_name(int(self.field[i]))

    def field_name(self, field: int) -> str:
        """Name of a field, by its number.

        Raises:
            FormatError: if there is no such field.
        """
        return self._named(self.fields, field, "field")

    def column(self, name: str) -> npt.NDArray[Any]:
        """A column by its name in Note [Index file]; "target" as [N, K]."""
        return self._columns[name]

    def has_column(self, name: str) -> bool:
        """Whether the index has a column that it may lack."""
        return name in self._columns

    def damaged_columns(self, names: Iterable[str] | None = None) -> list[str]:
        """Those of the columns, by default of all, whose bytes are not what was written; none without checksums."""
        known = self._checksums if names is None else [name for name in names if name in self._checksums]
        return [name for name in known if _crc32(zlib.crc32(self._columns[name].data)) != self._checksums[name]]

    def check(self, names: Iterable[str] | None = None) -> None:
        """Compares columns, by default all, with their checksums.

        Raises:
            FormatError: if one is not what was written.
        """
        damaged = self.damaged_columns(names)
        if damaged:
            raise FormatError(
                f"{self.path}: damaged: the bytes of column {damaged[0]!r} do not match their checksum; restore the "
                "file, rebuild it with `feeder index`, or shard the dataset again"
            )

    def check_fields(self, fields: Iterable[str]) -> None:
        """Compares with their checksums the columns that every sample needs, and those that its ``fields`` need.

        Raises:
            FormatError: if one is not what was written.
        """
        names = set(_SAMPLE_COLUMNS)
        for field in fields:
            if field in ("key", "path"):
                names.update((f"{field}_start", f"{field}_data"))
            elif field == "row":
                names.add("source_row")
            elif field not in NUMBER_FIELDS:
                names.update(_MEMBER_COLUMNS)
        self.check(names)

    def _hashed(self, header: str) -> bytes:
        """A hash of the header and of some rows."""
        digest = hashlib.blake2b(header.encode(), digest_size=16)
        rows = np.linspace(0, self._samples - 1, min(self._samples, _ROWS_HASHED)).astype(np.int64)
        for name in ("offset", "label", "crc32", *(("target",) if self.targets else ())):
            digest.update(self._columns[name][rows].tobytes())
        return digest.digest()

    def _named(self, names: tuple[_T, ...], number: int, what: str) -> _T:
        if number >= len(names):
            raise FormatError(
                f"{self.path}: names {what} {number}, but has {len(names)} of them; it is damaged: rebuild it with "
                "`feeder index`, or shard the dataset again"
            )
        return names[number]

    def _text(self, name: str, i: int) -> bytes:
        start, end = (int(v) for v in self._columns[f"{name}_start"][i : i + 2])
        return self._columns[f"{name}_data"][start:end].tobytes()

    def _view(self, data: npt.NDArray[np.uint8], name: str, entry: dict[str, Any]) -> npt.NDArray[Any]:
        expected = (COLUMNS | OPTIONAL_COLUMNS)[name]
        dtype, count, offset = np.dtype(expected), int(entry["count"]), int(entry["offset"])
        end = offset + count * dtype.itemsize
        if entry["dtype"] != expected or count < 0 or offset < 0 or offset % _ALIGN or end > data.size:
            raise FormatError(
                f"{self.path}: column {name!r} (dtype {entry['dtype']}, {count} rows at byte {offset}) does not fit "
                f"the file of {data.size} bytes; it was cut off or damaged: rebuild it with `feeder index`"
            )
        return data[offset:end].view(dtype)

    def _check_count(self, name: str, expected: int) -> None:
        if len(self._columns[name]) != expected:
            raise FormatError(
                f"{self.path}: column {name!r} has {len(self._columns[name])} rows, expected {expected}; "
                "rebuild it with `feeder index`"
            )


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
) -> None:
    """Writes an index file atomically.

    Args:
        path: The file.
        shards: The shards, by number.
        fields: Names of the fields, by number.
        columns: Each column, in pieces.
        counts: Values of each column.
        image_of: Where it comes from; see Note [Index file].
        targets: Names of the numbers in the column "target".
        classes: Class names by label, to be kept in the index.
    """
    header: dict[str, Any] = {
        "header_crc32": _NO_CRC,
        "version": _VERSION_WITH_TARGETS if targets else _VERSION,
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
    dtypes = {name: dtype for name, dtype in (COLUMNS | OPTIONAL_COLUMNS).items() if name in counts}
    # Offsets are part of the header, and so of its length: lay out with a guess, then with the real length.
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
            layout[name]["crc32"] = _crc32(checksum)
        file.write(b"\0" * (offset - file.tell()))
        text = json.dumps(header | {"columns": layout}, separators=(",", ":")).encode()
        raw = _MAGIC + (start - 16).to_bytes(8, "little") + text.ljust(start - 16)
        file.seek(0)
        file.write(raw.replace(_HEADER_CRC + _NO_CRC.encode(), _HEADER_CRC + _crc32(zlib.crc32(raw)).encode(), 1))


def _crc32(checksum: int) -> str:
    return f"{checksum:08x}"


def _is_encodable(name: str) -> bool:
    try:
        os.fsencode(name)
    except UnicodeEncodeError:
        return False
    return True


def _aligned(offset: int) -> int:
    return math.ceil(offset / _ALIGN) * _ALIGN


def _read_header(path: str) -> dict[str, Any]:
    try:
        with open(path, "rb", opener=open_regular) as file:
            size = os.fstat(file.fileno()).st_size
            head = file.read(16)
            length = int.from_bytes(head[8:16], "little")
            if head[:8] != _MAGIC or length > min(size - 16, _MAX_HEADER_BYTES):
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
            found = f"{folder}: no {INDEX_NAME} in this folder; it is no shard set: make one"
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
    """Whether a header matches its checksum, or is of an older index, which has none."""
    if "header_crc32" not in header:
        return b'"crc32":"' not in raw
    start = raw.find(_HEADER_CRC) + len(_HEADER_CRC)
    zeroed = raw[:start] + _NO_CRC.encode() + raw[start + len(_NO_CRC) :]
    return bool(header["header_crc32"] == _crc32(zlib.crc32(zeroed)))


# Integers: "index" is the sample id; "width" and "height" are of the image before the recipe, upright if orientation is
# applied, pixels; "orientation" is EXIF's, as stored, 1-8; "row" is the sample's row in its manifest, from 0.
NUMBER_FIELDS = ("index", "width", "height", "orientation", "row")

"""The flat, memory-mapped index of a shard set: one row per sample, never a Python object per sample."""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from feeder.errors import FormatError
from feeder.shard.format.index_file import (
    COLUMNS,
    OPTIONAL_COLUMNS,
    STARTS,
    ImageOf,
    ShardEntry,
    column_view,
    hex_crc32,
    read_header,
    version_for,
)
from feeder.system.limit_errors import explained

__all__ = ["NUMBER_FIELDS", "Index"]

# Fields that are integers: "index" is the sample id; "width" and "height" are those of the image before the recipe, in
# pixels, upright if orientation is applied; "orientation" is EXIF's, as stored, 1-8; "row" is the sample's row in its
# manifest, from 0.
NUMBER_FIELDS = ("index", "width", "height", "orientation", "row")

_T = TypeVar("_T")
_ROWS_HASHED = 16  # few, as each may be a page to read from a slow disk
_MEMBER_COLUMNS = ("member_start", "member_field", "member_offset", "member_length")
_ROWS = ("row_start", "row_data")  # an older index lacks both; one alone is useless
# Checked when a dataset is opened, as errors in them would go unnoticed. At a million samples that takes 15 ms. All
# columns would take 70 ms, and a slow disk would have to read 180 MB instead of 39 MB.
_SAMPLE_COLUMNS = ("shard", "field", "offset", "length", "label", "width", "height", "orientation", "target")


class Index:
    """A memory-mapped index file; cheap to pickle, as it travels by its path.

    Attributes:
        path: The index file.
        shards: The shards, by number.
        fields: Names of the fields, by number.
        shard, field, offset, length, label, width, height, orientation, source_bytes, crc32: Columns [N], see Note
            [Index file].
        classes: Class names by label; None if the index has none.
        targets: Names of the numbers that each sample has in place of a label; empty if there are none.
        identity: Hash of the header and of some rows; it differs if another index has replaced this one.
        image_of: Origin of an index in which another field is the image; None for any other.
        has_checksums: True if it has the CRC-32 of each column, which older indexes lack.
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
        header = read_header(self.path)
        try:
            self.targets = tuple(str(name) for name in header.get("targets", ()))
            if header["version"] != version_for(self.targets):
                raise ValueError(f"version {header['version']} with targets {self.targets}")
            classes = header.get("classes")
            self.classes = None if classes is None else [str(name) for name in classes]
            self.shards = tuple(ShardEntry(str(s["name"]), int(s["size_bytes"])) for s in header["shards"])
            self.fields = tuple(str(name) for name in header["fields"])
            self._samples = int(header["samples"])
            origin = header.get("image_of")
            self.image_of = None if origin is None else ImageOf(str(origin["identity"]), int(origin["left_out"]))
            with explained():
                mapped = np.memmap(self.path, np.uint8, "r")
            data = mapped.view(np.ndarray)  # elements of a plain array are read in half the time
            columns = header["columns"]
            self.has_checksums = "header_crc32" in header
            has_rows = all(name in columns for name in _ROWS)
            names = [name for name in COLUMNS if has_rows or name not in _ROWS]
            names += [name for name in OPTIONAL_COLUMNS if name in columns]
            self._columns = {name: column_view(self.path, data, name, columns[name]) for name in names}
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
        for start, target in STARTS.items():
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
            FormatError: if a sample is in a shard that does not exist.
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
        """The sample's ``row_data``, see Note [Index file]; empty if it is not a seekable JPEG."""
        return self._text("row", i)

    def row_extents(self, ids: npt.NDArray[np.int64], rows: npt.NDArray[np.int32]) -> npt.NDArray[np.int64] | None:
        """Returns the bytes of N images that some of their rows need.

        Args:
            ids: int64 [N].
            rows: int32 [N, 2], first and end row, in pixels as stored.

        Returns:
            int64 [N, 4], see :func:`feeder._native.row_extents`; None if all bytes of all images are needed.
        """
        starts, places = self.column("row_start"), self.column("row_data")
        if len(places) == 0:
            return None
        from feeder import _native

        found = _native.row_extents(
            places, starts[ids], starts[ids + 1], self.length[ids], self.height[ids], np.ascontiguousarray(rows)
        )
        return found if (found[:, 0] >= 0).any() else None

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
        """Column by its name in Note [Index file]; "target" as [N, K]."""
        return self._columns[name]

    def has_column(self, name: str) -> bool:
        """Returns whether the index has an optional column."""
        return name in self._columns

    def damaged_columns(self, names: Iterable[str] | None = None) -> list[str]:
        """Names of the columns, of ``names`` or of all, that don't match their checksum; empty without checksums."""
        known = self._checksums if names is None else [name for name in names if name in self._checksums]
        return [name for name in known if hex_crc32(zlib.crc32(self._columns[name].data)) != self._checksums[name]]

    def check(self, names: Iterable[str] | None = None) -> None:
        """Compares columns, by default all, with their checksums.

        Raises:
            FormatError: if one does not match.
        """
        damaged = self.damaged_columns(names)
        if damaged:
            raise FormatError(
                f"{self.path}: damaged: the bytes of column {damaged[0]!r} do not match their checksum; restore the "
                "file, rebuild it with `feeder index`, or shard the dataset again"
            )

    def check_fields(self, fields: Iterable[str]) -> None:
        """Compares the columns that every sample and these ``fields`` need with their checksums.

        Raises:
            FormatError: if one does not match.
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
        """Hash of the header and of some rows."""
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

    def _check_count(self, name: str, expected: int) -> None:
        if len(self._columns[name]) != expected:
            raise FormatError(
                f"{self.path}: column {name!r} has {len(self._columns[name])} rows, expected {expected}; "
                "rebuild it with `feeder index`"
            )


def _is_encodable(name: str) -> bool:
    try:
        os.fsencode(name)
    except UnicodeEncodeError:
        return False
    return True

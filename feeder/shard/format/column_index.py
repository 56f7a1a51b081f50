"""Version 1 of the index: a flat file of columns for the whole set, see Note [Index file]."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from feeder.decoders.packed import read_codebooks
from feeder.errors import FormatError
from feeder.order.shard_sizes import ShardSizes
from feeder.shard.format.index import NUMBER_FIELDS, FieldPlaces, Index, Located, SetSize
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

if TYPE_CHECKING:
    from feeder._native import HeldIndex

__all__ = ["ColumnIndex"]

_T = TypeVar("_T")
_ROWS_HASHED = 16  # few, as each may be a page to read from a slow disk
_MEMBER_COLUMNS = ("member_start", "member_field", "member_offset", "member_length")
_ROWS = ("row_start", "row_data")  # an older index lacks both; one alone is useless
# Checked when a dataset is opened, as errors in them would go unnoticed. At a million samples that takes 15 ms. All
# columns would take 70 ms, and a slow disk would have to read 180 MB instead of 39 MB.
_SAMPLE_COLUMNS = ("shard", "field", "offset", "length", "label", "width", "height", "orientation", "target")


class ColumnIndex(Index):
    """A memory-mapped index file of version 1; cheap to pickle, as it travels by its path.

    Attributes:
        shards: The shards, by number.
        shard, field, offset, length, label, width, height, orientation, source_bytes, crc32: Columns [N], see Note
            [Index file].
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
            self.codebooks = read_codebooks(header.get("codebooks", ()))
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

    def __reduce__(self) -> tuple[type[ColumnIndex], tuple[str]]:
        return ColumnIndex, (self.path,)

    @property
    def shard_count(self) -> int:
        """See :class:`Index`."""
        return len(self.shards)

    @property
    def size_bytes(self) -> int:
        """See :class:`Index`."""
        return sum(shard.size_bytes for shard in self.shards)

    @property
    def has_source_rows(self) -> bool:
        """See :class:`Index`."""
        return self.has_column("source_row")

    @property
    def max_label(self) -> int:
        """See :class:`Index`."""
        return int(self.label.max(initial=-1))

    def shard_entry(self, shard: int) -> ShardEntry:
        """See :meth:`Index.shard_entry`."""
        return self._named(self.shards, shard, "shard")

    def index_entry(self, shard: int) -> None:
        """See :meth:`Index.index_entry`; one index has all shards."""

    def steps_bytes(self, shard: int) -> int:
        """See :meth:`Index.steps_bytes`; the index has them itself."""
        return 0

    def extent(self) -> SetSize:
        """See :meth:`Index.extent`."""
        return SetSize(0, os.stat(self.path).st_size, max((shard.size_bytes for shard in self.shards), default=0))

    def shard_ids(self, shard: int) -> npt.NDArray[np.int64]:
        """See :meth:`Index.shard_ids`."""
        return np.flatnonzero(self.shard == shard)

    def shard_counts(self) -> ShardSizes:
        """See :meth:`Index.shard_counts`."""
        if len(self):
            self.shard_name(int(self.shard.max()))  # first, as counting takes memory up to the largest number
        return np.bincount(self.shard, minlength=len(self.shards))

    def key(self, i: int) -> str:
        """See :meth:`Index.key`."""
        return self._text("key", i).decode("utf-8", "surrogateescape")

    def source_path(self, i: int) -> str:
        """See :meth:`Index.source_path`."""
        return os.fsdecode(self._text("path", i))

    def row_data(self, i: int) -> bytes:
        """See :meth:`Index.row_data`."""
        return self._text("row", i)

    def shards_of(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """See :meth:`Index.shards_of`."""
        return self.shard[ids].astype(np.int64)

    def rows(self, ids: npt.NDArray[np.int64]) -> ColumnRows:
        """See :meth:`Index.rows`."""
        return ColumnRows(self, ids)

    @functools.cached_property
    def native(self) -> HeldIndex | None:
        """See :attr:`Index.native`."""
        try:
            from feeder import _native
        except ImportError:
            return None
        has_rows = len(self.column("row_data")) > 0
        starts = self.column("row_start") if has_rows else np.zeros(0, np.uint64)
        columns = (self.shard, self.offset, self.length, self.width, self.height, self.orientation, self.label)
        return _native.IndexColumns(*columns, starts, self.column("row_data"))

    def located(self, ids: npt.NDArray[np.int64]) -> Located:
        """See :meth:`Index.located`."""
        return Located(None, ids, 0)

    def hold(self, shards: Iterable[int], *, by_rows: bool = True) -> None:
        """See :meth:`Index.hold`; it holds all."""

    def missing_steps(self, shards: Iterable[int]) -> list[tuple[str, int, int]]:
        """See :meth:`Index.missing_steps`; it is never in a store."""
        return []

    def labels(self) -> npt.NDArray[Any]:
        """See :meth:`Index.labels`; a view."""
        if not self.targets:
            return self.label
        target = self.column("target")
        return target[:, 0] if target.shape[1] == 1 else target

    def source_rows(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """See :meth:`Index.source_rows`."""
        return self.column("source_row")[ids].astype(np.int64)

    def field_places(self, name: str) -> FieldPlaces:
        """See :meth:`Index.field_places`."""
        number = self.fields.index(name) if name in self.fields else -1
        rows = np.flatnonzero(self.column("member_field") == number)
        owners = np.searchsorted(self.column("member_start"), rows, side="right") - 1
        images = np.flatnonzero(self.field == number)
        ids = np.concatenate([owners, images])
        offsets = np.concatenate([self.column("member_offset")[rows], self.offset[images]])
        lengths = np.concatenate([self.column("member_length")[rows], self.length[images]])
        is_inside = (ids >= 0) & (ids < len(self))  # the others are a damaged index's
        ids, offsets, lengths = ids[is_inside], offsets[is_inside], lengths[is_inside]
        return FieldPlaces(ids, self.shard[ids].astype(np.int64), offsets, lengths)

    def fingerprint(self, labels: npt.NDArray[Any] | None = None) -> str:
        """See :meth:`Index.fingerprint`."""
        return self.columns_fingerprint(self.labels() if labels is None else labels)

    def members(self, i: int) -> list[tuple[str, int, int]]:
        """See :meth:`Index.members`."""
        start, end = (int(v) for v in self._columns["member_start"][i : i + 2])
        rows = zip(
            *(self._columns[f"member_{name}"][start:end].tolist() for name in ("field", "offset", "length")),
            strict=True,
        )
        return [(self.field_name(field), offset, length) for field, offset, length in rows]

    def place(self, i: int) -> tuple[int, int, int]:
        """See :meth:`Index.place`."""
        return int(self.shard[i]), int(self.offset[i]), int(self.length[i])

    def image_field(self, i: int) -> str:
        """See :meth:`Index.image_field`."""
        return self.field_name(int(self.field[i]))

    def field_name(self, field: int) -> str:
        """See :meth:`Index.field_name`."""
        return self._named(self.fields, field, "field")

    def column(self, name: str) -> npt.NDArray[Any]:
        """See :meth:`Index.column`."""
        return self._columns[name]

    def checked_parts(self, names: Sequence[str]) -> Iterator[dict[str, npt.NDArray[Any]]]:
        """See :meth:`Index.checked_parts`; there is one part."""
        self.check()
        yield {name: self.column(name) for name in names}

    def has_column(self, name: str) -> bool:
        """Returns whether the index has an optional column."""
        return name in self._columns

    def damaged_columns(self, names: Iterable[str] | None = None) -> list[str]:
        """Names of the columns, of ``names`` or of all, that don't match their checksum; empty without checksums."""
        known = self._checksums if names is None else [name for name in names if name in self._checksums]
        return [name for name in known if hex_crc32(zlib.crc32(self._columns[name].data)) != self._checksums[name]]

    def check(self, names: Iterable[str] | None = None) -> None:
        """See :meth:`Index.check`."""
        damaged = self.damaged_columns(names)
        if damaged:
            raise FormatError(
                f"{self.path}: damaged: the bytes of column {damaged[0]!r} do not match their checksum; restore the "
                "file, rebuild it with `feeder index`, or shard the dataset again"
            )

    def check_fields(self, fields: Iterable[str]) -> None:
        """See :meth:`Index.check_fields`."""
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


class ColumnRows:
    """Some rows of the columns, see :class:`feeder.shard.format.index.Rows`; each is read when it is used."""

    __slots__ = ("_ids", "_index")

    def __init__(self, index: ColumnIndex, ids: npt.NDArray[np.int64]) -> None:
        self._index, self._ids = index, ids

    @property
    def shard(self) -> npt.NDArray[np.uint32]:
        return self._index.shard[self._ids]

    @property
    def offset(self) -> npt.NDArray[np.uint64]:
        return self._index.offset[self._ids]

    @property
    def length(self) -> npt.NDArray[np.uint64]:
        return self._index.length[self._ids]

    @property
    def width(self) -> npt.NDArray[np.uint32]:
        return self._index.width[self._ids]

    @property
    def height(self) -> npt.NDArray[np.uint32]:
        return self._index.height[self._ids]

    @property
    def orientation(self) -> npt.NDArray[np.uint8]:
        return self._index.orientation[self._ids]

    @property
    def field(self) -> npt.NDArray[np.uint16]:
        return self._index.field[self._ids]

    @property
    def crc32(self) -> npt.NDArray[np.uint32]:
        return self._index.crc32[self._ids]

    @property
    def labels(self) -> npt.NDArray[Any]:
        return self._index.labels()[self._ids]

    def extents(self, rows: npt.NDArray[np.int32]) -> npt.NDArray[np.int64] | None:
        """See :meth:`feeder.shard.format.index.Rows.extents`."""
        index, ids = self._index, self._ids
        starts, places = index.column("row_start"), index.column("row_data")
        if len(places) == 0:
            return None
        from feeder import _native

        found = _native.row_extents(
            places, starts[ids], starts[ids + 1], self.length, self.height, np.ascontiguousarray(rows)
        )
        return found if (found[:, 0] >= 0).any() else None

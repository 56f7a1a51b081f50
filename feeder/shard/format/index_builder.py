"""Rows of the index, collected for each shard while it is written, then merged."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from feeder.decoders.packed import is_packed
from feeder.shard.format.column_index import ColumnIndex
from feeder.shard.format.index_file import COLUMNS, OPTIONAL_COLUMNS, STARTS, ShardEntry, write_index

__all__ = ["IndexBuilder", "merge_indexes", "row_data"]


class IndexBuilder:
    """Collects the rows of one shard.

    Args:
        shard: The shard's number.
        targets: Names of the numbers that each sample has in place of a label.
        numbered: True if the samples come from rows of a table, whose numbers the index keeps.
    """

    def __init__(self, shard: int, targets: Sequence[str] = (), *, numbered: bool = False) -> None:
        self.shard = shard
        self.targets = tuple(targets)
        self.numbered = numbered
        self.fields: dict[str, int] = {}
        columns = [name for name in COLUMNS if not name.endswith(("_start", "_data"))]
        self._target, self._source_rows = array("f"), array("Q")
        self._rows = {name: array("q") for name in columns}  # an eighth of a list's memory
        self._starts = {name: array("q", [0]) for name in STARTS}
        self._data = {"key_data": bytearray(), "path_data": bytearray(), "row_data": bytearray()}

    def __len__(self) -> int:
        return len(self._rows["offset"])

    def add(
        self,
        *,
        key: bytes,
        path: bytes,
        field: str,
        offset: int,
        length: int,
        label: int,
        width: int,
        height: int,
        orientation: int,
        source_bytes: int,
        crc32: int,
        members: Iterable[tuple[str, int, int]],
        rows: bytes = b"",
        target: Sequence[float] = (),
        source_row: int = 0,
    ) -> None:
        """Adds a sample.

        Args:
            members: Its other fields, (field, offset, length).
            rows: Its ``row_data``.
            target: One number for each of the builder's targets.
            source_row: Its row in a table; ignored unless the builder is numbered.
            key, path, field, offset, length, label, width, height, orientation, source_bytes, crc32: See Note [Index
                file].
        """
        if len(target) != len(self.targets):
            raise ValueError(f"expected {len(self.targets)} target numbers, got {len(target)}")
        self._target.extend(target)
        self._source_rows.append(source_row)
        row = {"shard": self.shard, "field": self._field(field), "offset": offset, "length": length, "label": label}
        row |= {"width": width, "height": height, "orientation": orientation}
        row |= {"source_bytes": source_bytes, "crc32": crc32}
        for name, value in row.items():
            self._rows[name].append(value)
        for member_field, member_offset, member_length in members:
            self._rows["member_field"].append(self._field(member_field))
            self._rows["member_offset"].append(member_offset)
            self._rows["member_length"].append(member_length)
        self._data["key_data"] += key
        self._data["path_data"] += path
        self._data["row_data"] += rows
        for start, column in STARTS.items():
            values = self._rows.get(column)
            size = len(self._data[column]) // np.dtype(COLUMNS[column]).itemsize if values is None else len(values)
            self._starts[start].append(size)

    def write(self, path: str, shards: Sequence[ShardEntry], codebooks: Sequence[bytes] = ()) -> None:
        """Writes the rows as an index file, atomically; ``codebooks`` are those of packed JPEGs."""
        columns: dict[str, npt.NDArray[Any]] = {}
        if self.targets:
            columns["target"] = np.array(self._target, np.float32)
        if self.numbered:
            columns["source_row"] = np.array(self._source_rows, np.uint64)
        for name, dtype in COLUMNS.items():
            values: Any = self._rows.get(name, self._starts.get(name))
            if name in self._data:
                columns[name] = np.frombuffer(self._data[name], dtype=dtype)
            else:
                columns[name] = np.array(values, dtype=dtype)
        counts = {name: len(column) for name, column in columns.items()}
        pieces = {name: [column] for name, column in columns.items()}
        write_index(path, shards, list(self.fields), pieces, counts, targets=self.targets, codebooks=codebooks)

    def _field(self, field: str) -> int:
        return self.fields.setdefault(field, len(self.fields))


def merge_indexes(parts: Sequence[str], path: str, classes: Sequence[str] | None = None) -> None:
    """Joins the index files of single shards into one, atomically. Takes the memory of one part.

    Args:
        parts: Index files in shard order, all with the same targets.
        path: The index to write.
        classes: Class names by label, to store in the index.
    """
    fields: dict[str, int] = {}
    shards: list[ShardEntry] = []
    targets: tuple[str, ...] = ()
    codebooks: dict[bytes, None] = {}
    sizes: list[dict[str, int]] = []
    for part in map(ColumnIndex, parts):
        for field in part.fields:
            fields.setdefault(field, len(fields))
        shards.extend(part.shards)
        targets = part.targets
        codebooks.update(dict.fromkeys(part.codebooks))
        names = [*COLUMNS, *(name for name in OPTIONAL_COLUMNS if part.has_column(name))]
        sizes.append({name: part.column(name).size for name in names})
    # Parts that an earlier version of feeder wrote, before the run was resumed, may lack a column.
    present = [*COLUMNS, *(name for name in OPTIONAL_COLUMNS if parts and all(name in part for part in sizes))]
    counts = {name: sum(part[name] for part in sizes) for name in present}
    for name in STARTS:
        counts[name] += 1 - len(parts)  # each part starts with a 0, and only the first one is kept

    def pieces(name: str) -> Iterable[npt.NDArray[Any]]:
        base = 0
        for number, part in enumerate(map(ColumnIndex, parts)):  # not kept open: thousands would exhaust descriptors
            part.check([name])
            column = np.array(part.column(name))
            if name in ("field", "member_field"):
                column = np.array([fields[f] for f in part.fields] or [0], dtype=column.dtype)[column]
            elif name == "shard":
                column = np.full_like(column, number)
            elif name in STARTS:
                last = int(column[-1])
                column = column[min(number, 1) :] + np.uint64(base)
                base += last
            yield column

    columns = {name: pieces(name) for name in present}
    write_index(
        path, shards, list(fields), columns, counts, targets=targets, classes=classes, codebooks=list(codebooks)
    )


def row_data(data: bytes) -> bytes:
    """Returns an image's values in the column ``row_data``; empty unless it is a complete seekable or packed JPEG."""
    if data[:2] != b"\xff\xd8" and not is_packed(data):
        return b""
    try:
        from feeder import _native
    except ImportError:  # without row_data, crops read the whole image
        return b""
    places = _native.row_places(data)
    return b"" if places is None else np.frombuffer(places, np.uint32).astype("<u4").tobytes()

"""Rows of the index of a shard, collected while it is written."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from feeder.decoders.packed import is_packed
from feeder.shard.format.index_file import COLUMNS, STARTS
from feeder.shard.format.shard_index import write_shard_index

__all__ = ["IndexBuilder", "row_data"]


class IndexBuilder:
    """Collects the rows of one shard.

    Args:
        targets: Names of the numbers that each sample has in place of a label.
        numbered: True if the samples come from rows of a table, whose numbers the index keeps.
    """

    def __init__(self, targets: Sequence[str] = (), *, numbered: bool = False) -> None:
        self.targets = tuple(targets)
        self.numbered = numbered
        self.fields: dict[str, int] = {}
        columns = [name for name in COLUMNS if name != "shard" and not name.endswith(("_start", "_data"))]
        self._target = array("f")
        self._source_rows = array("Q")
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
        row = {"field": self._field(field), "offset": offset, "length": length, "label": label}
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

    def columns(self) -> dict[str, npt.NDArray[Any]]:
        """The columns of Note [Index file], but for "shard"; "target" as [N, K]."""
        columns: dict[str, npt.NDArray[Any]] = {}
        if self.targets:
            columns["target"] = np.array(self._target, np.float32).reshape(len(self), len(self.targets))
        if self.numbered:
            columns["source_row"] = np.array(self._source_rows, np.uint64)
        for name, dtype in COLUMNS.items():
            values: Any = self._rows.get(name, self._starts.get(name))
            if name in self._data:
                columns[name] = np.frombuffer(self._data[name], dtype=dtype)
            elif name != "shard":
                columns[name] = np.array(values, dtype=dtype)
        return columns

    def write(
        self, path: str, blocks: npt.NDArray[np.uint32], size_bytes: int, codebooks: Sequence[bytes] = ()
    ) -> None:
        """Writes the index of the shard, atomically.

        Args:
            path: The file.
            blocks: Checksums of the shard's blocks, see :class:`feeder.shard.format.block_sums.BlockSums`.
            size_bytes: Size of the shard.
            codebooks: Codebooks of its packed JPEGs.
        """
        fields = list(self.fields)
        write_shard_index(path, self.columns(), fields, self.targets, blocks, size_bytes, codebooks)

    def _field(self, field: str) -> int:
        return self.fields.setdefault(field, len(self.fields))


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

"""Rows of the index of a shard, collected while it is written."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from feeder.decoders.packed import is_packed
from feeder.shard.format.shard_index import SampleRow, write_shard_index
from feeder.system.arrays import Uint32s


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
        self._samples: list[SampleRow] = []

    def __len__(self) -> int:
        return len(self._samples)

    def add(
        self,
        *,
        field: str,
        members: Iterable[tuple[str, int, int]],
        rows: bytes = b"",
        target: Sequence[float] = (),
        **values: Any,
    ) -> None:
        """Adds a sample.

        Args:
            field: The image's field.
            members: Its other fields, (field, offset, length).
            rows: Its ``row_data``.
            target: One number for each of the builder's targets.
            values: The further attributes of :class:`SampleRow`.
        """
        number = self._number(field)
        places = [(self._number(name), offset, length) for name, offset, length in members]
        self._samples.append(SampleRow(field=number, members=places, row_data=rows, target=target, **values))

    def write(self, path: str, blocks: Uint32s, size_bytes: int, codebooks: Sequence[bytes] = ()) -> None:
        """Writes the index of the shard, atomically.

        Args:
            path: The file.
            blocks: Checksums of the shard's blocks, see :class:`feeder.shard.format.block_sums.BlockSums`.
            size_bytes: Size of the shard.
            codebooks: Codebooks of its packed JPEGs.
        """
        fields = list(self.fields)
        write_shard_index(
            path, self._samples, fields, self.targets, blocks, size_bytes, codebooks, is_numbered=self.numbered
        )

    def _number(self, field: str) -> int:
        return self.fields.setdefault(field, len(self.fields))


def row_data(data: bytes) -> bytes:
    """Returns an image's values in the column ``row_data``; empty unless it is a complete seekable or packed JPEG."""
    if data[:2] != b"\xff\xd8" and not is_packed(data):
        return b""
    from feeder import _native

    places = _native.row_places(data)
    return b"" if places is None else np.frombuffer(places, np.uint32).astype("<u4").tobytes()

"""Rows of Parquet files, which may be damaged, or hold far more than their size says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from feeder.errors import SourceError
from feeder.shard.source.source import unpacked_limit

__all__ = ["parquet_rows"]

_BATCH_ROWS = 256
# A value may stand once in a file and be meant in every row, so this many rows times all values are at most so much.
_BATCH_BYTES = 256 << 20
# Of lists, whose values may be repeated likewise, and which are Python's objects before they are JSON.
_BATCH_VALUES = 8 << 20


def parquet_rows(path: str) -> Iterator[dict[str, Any] | str]:
    """The rows of a Parquet file, or for a row that can't be read the reason, as a stream.

    Raises:
        SourceError: if the file can't be read, or unpacks to what no images' file does.
        OSError: if the disk fails, or a page is not what its checksum says.
    """
    try:
        import pyarrow
        import pyarrow.parquet as parquet
    except ImportError:
        raise SourceError(f"{path}: reading Parquet needs pyarrow: pip install 'feeder-data[parquet]'") from None
    try:
        with parquet.ParquetFile(path, page_checksum_verification=True) as file:
            first = 1
            for number in range(file.metadata.num_row_groups):
                rows = _batch_rows(path, file.metadata.row_group(number))
                for batch in file.iter_batches(batch_size=rows, row_groups=[number]):
                    try:
                        yield from batch.to_pylist()
                    except (ValueError, OverflowError):
                        yield from map(_row, range(first, first + batch.num_rows), _singly(batch))
                    first += batch.num_rows
    except (pyarrow.ArrowException, MemoryError) as error:
        raise SourceError(f"{path}: can't be read as Parquet: {error or 'not enough memory'}") from None


def _batch_rows(path: str, group: Any) -> int:
    """Number of a row group's rows that may be in memory at a time.

    Raises:
        SourceError: if a column is far larger than it is packed, or has too many values in a row.
    """
    rows = _BATCH_ROWS
    for chunk in (group.column(number) for number in range(group.num_columns)):
        packed_bytes, size_bytes = int(chunk.total_compressed_size), int(chunk.total_uncompressed_size)
        row_values = chunk.num_values // max(1, group.num_rows)
        if size_bytes > (limit := unpacked_limit(packed_bytes, _BATCH_BYTES)):
            raise SourceError(
                f"{path}: column {chunk.path_in_schema!r} unpacks from {packed_bytes:,} bytes to {size_bytes:,}, more "
                f"than {limit:,}; images don't shrink so much: look what it is"
            )
        if row_values > _BATCH_VALUES:
            raise SourceError(
                f"{path}: column {chunk.path_in_schema!r} has {row_values:,} values in a row, more than "
                f"{_BATCH_VALUES:,}; images are bytes: look what it is"
            )
        rows = min(rows, _BATCH_BYTES // max(1, size_bytes), _BATCH_VALUES // max(1, row_values))
    return max(1, rows)


def _singly(batch: Any) -> Iterator[Any]:
    return (batch.slice(row, 1) for row in range(batch.num_rows))


def _row(number: int, batch: Any) -> dict[str, Any] | str:
    """The only row of a batch, or why it can't be read."""
    try:
        row: dict[str, Any] = batch.to_pylist()[0]
    except (ValueError, OverflowError) as error:
        return f"row {number}: {error}"
    return row

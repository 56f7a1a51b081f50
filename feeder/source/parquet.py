"""Rows of Parquet files, which may be damaged, or hold far more than their size says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from feeder.errors import SourceError
from feeder.source.base import unpacked_limit

__all__ = ["parquet_rows"]

_BATCH_ROWS = 256
# A value may stand once in a file and be meant in every row, so this many rows times all values are at most so much.
_BATCH_BYTES = 256 << 20


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
                largest_bytes = _largest_chunk(path, file.metadata.row_group(number))
                rows = max(1, min(_BATCH_ROWS, _BATCH_BYTES // max(1, largest_bytes)))
                for batch in file.iter_batches(batch_size=rows, row_groups=[number]):
                    try:
                        yield from batch.to_pylist()
                    except (ValueError, OverflowError):
                        yield from map(_row, range(first, first + batch.num_rows), _singly(batch))
                    first += batch.num_rows
    except (pyarrow.ArrowException, MemoryError) as error:
        raise SourceError(f"{path}: can't be read as Parquet: {error or 'not enough memory'}") from None


def _largest_chunk(path: str, group: Any) -> int:
    """Bytes of the largest column of a row group, unpacked.

    Raises:
        SourceError: if one is far larger than it is packed.
    """
    chunks = [group.column(number) for number in range(group.num_columns)]
    for chunk in chunks:
        if chunk.total_uncompressed_size > (limit := unpacked_limit(chunk.total_compressed_size)):
            raise SourceError(
                f"{path}: column {chunk.path_in_schema!r} unpacks from {chunk.total_compressed_size:,} bytes to "
                f"{chunk.total_uncompressed_size:,}, more than {limit:,}; images don't shrink so much: look what it is"
            )
    return max((int(chunk.total_uncompressed_size) for chunk in chunks), default=0)


def _singly(batch: Any) -> Iterator[Any]:
    return (batch.slice(row, 1) for row in range(batch.num_rows))


def _row(number: int, batch: Any) -> dict[str, Any] | str:
    """The only row of a batch, or why it can't be read."""
    try:
        row: dict[str, Any] = batch.to_pylist()[0]
    except (ValueError, OverflowError) as error:
        return f"row {number}: {error}"
    return row

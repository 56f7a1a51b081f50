"""The rows of a manifest: CSV, TSV, JSON lines or Parquet."""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from feeder.errors import SourceError
from feeder.shard.source.csv_rows import csv_rows, text_lines
from feeder.shard.source.image_file import unpacked_limit
from feeder.system.child_python import child_python
from feeder.system.text import BOM, count, without_bom

Row = dict[str, Any]
_BATCH_ROWS = 256
# Limit on the rows of a batch times the bytes of a column, as a file may store a value once and repeat it in every row.
BATCH_BYTES = 256 << 20
# Limit on the rows of a batch times the values in a row, each of which becomes a Python object.
BATCH_VALUES = 8 << 20
_WALK = """
import resource
import pyarrow.parquet as parquet
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
metadata = parquet.read_metadata(sys.argv[1])
for group in range(metadata.num_row_groups):
    for column in range(metadata.num_columns):
        metadata.row_group(group).column(column)
"""

_JSON = json.JSONDecoder(parse_constant={"NaN": None, "Infinity": math.inf, "-Infinity": -math.inf}.__getitem__)


def table_rows(path: str, notes: list[str]) -> Iterator[Row | str]:
    """Streams the manifest's rows; yields the reason for a row that can't be read.

    Args:
        path: The manifest.
        notes: Gets what was taken for granted.
    """
    suffix = os.path.splitext(path)[1].lower()
    if suffix == ".parquet":
        return parquet_rows(path)
    if suffix in (".jsonl", ".ndjson"):
        return _json_rows(path, notes)
    return csv_rows(path, "\t,;|" if suffix == ".tsv" else ",;|\t", notes)


def column_classes(path: str) -> dict[str, list[str]]:
    """Returns the class names of each column of a Parquet file for which Hugging Face's ``datasets`` has written them.

    Args:
        path: A manifest, whose rows could be read.
    """
    if not path.lower().endswith(".parquet"):
        return {}
    import pyarrow.parquet as parquet

    metadata = parquet.read_schema(path).metadata or {}
    try:
        features = json.loads(metadata.get(b"huggingface", b"{}"))["info"]["features"]
        return {name: list(map(str, each["names"])) for name, each in features.items() if "names" in each}
    except (AttributeError, LookupError, RecursionError, TypeError, ValueError):
        return {}


def _json_rows(path: str, notes: list[str]) -> Iterator[Row | str]:
    with contextlib.closing(text_lines(path, notes)) as lines:
        for number, line in enumerate(lines, 1):
            line = line.strip().removeprefix(BOM)
            if not line:
                continue
            try:
                row = _JSON.decode(line)
                if BOM in line or "ufeff" in line.lower():
                    row = without_bom(row)
            except (ValueError, RecursionError) as error:
                yield f"line {number}: not JSON: {error}"
                continue
            yield row if isinstance(row, dict) else f"line {number}: expected an object, got {type(row).__name__}"


def parquet_rows(path: str) -> Iterator[dict[str, Any] | str]:
    """Streams the rows of a Parquet file; yields the reason for a row that can't be read.

    Raises:
        SourceError: if the file can't be read, or unpacks to more than a file of images would.
        OSError: if the disk fails, or a page does not match its checksum.
    """
    try:
        import pyarrow
        import pyarrow.parquet as parquet
    except ImportError:
        raise SourceError(f"{path}: reading Parquet needs pyarrow: pip install 'feeder-data[parquet]'") from None

    _check_footer(path)
    try:
        with parquet.ParquetFile(path, page_checksum_verification=True) as file:
            names = file.schema_arrow.names
            if (twice := next((name for name in names if names.count(name) > 1), None)) is not None:
                raise SourceError(f"{path}: names a column {twice!r} twice: {', '.join(map(repr, names))}")

            first = 1
            for number in range(file.metadata.num_row_groups):
                rows = _batch_rows(path, file.metadata.row_group(number))
                for batch in file.iter_batches(batch_size=rows, row_groups=[number]):
                    batch = batch.rename_columns([name.removeprefix(BOM) for name in names])
                    try:
                        yield from map(_without_bom, batch.to_pylist())
                    except (ValueError, OverflowError):
                        yield from (_row(first + row, batch.slice(row, 1)) for row in range(batch.num_rows))
                    first += batch.num_rows
            if first - 1 != file.metadata.num_rows:  # pyarrow ends early without an error where a count is damaged
                raise SourceError(
                    f"{path}: is damaged: {first - 1:,} of its {count(file.metadata.num_rows, 'row')} were found"
                )

    except (pyarrow.ArrowException, MemoryError, UnicodeDecodeError) as error:  # the last: of a column's name
        raise SourceError(f"{path}: can't be read as Parquet: {error or 'not enough memory'}") from None


def _check_footer(path: str) -> None:
    """Reads a file's footer in a separate process, as pyarrow aborts its process at some kinds of damage there.

    Raises:
        SourceError: if a signal ended that process. Other damage is found when the rows are read.
    """
    if not sys.executable:  # Python is embedded
        return
    nowhere: Any = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    code = subprocess.run(child_python(_WALK, path), check=False, **nowhere).returncode
    if code < 0:
        name = signal.Signals(-code).name
        raise SourceError(f"{path}: can't be read as Parquet: its footer is damaged (pyarrow ends with {name})")


def _batch_rows(path: str, group: Any) -> int:
    """Returns the number of a row group's rows that may be in memory at a time.

    Raises:
        SourceError: if a column unpacks to far more than its size in the file, or has too many values in a row.
    """
    rows = _BATCH_ROWS
    for chunk in (group.column(number) for number in range(group.num_columns)):
        packed_bytes, size_bytes = int(chunk.total_compressed_size), int(chunk.total_uncompressed_size)
        row_values = chunk.num_values // max(1, group.num_rows)
        if size_bytes > (limit := unpacked_limit(packed_bytes, BATCH_BYTES)):
            raise SourceError(
                f"{path}: column {chunk.path_in_schema!r} unpacks from {packed_bytes:,} bytes to {size_bytes:,}, more "
                f"than {limit:,}; images don't shrink so much: check what it holds"
            )
        if row_values > BATCH_VALUES:
            raise SourceError(
                f"{path}: column {chunk.path_in_schema!r} has {row_values:,} values in a row, more than "
                f"{BATCH_VALUES:,}; images are bytes: check what it holds"
            )
        rows = min(rows, BATCH_BYTES // max(1, size_bytes), BATCH_VALUES // max(1, row_values))
    return max(1, rows)


def _without_bom(row: Row) -> Row:
    """Returns a row with no byte order mark at the start of texts, and of those in lists of texts."""
    for name, value in row.items():
        if isinstance(value[0] if isinstance(value, list) and value else value, str):
            row[name] = without_bom(value)
    return row


def _row(number: int, batch: Any) -> dict[str, Any] | str:
    """Returns the only row of a batch, or the reason why it can't be read."""
    try:
        row: dict[str, Any] = batch.to_pylist()[0]
    except (ValueError, OverflowError) as error:
        return f"row {number}: {error}"
    return row

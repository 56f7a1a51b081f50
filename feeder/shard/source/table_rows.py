"""The rows of a manifest: CSV, TSV, JSON lines or Parquet."""

from __future__ import annotations

import base64
import csv
import itertools
import json
import os
from collections.abc import Iterator
from typing import Any

from feeder.errors import SourceError
from feeder.shard.source.parquet import parquet_rows
from feeder.system.files import open_regular
from feeder.system.text import count

__all__ = ["Row", "json_bytes", "table_rows"]

Row = dict[str, Any]


def table_rows(path: str) -> Iterator[Row | str]:
    """Streams the manifest's rows; yields the reason for a row that can't be read."""
    suffix = os.path.splitext(path)[1].lower()
    if suffix == ".parquet":
        return parquet_rows(path)
    return _json_rows(path) if suffix in (".jsonl", ".ndjson") else _csv_rows(path, "\t" if suffix == ".tsv" else ",;|")


def json_bytes(row: Row) -> bytes:
    """Returns columns as the ``json`` of a sample.

    Raises:
        ValueError: for NaN, or half of a surrogate pair.
    """
    text = json.dumps(row, ensure_ascii=False, default=_plain, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8", "surrogateescape")


def _plain(value: Any) -> Any:
    """Converts values that JSON lacks: bytes to base64, times and decimals to text."""
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)


def _csv_rows(path: str, delimiters: str) -> Iterator[Row | str]:
    """Streams the rows of a CSV file, whose columns the first of the delimiters separates that its header has."""
    csv.field_size_limit(2**31 - 1)
    with open(path, encoding="utf-8-sig", errors="surrogateescape", newline="", opener=open_regular) as file:
        head = file.readline()
        delimiter = next((each for each in delimiters if each in head), delimiters[0])
        lines = itertools.chain([head], file)
        reader = csv.reader(lines, delimiter=delimiter, strict=True)  # strict: a quote left open is an error
        header = [name.strip() for name in next(reader, [])]
        if not header:
            raise SourceError(f"{path}: is empty; expected a header line that names the columns")
        if len(set(header)) != len(header):
            raise SourceError(f"{path}: its header names a column twice: {', '.join(header)}")
        line = reader.line_num
        for row in reader:
            first, line = line + 1, reader.line_num
            if not row:
                continue
            if len(row) == len(header):
                values = [value.strip() for value in row] if delimiter == "|" else row  # Flickr30k's has blanks there
                yield dict(zip(header, values, strict=True))
            elif line > first:  # a stray quote has swallowed the following lines, which must not be lost
                raise SourceError(
                    f"{path}: the row that starts on line {first} runs on to line {line} and has "
                    f"{count(len(row), 'column')}, expected {len(header)}: look for a stray quote on line {first}"
                )
            else:
                yield f"line {line}: {count(len(row), 'column')}, expected {len(header)}"


def _json_rows(path: str) -> Iterator[Row | str]:
    with open(path, encoding="utf-8-sig", errors="surrogateescape", opener=open_regular) as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                yield f"line {number}: not JSON: {error}"
                continue
            yield row if isinstance(row, dict) else f"line {number}: expected an object, got {type(row).__name__}"

"""The rows of a manifest: CSV, TSV, JSON lines or Parquet."""

from __future__ import annotations

import base64
import contextlib
import json
import math
import os
from collections.abc import Iterator
from typing import Any

from feeder.shard.source.csv_rows import csv_rows, text_lines
from feeder.shard.source.json_field import json_field
from feeder.shard.source.parquet import parquet_rows
from feeder.system.text import BOM, without_bom

__all__ = ["Row", "json_bytes", "table_rows"]

Row = dict[str, Any]

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


def json_bytes(row: Row) -> bytes:
    """Returns columns as the ``json`` of a sample.

    Raises:
        ValueError: if they are nested too deeply.
    """
    return json_field(row, _plain)


def _plain(value: Any) -> Any:
    """Converts values that JSON lacks: bytes to base64, times and decimals to text."""
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)


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

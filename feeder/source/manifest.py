"""Manifests: CSV, TSV, JSON lines or Parquet with a path or image-bytes column, a label, and any further columns."""

from __future__ import annotations

import base64
import binascii
import csv
import errno
import itertools
import json
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from feeder.errors import ArgumentError, SourceError
from feeder.files import DISK_FULL, open_regular
from feeder.folders import UNREADABLE
from feeder.source.base import NO_FILE, Part, Source, drop_duplicates
from feeder.source.spool import Spool
from feeder.text import count

__all__ = ["MANIFEST_SUFFIXES", "ManifestColumns", "open_manifest"]

MANIFEST_SUFFIXES = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet")
_PATHS = ("path", "file", "filename", "file_name", "filepath", "file_path", "image_path", "image")
_IMAGES = ("image_bytes", "bytes", "image", "jpg", "jpeg", "png")
_LABELS = ("label", "class", "cls", "target", "class_name")
_MAX_CLASSES = 1_000_000
_SNIFFED_ROWS = 100

Row = dict[str, Any]


@dataclass(frozen=True)
class ManifestColumns:
    """Which columns of a manifest mean what; None lets their names decide.

    Attributes:
        path: Column with the image's path, relative to the manifest's folder.
        image: Column with the image's bytes (base64 in text manifests).
        label: Column with the class: integers, or names, which are numbered in sorted order.
    """

    path: str | None = None
    image: str | None = None
    label: str | None = None

    def __post_init__(self) -> None:
        if self.path is not None and self.path in (self.image, self.label):
            raise ArgumentError(f"column {self.path!r} is asked for twice; name one column for each purpose")


def open_manifest(path: str, columns: ManifestColumns, spool_path: str) -> Source:
    """Lists the rows of a manifest; a sample's further columns become its ``json`` field.

    Args:
        path: The manifest; its suffix says what it is.
        columns: Which columns mean what.
        spool_path: Scratch file for what has no file of its own.

    Raises:
        SourceError: if the manifest can't be read as a whole, or has no column for images.
    """
    source = Source("manifest", os.path.dirname(os.path.abspath(path)))
    source.add_container(os.path.abspath(path))
    with Spool(source, spool_path) as spool:
        listing = _Listing(source, spool, path, columns)
        try:
            rows = enumerate(_rows(path), 1)
            first = list(itertools.islice(rows, _SNIFFED_ROWS))
            listing.resolve([row for _, row in first if isinstance(row, dict)])
            for number, row in itertools.chain(first, rows):
                if isinstance(row, str):
                    source.reject(f"{os.path.basename(path)}#{number}", row)
                else:
                    listing.add(number, row)
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            if isinstance(error, OSError) and error.errno in DISK_FULL:  # the spool's
                raise
            raise SourceError(f"{path}: can't be read: {error}") from None
    listing.finish()
    drop_duplicates(source, os.path.normpath, "duplicate path")
    return source


class _Listing:
    """Turns rows into samples."""

    def __init__(self, source: Source, spool: Spool, manifest: str, columns: ManifestColumns) -> None:
        self._source = source
        self._spool = spool
        self._manifest = manifest
        self._asked = columns
        self._columns = ManifestColumns()
        self._unlabelled = 0
        self._classes: dict[str, int] = {}

    def add(self, number: int, row: Row) -> None:
        """Adds one row; a row that can't be a sample is rejected."""
        columns = self._columns
        name = f"{os.path.basename(self._manifest)}#{number}"
        extras = {k: v for k, v in row.items() if k not in (columns.path, columns.image, columns.label)}
        image = row.get(columns.image) if columns.image else None
        image_path = row.get(columns.path) if columns.path else None
        if isinstance(image, dict):  # the struct of Hugging Face's datasets: {"bytes": ..., "path": ...}
            image_path = image_path or image.get("path")
            image = image.get("bytes")
        parts: list[Part] = []
        file_bytes, mtime = 0, NO_FILE
        if columns.image:
            try:
                data = base64.b64decode(image, validate=True) if isinstance(image, str) else image
            except (binascii.Error, ValueError) as error:
                self._source.reject(name, f"column {columns.image!r} is not base64: {error}")
                return
            if not isinstance(data, bytes) or not data:
                self._source.reject(name, f"no image bytes in column {columns.image!r}")
                return
            parts.append(self._spool.add("", data))
        elif not isinstance(image_path, str) or not image_path:
            self._source.reject(name, f"no path in column {columns.path!r}")
            return
        else:
            try:
                status = os.stat(os.path.join(self._source.root, image_path))
            except FileNotFoundError:
                self._source.reject(image_path, "not found")
                return
            except (OSError, ValueError) as error:
                if isinstance(error, OSError) and error.errno not in (*UNREADABLE, errno.ENOTDIR):
                    raise
                self._source.reject(image_path, str(error))
                return
            if not stat.S_ISREG(status.st_mode):
                self._source.reject(image_path, "not a regular file")
                return
            file_bytes, mtime = status.st_size, status.st_mtime_ns
        if extras:
            try:
                text = json.dumps(extras, ensure_ascii=False, default=_plain, allow_nan=False, separators=(",", ":"))
                parts.append(self._spool.add("json", text.encode("utf-8", "surrogateescape")))
            except ValueError as error:  # NaN, or half of a surrogate pair
                self._source.reject(name, f"its further columns can't be written as JSON: {error}")
                return
        shown = str(image_path) if not columns.image else f"{name}/{image_path}" if image_path else name
        size = file_bytes + sum(part.length for part in parts)
        self._source.table.add(os.fsencode(shown), size, mtime, self._label(row, columns), parts)

    def finish(self) -> None:
        """Numbers the classes, now that all are known.

        Raises:
            SourceError: if the labels are fractions.
        """
        names = list(self._classes)
        if self._columns.label and self._unlabelled:
            self._source.notes.append(f"{self._manifest}: {self._unlabelled} rows have no label")
        if not names:
            return
        column = self._columns.label
        if all(_is_integer(name) for name in names):
            numbers = [int(name) for name in names]
            outside = next((n for n in numbers if not 0 <= n < 2**63), None)
            if outside is not None:
                raise SourceError(
                    f"{self._manifest}: column {column!r} holds the label {outside}; labels are 0 to 2**63-1: leave it "
                    "empty for a sample without one, or name another column with --label-column"
                )
            self._source.table.relabel(np.array(numbers, np.int64))
            return
        fraction = next((name for name in names if "." in name), None)
        if fraction and all(_is_number(name) for name in names):
            raise SourceError(
                f"{self._manifest}: column {column!r} holds fractions such as {fraction!r}; labels are integers or "
                "class names: name another one with --label-column, and this one travels as json"
            )
        classes = sorted(names)
        ranks = {name: rank for rank, name in enumerate(classes)}
        self._source.table.relabel(np.array([ranks[name] for name in names], np.int64))
        self._source.classes = classes

    def _label(self, row: Row, columns: ManifestColumns) -> int:
        """A number for the label as it is written, in order of appearance; -1 for none."""
        value = row.get(columns.label) if columns.label else None
        if isinstance(value, str):
            value = value.strip()
        if value in (None, "", -1, "-1") or value != value:  # NaN is how pandas writes a gap
            self._unlabelled += 1
            return -1
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, (dict, list)):
            raise SourceError(
                f"{self._manifest}: column {columns.label!r} holds {str(value)[:40]}; labels are integers or class "
                "names: name another one with --label-column, and this one travels as json"
            )
        if len(self._classes) > _MAX_CLASSES:
            raise SourceError(
                f"{self._manifest}: more than {_MAX_CLASSES} different labels in column {columns.label!r}; name "
                "another one with --label-column, and this one travels as json"
            )
        return self._classes.setdefault(str(value), len(self._classes))

    def resolve(self, rows: list[Row]) -> None:
        """Decides by the names in the first rows (and types, for a column named "image") which column means what.

        Raises:
            SourceError: if there is no column for the images, or not the one asked for.
        """
        row: Row = {}
        for found in rows:
            row |= {name: value for name, value in found.items() if value is not None or name not in row}
        if not row:
            return
        names = list(row)
        for asked in (self._asked.path, self._asked.image, self._asked.label):
            if asked is not None and asked not in row:
                raise SourceError(f"{self._manifest}: no column {asked!r}; it has {', '.join(map(str, names))}")
        image, path = self._asked.image, self._asked.path
        if image is None and path is None:
            image = next((name for name in _IMAGES if isinstance(row.get(name), (bytes, dict))), None)
        if path is None and image is None:
            path = next((name for name in _PATHS if isinstance(row.get(name), str)), None)
        if path is None and image is None:
            raise SourceError(
                f"{self._manifest}: no column for the images; it has {', '.join(map(str, names))}: name it with "
                "--path-column or --image-column"
            )
        if path is None:
            path = next((name for name in _PATHS if name != image and isinstance(row.get(name), str)), None)
        label = self._asked.label or next((name for name in _LABELS if name in row), None)
        self._columns = ManifestColumns(path, image, label)
        self._source.notes.append(
            f"{self._manifest}: images from column {(image or path)!r}, "
            + (f"labels from column {label!r}" if label else "no labels: --label-column names a column for them")
        )


def _rows(path: str) -> Iterator[Row | str]:
    """The manifest's rows, or for a row that can't be read the reason, as a stream."""
    suffix = os.path.splitext(path)[1].lower()
    if suffix == ".parquet":
        return _parquet_rows(path)
    return _json_rows(path) if suffix in (".jsonl", ".ndjson") else _csv_rows(path, "\t" if suffix == ".tsv" else ",")


def _csv_rows(path: str, delimiter: str) -> Iterator[Row | str]:
    csv.field_size_limit(2**31 - 1)
    with open(path, encoding="utf-8-sig", errors="surrogateescape", newline="", opener=open_regular) as file:
        reader = csv.reader(file, delimiter=delimiter, strict=True)  # strict: a quote left open is an error
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
                yield dict(zip(header, row, strict=True))
            elif line > first:  # a stray quote has swallowed the lines that follow, which must not get lost unseen
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


def _parquet_rows(path: str) -> Iterator[Row | str]:
    try:
        import pyarrow
        import pyarrow.parquet as parquet
    except ImportError:
        raise SourceError(f"{path}: reading Parquet needs pyarrow: pip install 'feeder-data[parquet]'") from None
    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=256):
                yield from batch.to_pylist()
    except pyarrow.ArrowException as error:
        raise SourceError(f"{path}: can't be read as Parquet: {error}") from None


def _plain(value: Any) -> Any:
    """JSON for what Parquet has and JSON has not: bytes as base64, times and decimals as text."""
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)


def _is_integer(text: str) -> bool:
    return text.removeprefix("-").isdecimal() and text.isascii() and str(int(text)) == text


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True

"""Manifests: CSV, TSV, JSON lines or Parquet with a column of paths or image bytes, labels and further columns."""

from __future__ import annotations

import base64
import binascii
import contextlib
import csv
import itertools
import os
import posixpath
import shlex
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from feeder.errors import ArgumentError, ChoiceError, NotFoundError, SourceError
from feeder.shard.source.ahead import ahead
from feeder.shard.source.image_file import MAX_FILE_BYTES, ImageFiles, file_status, folders_beside, image_files
from feeder.shard.source.joined_rows import join_rows
from feeder.shard.source.json_field import json_field
from feeder.shard.source.labels import LabelColumn, as_number, target_number
from feeder.shard.source.pattern import expand_pattern
from feeder.shard.source.remote import RemoteSource, named_objects
from feeder.shard.source.sample_table import NO_FILE, StoredField
from feeder.shard.source.source import Container, Source, SourceKind, Spool, drop_duplicates, reject_samples
from feeder.shard.source.table_rows import Row, column_classes, table_rows
from feeder.shard.store.open_store import open_store
from feeder.shard.store.store import Entry, Store, download
from feeder.shard.store.url import is_remote, shown_place
from feeder.system.files import DISK_FULL
from feeder.system.text import count

MANIFEST_SUFFIXES = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet")
_PATHS = ("path", "file", "filename", "file_name", "filepath", "file_path", "image_path", "image")
_IMAGES = ("image_bytes", "bytes", "image", "jpg", "jpeg", "png")
_IDS = ("id", "image_id", "id_code", "image_name", "name", "image")
_LABELS = ("label", "class", "cls", "target", "class_name")
_SNIFFED_ROWS = 100
_REQUESTS = 32  # at once
_SHOWN_COLUMNS = 3
_FAILED = ("failed_to_download", "failed_to_resize")  # in img2dataset's column "status"


@dataclass(frozen=True)
class ManifestColumns:
    """The purposes of a manifest's columns. With None, the names of the columns decide.

    Attributes:
        path: Column with the image's path, relative to the root.
        image: Column with the image's bytes (base64 in text manifests).
        label: Column with the label: integers from 0 are class numbers, names are numbered in sorted order, and other
            numbers are targets. For tars, a key of each sample's ``json``.
        targets: Columns with numbers that replace the label; for tars, keys of each sample's ``json``.
        has_labels: False to ignore labels, even if a column or field has the name of one.
        root: Folder, or URL of a store, that paths are relative to; None for the manifest's own.
        suffix: Appended to each path, such as ".jpg" for ids.
        lists: Columns that differ between the rows of an image, such as captions. Rows of the same path become one
            sample, and these columns lists in its ``json``, in the order of the rows.
    """

    path: str | None = None
    image: str | None = None
    label: str | None = None
    targets: tuple[str, ...] = ()
    has_labels: bool = True
    root: str | None = None
    suffix: str = ""
    lists: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        asked = [name for name in (self.path, self.image, self.label, *self.targets, *self.lists) if name is not None]
        twice = next((name for name in asked if asked.count(name) > 1), None)
        if twice is not None:
            raise ArgumentError(f"column {twice!r} is asked for twice; name one column for each purpose")
        if self.label is not None and self.targets:
            raise ArgumentError(
                f"a set has labels or targets, not both: got label column {self.label!r} and target column "
                f"{self.targets[0]!r}; the other one travels as json"
            )
        if not self.has_labels and (self.label is not None or self.targets):
            raise ArgumentError(f"no labels are wanted, but column {(self.label or self.targets[0])!r} is asked for")

    def only_for_manifests(self) -> str | None:
        """Returns the name of the first command-line option given that only manifests take; None if none is given."""
        given = {
            "--path-column": self.path,
            "--image-column": self.image,
            "--list-column": self.lists,
            "--image-root": self.root,
            "--suffix": self.suffix,
        }
        return next((option for option, value in given.items() if value), None)


def open_manifest(path: str, columns: ManifestColumns, spool_path: str) -> Source:
    """Lists the rows of a manifest; a sample's further columns become its ``json`` field.

    Args:
        path: The manifest, or its URL in a store; its suffix tells its format.
        columns: The purposes of its columns.
        spool_path: Scratch file for fields that are not in files.

    Raises:
        SourceError: if the manifest can't be read as a whole, has no column for images, or URLs in it.
    """
    tables = _Tables(path, os.path.dirname(spool_path))
    source: Source
    if is_remote(path if columns.root is None else columns.root):
        source = RemoteSource(SourceKind.MANIFEST, open_store(columns.root or tables.store.url))
    else:
        root = os.path.abspath(os.path.dirname(os.path.abspath(path)) if columns.root is None else columns.root)
        if not os.path.isdir(root):
            raise SourceError(
                f"{root}: no such folder; --image-root is the folder that the manifest's paths start from"
            )
        source = Source(SourceKind.MANIFEST, root)

    tables.add_to(source)
    shown = shown_place(path)
    with Spool(source, spool_path) as spool:
        listing = _Listing(source, spool, shown, columns, tables)
        try:
            later = enumerate(listing.rows(), 1)
            first = list(itertools.islice(later, _SNIFFED_ROWS))
            listing.resolve([row for _, row in first if isinstance(row, dict)])
            rows = itertools.chain(first, later)
            if isinstance(source, RemoteSource) and not listing._columns.image:
                with contextlib.closing(ahead(partial(listing.look_up, source.store), rows, _REQUESTS)) as found:
                    for row, image in found:
                        listing.add(*row, image)
            else:
                for row in rows:
                    listing.add(*row)
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            if isinstance(error, OSError) and error.errno in DISK_FULL:  # an error of the spool, not of the manifest
                raise
            raise SourceError(f"{shown}: can't be read: {getattr(error, 'strerror', '') or error}") from None
        except ChoiceError:
            raise
        except SourceError as error:
            raise SourceError(tables.named(str(error))) from None

        source.notes = list(map(tables.named, source.notes))
        listing.finish()
        if columns.lists:
            join_rows(source, spool, columns.lists, shown)
        else:
            drop_duplicates(
                source, os.path.normpath, "duplicate path; --list-column NAME joins rows that differ in that column"
            )
    return source


class _Tables:
    """The files of a manifest, here or in a store, of which one at a time is copied.

    Args:
        path: The manifest, a pattern of several, or such a URL.
        work: Folder for the copies.

    Attributes:
        paths: Their local paths.
        store: Their store, if they lie in one.
    """

    store: Store

    def __init__(self, path: str, work: str) -> None:
        self._entries: dict[str, Entry] = {}
        if is_remote(path):
            self.store, found = named_objects(path, MANIFEST_SUFFIXES)
            places = [os.path.join(work, "tables", str(k), os.path.basename(e.key)) for k, e in enumerate(found)]
            self._entries = dict(zip(places, found, strict=True))
        self.paths = list(self._entries) or expand_pattern(path)

    def add_to(self, source: Source) -> None:
        """Registers them as what a source was listed from."""
        for path in self.paths:
            if (entry := self._entries.get(path)) is None:
                source.add_container(os.path.abspath(path))
            else:
                place = self.store.url.object(entry.key)
                source.containers.append(Container(place, entry.size_bytes, entry.modified_ns))

    @contextlib.contextmanager
    def copied(self, path: str) -> Iterator[None]:
        """Copies a file here for the duration of the context, while its rows are read."""
        if path not in self._entries:
            yield
            return
        os.makedirs(os.path.dirname(path), exist_ok=True)
        download(self.store, self._entries[path], path)
        try:
            yield
        finally:
            os.unlink(path)

    def named(self, text: str) -> str:
        """Returns a text with the files' URLs in place of their copies."""
        for path, entry in self._entries.items():
            text = text.replace(path, str(self.store.url.joined(entry.key)))
        return text


@dataclass(eq=False)
class _Unusable(Exception):
    """A row that can't be a sample.

    Attributes:
        reason: The reason.
        path: The image's file, if the error is in it; else None.
        is_bad: False for a row that never had an image.
    """

    reason: str
    path: str | None = None
    is_bad: bool = True


class _Listing:
    """Turns rows into samples.

    Args:
        source: Takes the samples.
        spool: Takes fields that are not in files.
        manifest: The manifest, or the pattern of several, as the user has named it.
        columns: The purposes of the columns.
        tables: The manifest's files.
    """

    def __init__(self, source: Source, spool: Spool, manifest: str, columns: ManifestColumns, tables: _Tables) -> None:
        self._tables = tables
        self._paths = tables.paths
        self._starts: list[int] = []
        self._classes: dict[str, list[str]] = {}
        self._source = source
        self._spool = spool
        self._manifest = manifest
        self._asked = columns
        self._columns = ManifestColumns()
        self._labels: LabelColumn | None = None
        self._target = array("f")

    def rows(self) -> Iterator[Row | str]:
        """Yields the rows of all files; the reason for one that can't be read.

        Raises:
            SourceError: if a file can't be read, or names classes in another way than the first one.
        """
        number = 0
        for path in self._paths:
            self._starts.append(number)
            with self._tables.copied(path):
                for number, row in enumerate(table_rows(path, self._source.notes), self._starts[-1] + 1):
                    if number == self._starts[-1] + 1:
                        self._take_classes(path)
                    yield row

    def _take_classes(self, path: str) -> None:
        classes = column_classes(path)
        if classes != (self._classes if len(self._starts) > 1 else classes):
            raise SourceError(f"{path}: its classes are not those of {self._paths[0]}: shard each by itself")
        self._classes = classes

    def place(self, number: int) -> str:
        """Returns the name of a row, by its number from 1 on."""
        file = bisect_right(self._starts, number - 1) - 1
        return f"{os.path.basename(self._paths[file])}#{number - self._starts[file]}"

    def look_up(self, store: Store, row: tuple[int, Row | str]) -> Entry | None:
        """Returns the entry of a row's image in a store, if that is an object of its own."""
        number, values = row
        if isinstance(values, str) or self._columns.image or not self._columns.path:
            return None
        path = self._checked_path(number, values.get(self._columns.path))
        try:
            entry = store.size(posixpath.normpath(path))
        except NotFoundError as error:  # any other is the store's fault, not this row's
            raise _Unusable(str(error), path) from None
        if entry.size_bytes > MAX_FILE_BYTES:
            raise _Unusable(f"{store.url.object(path)}: has more than {MAX_FILE_BYTES:,} bytes", path)
        return entry

    def add(self, number: int, row: Row | str, image: Future[Entry | None] | None = None) -> None:
        """Adds one row, or rejects it if it can't be a sample.

        Args:
            number: The row's number, from 1.
            row: The row, or the reason why it can't be read.
            image: What :meth:`look_up` finds of it if the images lie in a store.
        """
        name = self.place(number)
        try:
            if isinstance(row, str):
                raise _Unusable(row)
            self._add(name, number, row, None if image is None else image.result())
        except _Unusable as error:
            self._source.reject(error.path or name, error.reason, bad=error.is_bad)

    def _add(self, name: str, number: int, row: Row, found: Entry | None) -> None:
        columns = self._columns
        taken = (columns.path, columns.image, columns.label, *columns.targets)
        extras = {k: v for k, v in row.items() if k not in taken}
        for column in columns.lists:
            value = row.get(column)
            extras[column] = value if isinstance(value, list) else [value]

        image = row.get(columns.image) if columns.image else None
        image_path = row.get(columns.path) if columns.path else None
        is_file = not columns.image
        if isinstance(image, dict):  # as in Hugging Face's datasets: {"bytes": ..., "path": ...}, either may be null
            image_path = image_path or image.get("path")
            image = image.get("bytes")
            is_file = image is None and bool(image_path) and not self._source.is_remote

        stored: list[StoredField] = []
        size, mtime_ns = 0, NO_FILE
        if not is_file:
            if image is None and (outcome := row.get("status")) in _FAILED:
                raise _Unusable(f"img2dataset {outcome}: {row.get('error_message')}", is_bad=False)
            stored.append(self._spool.add("", self._image_bytes(image)))
            shown = f"{name}/{image_path}" if image_path else name
        else:
            found = found or self._image_file(number, image_path)
            shown, size, mtime_ns = found.key, found.size_bytes, found.modified_ns

        try:
            target = [target_number(row.get(column), f"column {column!r}") for column in columns.targets]
        except ValueError as error:
            raise _Unusable(str(error)) from None
        if extras:
            try:
                stored.append(self._spool.add("json", json_field(extras)))
            except (TypeError, ValueError) as error:
                raise _Unusable(f"its further columns can't be written as JSON: {error}") from None

        size += sum(field.length for field in stored)
        label = -1 if self._labels is None else self._labels.add(row.get(columns.label or ""))
        self._target.extend(target)
        self._source.table.add(os.fsencode(shown), size, mtime_ns, label, stored, row=number - 1)

    def _image_bytes(self, image: Any) -> bytes:
        column = self._columns.image
        try:
            data = base64.b64decode(image, validate=True) if isinstance(image, str) else image
        except (binascii.Error, ValueError) as error:
            raise _Unusable(f"column {column!r} is not base64: {error}") from None
        if not isinstance(data, bytes) or not data:
            raise _Unusable(f"no image bytes in column {column!r}")
        return data

    def _image_file(self, number: int, path: Any) -> Entry:
        """Returns path, size and time of an image's file."""
        path = self._checked_path(number, path)
        try:
            status = file_status(self._source.root, path)
        except ValueError as error:
            raise _Unusable(str(error), path) from None
        return Entry(path, status.st_size, modified_ns=status.st_mtime_ns)

    def _checked_path(self, number: int, path: Any) -> str:
        """Returns a path as it stands in a row, its suffix included.

        Raises:
            SourceError: for a URL.
        """
        if isinstance(path, int) and not isinstance(path, bool):  # an id
            path = str(path)
        if not isinstance(path, str) or not path:
            raise _Unusable(f"no path in column {self._columns.path!r}")
        if is_remote(path) or path[:5].lower() == "file:":
            advice = "write paths, and what they start from as --image-root DIR or --image-root s3://bucket/folder"
            if _is_web(path):
                advice = self._to_download(self._columns.path)
            raise SourceError(f"{self._manifest}#{number}: column {self._columns.path!r} holds a URL; {advice}")
        return path + self._columns.suffix

    def _to_download(self, column: str | None) -> str:
        """Returns what to do with a column of URLs."""
        kind = os.path.splitext(self._manifest)[1][1:]
        return (
            f"download the images: img2dataset --url_list {self._manifest} --input_format {kind} --url_col {column} "
            "--output_format webdataset --output_folder DIR; then feeder index DIR"
        )

    def finish(self) -> None:
        """Gives the samples their labels or targets, once all are known.

        Raises:
            SourceError: for a class number that is too large.
        """
        source, columns = self._source, self._columns
        if columns.targets:
            numbers = np.array(self._target, np.float32).reshape(-1, len(columns.targets))
            source.table.set_targets(columns.targets, numbers)
            if gaps := int(np.isnan(numbers).any(axis=1).sum()):
                source.notes.append(f"{self._manifest}: {count(gaps, 'row')} with a gap among the targets: NaN")

        if self._labels is None or columns.label is None:
            return

        found = self._labels.finish()
        reject_samples(source, source.take_labels(found, columns.label))
        known = self._classes.get(columns.label) if found.classes is None and found.labels is not None else None
        if known is not None:
            largest = int(source.table.labels().max(initial=-1))
            if largest >= len(known):
                raise SourceError(
                    f"{self._manifest}: column {columns.label!r} holds the class {largest}, of {len(known)} classes"
                )
            source.classes = known
        if found.targets is not None:
            source.notes.append(
                f"{self._manifest}: column {columns.label!r} holds numbers such as {found.example} that are not class "
                "numbers (0, 1, 2, ...), so labels are float32 targets"
            )

        number = next((name for name in found.classes or () if as_number(name) is not None), None)
        if number is not None:
            source.notes.append(
                f"{self._manifest}: labels are class names, as column {columns.label!r} holds {found.example!r} beside "
                f"numbers such as {number}"
            )

        if found.missing:
            none = "NaN" if found.targets is not None else "-1"
            source.notes.append(
                f"{self._manifest}: {count(found.missing, 'row')} without a label, which is {none} there"
            )

    def _advice(self, row: Row) -> str:
        """Returns the way to the images of a manifest without a column for them."""
        stem = os.path.splitext(self._manifest)[0]
        beside = next((each for each in (f"{stem}.tar", stem) if os.path.exists(each)), None)
        if beside is not None:  # as img2dataset writes them
            return f"if the images are in {beside}, name its folder, {os.path.dirname(stem) or '.'}"
        column = next((name for name in row if _is_web(row[name])), None)
        if column is not None:
            return self._to_download(column)
        return "name it with --path-column or --image-column, ids with --path-column and --suffix"

    def resolve(self, rows: list[Row]) -> None:
        """Decides the purpose of each column by its name, and of "image" by its type in the first rows.

        Raises:
            SourceError: if there is no column for the images, or a requested column is missing.
        """
        row: Row = {}
        for found in rows:
            row |= {name: value for name, value in found.items() if value is not None or name not in row}

        if not row:
            return

        names = list(row)
        asked = self._asked
        for column in (asked.path, asked.image, asked.label, *asked.targets, *asked.lists):
            if column is not None and column not in row:
                raise SourceError(f"{self._manifest}: no column {column!r}; it has {', '.join(map(str, names))}")

        image, path = asked.image, asked.path
        if image is None and path is None:
            image = next((name for name in _IMAGES if isinstance(row.get(name), (bytes, dict))), None)
        files = None if image is not None or self._source.is_remote else self._files(rows, path)
        path, root, suffix = files or (path, None, asked.suffix)
        if path is None and image is None:
            path = next((name for name in _PATHS if isinstance(row.get(name), str)), None)
            if path is None and asked.suffix:
                path = next((name for name in _IDS if isinstance(row.get(name), (str, int))), None)

        if path is None and image is None:
            raise SourceError(
                f"{self._manifest}: no column for the images; it has {', '.join(map(str, names))}: {self._advice(row)}"
            )

        if path is None:
            path = next((name for name in _PATHS if name != image and isinstance(row.get(name), str)), None)
        if image is not None and asked.lists:
            raise SourceError(
                f"{self._manifest}: rows with the image's bytes (column {image!r}) can't be joined; --list-column "
                "needs a column of paths"
            )

        label = self._label_column(names, (path, image, *asked.lists))
        self._columns = replace(asked, path=path, image=image, label=label, suffix=suffix)
        where = self._move(root, suffix)
        if label is not None:
            place = f"{self._manifest}: column {label!r}"
            self._labels = LabelColumn(place, "name another one with --label-column, and this one travels as json")
            labels = f"labels from column {label!r}"
        elif asked.targets:
            labels = f"targets from {', '.join(map(repr, asked.targets))}"
        else:
            others = [str(name) for name in names if name not in (path, image)][:_SHOWN_COLUMNS]
            such = f", such as {', '.join(others)}" if others else ""
            labels = "no labels" + (f": --label-column names a column for them{such}" if asked.has_labels else "")

        self._source.notes.append(f"{self._manifest}: images from column {(image or path)!r}{where}, {labels}")

    def _label_column(self, names: Sequence[str], taken: Sequence[str | None]) -> str | None:
        """Returns the column with the labels; the only one whose class names are known is it whatever its name."""
        if not self._asked.has_labels or self._asked.targets or self._asked.label is not None:
            return self._asked.label
        usual = (*_LABELS, *(self._classes if len(self._classes) == 1 else ()))
        return next((name for name in usual if name in names and name not in taken), None)

    def _move(self, root: str | None, suffix: str) -> str:
        """Lets paths start from another folder; returns a note on it, empty if the caller asked for it."""
        below = os.path.relpath(root or self._source.root, self._source.root)
        self._source.root = root or self._source.root
        is_asked = below == "." and suffix == self._asked.suffix
        return "" if is_asked else f" ({'' if below == '.' else f'{below}/'}*{suffix})"

    def _files(self, rows: Sequence[Row], column: str | None) -> ImageFiles | None:
        """Returns the files that a column names, of several columns one that is named as usual; None if none is found.

        Args:
            rows: The first rows.
            column: The column that is asked for.

        Raises:
            SourceError: if there are several, with the commands to choose from.
        """
        asked, root = self._asked, self._source.root
        found = image_files(
            rows if column is None else [{column: row.get(column)} for row in rows],
            folders_beside(root) if asked.root is None else [root],
            *([(asked.suffix,)] if asked.suffix else []),
        )
        names = {each.column for each in found}
        named = next((name for name in (*_PATHS, *_IDS) if name in names), None)
        found = [each for each in found if named in (None, each.column)]
        if len(found) > 1:
            raise ChoiceError(
                f"{self._manifest}: several columns or folders may be those of its images; choose:",
                [(f"{shlex.quote(self._manifest)} {each.options()}", "") for each in found],
            )
        return found[0] if found else None


def _is_web(value: object) -> bool:
    return isinstance(value, str) and value.lower().startswith(("http://", "https://"))

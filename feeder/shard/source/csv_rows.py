"""The rows of CSV files: a row that is wrong costs no other."""

from __future__ import annotations

import codecs
import collections
import contextlib
import csv
import itertools
import re
from collections.abc import Generator, Iterable, Iterator
from typing import Any

from feeder.errors import SourceError
from feeder.system.files import open_regular
from feeder.system.text import BOM, count

_SNIFFED_LINES = 100
_PAGE = re.compile(rb"\s*<(!doctype|html|\?xml)", re.IGNORECASE)
_SURROGATE = re.compile("[\udc80-\udcff]")  # stands for a byte that is not UTF-8
_ROW_LINES = 1000  # the most of one row
_NAMED_DELIMITER = re.compile(r'"?sep=(.)"?[\r\n]*')  # Excel's first line


def csv_rows(path: str, delimiters: str, notes: list[str]) -> Iterator[dict[str, Any] | str]:
    """Streams the rows of a CSV file; yields the reason for a row that can't be read.

    Args:
        path: The file; see :func:`text_lines`.
        delimiters: What its columns may be separated by, the usual one first.
        notes: Gets what was taken for granted.

    Raises:
        SourceError: if it has no header, or one that can't be used.
    """
    csv.field_size_limit(2**31 - 1)

    with contextlib.closing(text_lines(path, notes, newline="")) as found:
        lines = _Lines(found)
        head = lines.head(_SNIFFED_LINES)
        if head and (named := _NAMED_DELIMITER.fullmatch(head[0])):
            delimiters = named[1]
            lines.row()
        delimiter = lines.delimiter = _delimiter(head, delimiters)
        if delimiter != delimiters[0]:
            notes.append(f"{path}: its columns are separated by {delimiter!r}")

        names = lines.row() or []
        if isinstance(names, str):
            raise SourceError(f"{path}: {names}")
        header = [name.strip().removeprefix(BOM) for name in names]
        while header and not header[-1]:  # a trailing comma in each row makes a column without a name
            del header[-1]
        if not header:
            raise SourceError(f"{path}: is empty; expected a header line that names the columns")

        twice = next((name for name in header if header.count(name) > 1), None)
        if twice is not None:
            raise SourceError(f"{path}: its header names a column {twice!r} twice: {', '.join(map(repr, header))}")

        lines.columns = len(header)
        while (row := lines.row()) is not None:
            if isinstance(row, list):
                values = [value.removeprefix(BOM) for value in row]
                if delimiter == "|":  # Flickr30k's has blanks there
                    values = [value.strip() for value in values]
                yield dict(zip(header, values, strict=True))
            else:
                yield row


def text_lines(path: str, notes: list[str], newline: str | None = None) -> Generator[str]:
    """Yields the lines of a text file in UTF-8, or UTF-16 or UTF-32 with a byte order mark; other bytes as surrogates.

    Args:
        path: The file.
        notes: Gets what was taken for granted, and the number of lines that are not UTF-8.
        newline: See :func:`open`.

    Raises:
        SourceError: if it is UTF-16 without a byte order mark.
    """
    odd = 0
    with open(
        path, encoding=_encoding(path, notes), errors="surrogateescape", newline=newline, opener=open_regular
    ) as file:
        for line in file:
            odd += not line.isascii() and _SURROGATE.search(line) is not None
            yield line

    if odd:
        notes.append(
            f"{path}: {count(odd, 'line')} with bytes that are not UTF-8, which stay as they are, and fields.Text and "
            "fields.Json refuse: save the table as UTF-8"
        )


def _encoding(path: str, notes: list[str]) -> str:
    """Returns the encoding of a text file by its first bytes; raises SourceError as :func:`text_lines` does."""
    with open(path, "rb", opener=open_regular) as file:
        head = file.read(1 << 10)
    if _PAGE.match(head):
        raise SourceError(
            f"{path}: is a page of a web server or XML, which starts with {head[:16]!r}, and no table: check its URL, "
            "or what has downloaded it"
        )
    if head.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)):
        notes.append(f"{path}: read as UTF-32")
        return "utf-32"
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        notes.append(f"{path}: read as UTF-16")
        return "utf-16"
    if max(head[::2].count(0), head[1::2].count(0)) > len(head) / 4:
        raise SourceError(f"{path}: looks like UTF-16 without a byte order mark: save it as UTF-8")
    return "utf-8-sig"


def _delimiter(lines: list[str], delimiters: str) -> str:
    """Returns the delimiter by which most of the first lines have as many columns as the header; of several the one
    that makes most columns."""

    def fit(delimiter: str) -> tuple[int, int]:
        header, *rows = ([*csv.reader([line], delimiter=delimiter)] or [[]] for line in lines)
        columns = len(header[0])
        return (sum(len(row[0]) == columns for row in rows) if columns > 1 else -1), columns

    return max(delimiters, key=fit) if lines else delimiters[0]


class _Lines:
    """The rows of a CSV file, of a line or of several.

    Args:
        lines: Its lines.

    Attributes:
        delimiter: What is between columns.
        columns: Number of columns; 0: any.
    """

    def __init__(self, lines: Iterable[str]) -> None:
        self.delimiter = ","
        self.columns = 0
        self._lines = iter(lines)
        self._ahead = collections.deque[str]()
        self._number = 0

    def head(self, count: int) -> list[str]:
        """Returns the first lines, of which rows are still made."""
        self._ahead.extend(itertools.islice(self._lines, count))
        return list(self._ahead)

    def row(self) -> list[str] | str | None:
        """Returns the values of the next row; text if it is wrong, and None at the end.

        Text behind a quote that ends a value belongs to the value, as in Python's csv and in pandas; but not in a row
        of several lines, as a stray quote would make one of rows that are right.
        """
        first = self._taken()
        while first is not None and not first.strip("\r\n"):
            first = self._taken()
        if first is None:
            return None
        used, is_open = [first], False

        def lines() -> Iterator[str]:
            nonlocal is_open
            yield first
            while len(used) < _ROW_LINES and (line := self._taken()) is not None:
                used.append(line)
                yield line
            is_open = True

        if '"' in first:
            row = next(csv.reader(lines(), delimiter=self.delimiter))
        else:
            row = first.rstrip("\r\n").split(self.delimiter)
        while len(row) > self.columns > 0 and not row[-1]:
            del row[-1]
        number = self._number - len(used) + 1
        if len(used) == 1 and not is_open:
            if self.columns in (0, len(row)):
                return row
            return f"line {number}: {count(len(row), 'column')}, expected {self.columns}"
        fits = not is_open and self.columns in (0, len(row))
        with contextlib.suppress(csv.Error):
            if fits and [*csv.reader(used, delimiter=self.delimiter, strict=True)]:
                return row
        self._ahead.extendleft(reversed(used[1:]))
        self._number = number
        return f"line {number}: a quote is left open there"

    def _taken(self) -> str | None:
        line = self._ahead.popleft() if self._ahead else next(self._lines, None)
        self._number += line is not None
        return None if line is None else line.removeprefix(BOM)  # `cat` leaves the BOM of a second file in the middle

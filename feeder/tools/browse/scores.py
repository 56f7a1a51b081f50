"""Numbers of samples from a file of the user's, such as a loss, a margin or the quality of a label."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator

import numpy as np

from feeder.errors import ArgumentError, SourceError
from feeder.shard.source.table_rows import Row, table_rows
from feeder.system.arrays import Float64s

_NAMES = ("key", "id", "index")  # names of the column that names the sample


def read_scores(path: str, keys: Iterable[str], samples: int) -> dict[str, Float64s]:
    """Returns the columns of numbers of a table by name, each float64 [N], with NaN for a sample without one.

    Args:
        path: The table: CSV, TSV, JSON lines or Parquet. Its column "key", "id" or "index" names the sample of a row.
            Each other column whose first value is a number is returned.
        keys: Keys of all samples of the set; they are read only for a table of keys.
        samples: Number N of samples of the set.

    Raises:
        ArgumentError: if the table can't be opened.
        SourceError: if a column is missing, a row can't be read or has text in a column of numbers, or a sample is not
            in the set or has two rows.
    """
    table = _rows(path)
    first = next(table, {})
    by = next((name for name in _NAMES if name in first), None)
    if by is None:
        raise SourceError(
            f"{path}: no column names the samples; it has {', '.join(first) or 'no rows'}: rename the one with their "
            "keys 'key', or with their ids 'id'"
        )

    # Rows come in any order, so values are kept by row, and put in the samples' order at the end.
    names = [*keys] if by == "key" else [*map(str, range(samples))]
    rows = dict.fromkeys(names, -1)  # the row of each sample; -1: none
    columns = defaultdict[str, Float64s](lambda: np.full(samples + 1, np.nan))  # the last: of samples without a row
    others = {"", *_NAMES}  # columns that hold no numbers

    for number, row in enumerate(itertools.chain([first], table)):
        given, place = row.get(by), f"{path}: row {number + 1:,}: column"
        is_whole = isinstance(given, float) and given.is_integer()  # as pandas has ids if one is missing
        name = f"{given:.0f}" if is_whole else str(given).strip()
        if (earlier := rows.get(name)) is None:
            raise SourceError(
                f"{place} {by!r} holds {given!r}, and the set of {samples:,} samples, from 0 on, has none of it; name "
                "the set and --version that the scores are of, or leave the row out"
            )
        if earlier >= 0:
            raise SourceError(f"{place} {by!r} holds {given!r}, and so does row {earlier + 1:,}; keep one of them")
        rows[name] = number

        for column, value in row.items():
            if column not in others and value is not None and value != "":
                try:
                    columns[column][number] = float(value)
                except (OverflowError, TypeError, ValueError):
                    if column in columns:  # else the column's first value is text, and it is left out
                        raise SourceError(
                            f"{place} {column!r} holds {str(value)[:40]!r}, expected a number; leave it empty for a "
                            "sample without one"
                        ) from None
                    others.add(column)

    if not columns:
        raise SourceError(f"{path}: has no column of numbers, such as loss, among {', '.join(first)}; add one")
    places = np.array([rows[name] for name in names])
    return {name: values[places] for name, values in columns.items()}


def _rows(path: str) -> Iterator[Row]:
    """Yields the rows of a table; raises as :func:`read_scores` does."""
    try:
        for row in table_rows(path, []):
            if isinstance(row, str):
                raise SourceError(f"{path}: {row}; correct that row, or leave it out")
            yield row
    except OSError as error:
        raise ArgumentError(f"{path}: can't be read: {error.strerror or error}") from None

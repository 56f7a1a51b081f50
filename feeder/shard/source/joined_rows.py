"""Rows of a manifest that are of one image become one sample, as in tables with a row for each caption."""

from __future__ import annotations

import collections
import json
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from feeder.errors import SourceError
from feeder.shard.source.json_field import json_field
from feeder.shard.source.sample_table import SampleTable, StoredField
from feeder.shard.source.source import Source, Spool, repeated_paths
from feeder.system.text import count

_SHOWN = 40  # characters of a value


def join_rows(source: Source, spool: Spool, lists: Sequence[str], manifest: str) -> None:
    """Joins the rows of each path to one sample, at the place of the first.

    Args:
        source: Has a sample for each row, whose last field is its ``json``.
        spool: The scratch file with these.
        lists: Columns whose values are lists in the ``json`` of each row; those of joined rows follow one another.
        manifest: Name of the manifest.

    Raises:
        SourceError: naming two rows of a path whose other columns differ.
    """
    table = source.table
    first_of = repeated_paths(source, os.path.normpath)
    rows_of = collections.defaultdict(list)
    for i, first in first_of.items():
        rows_of[first].append(i)

    def extras(i: int) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(spool.read(table.stored_fields(i)[-1]).decode("utf-8", "surrogateescape"))
        return found

    def joined(i: int) -> list[StoredField] | None:
        if i in first_of:
            return None
        stored = table.stored_fields(i)
        if i not in rows_of:
            return stored
        whole = extras(i)
        for other in rows_of[i]:
            further = extras(other)
            if difference := _difference(table, i, other, whole, further, lists):
                raise SourceError(
                    f"{manifest}: rows {table.row(i) + 1} and {table.row(other) + 1} are both of "
                    f"{os.fsdecode(table.path(i))!r}, but differ in {difference}"
                )
            for column in lists:
                whole[column] += further[column]
        return [*stored[:-1], spool.add("json", json_field(whole))]

    if first_of:
        source.table = table.kept(joined)
    source.notes.append(
        f"{manifest}: {count(len(table), 'row')} joined to {count(len(source.table), 'sample')}, with lists of "
        f"{', '.join(map(repr, lists))}"
    )


def _difference(
    table: SampleTable, i: int, other: int, first: dict[str, Any], second: dict[str, Any], lists: Sequence[str]
) -> str | None:
    """Returns what two rows differ in apart from their lists, and what to do then; None if they are the same."""
    if table.label(i) != table.label(other) or not np.array_equal(table.target(i), table.target(other), equal_nan=True):
        return "their label or targets; give the rows of an image the same ones"
    others = [name for name in (*first, *second) if name not in lists]
    column = next((name for name in others if first.get(name) != second.get(name)), None)
    if column is None:
        return None
    shown = " and ".join(repr(row.get(column))[:_SHOWN] for row in (first, second))
    return f"column {column!r}: {shown}; --list-column {column} makes a list of it, too"

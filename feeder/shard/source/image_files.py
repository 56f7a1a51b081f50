"""The columns of a table that name its images, whatever they are called: those whose values are files."""

from __future__ import annotations

import itertools
import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from feeder.shard.source.image_file import has_other_extension, left_out
from feeder.system.files import scan_folder

_LOOKED_UP = 5  # values of a column
_MOST_FOLDERS = 64  # beside a table
_SUFFIXES = ("", ".jpg", ".png", ".jpeg", ".JPG", ".JPEG", ".PNG", ".webp", ".avif", ".tif", ".tiff", ".bmp", ".gif")


class ImageFiles(NamedTuple):
    """Files that a column of a table names.

    Attributes:
        column: The column.
        root: Folder that its values start from.
        suffix: Appended to them.
    """

    column: str
    root: str
    suffix: str

    def options(self) -> str:
        """Returns the options of ``feeder shard`` that name it."""
        suffix = f" --suffix {self.suffix}" if self.suffix else ""
        return f"--path-column {shlex.quote(self.column)} --image-root {shlex.quote(self.root)}{suffix}"


def image_files(
    rows: Sequence[Mapping[str, Any]], folders: Iterable[str], suffixes: Sequence[str] = _SUFFIXES
) -> list[ImageFiles]:
    """Finds the columns most of whose first values are files.

    Args:
        rows: The first rows of a table.
        folders: Folders that the values may start from. If a column's values are files in the first of them, the
            others don't count for it.
        suffixes: What may be missing at the end of the values; of several the first one counts.

    Returns:
        For each such column one place of its files, or more, in the order of the columns.
    """
    found: list[ImageFiles] = []
    for column in dict.fromkeys(itertools.chain.from_iterable(rows)):
        known = [row[column] for row in rows if type(row.get(column)) in (int, str) and row[column] != ""]
        values = [str(value) for value in known[:_LOOKED_UP]]

        for number, folder in enumerate(folders):
            suffix = next((each for each in suffixes if _are_files(folder, values, each)), None)
            if suffix is not None:
                found.append(ImageFiles(column, folder, suffix))
                if number == 0:
                    break
    return found


def folders_beside(folder: str) -> list[str]:
    """Returns a table's folder and the folders in it, of which class folders may be too many."""
    with scan_folder(folder) as entries:
        below = sorted(each.path for each in entries if each.is_dir() and not left_out(each.name, is_folder=True))
    return [folder, *below] if len(below) <= _MOST_FOLDERS else [folder]


def _are_files(folder: str, values: Sequence[str], suffix: str) -> bool:
    paths = [os.path.join(folder, value + suffix) for value in values]
    return 2 * sum(os.path.isfile(path) and not has_other_extension(path) for path in paths) > len(paths)

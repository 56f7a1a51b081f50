"""Text for a terminal: tables, paragraphs and sizes."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Sequence

WIDTH = 80


def table(rows: Sequence[Sequence[str]]) -> str:
    """Returns rows as columns, the first aligned to the left and the others to the right; the first row is the head."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [row[0].ljust(widths[0])] + [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        lines.append("  ".join(cells).rstrip())
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


def wrap(text: str, width: int = WIDTH, *, first: str = "", indent: str = "") -> list[str]:
    """Returns a paragraph as lines; words, paths and options stay whole.

    Args:
        text: The paragraph.
        width: Columns.
        first: Start of the first line.
        indent: Start of the others.
    """
    return textwrap.wrap(
        text, width, initial_indent=first, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def columns() -> int:
    """Returns the terminal's width, 60 to 100: longer lines are hard to read."""
    return min(100, max(60, shutil.get_terminal_size().columns))


def size(size_bytes: float) -> str:
    """Returns a size for people: "26.4 MiB", "1.5 GiB"."""
    return f"{size_bytes / 2**30:,.1f} GiB" if size_bytes >= 2**30 else f"{size_bytes / 2**20:,.1f} MiB"

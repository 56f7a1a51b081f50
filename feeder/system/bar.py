"""A progress bar on a terminal."""

from __future__ import annotations

import os
from typing import Any, TextIO

__all__ = ["make_bar"]

_COLUMNS = 80  # where the width is unknown


def make_bar(stream: TextIO, **options: Any) -> Any:
    """Makes a tqdm bar that follows the terminal's width.

    The last column stays free: with a character there, many terminals start a new line at each update.

    Args:
        stream: A terminal.
        options: tqdm's.
    """
    from tqdm import tqdm

    class TerminalBar(tqdm):  # type: ignore[misc]
        @property
        def format_dict(self) -> Any:
            return super().format_dict | {"ncols": _columns(stream) - 1}

    return TerminalBar(file=stream, **options)


def _columns(stream: TextIO) -> int:
    try:
        return os.get_terminal_size(stream.fileno()).columns or _COLUMNS
    except (OSError, ValueError):  # a notebook's stream, or a closed one
        return _COLUMNS

"""A progress bar on a terminal, and a widget in a notebook."""

from __future__ import annotations

import os
import sys
from typing import Any, TextIO

__all__ = ["in_notebook", "make_bar", "shell"]

_COLUMNS = 80  # where the width is unknown


def shell() -> Any:
    """Returns IPython's shell, in a notebook or on a terminal; None elsewhere."""
    ipython = sys.modules.get("IPython")
    return None if ipython is None else ipython.get_ipython()


def in_notebook() -> bool:
    """Returns True if standard error is a notebook's, which takes a bar although it is no terminal."""
    return hasattr(shell(), "kernel")


def make_bar(stream: TextIO, **options: Any) -> Any:
    """Makes a tqdm bar: a widget in a notebook that has ipywidgets, else one of text, as wide as the terminal.

    Of text, the last column stays free: with a character there, many terminals start a new line at each update.
    ``drop()`` of the bar ends it without a trace.

    Args:
        stream: A terminal, or a notebook's stream.
        options: tqdm's.
    """
    from tqdm import tqdm

    class TerminalBar(tqdm):  # type: ignore[misc]
        @property
        def format_dict(self) -> Any:
            return super().format_dict | {"ncols": _columns(stream) - 1}

        def drop(self) -> None:
            self.leave = False
            self.close()

    widget = _widget() if in_notebook() and not stream.isatty() else None
    return TerminalBar(file=stream, **options) if widget is None else widget(**options)


def _widget() -> Any:
    """Returns the class of bars that are widgets; None without ipywidgets."""
    from tqdm import notebook

    if notebook.IProgress is None:
        return None

    class Widget(notebook.tqdm_notebook):  # type: ignore[misc]
        def drop(self) -> None:
            self.close()
            self.container.layout.visibility = "hidden"
            self.container.close()

    return Widget


def _columns(stream: TextIO) -> int:
    try:
        return os.get_terminal_size(stream.fileno()).columns or _COLUMNS
    except (OSError, ValueError):  # a notebook's stream, or a closed one
        return _COLUMNS

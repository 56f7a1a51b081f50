"""Progress of a run: a bar on a terminal or in a notebook, plain lines in a pipe or log."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from typing import Any, TextIO

from feeder.system.text import printable, say

_LINE_INTERVAL_S = 5.0


class Progress:
    """Receives a run's progress; this one shows nothing."""

    def begin(self, samples: int, size_bytes: int, done_samples: int, done_bytes: int) -> None:
        """Starts, given the totals and the part of them that an earlier run has already done."""

    def advance(self, samples: int, size_bytes: int) -> None:
        """Adds samples and bytes to those done. Called from one thread only."""

    def note(self, line: str) -> None:
        """Shows a line to the user."""

    def end(self) -> None:
        """Ends, also where the run was interrupted."""

    @contextlib.contextmanager
    def running(self, samples: int, size_bytes: int, done_samples: int = 0, done_bytes: int = 0) -> Iterator[None]:
        """Begins, and ends with the block, whatever ends that."""
        self.begin(samples, size_bytes, done_samples, done_bytes)
        try:
            yield
        finally:
            self.end()


class ShownProgress(Progress):
    """Progress that a stream shows.

    Args:
        stream: The stream.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def note(self, line: str) -> None:
        say(printable(line), file=self._stream)


class BarProgress(ShownProgress):
    """A bar with images/s, MB/s and the time left, on a terminal."""

    def begin(self, samples: int, size_bytes: int, done_samples: int, done_bytes: int) -> None:
        self._bytes = 0
        self._started = time.monotonic()
        layout = "{percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} [{rate_fmt}{postfix}, {remaining} left]"
        self._bar = _make_bar(
            self._stream, total=samples, initial=done_samples, unit=" img", bar_format=layout, leave=False
        )

    def advance(self, samples: int, size_bytes: int) -> None:
        self._bytes += size_bytes
        seconds = max(time.monotonic() - self._started, 1e-3)
        self._bar.set_postfix_str(f"{self._bytes / 1e6 / seconds:.0f} MB/s", refresh=False)
        self._bar.update(samples)

    def end(self) -> None:
        self._bar.drop()


class LineProgress(ShownProgress):
    """A line every few seconds, in a pipe or file."""

    def begin(self, samples: int, size_bytes: int, done_samples: int, done_bytes: int) -> None:
        self._total = samples
        self._done = done_samples
        self._bytes = 0
        self._first = done_samples
        self._started = time.monotonic()
        self._due = self._started + _LINE_INTERVAL_S

    def advance(self, samples: int, size_bytes: int) -> None:
        self._done += samples
        self._bytes += size_bytes
        now = time.monotonic()
        if now >= self._due:
            self._due = now + _LINE_INTERVAL_S
            seconds = now - self._started
            rate = (self._done - self._first) / seconds
            self.note(
                f"{self._done:,}/{self._total:,} images, {rate:,.0f} images/s, "
                f"{self._bytes / 1e6 / seconds:,.0f} MB/s, {(self._total - self._done) / rate:,.0f} s left"
            )


def terminal_progress(quiet: bool) -> Progress:
    """Returns the kind of progress that suits standard error, which may be closed."""
    if quiet or sys.stderr is None:
        return Progress()
    return BarProgress(sys.stderr) if sys.stderr.isatty() or _in_notebook() else LineProgress(sys.stderr)


_COLUMNS = 80  # the width, where it is unknown


def _in_notebook() -> bool:
    """Returns True if standard error is a notebook's, which takes a bar although it is no terminal."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and hasattr(ipython.get_ipython(), "kernel")


def _make_bar(stream: TextIO, **options: Any) -> Any:
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

    widget = _widget() if _in_notebook() and not stream.isatty() else None
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

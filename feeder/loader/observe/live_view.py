"""A live view of a loader: a bar on a terminal or in a notebook, plain lines in a pipe or log."""

from __future__ import annotations

import atexit
import sys
import time
import weakref
from collections.abc import Callable, Mapping
from typing import Any, TextIO

from feeder.system.bar import in_notebook, make_bar
from feeder.system.text import count, say

__all__ = ["LiveView", "end_view", "pace_text"]

_BAR_INTERVAL_S = 1.0
_LINE_INTERVAL_S = 5.0


class LiveView:
    """Shows one epoch of a loader.

    Args:
        stats: Returns the result of :meth:`feeder.DataLoader.stats`.
        batches: Number of batches in the epoch, or in the rest of it; None: not known.
        title: The text before the figures.
        stream: The stream to write to; None: standard error.
    """

    _is_ended = True

    def __init__(
        self, stats: Callable[[], Mapping[str, Any]], batches: int | None, title: str, stream: TextIO | None = None
    ) -> None:
        self._stats = stats
        self._batches = batches
        self._title = title
        self._stream = sys.stderr if stream is None else stream
        self._done = 0
        self._first = self._last = time.monotonic(), stats()
        self._bar: Any = None
        self._is_ended = False
        _live.add(self)
        if self._stream.isatty() or in_notebook():
            layout = "{desc} {percentage:3.0f}%|{bar}| {unit}" if batches else "{desc} {unit}"
            self._bar = make_bar(self._stream, unit="starting", total=batches, desc=title, bar_format=layout)

    def step(self) -> None:
        """Counts a batch that was handed out."""
        self._done += 1
        now = time.monotonic()
        if now - self._last[0] < (_LINE_INTERVAL_S if self._bar is None else _BAR_INTERVAL_S):
            return

        before, self._last = self._last, (now, self._stats())
        text = pace_text(before, self._last)
        if self._batches is not None:
            text += f", {_clock((now - self._first[0]) / self._done * max(0, self._batches - self._done))} left"
        self._show(text)

    def end(self) -> None:
        """Ends the view, as the epoch is over or given up. The last line sums up the epoch."""
        if self._is_ended:
            return
        self._is_ended = True
        end = time.monotonic(), self._stats()
        self._stats = dict  # which keeps nothing

        if self._done or self._bar is not None:
            self._show(f"{end[0] - self._first[0]:,.1f} s, {pace_text(self._first, end)}")
        if self._bar is not None:
            self._bar.close()

    def __del__(self) -> None:
        if not self._is_ended:
            self._stats = lambda: self._last[1]  # without the loader, which may be half gone
            self.end()

    def _show(self, text: str) -> None:
        if self._bar is not None:
            self._bar.unit = text
            self._bar.n = self._done
            self._bar.refresh()
            return
        total = self._batches
        place = count(self._done, "batch", "batches")
        if total is not None:
            place = f"{self._done:,}/{count(total, 'batch', 'batches')}"
        say(f"{self._title}: {place}, {text}", file=self._stream)


_live: weakref.WeakSet[LiveView] = weakref.WeakSet()


@atexit.register
def _end_all() -> None:
    """Writes the last line of epochs that the script leaves unfinished."""
    for view in list(_live):
        view.end()


def begin_view(iterator: Any, stats: Callable[[], Mapping[str, Any]], title: str) -> None:
    """Gives an iterator that begins an epoch a view, in place of one that it has.

    Args:
        iterator: The iterator, which counts its batches there.
        stats: See :class:`LiveView`.
        title: The text before the figures.
    """
    if iterator.view is not None:
        iterator.view.end()
    try:
        batches = len(iterator)
    except TypeError:  # of an iterable dataset without a length
        batches = None
    iterator.view = LiveView(stats, batches, title)


def end_view(iterator: Any) -> None:
    """Ends an iterator's view, if it has one."""
    view, iterator.view = iterator.view, None
    if view is not None:
        view.end()


def pace_text(before: tuple[float, Mapping[str, Any]], after: tuple[float, Mapping[str, Any]]) -> str:
    """Returns images/s, and with workers the shares of the caller's waits and of their work, between two looks.

    Args:
        before, after: A time on the monotonic clock, and the statistics then.
    """
    seconds = max(1e-9, after[0] - before[0])
    samples, waited_ns, busy_ns = (after[1][name] - before[1][name] for name in ("samples", "waited_ns", "busy_ns"))
    text, workers = f"{samples / seconds:,.0f} images/s", len(after[1]["workers"])
    if not workers:
        return text
    waited, busy = (min(1.0, spent / 1e9 / seconds) for spent in (waited_ns, busy_ns / workers))
    return f"{text}, waits {waited:.0%}, workers {busy:.0%} busy"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"

"""A live view of a loader: a bar on a terminal or in a notebook, plain lines in a pipe or log."""

from __future__ import annotations

import atexit
import sys
import time
import weakref
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TextIO

from feeder.system.bar import in_notebook, make_bar
from feeder.system.nvml import current_gpu_busy
from feeder.system.text import count, say

__all__ = ["LiveView", "Pace", "bar_text", "begin_view", "end_view", "line_text"]

_BAR_INTERVAL_S = 0.25
_LINE_INTERVAL_S = 5.0
_SMOOTH_S = 3.0  # rates are averaged over about this time


class Pace(NamedTuple):
    """The pace of a loader.

    Attributes:
        samples_per_s: Samples handed out.
        bytes_per_s: Encoded bytes read; for a dataset that is not feeder's, bytes of the batches.
        left_s: Time until the end of the epoch; None: not known.
        waited_share: Share of the caller's time spent waiting for workers, 0-1.
        busy_share: Share of the workers' time spent at work, 0-1.
        ready: Number of full slots.
        slots: Number of slots; without slots, of batches that are made ahead.
        workers: Number of workers.
        gpu_share: Share of the time that the GPU is busy, 0-1, by nvidia-smi's measure; None: no GPU, or not known.
    """

    samples_per_s: float
    bytes_per_s: float
    left_s: float | None
    waited_share: float
    busy_share: float
    ready: int
    slots: int
    workers: int
    gpu_share: float | None = None


class LiveView:
    """Shows one epoch of a loader.

    Args:
        stats: Returns the result of :meth:`feeder.DataLoader.stats`.
        batches: Number of batches in the epoch, or in the rest of it; None: not known.
        title: The text before the figures.
        stream: The stream to write to; None: standard error.
        gpu_busy: Returns the share of the time that the GPU is busy, 0-1.
    """

    _is_ended = True

    def __init__(
        self,
        stats: Callable[[], Mapping[str, Any]],
        batches: int | None,
        title: str,
        stream: TextIO | None = None,
        gpu_busy: Callable[[], float | None] | None = None,
    ) -> None:
        self._gpu_busy = current_gpu_busy() if gpu_busy is None else gpu_busy
        self._gpu_shares: list[float] = []
        self._stats = stats
        self._batches = batches
        self._title = title
        self._stream = sys.stderr if stream is None else stream
        self._done = 0
        self._first = self._last = stats()
        self._started = self._seen = time.monotonic()
        self._rates: dict[str, float] | None = None
        self._bar: Any = None
        self._is_ended = False
        _live.add(self)
        self._is_bar = self._stream.isatty() or in_notebook()
        self._interval_s = _BAR_INTERVAL_S if self._is_bar else _LINE_INTERVAL_S
        if self._is_bar:
            self._draw("starting")

    def step(self) -> None:
        """Counts a batch that was handed out."""
        self._done += 1
        now = time.monotonic()
        if now - self._seen < self._interval_s:
            return
        pace = self._pace(now)
        if self._is_bar:
            self._draw(bar_text(pace))
        else:
            self._print(line_text(self._title, self._done, self._batches, pace))

    def end(self) -> None:
        """Ends the view, as the epoch is over or given up. The last line sums up the epoch."""
        if self._is_ended:
            return
        self._is_ended = True
        stats, self._stats = self._stats, lambda: self._last
        self._last = stats()
        seconds = max(time.monotonic() - self._started, 1e-9)
        rates = {name: value / seconds for name, value in _differences(self._first, self._last).items()}
        shares = self._gpu_shares
        gpu = sum(shares) / len(shares) if shares else None
        whole = _as_pace(rates, self._last, None)._replace(slots=0, gpu_share=gpu)
        if self._bar is not None:
            self._draw(bar_text(whole))
            self._bar.close()
            self._bar = None
        elif self._done and not self._is_bar:
            self._print(line_text(self._title, self._done, self._batches, whole, seconds))

    def __del__(self) -> None:
        if not self._is_ended:
            self._stats = lambda: self._last  # without the loader, which may be half gone
            self.end()

    def _pace(self, now: float) -> Pace:
        stats, seconds = self._stats(), now - self._seen
        rates = {name: value / seconds for name, value in _differences(self._last, stats).items()}
        if self._rates is not None:
            new = min(1.0, seconds / _SMOOTH_S)
            rates = {name: new * value + (1 - new) * self._rates[name] for name, value in rates.items()}
        self._rates = rates
        self._last = stats
        self._seen = now
        left = None
        if self._batches is not None and rates["batches"] > 0:
            left = max(0, self._batches - self._done) / rates["batches"]
        gpu = self._gpu_busy()
        if gpu is not None:
            self._gpu_shares.append(gpu)
        return _as_pace(rates, stats, left)._replace(gpu_share=gpu)

    def _draw(self, text: str) -> None:
        if self._bar is None:
            layout = "{desc} {percentage:3.0f}%|{bar}| {unit}" if self._batches else "{desc} {unit}"
            options = {"total": self._batches, "desc": self._title, "bar_format": layout}
            self._bar = make_bar(self._stream, unit=text, **options)
        self._bar.unit = text
        self._bar.n = self._done
        self._bar.refresh()

    def _print(self, line: str) -> None:
        say(line, file=self._stream)


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


def bar_text(pace: Pace) -> str:
    """Returns the text behind the bar: 58 columns for usual figures, at most 71."""
    parts = [f"{pace.samples_per_s:,.0f} img/s", f"{pace.bytes_per_s / 1e6:,.0f} MB/s"]
    if pace.left_s is not None:
        parts.append(f"{_clock(pace.left_s)} left")
    if pace.workers:
        full = [f"full {pace.ready}/{pace.slots}"] if pace.slots else []
        # With a GPU there is no space for both, and people look for its utilisation.
        busy = f"busy {pace.busy_share:.0%}" if pace.gpu_share is None else f"GPU {pace.gpu_share:.0%}"
        parts += [f"wait {pace.waited_share:.0%}", *full, busy]
    elif pace.gpu_share is not None:
        parts.append(f"GPU {pace.gpu_share:.0%}")
    return " ".join(parts)


def line_text(title: str, done: int, batches: int | None, pace: Pace, seconds: float | None = None) -> str:
    """Returns a line for a log.

    Args:
        title: The text before the figures.
        done: Number of batches handed out.
        batches: Number of batches in the epoch; None: not known.
        pace: The pace.
        seconds: Time that the whole epoch took; None: it goes on.
    """
    place = count(done, "batch", "batches") if batches is None else f"{done:,}/{count(batches, 'batch', 'batches')}"
    parts = [place, f"{pace.samples_per_s:,.0f} images/s", f"{pace.bytes_per_s / 1e6:,.0f} MB/s"]
    if seconds is not None:
        parts.insert(1, f"{seconds:,.1f} s")
    elif pace.left_s is not None:
        parts.append(f"{_clock(pace.left_s)} left")
    if pace.workers:
        parts.append(f"waits {pace.waited_share:.0%} of the time")
        if seconds is None:
            parts.append(f"{pace.ready} of {pace.slots} slots full")
        parts.append(f"workers {pace.busy_share:.0%} busy")
    if pace.gpu_share is not None:
        parts.append(f"GPU {pace.gpu_share:.0%} busy")
    return f"{title}: {', '.join(parts)}"


def _differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, float]:
    found = {name: after[name] - before[name] for name in ("batches", "samples", "waited_ns", "busy_ns")}
    return {**found, "bytes": _moved_bytes(after) - _moved_bytes(before)}


def _moved_bytes(stats: Mapping[str, Any]) -> int:
    names = ("read",) if "encoded_bytes" in stats or "read" in stats["stages"] else ("collate", "write")
    return sum(stats["stages"].get(name, {"bytes": 0})["bytes"] for name in names)


def _as_pace(rates: Mapping[str, float], stats: Mapping[str, Any], left_s: float | None) -> Pace:
    slots, workers = stats["slots"], len(stats["workers"])
    return Pace(
        rates["samples"],
        rates["bytes"],
        left_s,
        min(1.0, rates["waited_ns"] / 1e9),
        min(1.0, rates["busy_ns"] / 1e9 / max(1, workers)),
        slots["ready"],
        slots["total"] or slots["making"] + slots["ready"],
        workers,
    )


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"

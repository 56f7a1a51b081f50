"""Logs of the scalars of every training step, without making any step wait."""

from __future__ import annotations

import collections
import contextlib
import csv
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from feeder.errors import ArgumentError

__all__ = ["CsvWriter", "DeviceLog"]

Value = int | float | bool | complex
Sink = Callable[[int, Mapping[str, Value]], object]

# Columns start at multiples of this, as a view of a dtype must be aligned.
_ALIGNMENT = 16


@dataclass
class _Interval:
    """Steps whose device scalars are being copied to the host."""

    steps: list[int]
    rows: list[dict[str, Value]]
    fetched: torch.Tensor
    done: Any


class DeviceLog:
    """Keeps scalars on the device and passes them on later, with the values that ``.item()`` would have returned.

    ``.item()`` waits until the device has finished all its work. Here, a step only enqueues a copy of each scalar into
    a buffer on the device. Once in ``every`` steps, an asynchronous copy moves the buffer to page-locked memory. The
    sinks get its values one interval later, or later still if the device is further behind. On the CPU the same happens
    with synchronous copies.

    Use it from one thread. If the current stream changes between two steps, the later stream must wait for the earlier
    one, as CUDA requires for any tensor that both use. Leaving the context, or :meth:`close`, passes on the rest.

    Args:
        *sinks: Called as ``sink(step, values)``, once for each step, in order: a :class:`CsvWriter` or any callable.
            Its methods ``flush`` and ``close``, if any, are called with the log's.
        every: Steps between two copies, 1 or more.
        device: Device of the scalars; None for the device of the first step's scalars.

    Raises:
        ArgumentError: if ``every`` is less than 1.
    """

    def __init__(self, *sinks: Sink, every: int = 50, device: str | torch.device | None = None) -> None:
        if every < 1:
            raise ArgumentError(f"every must be 1 or more, got {every}")
        self._sinks = sinks
        self._every = every
        self._device = torch.device(device) if device is not None else None
        self._names: tuple[str, ...] | None = None
        self._steps: list[int] = []
        self._rows: list[dict[str, Value]] = []
        self._ring = torch.empty(0, dtype=torch.uint8, device="cpu")
        self._places: dict[str, tuple[slice, torch.dtype]] = {}
        self._columns: dict[str, torch.Tensor] = {}
        self._on_the_way: collections.deque[_Interval] = collections.deque()
        self._spare: list[torch.Tensor] = []
        self._copied: Any = None
        self._closed = False

    def write(self, step: int, **values: Value | torch.Tensor) -> None:
        """Takes the scalars of a step.

        Args:
            step: The step's number, which the sinks get.
            **values: By name: tensors of one element, or Python numbers, with the same names and dtypes at every step.
                For a tensor on another device than the log's, the call waits, as ``.item()`` does.

        Raises:
            ArgumentError: if a value is not a scalar, names or dtypes are not the first step's, or the log is closed.
        """
        if self._closed:
            raise ArgumentError(f"step {step}: this log is closed; make a new one")
        if self._names is None:
            self._begin(values)
        if values.keys() != set(self._names or ()):
            raise ArgumentError(f"step {step}: expected the values {list(self._names or ())}, got {list(values)}")

        slot = len(self._steps)
        if slot == 0 and self._copied is not None:
            # The copy may run on another stream than the one that is current now.
            torch.cuda.current_stream(self._device).wait_event(self._copied)
            self._copied = None

        row: dict[str, Value] = {}
        for name, value in values.items():
            column = self._columns.get(name)
            if isinstance(value, torch.Tensor) and value.numel() != 1:
                raise ArgumentError(f"step {step}: {name} must have one element, got shape {tuple(value.shape)}")
            if column is None:
                row[name] = value.item() if isinstance(value, torch.Tensor) else value
            elif not isinstance(value, torch.Tensor) or value.dtype != column.dtype:
                found = value.dtype if isinstance(value, torch.Tensor) else type(value).__name__
                raise ArgumentError(
                    f"step {step}: {name} was a {column.dtype} tensor at the first step, and is {found} now"
                )
            else:
                row[name] = 0  # keeps the order of the names; filled in when it is passed on
                column[slot].copy_(value.detach().reshape(()), non_blocking=True)

        self._steps.append(step)
        self._rows.append(row)
        if len(self._steps) == self._every:
            self._fetch()

    def flush(self) -> None:
        """Passes on everything written so far; waits for the device."""
        if self._steps:
            self._fetch()
        while self._on_the_way:
            self._hand_over(self._on_the_way.popleft())
        for sink in self._sinks:
            _call(sink, "flush")

    def close(self) -> None:
        """Passes on the rest and closes the sinks; may be called again."""
        if self._closed:
            return
        self._closed = True
        with contextlib.ExitStack() as stack:
            for sink in self._sinks:
                stack.callback(_call, sink, "close")
            self.flush()

    def __enter__(self) -> DeviceLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _begin(self, values: Mapping[str, Value | torch.Tensor]) -> None:
        """Lays out the buffer, with a column for each device scalar."""
        self._names = tuple(values)
        tensors = {name: value for name, value in values.items() if isinstance(value, torch.Tensor)}
        if self._device is None:
            devices = [value.device for value in tensors.values()]
            self._device = next((d for d in devices if d.type != "cpu"), torch.device("cpu"))
        size = 0
        for name, value in tensors.items():
            if value.device.type == self._device.type:
                end = size + value.dtype.itemsize * self._every
                self._places[name] = slice(size, end), value.dtype
                size = -(-end // _ALIGNMENT) * _ALIGNMENT
        self._ring = torch.empty(size, dtype=torch.uint8, device=self._device)
        self._columns = self._columns_of(self._ring)

    def _columns_of(self, memory: torch.Tensor) -> dict[str, torch.Tensor]:
        return {name: memory[place].view(dtype) for name, (place, dtype) in self._places.items()}

    def _fetch(self) -> None:
        """Starts the copy of the buffer, and passes on the values of earlier copies."""
        on_gpu = self._ring.device.type == "cuda"
        while self._on_the_way and (not on_gpu or self._on_the_way[0].done.query()):
            self._hand_over(self._on_the_way.popleft())
        if not self._spare:
            spare = torch.empty(len(self._ring), dtype=torch.uint8, device="cpu", pin_memory=on_gpu)
            self._spare.append(spare)
        fetched = self._spare.pop()
        fetched.copy_(self._ring, non_blocking=True)
        self._copied = torch.cuda.current_stream(self._ring.device).record_event() if on_gpu else None
        self._on_the_way.append(_Interval(self._steps, self._rows, fetched, self._copied))
        self._steps = []
        self._rows = []

    def _hand_over(self, interval: _Interval) -> None:
        if interval.done is not None:
            interval.done.synchronize()
        for name, column in self._columns_of(interval.fetched).items():
            for row, value in zip(interval.rows, column.tolist(), strict=False):  # the last interval may be short
                row[name] = value
        self._spare.append(interval.fetched)
        for step, row in zip(interval.steps, interval.rows, strict=True):
            for sink in self._sinks:
                sink(step, row)


class CsvWriter:
    """A sink that writes a row for each step, ``step`` first, then the values by name.

    Args:
        path: The file; its folder must exist.
        resume_at: None to overwrite the file. A step number to keep the rows before it and drop the others, which an
            interrupted run wrote after its last checkpoint.

    Raises:
        ArgumentError: if the kept file has other columns than the values.
    """

    def __init__(self, path: str | os.PathLike[str], *, resume_at: int | None = None) -> None:
        self._path = os.fspath(path)
        self._header = None if resume_at is None else self._cut(path, resume_at)
        self._file = open(path, "w" if self._header is None else "a", newline="", encoding="utf-8")
        self._writer = csv.writer(self._file, lineterminator="\n")

    def __call__(self, step: int, values: Mapping[str, Value]) -> None:
        header = ["step", *values]
        if self._header is None:
            self._writer.writerow(header)
            self._header = header
        if header != self._header:
            raise ArgumentError(f"{self._path} has the columns {self._header}, not {header}; write to another file")
        self._writer.writerow([step, *values.values()])

    def flush(self) -> None:
        """Flushes the file."""
        self._file.flush()

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    @staticmethod
    def _cut(path: str | os.PathLike[str], resume_at: int) -> list[str] | None:
        """Drops a truncated row and the rows from a step on; returns the header, None if there is none."""
        try:
            with open(path, encoding="utf-8", newline="") as file:
                whole = [line for line in file if line.endswith("\n")]
        except FileNotFoundError:
            return None
        if not whole:
            return None
        kept = [line for line in whole[1:] if int(line.partition(",")[0]) < resume_at]
        unfinished = f"{os.fspath(path)}.unfinished"
        with open(unfinished, "w", encoding="utf-8", newline="") as file:
            file.writelines([whole[0], *kept])
        os.replace(unfinished, path)
        return next(csv.reader([whole[0]]))


def _call(sink: Sink, name: str) -> None:
    method = getattr(sink, name, None)
    if callable(method):
        method()

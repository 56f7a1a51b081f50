"""Logs of the scalars of every training step, without making any step wait."""

from __future__ import annotations

import collections
import contextlib
import csv
import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

from feeder.errors import ArgumentError
from feeder.system.checks import check_int

Value = int | float | bool | complex
Sink = Callable[[int, Mapping[str, Value]], object]


class _Interval(NamedTuple):
    """Steps whose device scalars are being copied to the host.

    Attributes:
        rows: Number and values of each step. They hold the scalars on the device until these have been copied.
        fetched: The scalars on the host, by name, one for each step.
        done: The event after the copy; None on the CPU.
    """

    rows: list[tuple[int, dict[str, Any]]]
    fetched: dict[str, torch.Tensor]
    done: Any


class DeviceLog:
    """Keeps scalars on the device and passes them on later, with the values that ``.item()`` would have returned.

    ``.item()`` waits until the device has finished all its work. Here, a step only enqueues a copy of each scalar on
    the device. Once in ``every`` steps, asynchronous copies move them to page-locked memory. The
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
        check_int("every", every, 1)
        self._sinks = sinks
        self._every = every
        self._device = torch.device(device) if device is not None else None
        self._dtypes: dict[str, torch.dtype | None] | None = None  # dtypes of scalars on the device; None: elsewhere
        self._rows: list[tuple[int, dict[str, Any]]] = []
        self._on_the_way: collections.deque[_Interval] = collections.deque()
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
        if self._dtypes is None:
            self._dtypes = self._of_device(values)
        if values.keys() != self._dtypes.keys():
            raise ArgumentError(f"step {step}: expected the values {list(self._dtypes)}, got {list(values)}")

        row: dict[str, Any] = {}
        for name, value in values.items():
            dtype = self._dtypes[name]
            if isinstance(value, torch.Tensor) and value.numel() != 1:
                raise ArgumentError(f"step {step}: {name} must have one element, got shape {tuple(value.shape)}")
            if dtype is None:
                row[name] = value.item() if isinstance(value, torch.Tensor) else value
            elif not isinstance(value, torch.Tensor) or value.dtype != dtype:
                found = value.dtype if isinstance(value, torch.Tensor) else type(value).__name__
                raise ArgumentError(f"step {step}: {name} was a {dtype} tensor at the first step, and is {found} now")
            else:
                row[name] = value.detach().reshape(()).clone()

        self._rows.append((step, row))
        if len(self._rows) == self._every:
            self._fetch()

    def flush(self) -> None:
        """Passes on everything written so far; waits for the device."""
        if self._rows:
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

    def _of_device(self, values: Mapping[str, Value | torch.Tensor]) -> dict[str, torch.dtype | None]:
        """Returns the dtypes of the values that are scalars on the log's device, and None for the others."""
        tensors = {name: value for name, value in values.items() if isinstance(value, torch.Tensor)}
        if self._device is None:
            devices = [value.device for value in tensors.values()]
            self._device = next((d for d in devices if d.type != "cpu"), torch.device("cpu"))
        here = {name: each.dtype for name, each in tensors.items() if each.device.type == self._device.type}
        return {name: here.get(name) for name in values}

    def _fetch(self) -> None:
        """Starts the copies of the scalars, and passes on the values of earlier ones."""
        assert self._device is not None  # since the first step
        assert self._dtypes is not None
        on_gpu = self._device.type == "cuda"
        while self._on_the_way and (not on_gpu or self._on_the_way[0].done.query()):
            self._hand_over(self._on_the_way.popleft())

        fetched = {}
        for name in (name for name, dtype in self._dtypes.items() if dtype is not None):
            column = torch.stack([row[name] for _, row in self._rows])
            host = torch.empty(column.shape, dtype=column.dtype, device="cpu", pin_memory=on_gpu)
            fetched[name] = host.copy_(column, non_blocking=True)
        done = torch.cuda.current_stream(self._device).record_event() if on_gpu else None
        self._on_the_way.append(_Interval(self._rows, fetched, done))
        self._rows = []

    def _hand_over(self, interval: _Interval) -> None:
        if interval.done is not None:
            interval.done.synchronize()
        for name, column in interval.fetched.items():
            for (_, row), value in zip(interval.rows, column.tolist(), strict=True):
                row[name] = value
        for step, row in interval.rows:
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

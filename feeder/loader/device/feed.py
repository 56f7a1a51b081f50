"""Batches onto the device, a few ahead of the caller, on a stream of their own."""

from __future__ import annotations

import collections
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, TypeVar, cast

import torch

from feeder.errors import ArgumentError
from feeder.loader.device.nested import move
from feeder.loader.device.options import DeviceOptions
from feeder.loader.device.static_buffers import StaticBuffers
from feeder.loader.observe.meter import Meter

__all__ = ["DeviceFeed", "checked_device", "feed_device"]

_T = TypeVar("_T")
_R = TypeVar("_R")


def checked_device(device: str | torch.device | None) -> torch.device | None:
    """The device that batches are to be on; a GPU with its number.

    Raises:
        ArgumentError: if there is no such device here.
    """
    if device is None:
        return None
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ArgumentError(f"device must be a torch device such as 'cuda' or 'cpu', got {device!r}: {error}") from None
    if found.type == "cpu":
        return found
    if found.type != "cuda":
        raise ArgumentError(f"device must be 'cuda', 'cuda:N' or 'cpu', got {device!r}")
    if not torch.cuda.is_available():
        raise ArgumentError(f"device={device!r}, but torch finds no CUDA device here; use device=None")
    return torch.device("cuda", torch.cuda.current_device() if found.index is None else found.index)


def feed_device(
    options: DeviceOptions,
    source: Callable[[], tuple[_T, Any]],
    ready: Callable[[], bool] | None = None,
    meter: Meter | None = None,
    complete: Callable[[_T, Any], Any] | None = None,
) -> DeviceFeed[_T] | None:
    """The feed of a loader's device; None without one.

    Args:
        options: The loader's.
        source: A method of the iterator that owns the feed; held weakly, so that the iterator goes when it is let go.
        ready: Another, which says whether the source has the next batch at hand.
        meter: Has the copies.
        complete: What :class:`DeviceFeed` takes.
    """
    if options.target is None:
        return None
    give, ask = _weak(source), _weak(ready) if ready is not None else None
    target, ahead, stream = options.target, options.ahead, options.stream
    return DeviceFeed(give, target, ahead, stream, ask, meter, complete, options.static)


def _weak(method: Callable[[], _R]) -> Callable[[], _R]:
    """Calls a method of an object that is not kept alive."""
    found: Any = weakref.WeakMethod(method)
    return lambda: cast("_R", found()())


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _tensors(item)
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _tensors(item)


class DeviceFeed(Generic[_T]):
    """Iterates over (item, batch) with the batch on the device, copying a few ahead.

    A batch that could not be copied ahead, for want of memory, say, is copied when nothing is there before it. If that
    raises, the next call tries again.

    Args:
        source: Gives (item, batch); a batch of None is passed on as it is.
        device: Where batches go.
        ahead: How many batches are copied before the caller asks for them, 0 or more.
        stream: The stream of the copies; None for a device without streams.
        ready: Says whether the source has the next batch at hand; only then it is copied ahead. None: it always has.
        meter: Has the copies: on a stream what they took there, else what the call took.
        complete: Given the item and the batch on the device, makes of it what is handed out.
        static: Where batches are put when they are handed out; None: each has memory of its own.
    """

    def __init__(
        self,
        source: Callable[[], tuple[_T, Any]],
        device: torch.device,
        ahead: int,
        stream: Any = None,
        ready: Callable[[], bool] | None = None,
        meter: Meter | None = None,
        complete: Callable[[_T, Any], Any] | None = None,
        static: StaticBuffers | None = None,
    ) -> None:
        self._meter = Meter() if meter is None else meter
        self._source, self._device, self._ahead, self._stream = source, device, ahead, stream
        self._source_ready, self._complete, self._static = ready, complete, static
        self._ready: collections.deque[tuple[_T, Any, Any]] = collections.deque()
        # Sources of copies that may not be done: their slots must stay.
        self._reading: collections.deque[tuple[Any, Any, Any]] = collections.deque()
        self._next: tuple[_T, Any] | None = None  # what could not be copied yet
        self._ended = False
        self._failure: Exception | None = None

    def __iter__(self) -> DeviceFeed[_T]:
        return self

    def __next__(self) -> tuple[_T, Any]:
        while not self._ended and self._failure is None and len(self._ready) <= self._ahead:
            try:
                if self._next is None:
                    if self._ready and self._source_ready is not None and not self._source_ready():
                        break
                    self._next = self._source()
            except StopIteration:
                self._ended = True
                break
            except Exception as failure:  # its turn comes after the batches that are there
                self._failure = failure
                break
            item, batch = self._next
            try:
                copied = self._copy(item, batch)
            except Exception:  # of memory, mostly: there may be enough when those that are there have been used
                if not self._ready:
                    raise
                break
            self._next = None
            self._ready.append((item, *copied))
        self._let_go()
        if not self._ready:
            sent, self._failure = self._failure, None  # what comes after it may be had, as without a device
            raise sent or StopIteration
        item, batch, event = self._ready.popleft()
        if event is not None:
            current = torch.cuda.current_stream(self._device)
            current.wait_event(event)
            for tensor in _tensors(batch):
                tensor.record_stream(current)
        if self._static is not None and batch is not None:
            batch = self._static.put(batch)
        return item, batch

    def _copy(self, item: _T, batch: Any) -> tuple[Any, Any]:
        if batch is None:
            return None, None
        if self._stream is None:
            started = time.perf_counter_ns()
            moved = move(batch, self._device)
            self._meter.add("copy", time.perf_counter_ns() - started, self._copied_bytes(batch))
            return self._completed(item, moved), None
        with torch.cuda.stream(self._stream):
            begun = self._stream.record_event(_timing_event())
            moved = move(batch, self._device)
            copied = self._stream.record_event(_timing_event())
            completed = self._completed(item, moved)
            event = self._stream.record_event()
        self._reading.append((batch, begun, copied))
        return completed, event

    def _completed(self, item: _T, moved: Any) -> Any:
        return moved if self._complete is None else self._complete(item, moved)

    def _let_go(self) -> None:
        while self._reading and self._reading[0][2].query():
            batch, begun, copied = self._reading.popleft()
            self._meter.add("copy", int(begun.elapsed_time(copied) * 1e6), self._copied_bytes(batch))

    def _copied_bytes(self, batch: Any) -> int:
        return sum(tensor.nbytes for tensor in _tensors(batch) if tensor.device != self._device)


def _timing_event() -> Any:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]

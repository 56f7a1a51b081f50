"""Batches onto the device, a few ahead of the caller, on a stream of their own."""

from __future__ import annotations

import collections
import time
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

import torch

from feeder.errors import ArgumentError
from feeder.loader.device.nested import map_tensors, move, tensors_in
from feeder.loader.observe.meter import Meter
from feeder.loader.options import DeviceOptions

_T = TypeVar("_T")
_T_co = TypeVar("_T_co", covariant=True)


class BatchSource(Protocol[_T_co]):
    """Batches on the host, in order."""

    def next(self) -> tuple[_T_co, Any]:
        """Returns an item that goes along with the batch, and the batch: tensors in any containers, or None.

        Raises:
            StopIteration: after the last batch.
        """

    def ready(self) -> bool:
        """Returns True if the next batch can be had without a wait."""


class DeviceFeed(Generic[_T]):
    """Iterates over (item, batch) with the batch on the device, copying a few ahead.

    A batch that could not be copied ahead, for want of memory, say, is copied when nothing is there before it. If that
    raises, the next call tries again.

    Args:
        source: The batches. A batch of None is passed on as it is; batches that are ready are copied ahead.
        options: The device and how batches get there; ``target`` is not None.
        meter: Counts the copies: on a stream the time that they took there, else the time of the call.
        complete: Called with the item and the batch on the device; what it returns is handed out.
    """

    def __init__(
        self,
        source: BatchSource[_T],
        options: DeviceOptions,
        meter: Meter | None = None,
        complete: Callable[[_T, Any], Any] = lambda item, moved: moved,
    ) -> None:
        assert options.target is not None
        self._meter = Meter() if meter is None else meter
        self._source = source
        self._complete = complete
        self._device = options.target
        self._ahead = options.ahead
        self._stream = options.stream()
        self._put = options.put
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
                    if self._ready and not self._source.ready():
                        break
                    self._next = self._source.next()
            except StopIteration:
                self._ended = True
                break
            except Exception as failure:  # its turn comes after the batches that are there
                self._failure = failure
                break

            item, batch = self._next
            try:
                copied = self._copy(item, batch)
            except Exception:  # mostly for want of memory, which comes free as batches are used
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
            for tensor in tensors_in(batch):
                tensor.record_stream(current)

        if self._put is not None and batch is not None:
            batch = self._put(batch)
        return item, batch

    def _copy(self, item: _T, batch: Any) -> tuple[Any, Any]:
        if batch is None:
            return None, None
        if self._stream is None:
            started = time.perf_counter_ns()
            moved = move(batch, self._device)
            self._meter.add("copy", time.perf_counter_ns() - started, self._copied_bytes(batch))
            return self._complete(item, moved), None
        with torch.cuda.stream(self._stream):
            begun = self._stream.record_event(_timing_event())
            moved = move(batch, self._device)
            copied = self._stream.record_event(_timing_event())
            completed = self._complete(item, moved)
            event = self._stream.record_event()
        self._reading.append((batch, begun, copied))
        return completed, event

    def _let_go(self) -> None:
        while self._reading and self._reading[0][2].query():
            batch, begun, copied = self._reading.popleft()
            self._meter.add("copy", int(begun.elapsed_time(copied) * 1e6), self._copied_bytes(batch))

    def _copied_bytes(self, batch: Any) -> int:
        return sum(tensor.nbytes for tensor in tensors_in(batch) if tensor.device != self._device)


def _timing_event() -> Any:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


class StaticBuffers:
    """One place for every tensor of a batch, at an address that never changes, as CUDA graphs want it.

    What is put there overwrites the batch before it.

    Args:
        batch_size: The largest batch; None: as large as the first.
    """

    def __init__(self, batch_size: int | None) -> None:
        self._batch_size = batch_size
        self._places: list[torch.Tensor] = []

    def put(self, batch: Any) -> Any:
        """Returns the same structure with its tensors in their places; copies are queued on the current stream.

        Raises:
            ArgumentError: if a tensor doesn't fit its place.
        """
        found = iter(range(1 << 30))
        return map_tensors(batch, lambda tensor: self._put(next(found), tensor))

    def _put(self, number: int, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.is_nested:
            raise ArgumentError(
                f"static_buffers=True has no room for a nested tensor, as tensor {number} of a batch is: its size "
                "changes; leave static_buffers out, or pad"
            )
        if number == len(self._places):
            rows = max(len(tensor), self._batch_size or 0) if tensor.ndim else 0
            shape = (rows, *tensor.shape[1:]) if tensor.ndim else ()
            channels_last = tensor.ndim == 4 and tensor.is_contiguous(memory_format=torch.channels_last)
            layout = torch.channels_last if channels_last else torch.contiguous_format
            self._places.append(torch.empty(shape, dtype=tensor.dtype, device=tensor.device, memory_format=layout))
        place = self._places[number]
        if (tensor.shape[1:], tensor.dtype) != (place.shape[1:], place.dtype) or tensor.numel() > place.numel():
            raise ArgumentError(
                f"static_buffers=True has room for {place.dtype} {list(place.shape)} as tensor {number} of a batch, "
                f"got {tensor.dtype} {list(tensor.shape)}; give batches of one size, or leave static_buffers out"
            )
        view = place[: len(tensor)] if tensor.ndim else place
        return view.copy_(tensor, non_blocking=True)

"""Batches onto the device, a few ahead of the caller, from page-locked slots on a stream of their own.

Note [Reuse of page-locked slots]
    torch's allocator delays the reuse of memory that it allocated itself until the copies that read it are done. Slots
    are not its memory. So when a slot's last tensor is gone, an event is recorded on the consumer's current stream and
    on the stream that feeds the device, and the slot is filled again only after both have passed. That covers copies
    that the caller made with ``non_blocking=True`` on its current stream and then let go of the source.
"""

from __future__ import annotations

import collections
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import torch

from feeder.batch import Slots
from feeder.errors import ArgumentError
from feeder.meter import Meter

if TYPE_CHECKING:
    from feeder.loader import DataLoader

__all__ = ["CudaGuard", "DeviceFeed", "checked_device", "feed_device", "move", "page_lock", "slot_guard"]

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


class CudaGuard:
    """Says when copies on a GPU that may still read a slot are done; see :class:`feeder.batch.Guard`.

    Args:
        device: The GPU.
        stream: The stream that feeds it; None if there is none.
    """

    def __init__(self, device: torch.device, stream: Any = None) -> None:
        self._device, self._stream = device, stream

    def record(self) -> list[Any]:
        """Events on the consumer's current stream and on the feeding one."""
        streams = [torch.cuda.current_stream(self._device)]
        if self._stream is not None:
            streams.append(self._stream)
        return [stream.record_event() for stream in streams]

    def done(self, mark: list[Any]) -> bool:
        """Whether all of them have passed."""
        return all(event.query() for event in mark)


def page_lock(slots: Slots) -> None:
    """Page-locks the slots' memory, for as long as it is mapped, so that copies from it need not wait.

    Raises:
        ArgumentError: if the system refuses.
    """
    runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    address, size = slots.address, slots.region.size_bytes
    code = int(runtime.cudaHostRegister(address, size, 0))
    if code != 0:
        raise ArgumentError(
            f"can't page-lock {size >> 20} MiB for batches (CUDA error {code}): raise the limit of locked memory "
            "(ulimit -l), or set pin_memory=False and device=None"
        )
    weakref.finalize(slots.region, runtime.cudaHostUnregister, address)


def slot_guard(loader: DataLoader[Any]) -> CudaGuard | None:
    """The guard of a loader's slots, where they are to be page-locked; else None."""
    if loader.target_device is not None and loader.target_device.type == "cuda":
        return CudaGuard(loader.target_device, loader.feeding_stream)
    if loader.pin_memory and torch.cuda.is_available():
        return CudaGuard(torch.device("cuda", torch.cuda.current_device()))
    return None


def feed_device(
    loader: DataLoader[Any],
    source: Callable[[], tuple[_T, Any]],
    ready: Callable[[], bool] | None = None,
    meter: Meter | None = None,
) -> DeviceFeed[_T] | None:
    """The feed of a loader's device; None without one.

    Args:
        loader: The loader.
        source: A method of the iterator that owns the feed; held weakly, so that the iterator goes when it is let go.
        ready: Another, which says whether the source has the next batch at hand.
        meter: Has the copies.
    """
    if loader.target_device is None:
        return None
    give, ask = _weak(source), _weak(ready) if ready is not None else None
    return DeviceFeed(give, loader.target_device, loader.prefetch_to_device, loader.feeding_stream, ask, meter)


def _weak(method: Callable[[], _R]) -> Callable[[], _R]:
    """Calls a method of an object that is not kept alive."""
    found: Any = weakref.WeakMethod(method)
    return lambda: cast("_R", found()())


def move(value: Any, device: torch.device) -> Any:
    """The same structure with its tensors on the device; copies do not wait."""
    if isinstance(value, torch.Tensor):
        return value.to(device, non_blocking=True)
    if isinstance(value, tuple):
        items = [move(item, device) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(value, list):
        return [move(item, device) for item in value]
    if isinstance(value, Mapping):
        return {key: move(item, device) for key, item in value.items()}
    return value


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

    Args:
        source: Gives (item, batch); a batch of None is passed on as it is.
        device: Where batches go.
        ahead: How many batches are copied before the caller asks for them, 0 or more.
        stream: The stream of the copies; None for a device without streams.
        ready: Says whether the source has the next batch at hand; only then it is copied ahead. None: it always has.
        meter: Has the copies: on a stream what they took there, else what the call took.
    """

    def __init__(
        self,
        source: Callable[[], tuple[_T, Any]],
        device: torch.device,
        ahead: int,
        stream: Any = None,
        ready: Callable[[], bool] | None = None,
        meter: Meter | None = None,
    ) -> None:
        self._meter = Meter() if meter is None else meter
        self._source, self._device, self._ahead, self._stream = source, device, ahead, stream
        self._source_ready = ready
        self._ready: collections.deque[tuple[_T, Any, Any]] = collections.deque()
        # Sources of copies that may not be done: their slots must stay.
        self._reading: collections.deque[tuple[Any, Any, Any]] = collections.deque()
        self._ended = False
        self._failure: Exception | None = None

    def __iter__(self) -> DeviceFeed[_T]:
        return self

    def __next__(self) -> tuple[_T, Any]:
        while not self._ended and self._failure is None and len(self._ready) <= self._ahead:
            try:
                if self._ready and self._source_ready is not None and not self._source_ready():
                    break
                item, batch = self._source()
            except StopIteration:
                self._ended = True
                break
            except Exception as failure:  # its turn comes after the batches that are there
                self._failure = failure
                break
            self._ready.append((item, *self._copy(batch)))
        self._let_go()
        if not self._ready:
            raise self._failure or StopIteration
        item, batch, event = self._ready.popleft()
        if event is not None:
            current = torch.cuda.current_stream(self._device)
            current.wait_event(event)
            for tensor in _tensors(batch):
                tensor.record_stream(current)
        return item, batch

    def _copy(self, batch: Any) -> tuple[Any, Any]:
        if batch is None:
            return None, None
        if self._stream is None:
            started = time.perf_counter_ns()
            moved = move(batch, self._device)
            self._meter.add("copy", time.perf_counter_ns() - started, sum(t.nbytes for t in _tensors(batch)))
            return moved, None
        with torch.cuda.stream(self._stream):
            begun = self._stream.record_event(_timing_event())
            moved = move(batch, self._device)
            event = self._stream.record_event(_timing_event())
        self._reading.append((batch, begun, event))
        return moved, event

    def _let_go(self) -> None:
        while self._reading and self._reading[0][2].query():
            batch, begun, event = self._reading.popleft()
            copied_bytes = sum(t.nbytes for t in _tensors(batch))
            self._meter.add("copy", int(begun.elapsed_time(event) * 1e6), copied_bytes)


def _timing_event() -> Any:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]

"""Page-locked memory: locked by its GPU, and neither freed nor filled while a copy reads it."""

from __future__ import annotations

import contextlib
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from feeder.dataset.shards import ShardDataset
from feeder.errors import ArgumentError
from feeder.loader.dataloader import DataLoader
from feeder.loader.device.page_lock import CudaGuard, page_lock, slot_guard
from feeder.loader.generic.pending_batches import BatchSlots
from feeder.loader.options import DeviceOptions
from feeder.loader.slots.slots import Slots
from feeder.transforms import (
    RandomResizedCrop,
)

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def _dataset(shards: Path) -> ShardDataset:
    return ShardDataset(shards, RandomResizedCrop(16), fields=("index", "key"))


def test_batches_made_without_workers_are_pinned_too(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pinned: list[int] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: pinned.append(id(tensor)) or tensor)
    for pin in (False, True):
        batches = list(DataLoader(_dataset(shards), batch_size=25, backend="cpu", pin_memory=pin))
        assert pinned == [id(tensor) for batch in batches for tensor in batch[:3] if pin]


def test_slots_are_page_locked_by_the_gpu_that_they_are_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Page-locking on another GPU would make a context there: with eight ranks, seven on the first GPU, all unused."""
    current, locked = [0], []

    @contextlib.contextmanager
    def made_current(device: torch.device) -> Iterator[None]:
        current.append(device.index)
        yield
        current.pop()

    runtime = types.SimpleNamespace(
        cudaHostRegister=lambda address, size, flags: locked.append(current[-1]) or 0,
        cudaHostUnregister=lambda address: 0,
    )
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    monkeypatch.setattr(torch.cuda, "device", made_current)
    page_lock(Slots(1 << 12, 1, CudaGuard(torch.device("cuda", 1))))
    assert locked == [1]


def test_slots_that_could_not_be_page_locked_are_not_used(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    locked: list[int] = []

    def lock(slots: Slots) -> None:
        locked.append(slots.slots)
        if len(locked) == 1:
            raise RuntimeError("out of memory")

    monkeypatch.setattr("feeder.loader.fast.setup.slot_guard", lambda device: CudaGuard(torch.device("cuda", 0)))
    monkeypatch.setattr(CudaGuard, "record", lambda guard: [])
    monkeypatch.setattr("feeder.loader.fast.engine.page_lock", lock)
    loader = DataLoader(_dataset(shards), batch_size=25, num_workers=1)
    with pytest.raises(RuntimeError, match="out of memory"):
        next(iter(loader))
    next(iter(loader))
    assert len(locked) == 2


def test_slots_of_torchs_path_that_could_not_be_page_locked_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    locks = iter([RuntimeError("out of memory"), None])

    def lock(slots: Slots) -> None:
        if (error := next(locks)) is not None:
            raise error

    monkeypatch.setattr("feeder.loader.generic.pending_batches.page_lock", lock)
    slots = BatchSlots(2, None, CudaGuard(torch.device("cuda", 0)))
    with pytest.raises(RuntimeError, match="out of memory"):
        slots.fit(1 << 20)
    before = slots.current
    slots.fit(1 << 20)
    assert [before is None, slots.current is None] == [True, False]
    assert next(locks, "asked twice") == "asked twice"


def test_memory_stays_page_locked_until_the_copies_that_read_it_are_done(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    asked = iter([False, False, True])
    event = types.SimpleNamespace(query=lambda: done.append("asked") or next(asked))
    runtime = types.SimpleNamespace(
        cudaHostRegister=lambda address, size, flags: 0,
        cudaHostUnregister=lambda address: done.append("unlocked"),
    )
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: types.SimpleNamespace(record_event=lambda: event))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    slots = Slots(1 << 12, 1, CudaGuard(torch.device("cuda", 0)))
    with monkeypatch.context() as patch:
        patch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
        page_lock(slots)
    slots.acquire()
    batch = slots.lease(0)
    del slots
    assert done == []
    del batch
    assert done == ["asked", "asked", "asked", "unlocked"]


def test_a_slot_let_go_during_the_capture_of_a_graph_is_used_again_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    capturing = False

    class Event:
        """An event as CUDA has it: one of a captured stream can't be queried, and any query ends a capture."""

        def __init__(self) -> None:
            self.captured = capturing

        def query(self) -> bool:
            if capturing or self.captured:
                raise RuntimeError("operation not permitted on an event last recorded in a capturing stream")
            return True

    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: types.SimpleNamespace(record_event=Event))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing)
    slots = Slots(1 << 12, 2, CudaGuard(torch.device("cuda", 0), types.SimpleNamespace(record_event=Event)))
    before, during = (slots.lease(slots.acquire() or 0) for _ in range(2))
    del before
    capturing = True
    del during
    assert slots.acquire() is None
    capturing = False
    assert [slots.acquire(), slots.acquire()] == [0, 1]


class _Stream:
    """A stream whose work is done once ``is_done`` is set."""

    def __init__(self) -> None:
        self.is_done = False

    def record_event(self) -> Any:
        return types.SimpleNamespace(query=lambda: self.is_done)


def test_a_page_locked_slot_waits_for_the_copies_to_every_gpu_in_use(
    shards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that is current when the loader is made need not be the one that batches go to."""
    streams = [_Stream() for _ in range(3)]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: streams[torch.device(device).index])
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch._C, "_cuda_hasPrimaryContext", lambda number: number != 2, raising=False)
    guard = slot_guard(DeviceOptions(pin_memory=True))
    assert guard is not None
    slots = Slots(1 << 12, 1, guard)
    slots.acquire()
    slots.lease(0)  # and let go at once
    streams[0].is_done = True
    assert slots.acquire() is None
    streams[1].is_done = True
    assert slots.acquire() == 0


@pytest.mark.gpu
@needs_gpu
def test_a_batch_can_be_let_go_while_a_graph_is_captured(shards: Path) -> None:
    options: dict[str, Any] = {"batch_size": 8, "backend": "cpu"}
    expected = [images for images, *_ in DataLoader(_dataset(shards), **options)]
    batches = iter(DataLoader(_dataset(shards), num_workers=2, prefetch_factor=1, pin_memory=True, **options))
    graph, total = torch.cuda.CUDAGraph(), torch.zeros((), device="cuda")
    held = [next(batches)]
    found = [held[0][0].clone()]
    with torch.cuda.graph(graph):
        total.add_(1)
        held.clear()
    graph.replay()
    found += [images.clone() for images, *_ in batches]
    assert int(total) == 1
    assert [torch.equal(*pair) for pair in zip(found, expected, strict=True)] == [True] * 7


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("workers", [0, 2])
def test_batches_are_page_locked(shards: Path, workers: int) -> None:
    for images, labels, *_ in DataLoader(_dataset(shards), batch_size=25, num_workers=workers, pin_memory=True):
        assert images.is_pinned()
        assert labels.is_pinned()


@pytest.mark.gpu
@needs_gpu
def test_memory_that_cannot_be_page_locked_is_refused_and_nothing_else() -> None:
    slots = Slots(1 << 16, 2)
    page_lock(slots)
    with pytest.raises(ArgumentError, match="can't page-lock"):
        page_lock(slots)  # it is already
    torch.ones(1, device="cuda")  # CUDA's error is not left for the next kernel


class _LateGuard:
    """A guard whose copies are done after so many calls of ``done``."""

    def __init__(self, asked: int) -> None:
        self._asked = asked

    def record(self) -> list[int]:
        return [0]

    def done(self, mark: list[int]) -> bool:
        mark[0] += 1
        return mark[0] > self._asked


def test_a_loop_ahead_of_the_gpu_waits_for_its_copies_and_is_not_blamed(
    shards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("feeder.loader.fast.setup.slot_guard", lambda options: _LateGuard(30))
    monkeypatch.setattr("feeder.loader.fast.engine.page_lock", lambda slots: None)
    loader = DataLoader(_dataset(shards), batch_size=2, num_workers=2, pin_memory=True)
    path = loader._fast
    assert path is not None
    steps = 0
    for images, *_ in loader:
        steps += 1
        assert path._engine is not None
        ring = path._engine.ring
        assert 0 <= images.data_ptr() - ring.address < ring.region.size_bytes
        del images
    assert steps == 25

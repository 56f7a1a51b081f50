from __future__ import annotations

import collections
import contextlib
import gc
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from feeder.dataset.folders import FolderDataset
from feeder.dataset.shards import ShardDataset
from feeder.errors import ArgumentError, DecodeError
from feeder.loader.dataloader import DataLoader
from feeder.loader.device.feed import DeviceFeed
from feeder.loader.device.nested import map_tensors, move
from feeder.loader.device.page_lock import CudaGuard, page_lock, slot_guard
from feeder.loader.device.static_buffers import StaticBuffers
from feeder.loader.observe.meter import Meter
from feeder.loader.observe.stats import stage_table
from feeder.loader.options import CopyStream, DeviceOptions, checked_device
from feeder.loader.slots.slots import Slots
from feeder.transforms import (
    ColorJitter,
    Compose,
    CutMix,
    GaussianBlur,
    MixUp,
    Normalize,
    RandomErasing,
    RandomGrayscale,
    RandomHorizontalFlip,
    RandomResizedCrop,
    ToDtype,
)
from feeder.transforms.mixing import pick
from tests.support.batches import check_same
from tests.support.loader_data import encode, write_shards

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
Point = collections.namedtuple("Point", "x y")
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def _dataset(shards: Path) -> ShardDataset:
    return ShardDataset(shards, RandomResizedCrop(16), fields=("index", "key"))


def test_move_keeps_the_structure() -> None:
    value = {"a": [torch.ones(2), "text"], "b": (Point(torch.zeros(1), 3), None)}
    moved = move(value, torch.device("cpu"))
    assert moved["a"][0] is value["a"][0]
    assert moved["a"][1] == "text"
    assert type(moved["b"][0]) is Point
    assert moved["b"][0].y == 3
    assert moved["b"][1] is None


class _Source:
    """A source of batches for a feed, each of them ready."""

    def __init__(self, give: Callable[[], tuple[Any, Any]]) -> None:
        self.next = give

    def ready(self) -> bool:
        return True


@pytest.mark.parametrize("ahead", [0, 2, 20])
def test_feed_runs_ahead_and_ends(ahead: int) -> None:
    source = iter(range(10))
    taken = []

    def give() -> tuple[int, Any]:
        taken.append(next(source))
        return taken[-1], torch.tensor(taken[-1])

    feed = DeviceFeed(_Source(give), DeviceOptions(torch.device("cpu"), ahead))
    assert next(feed)[0] == 0
    assert len(taken) == min(10, ahead + 1)
    assert [item for item, _ in feed] == list(range(1, 10))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("ahead", [0, 2])
def test_batches_on_the_cpu_are_the_same(shards: Path, workers: int, ahead: int) -> None:
    options: dict[str, Any] = {"batch_size": 8, "shuffle": True, "num_workers": workers}
    loader = DataLoader(_dataset(shards), device="cpu", prefetch_to_device=ahead, **options)
    batches = [[x.clone() if isinstance(x, torch.Tensor) else x for x in batch] for batch in loader]
    check_same(batches, [*DataLoader(_dataset(shards), batch_size=8, shuffle=True)])


@pytest.mark.parametrize("ahead", [0, 2])
def test_after_an_error_of_the_source_the_feed_goes_on(ahead: int) -> None:
    source = iter([0, ValueError("a bad sample"), 2, 3])

    def give() -> tuple[int, Any]:
        item: Any = next(source)
        if isinstance(item, ValueError):
            raise item
        return item, torch.tensor(item)

    feed = DeviceFeed(_Source(give), DeviceOptions(torch.device("cpu"), ahead))
    assert next(feed)[0] == 0
    with pytest.raises(ValueError, match="a bad sample"):
        next(feed)
    assert [item for item, _ in feed] == [2, 3]


def test_only_what_is_copied_counts_as_copied() -> None:
    meter = Meter()
    batch = torch.zeros(2, 3, device="meta"), torch.zeros(2, dtype=torch.int64), ["a", "b"]
    feed = DeviceFeed(_Source(lambda: ("item", batch)), DeviceOptions(torch.device("meta"), 0), meter)
    for _ in range(3):
        next(feed)
    copy = stage_table(meter.words)["copy"]
    assert (copy["count"], copy["bytes"]) == (3, 3 * 2 * 8)


@pytest.mark.parametrize("workers", [0, 2])
def test_state_is_of_what_was_handed_out_and_not_of_what_is_ahead(shards: Path, workers: int) -> None:
    options: dict[str, Any] = {"batch_size": 8, "shuffle": True, "num_workers": workers, "device": "cpu"}
    loader = DataLoader(_dataset(shards), **options)
    plain = DataLoader(range(50), **options)
    for each in (loader, plain):
        iterator = iter(each)
        for _ in range(3):
            next(iterator)
        state = each.state_dict()
        rest = [batch[2].tolist() if isinstance(batch, tuple) else batch.tolist() for batch in iterator]
        resumed = DataLoader(each.dataset, **options)
        resumed.load_state_dict(state)
        again = [batch[2].tolist() if isinstance(batch, tuple) else batch.tolist() for batch in resumed]
        assert again == rest
        assert len(rest) == 4


def test_a_copy_ahead_that_finds_no_room_is_made_when_its_turn_comes(
    shards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved: list[torch.Tensor] = []
    found: list[Any] = []

    def has_room_for_one(value: Any, device: torch.device) -> Any:
        if len(moved) > len(found):
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        moved.append(value[1].clone())
        return move(value, device)

    monkeypatch.setattr("feeder.loader.device.feed.move", has_room_for_one)
    loader = DataLoader(_dataset(shards), batch_size=8, device="cpu", prefetch_to_device=2)
    monkeypatch.setattr("feeder.loader.fast.host_batches.HostBatches.ready", lambda self: True)
    for batch in loader:
        found.append([x.clone() if isinstance(x, torch.Tensor) else x for x in batch])
    check_same(found, [*DataLoader(_dataset(shards), batch_size=8)])


def test_a_copy_that_finds_no_room_in_its_turn_is_an_error_and_the_batch_is_not_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    room = iter([True, True, False])

    def full_at_times(value: Any, device: torch.device) -> Any:
        if not next(room, True):
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        return move(value, device)

    monkeypatch.setattr("feeder.loader.device.feed.move", full_at_times)
    numbers = iter(range(4))
    feed = DeviceFeed(_Source(lambda: (next(numbers), torch.zeros(2))), DeviceOptions(torch.device("cpu"), 0))
    assert [next(feed)[0] for _ in range(2)] == [0, 1]
    with pytest.raises(torch.cuda.OutOfMemoryError):
        next(feed)
    assert [number for number, _ in feed] == [2, 3]


def test_bad_sample_is_raised_in_its_turn(tmp_path: Path) -> None:
    dataset = ShardDataset(write_shards(tmp_path, 32, bad=(17,)), RandomResizedCrop(16), fields=("index",))
    iterator = iter(DataLoader(dataset, batch_size=8, device="cpu"))
    assert [next(iterator)[2].tolist()[0] for _ in range(2)] == [0, 8]
    with pytest.raises(DecodeError):
        next(iterator)
    assert next(iterator)[2].tolist()[0] == 24


def test_workers_end_when_an_iterator_with_a_device_is_let_go(shards: Path) -> None:
    loader = DataLoader(_dataset(shards), batch_size=8, num_workers=1, device="cpu")
    gc.disable()
    try:
        iterator = iter(loader)
        next(iterator)
        assert len(loader.worker_pids()) == 1
        del iterator
        assert loader.worker_pids() == []
    finally:
        gc.enable()


LAST_OPS = [
    [Normalize(MEAN, STD)],
    [ColorJitter(0.4, 0.4, 0.4), RandomGrayscale(0.5), Normalize(MEAN, STD), ToDtype("float16"), RandomErasing(1.0)],
    [ColorJitter(0.4), RandomHorizontalFlip()],
    [GaussianBlur(3), ToDtype("float32", scale=True)],
    [ToDtype("float32", scale=True), RandomHorizontalFlip(), Normalize(MEAN, STD)],
]


@pytest.mark.parametrize("ops", LAST_OPS, ids=lambda ops: type(ops[0]).__name__)
@pytest.mark.parametrize("mix", [None, MixUp(), CutMix()], ids=str)
def test_last_ops_are_done_on_the_device_from_uint8(
    shards: Path, ops: list[Any], mix: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = Compose([RandomResizedCrop(16), RandomHorizontalFlip(), *ops])
    dataset = ShardDataset(shards, recipe)
    plain = DataLoader(dataset, batch_size=16, shuffle=True, mix=mix)
    loader = DataLoader(dataset, batch_size=16, shuffle=True, mix=mix, device="cpu", channels_last=True, num_workers=1)
    copied: list[torch.dtype] = []

    def recorded(value: Any, device: torch.device) -> Any:
        map_tensors(value, lambda tensor: copied.append(tensor.dtype) or tensor)
        return move(value, device)

    monkeypatch.setattr("feeder.loader.device.feed.move", recorded)
    affine = dataset.recipe.affine
    level = 1.0 if affine is None else float(affine[0].max())
    for (images, labels), (expected, wanted) in zip(loader, plain, strict=True):
        assert images.is_contiguous(memory_format=torch.channels_last)
        assert images.dtype == expected.dtype
        difference = (images.float() - expected.float()).abs()
        assert difference.max() <= 2.01 * level  # each blend on the edge between two levels may take the other
        assert difference.mean() <= 0.1 * level  # float16 is no finer
        assert str(labels) == str(wanted)
    assert copied.count(torch.uint8) == len(loader)


def test_last_ops_of_a_substitute_are_its_own(tmp_path: Path) -> None:
    recipe = Compose([RandomResizedCrop(16), ColorJitter(0.8), Normalize(MEAN, STD)])
    dataset = ShardDataset(write_shards(tmp_path, 16, bad=(3, 9)), recipe)
    options: dict[str, Any] = {"batch_size": 8, "on_error": "skip"}
    for (images, _), (expected, _) in zip(
        DataLoader(dataset, device="cpu", **options), DataLoader(dataset, **options), strict=True
    ):
        assert (images - expected).abs().max() <= 2.01 / 255 / 0.22


@pytest.mark.parametrize("device", [None, "cpu"])
def test_labels_come_as_shares_of_classes_if_their_number_is_given(shards: Path, device: str | None) -> None:
    dataset = ShardDataset(shards, Compose([RandomResizedCrop(16), Normalize(MEAN, STD)]))
    classes = int(max(dataset.targets)) + 1
    options: dict[str, Any] = {"batch_size": 16, "shuffle": True, "device": device}
    plain = DataLoader(dataset, mix=CutMix(), **options)
    loader = DataLoader(dataset, mix=CutMix(num_classes=classes + 2), num_workers=1, **options)
    for step, ((images, shares), (expected, (own, others, weight))) in enumerate(zip(loader, plain, strict=True)):
        assert torch.equal(images, expected)
        assert weight == CutMix().draw(0, 0, 16 * step, 16, 16).label_weight
        assert shares.shape == (len(images), classes + 2)
        assert shares.dtype == torch.float32
        hot = torch.eye(classes + 2)
        torch.testing.assert_close(shares, weight * hot[own] + (1 - weight) * hot[others])


def test_of_several_mixing_ops_each_batch_gets_one(shards: Path) -> None:
    dataset = ShardDataset(shards, Compose([RandomResizedCrop(16), Normalize(MEAN, STD)]))
    options: dict[str, Any] = {"batch_size": 4, "shuffle": True}
    ops = [MixUp(), CutMix(alpha=0.5)]
    each = [list(DataLoader(dataset, mix=op, **options)) for op in ops]
    mixed = DataLoader(dataset, mix=ops, **options)
    picked = []
    for step, (images, (_, _, weight)) in enumerate(list(mixed)):
        found = [torch.equal(images, batches[step][0]) and weight == batches[step][1][2] for batches in each]
        assert sum(found) == 1
        picked.append(found.index(True))
    assert set(picked) == {0, 1}
    mixed.set_epoch(0)
    again = DataLoader(dataset, mix=ops, device="cpu", num_workers=1, **options)
    for (images, labels), (expected, wanted) in zip(again, list(mixed), strict=True):
        assert torch.allclose(images, expected, atol=1e-5)
        assert labels[2] == wanted[2]
    counts = np.bincount([ops.index(pick(ops, 7, 1, step)) for step in range(2000)])
    assert abs(counts[0] - 1000) < 150
    for wrong in ([], [MixUp(), 3], [MixUp(num_classes=7), CutMix()]):
        with pytest.raises(ArgumentError, match="mix"):
            DataLoader(dataset, mix=wrong)  # type: ignore[arg-type]


def test_labels_beyond_num_classes_are_an_error_before_they_reach_a_device(
    shards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = ShardDataset(shards, RandomResizedCrop(16))
    monkeypatch.setattr(dataset.reader, "classes", None)
    assert max(dataset.targets) == 6
    with pytest.raises(ArgumentError, match="MixUp with num_classes=6 takes labels from 0 to 5, got 6"):
        DataLoader(dataset, batch_size=16, mix=MixUp(num_classes=6), device="cpu")


def test_too_few_classes_are_refused_when_the_loader_is_built(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / name).mkdir()
        (tmp_path / name / "0.png").write_bytes(encode(0))
    dataset = FolderDataset(tmp_path, RandomResizedCrop(16))
    DataLoader(dataset, mix=MixUp(num_classes=3))
    with pytest.raises(ArgumentError, match="MixUp with num_classes=2 takes labels from 0 to 1, got 2"):
        DataLoader(dataset, mix=MixUp(num_classes=2))


def test_mixing_depends_on_the_place_in_the_epoch_and_not_on_a_resume(shards: Path) -> None:
    recipe = Compose([RandomResizedCrop(16), Normalize(MEAN, STD)])
    dataset = ShardDataset(shards, recipe)
    loader = DataLoader(dataset, batch_size=16, shuffle=True, mix=MixUp())
    batches = list(loader)
    assert len({labels[2] for _, labels in batches}) == 4
    loader.set_epoch(0)
    iterator = iter(loader)
    next(iterator)
    resumed = DataLoader(dataset, batch_size=16, shuffle=True, mix=MixUp(), device="cpu")
    resumed.load_state_dict(loader.state_dict())
    for (images, labels), (expected, wanted) in zip(resumed, batches[1:], strict=True):
        assert torch.allclose(images, expected, atol=1e-5)
        assert labels[2] == wanted[2]
    with pytest.raises(ArgumentError, match="mix must be"):
        DataLoader(dataset, mix=0.2)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="mix"):
        DataLoader(torch.zeros(4), mix=MixUp())


@pytest.mark.parametrize("generic", [False, True])
def test_static_buffers_keep_their_addresses(shards: Path, generic: bool) -> None:
    dataset: Any = torch.utils.data.TensorDataset(torch.arange(50.0), torch.arange(50)) if generic else _dataset(shards)
    plain = list(DataLoader(dataset, batch_size=8))
    loader = DataLoader(dataset, batch_size=8, device="cpu", static_buffers=True)
    addresses = set()
    for _ in range(2):
        if not generic:
            loader.set_epoch(0)
        for batch, expected in zip(loader, plain, strict=True):
            assert torch.equal(batch[0], expected[0])
            assert torch.equal(batch[1], expected[1])
            addresses.add((batch[0].data_ptr(), batch[1].data_ptr()))
        assert len(batch[0]) == 2
    assert len(addresses) == 1
    with pytest.raises(ArgumentError, match="static_buffers"):
        DataLoader(dataset, static_buffers=True)


def test_static_buffers_refuse_what_does_not_fit() -> None:
    static = StaticBuffers(None)
    first = static.put((torch.ones(3, 2), {"a": torch.zeros(3)}))
    second = static.put((torch.zeros(2, 2), {"a": torch.ones(2)}))
    assert second[0].data_ptr() == first[0].data_ptr()
    assert first[0].tolist() == [[0, 0], [0, 0], [1, 1]]
    for wrong in (torch.zeros(4, 2), torch.zeros(2, 3), torch.zeros(2, 2, dtype=torch.int64)):
        with pytest.raises(ArgumentError, match="tensor 0 of a batch"):
            static.put((wrong,))


@pytest.mark.parametrize("device", ["nowhere", "meta", 1.5])
def test_impossible_devices_are_refused(device: Any) -> None:
    with pytest.raises(ArgumentError):
        checked_device(device)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a CUDA device")
def test_missing_gpu_is_said() -> None:
    with pytest.raises(ArgumentError, match="no CUDA device"):
        checked_device("cuda")


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("workers", [0, 2])
def test_batches_on_the_gpu_are_the_same(shards: Path, workers: int) -> None:
    loader = DataLoader(_dataset(shards), batch_size=8, shuffle=True, num_workers=workers, device="cuda")
    batches = list(loader)
    assert batches[0][0].is_cuda
    check_same(batches, [*DataLoader(_dataset(shards), batch_size=8, shuffle=True)])


def test_batches_made_without_workers_are_pinned_too(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pinned: list[int] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: pinned.append(id(tensor)) or tensor)
    for pin in (False, True):
        batches = list(DataLoader(_dataset(shards), batch_size=25, backend="cpu", pin_memory=pin))
        assert pinned == [id(tensor) for batch in batches for tensor in batch[:3] if pin]


def test_slots_are_page_locked_by_the_gpu_that_they_are_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """On another one it would make a context: with eight ranks, seven on the first GPU that nobody uses."""
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
        """As CUDA has it: one on a captured stream can't be asked, and asking any ends a capture."""

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
    """Whose work is done once it is said to be."""

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
    """Copies that are done only after they were asked about so many times."""

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


@pytest.mark.gpu
@needs_gpu
def test_copies_made_by_the_caller_stay_intact_when_the_source_is_let_go(shards: Path) -> None:
    """The stream is held up, so that slots would be filled again, or be gone, long before the copies run."""
    loader = DataLoader(_dataset(shards), batch_size=4, num_workers=2, pin_memory=True)
    copies = []
    for images, *_ in loader:
        assert images.is_pinned()
        torch.cuda._sleep(50_000_000)
        copies.append(images.to("cuda", non_blocking=True))
        del images, _
    loader.close()
    del loader
    torch.cuda.synchronize()
    expected = [images for images, *_ in DataLoader(_dataset(shards), batch_size=4)]
    assert all(torch.equal(a.cpu(), b) for a, b in zip(copies, expected, strict=True))


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("late", ["feed", "caller"])
def test_batches_are_handed_over_right_whichever_stream_is_late(late: str) -> None:
    """A batch is read once it is there, and its memory is used again once it was read."""
    numbers, device = iter(range(12)), torch.device("cuda", torch.cuda.current_device())
    stream = CopyStream(device)
    sources = [torch.full((1 << 20,), number, dtype=torch.uint8).pin_memory() for number in range(12)]

    def source() -> tuple[int, torch.Tensor]:
        number = next(numbers)
        if late == "feed":
            with torch.cuda.stream(stream.get()):
                torch.cuda._sleep(50_000_000)
        return number, sources[number]

    found = []
    for _, batch in DeviceFeed(_Source(source), DeviceOptions(device, 0, stream)):
        if late == "caller":
            torch.cuda._sleep(50_000_000)
        found.append(batch.clone())
        del batch
    assert [copy.unique().tolist() for copy in found] == [[number] for number in range(12)]


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("ops", LAST_OPS, ids=lambda ops: type(ops[0]).__name__)
def test_last_ops_on_the_gpu_are_those_on_the_cpu(shards: Path, ops: list[Any]) -> None:
    dataset = ShardDataset(shards, Compose([RandomResizedCrop(16), RandomHorizontalFlip(), *ops]))
    options: dict[str, Any] = {"batch_size": 16, "backend": "cpu", "mix": MixUp(), "num_workers": 2}
    loader = DataLoader(dataset, device="cuda", channels_last=True, static_buffers=True, **options)
    addresses = set()
    affine = dataset.recipe.affine
    level = 1.0 if affine is None else float(affine[0].max())
    for (images, labels), (expected, wanted) in zip(loader, DataLoader(dataset, **options), strict=True):
        addresses.add(images.data_ptr())
        assert images.is_contiguous(memory_format=torch.channels_last)
        assert (images.cpu().float() - expected.float()).abs().max() <= 2.01 * level
        assert torch.equal(labels[0].cpu(), wanted[0])
    assert len(addresses) == 1

"""Batches on their way to a device: copied ahead, in their order, none lost to an error."""

from __future__ import annotations

import collections
import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from feeder.dataset.shards import ShardDataset
from feeder.errors import ArgumentError, DecodeError
from feeder.loader.dataloader import DataLoader
from feeder.loader.device.feed import DeviceFeed
from feeder.loader.device.nested import map_tensors, move
from feeder.loader.observe.meter import Meter
from feeder.loader.observe.stats import stage_table
from feeder.loader.options import DeviceOptions, ToDevice, copy_stream
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
from tests.support.batches import check_same
from tests.support.loader_data import write_shards

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
    loader = DataLoader(_dataset(shards), device=ToDevice("cpu", prefetch=ahead), **options)
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
    loader = DataLoader(_dataset(shards), batch_size=8, device=ToDevice("cpu", prefetch=2))
    monkeypatch.setattr("feeder.loader.fast.iterator.HostBatches.ready", lambda self: True)
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
    loader = DataLoader(
        dataset, batch_size=16, shuffle=True, mix=mix, device="cpu", memory_format=torch.channels_last, num_workers=1
    )
    copied: list[torch.dtype] = []

    def recorded(value: Any, device: torch.device) -> Any:
        map_tensors(value, lambda tensor: copied.append(tensor.dtype) or tensor)
        return move(value, device)

    monkeypatch.setattr("feeder.loader.device.feed.move", recorded)
    affine = dataset.recipe.views[0].affine
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


@pytest.mark.parametrize("device", ["nowhere", "meta", 1.5])
def test_impossible_devices_are_refused(device: Any) -> None:
    with pytest.raises(ArgumentError):
        ToDevice(device).target()


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a CUDA device")
def test_missing_gpu_is_said() -> None:
    with pytest.raises(ArgumentError, match="no CUDA device"):
        ToDevice("cuda").target()


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("workers", [0, 2])
def test_batches_on_the_gpu_are_the_same(shards: Path, workers: int) -> None:
    loader = DataLoader(_dataset(shards), batch_size=8, shuffle=True, num_workers=workers, device="cuda")
    batches = list(loader)
    assert batches[0][0].is_cuda
    check_same(batches, [*DataLoader(_dataset(shards), batch_size=8, shuffle=True)])


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
    stream = copy_stream(device)
    sources = [torch.full((1 << 20,), number, dtype=torch.uint8).pin_memory() for number in range(12)]

    def source() -> tuple[int, torch.Tensor]:
        number = next(numbers)
        if late == "feed":
            with torch.cuda.stream(stream()):
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
    loader = DataLoader(
        dataset, device=ToDevice("cuda", static_buffers=True), memory_format=torch.channels_last, **options
    )
    addresses = set()
    affine = dataset.recipe.views[0].affine
    level = 1.0 if affine is None else float(affine[0].max())
    for (images, labels), (expected, wanted) in zip(loader, DataLoader(dataset, **options), strict=True):
        addresses.add(images.data_ptr())
        assert images.is_contiguous(memory_format=torch.channels_last)
        assert (images.cpu().float() - expected.float()).abs().max() <= 2.01 * level
        assert torch.equal(labels[0].cpu(), wanted[0])
    assert len(addresses) == 1

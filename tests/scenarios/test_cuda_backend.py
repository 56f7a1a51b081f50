"""The CUDA backend in a loader, its kernels run by a driver on the CPU: the CPU backend's batches, with any workers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from feeder import DataLoader, ShardDataset, _native
from feeder.decoders.cuda.batch import PlannedImages, upload
from feeder.decoders.cuda.cuda_decoder import CudaDecoder
from feeder.decoders.cuda.plan_stager import PlanStager
from feeder.errors import DecodeError
from feeder.loader.fast.batch_queue import BatchQueue
from feeder.order.buckets import Buckets
from feeder.shard.format.index_file import INDEX_NAME
from feeder.shard.format.open_index import open_index
from feeder.shard.write.encode import EncodeOptions
from feeder.shard.write.shard_options import ShardOptions
from feeder.shard.write.sharding import shard
from feeder.transforms import (
    BUCKET,
    ColorJitter,
    CutMix,
    Normalize,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomShortestSize,
    Resize,
    ToDtype,
    Views,
)
from feeder.transforms.pad_to_batch import PadToBatch
from tests.support import cuda_driver, jpegs
from tests.support.batches import copied_epoch, same_batches
from tests.support.images import encode
from tests.support.rogue_readers import StepReader

KINDS = ("4:2:0", "4:2:2", "4:4:4", "gray", "progressive", "rgb")
CROP = (
    RandomResizedCrop(32, scale=(0.1, 1.0)),
    RandomHorizontalFlip(),
    ToDtype("float32"),
    Normalize((0.5,) * 3, (0.25,) * 3),
)
COUNT = 26


@pytest.fixture(autouse=True)
def _driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cuda_driver.install(monkeypatch, tmp_path)


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("cuda")
    for i in range(COUNT - 1):
        path = root / "images" / f"{i % 3}" / f"{i:02d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        size = (140 + 9 * i, 250 - 5 * i)
        if i < 12:
            data = jpegs.jpeg(KINDS[i % len(KINDS)], size, i)
        else:
            data = encode(jpegs.photo(i, *size), orientation=1 + i % 8, quality=95)
        path.write_bytes(data)
    jpegs.photo(0, 90, 80).save(root / "images" / "0" / f"{COUNT - 1}.png")
    for name, options in (
        ("seekable", ShardOptions()),
        ("packed", ShardOptions(encode=EncodeOptions("packed"))),
        ("keep", ShardOptions(encode=EncodeOptions("keep"))),
    ):
        shard(str(root / "images"), str(root / name), options)
    return {name: root / name for name in ("seekable", "packed", "keep")}


def epochs(
    folder: Path, recipe: Any, fields: tuple[str, ...] = ("index",), *, by_step: bool = False, **options: Any
) -> tuple[list[Any], list[Any], dict[str, Any]]:
    """An epoch of the backend, the same of the CPU's, and the stats."""
    dataset = ShardDataset(folder, recipe, fields=fields)
    if by_step:
        dataset.reader = StepReader(str(folder / INDEX_NAME))
    options = {"batch_size": 7, "shuffle": True, "seed": 3} | options
    loader = DataLoader(dataset, backend="cuda", **options)
    found = copied_epoch(loader)
    stats = loader.stats()
    loader.close()
    return found, copied_epoch(DataLoader(dataset, backend="cpu", **options | {"num_workers": 0})), stats


@pytest.mark.pairwise
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", ["seekable", "packed", "keep"])
@pytest.mark.parametrize("by_step", [False, True], ids=["in one call", "step by step"])
def test_batches_are_those_of_the_cpu_backend(sets: dict[str, Path], name: str, workers: int, by_step: bool) -> None:
    found, expected, stats = epochs(sets[name], CROP, by_step=by_step, num_workers=workers)
    assert same_batches(found, expected)
    counts = {key: stats[key] for key in ("backend", "cuda_images", "cpu_images", "redone_images")}
    by_workers = 3 if name == "keep" else 1  # the PNG; where nothing is transcoded, progressive JPEGs
    assert counts == {
        "backend": "cuda",
        "cuda_images": COUNT - by_workers,
        "cpu_images": by_workers,
        "redone_images": 0,
    }


@pytest.mark.parametrize(
    ("recipe", "options"),
    [
        (Views([CROP, (RandomResizedCrop(24), RandomHorizontalFlip())]), {}),
        (
            (*CROP[:2], ColorJitter(0.4, 0.4, 0.4), Normalize((0.5,) * 3, (0.25,) * 3)),
            {"memory_format": torch.channels_last},
        ),
        (CROP, {"mix": CutMix(), "memory_format": torch.channels_last}),
        ((RandomResizedCrop(BUCKET), *CROP[1:]), {"sizes": Buckets(sizes=[(24, 40), (40, 24)])}),
        ((RandomShortestSize([30, 38]), *CROP[1:]), {"sizes": PadToBatch(multiple=8)}),
    ],
    ids=["views", "color", "mixed", "buckets", "padded"],
)
def test_what_else_a_loader_does(sets: dict[str, Path], recipe: Any, options: dict[str, Any]) -> None:
    found, expected, stats = epochs(sets["seekable"], recipe, num_workers=1, **options)
    torch.testing.assert_close(found, expected, rtol=0, atol=0.02)  # after colors rounded otherwise; one level is 0.016
    assert stats["cuda_images"] > 3 * stats["cpu_images"]
    if "memory_format" in options:
        assert found[0][0].is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("encode", ["seekable", "packed"])
def test_plans_of_small_whole_images_find_room_in_the_slot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encode: Any
) -> None:
    """Their tables are a large part of them; what finds no room costs a message and a copy."""
    for i in range(48):
        (tmp_path / "images" / "0").mkdir(parents=True, exist_ok=True)
        (tmp_path / "images" / "0" / f"{i}.jpg").write_bytes(jpegs.jpeg("4:2:0", (120, 90), i))
    shard(str(tmp_path / "images"), str(tmp_path / "set"), ShardOptions(encode=EncodeOptions(encode)))
    runs: list[int] = []

    def noted(device: torch.device, plans: list[Any]) -> Any:
        runs.append(len(_native.upload_runs(plans)[1]))
        return upload(device, plans)

    monkeypatch.setattr("feeder.decoders.cuda.cuda_decoder.upload", noted)
    epochs(tmp_path / "set", (Resize((32, 32)),), batch_size=16, num_workers=1)
    assert runs == [1, 1, 1]  # those of a part lie back to back


def test_usual_samples_are_planned_without_a_step_in_python(
    sets: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    step_by_step: list[int] = []
    stage = PlanStager.stage

    def counting(stager: PlanStager, buffers: Any, *rest: Any) -> Any:
        step_by_step.append(len(buffers))
        return stage(stager, buffers, *rest)

    monkeypatch.setattr(PlanStager, "stage", counting)
    for fields in ((), ("index",)):
        step_by_step.clear()
        epochs(sets["seekable"], CROP, fields)
        assert step_by_step == [1]  # the PNG


@pytest.mark.parametrize("workers", [0, 2])
def test_a_run_resumes_at_the_next_batch(sets: dict[str, Path], workers: int) -> None:
    dataset = ShardDataset(sets["packed"], CROP)
    options: dict[str, Any] = {"batch_size": 8, "shuffle": True, "num_workers": workers, "backend": "cuda"}
    running = DataLoader(dataset, **options)
    iterator = iter(running)
    first = next(iterator)[0].clone()
    state = running.state_dict()
    rest = copied_epoch(iterator)
    resumed = DataLoader(dataset, **options)
    resumed.load_state_dict(state)
    assert same_batches(copied_epoch(resumed), rest)
    assert len(first) == 8


class _LateGuard:
    """A guard for whose copies a slot waits a while; see :class:`feeder.loader.slots.slots.Slots`."""

    def __init__(self) -> None:
        self.marks = 0

    def record(self) -> list[int]:
        self.marks += 1
        return [0]

    def done(self, mark: list[int]) -> bool:
        mark[0] += 1
        return mark[0] > 5


def test_slots_are_page_locked_and_guarded_as_the_gpu_reads_them(
    sets: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    guard, locked = _LateGuard(), list[Any]()
    monkeypatch.setattr("feeder.loader.fast.setup.slot_guard", lambda options: guard)
    monkeypatch.setattr("feeder.loader.fast.engine.page_lock", locked.append)
    found, expected, _ = epochs(sets["seekable"], CROP, num_workers=2)
    assert same_batches(found, expected)
    assert len(locked) == 1
    assert guard.marks == len(found)


@pytest.mark.parametrize("ends", ["broken off", "failed"])
def test_a_batch_started_ahead_is_waited_for_where_the_epoch_ends(
    sets: dict[str, Path], monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    begun, waited = set[Any](), set[Any]()
    faults, start = PlannedImages.faults, CudaDecoder.start

    def noted_start(decoder: CudaDecoder, staged: Any) -> bool:
        begun.add(staged)
        return start(decoder, staged)

    def noted(planned: PlannedImages) -> Any:
        waited.add(planned)
        return faults(planned)

    def failing(*_: Any, **__: Any) -> Any:
        raise OSError("no more")

    monkeypatch.setattr(BatchQueue, "ready", lambda queue: True)  # so that every batch is started ahead
    monkeypatch.setattr(CudaDecoder, "start", noted_start)
    monkeypatch.setattr(PlannedImages, "faults", noted)
    loader = DataLoader(ShardDataset(sets["seekable"], CROP), batch_size=7, num_workers=1, backend="cuda")
    iterator = iter(loader)
    next(iterator)
    assert (len(begun), len(waited)) == (2, 1)
    if ends == "failed":
        monkeypatch.setattr(CudaDecoder, "finish", failing)
        with pytest.raises(OSError, match="no more"):
            next(iterator)
    loader.close()
    assert len(waited) == len(begun) > 1


@pytest.fixture
def damaged(sets: dict[str, Path], tmp_path: Path) -> tuple[Path, int]:
    """A set with an image of which only decoding shows that it is damaged, and its id."""
    images, out = tmp_path / "images", tmp_path / "set"
    for i in range(10):
        path = images / "0" / f"{i}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpegs.jpeg("4:2:0", (120, 100), i))
    shard(str(images), str(out), ShardOptions(shuffle=False))
    (tar,) = out.glob("*.tar")
    data = bytearray(tar.read_bytes())
    bad = 4
    _, offset, length = open_index(str(out / INDEX_NAME)).place(bad)
    first = offset + jpegs.entropy_offset(bytes(data[offset : offset + length])) + 1
    for at in range(first, offset + length - 2):
        if data[at] not in (0x00, 0xFF) and data[at - 1] != 0xFF:
            data[at] = 0x11  # other codes, and still no marker
    tar.write_bytes(data)
    return out, bad


def test_a_damaged_image_is_named_or_replaced_as_by_the_cpu_backend(damaged: tuple[Path, int]) -> None:
    folder, bad = damaged
    for workers in (0, 2):
        options: dict[str, Any] = {"batch_size": 5, "num_workers": workers, "seed": 3}
        dataset = ShardDataset(folder, CROP, fields=("index",))
        with pytest.raises(DecodeError) as expected:
            list(DataLoader(dataset, backend="cpu", **options))
        with pytest.raises(DecodeError) as found:
            list(DataLoader(dataset, backend="cuda", **options))
        assert str(found.value) == str(expected.value)
        loaders = [DataLoader(dataset, backend=name, on_error="skip", **options) for name in ("cuda", "cpu")]
        ours, theirs = map(copied_epoch, loaders)
        assert same_batches(ours, theirs)
        assert loaders[0].stats()["substitutions"] == loaders[1].stats()["substitutions"]
        assert [each["position"] for each in loaders[0].stats()["substitutions"]] == [bad]
        assert loaders[0].stats()["redone_images"] == 1

"""The loader with the DALI backend: what it does with any backend, all over again, and what only this one has."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import itertools
import os
import subprocess
import sys
import time
import types
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from feeder.dataset.folders import FolderDataset
from feeder.dataset.shards import ShardDataset
from feeder.decoders.dali import decoder as dali_backend
from feeder.decoders.dali.pipeline import DaliPipeline, PipelineError
from feeder.decoders.dali.queue import DaliQueue
from feeder.decoders.staged.capacity import plan_capacity, planning_sample
from feeder.decoders.staged.staged import ROW, Staged
from feeder.errors import BackendError, DecodeError
from feeder.loader.dataloader import DataLoader
from feeder.loader.fast.batches import Finished
from feeder.loader.fast.trainer_decode import DecodeFeed
from feeder.loader.slots.image_slots import Samples, SlotView
from feeder.transforms import (
    CenterCrop,
    ColorJitter,
    Compose,
    CutMix,
    GaussianBlur,
    Lambda,
    MixUp,
    Normalize,
    RandAugment,
    RandomAffine,
    RandomCrop,
    RandomErasing,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomRotation,
    Resize,
)
from tests.loader import test_bad_samples, test_device, test_loader, test_resume, test_workers
from tests.scenarios import test_frameworks
from tests.support import images
from tests.support.batches import copied_epoch, same_batches, sample_ids
from tests.support.loader_data import write_shards

pytest.importorskip("nvidia.dali", reason="DALI is not installed")

import nvidia.dali as dali_library

from tests.loader.test_bad_samples import (
    test_a_bad_sample_that_a_sampler_repeats_is_named_each_time,
    test_bad_sample_raises_by_name_and_the_next_batch_follows,
    test_nothing_but_bad_samples_is_an_error_even_when_skipping,
    test_skipped_samples_have_the_same_substitutes_whatever_the_workers,
    test_unreadable_files_of_a_folder_are_skipped_too,
)

# ruff: noqa: F401 -- collected here again, with this module's shards and the loader of the fixture below
from tests.loader.test_device import (
    test_bad_sample_is_raised_in_its_turn,
    test_batches_on_the_cpu_are_the_same,
    test_workers_end_when_an_iterator_with_a_device_is_let_go,
)
from tests.loader.test_loader import (
    test_an_explicit_sampler_replaces_order_and_rank_split,
    test_break_and_iterating_again,
    test_copied_loader_works,
    test_iterator_of_a_loader_that_is_gone,
    test_length_of_loader_and_iterator,
    test_ranks_take_equal_batches_and_share_the_epoch,
    test_same_pixels_and_order_whatever_the_workers,
    test_two_iterators_at_once,
    test_what_a_sampler_repeats_is_augmented_anew_each_time,
    test_what_comes_after_the_crop_is_drawn_anew_for_each_repeat_too,
    test_worker_init_fn_runs_in_every_worker,
)
from tests.loader.test_resume import (
    test_resume_with_an_explicit_sampler_skips_its_batches,
    test_resume_with_other_world_sizes_sees_every_sample_once,
)
from tests.loader.test_workers import (
    test_a_bug_in_a_worker_is_raised_with_its_traceback,
    test_killing_any_worker_at_any_step_changes_nothing,
    test_sample_that_kills_every_worker_ends_with_an_error_that_names_it,
    test_stopped_worker_does_not_hold_up_closing,
    test_worker_that_cannot_start_says_why,
)

RECIPE = Compose([RandomResizedCrop(16), RandomHorizontalFlip(), Normalize([0.5] * 3, [0.25] * 3)])
# What kernel 1 does not do comes before and after it.
NOISY = Compose(
    [
        RandomResizedCrop(20),
        RandomAffine(20, (0.1, 0.1), interpolation="bilinear"),
        ColorJitter(0.2, 0.2, 0.2, 0.1),
        GaussianBlur(3),
        RandomCrop(16, 2),
        Normalize([0.5] * 3, [0.25] * 3),
        RandomErasing(0.5, value="random"),
    ]
)


class DaliLoader(DataLoader[Any]):
    """For feeder's datasets with this backend unless another is asked for."""

    def __init__(self, dataset: Any, *arguments: Any, backend: str = "dali", **options: Any) -> None:
        ours = isinstance(dataset, (ShardDataset, FolderDataset))
        super().__init__(dataset, *arguments, backend=backend if ours else "auto", **options)


@pytest.fixture(autouse=True)
def _with_dali(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (test_bad_samples, test_device, test_frameworks, test_loader, test_resume, test_workers):
        monkeypatch.setattr(module, "DataLoader", DaliLoader)
        if hasattr(module, "write_shards"):
            monkeypatch.setattr(module, "write_shards", functools.partial(write_shards, jpegs=True))


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_shards(tmp_path_factory.mktemp("shards"), 50, jpegs=True)


@pytest.mark.parametrize("workers", [0, 2])
def test_pixels_are_the_other_backends_and_labels_and_fields_too(shards: Path, workers: int) -> None:
    dataset = ShardDataset(shards, RECIPE, fields=("index", "key"))
    loader = DaliLoader(dataset, batch_size=8, shuffle=True, num_workers=workers)
    batches = copied_epoch(loader)
    assert [len(batch[0]) for batch in batches] == [8] * 6 + [2]
    for batch, other in zip(batches, DataLoader(dataset, batch_size=8, shuffle=True, backend="pillow"), strict=True):
        assert batch[0].dtype == torch.float32
        assert (batch[0] - other[0]).abs().mean() < 1.5 / 255 / 0.25
        assert torch.equal(batch[1], other[1])
        assert batch[3] == other[3]
    stats = loader.stats()
    assert (stats["backend"], stats["dali_images"], stats["cpu_images"]) == ("dali", 33, 17)


@pytest.mark.parametrize("workers", [0, 2])
def test_resume_after_every_step(shards: Path, workers: int) -> None:
    dataset = ShardDataset(shards, RECIPE, fields=("index",))
    options: dict[str, Any] = {"batch_size": 16, "shuffle": True, "num_workers": workers}
    running, states = DaliLoader(dataset, **options), []
    epoch = []
    for batch in running:
        epoch.append(tuple(x.clone() for x in batch))
        states.append(running.state_dict())
    for step, state in enumerate(states[:-1], 1):
        resumed = DaliLoader(dataset, **options)
        resumed.load_state_dict(state)
        assert same_batches(copied_epoch(resumed), epoch[step:])


def test_what_finds_no_room_in_a_slot_travels_another_way(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def narrow(*arguments: Any) -> Any:
        narrowed.append(share)
        return plan_capacity(*arguments)._replace(share_bytes=share)

    narrowed: list[int] = []
    dataset = ShardDataset(shards, RECIPE)
    expected = copied_epoch(DaliLoader(dataset, batch_size=16))
    for workers, share in ((0, 128), (2, 128), (2, 640)):
        assert share >= ROW.itemsize
        with monkeypatch.context() as patched:
            patched.setattr("feeder.loader.fast.setup.plan_capacity", narrow)
            assert same_batches(copied_epoch(DaliLoader(dataset, batch_size=16, num_workers=workers)), expected)
    assert narrowed == [128, 128, 640]


def test_room_is_planned_from_the_index(tmp_path: Path, shards: Path) -> None:
    reader = ShardDataset(shards).reader
    room = plan_capacity(reader.peek(planning_sample(len(reader), in_shards=True)), (16, 16), 4)
    assert room.share_bytes % 64 == 0
    largest = max(max(reader.index.length.tolist()), 3 * 16 * 16)  # type: ignore[attr-defined]
    assert 3 * 16 * 16 < room.share_bytes <= largest + ROW.itemsize + 64
    assert room.preallocate == (24, 32)
    # One large scan among many photos sets neither the room nor what is reserved.
    (tmp_path / "c").mkdir()
    photo = images.encode(images.pixels(1, 64, 64), quality=50)
    scan = images.encode(Image.new("RGB", (2500, 2500)), quality=50)
    for i in range(63):
        (tmp_path / f"c/{i}.jpg").write_bytes(photo)
    (tmp_path / "c/x.jpg").write_bytes(scan)
    files = FolderDataset(tmp_path).reader
    room = plan_capacity(files.peek(planning_sample(len(files), in_shards=False)), (8, 8), 64)
    assert room.outlier_pixels < 2500 * 2500
    assert room.preallocate == (64, 64)
    assert room.share_bytes < 2 * len(photo) + ROW.itemsize


@pytest.mark.parametrize(("workers", "device"), [(0, None), (2, None), (2, "cpu")])
def test_an_image_that_only_the_decoder_finds_bad(tmp_path: Path, workers: int, device: str | None) -> None:
    options: dict[str, Any] = {"batch_size": 8, "num_workers": workers, "device": device}
    good = ShardDataset(write_shards(tmp_path / "good", 40, jpegs=True), RECIPE, fields=("index", "key"))
    cut = ShardDataset(write_shards(tmp_path / "cut", 40, jpegs=True, cut=(10, 17)), RECIPE, fields=("index", "key"))
    expected = copied_epoch(DaliLoader(good, **options))
    iterator = iter(DaliLoader(cut, **options))
    assert same_batches([next(iterator)], expected[:1])
    for key, shard in (("00000010", "shard-000000.tar"), ("00000017", "shard-000001.tar")):
        with pytest.raises(DecodeError, match=key) as caught:
            next(iterator)
        assert caught.value.shard == shard
    assert same_batches(copied_epoch(iterator), expected[3:])
    again = iter(DaliLoader(cut, sampler=[10, 10], **(options | {"batch_size": 1})))
    for _ in range(2):
        with pytest.raises(DecodeError, match="00000010"):
            next(again)

    loader = DaliLoader(cut, on_error="skip", **options)
    batches, stats = copied_epoch(loader), loader.stats()
    assert [len(batch[0]) for batch in batches] == [8] * 5
    assert [entry["key"] for entry in stats["substitutions"]] == ["00000010", "00000017"]
    assert (stats["skipped"], stats["dali_images"] > 0, stats["redone_images"] > 0) == (2, True, True)
    for entry in stats["substitutions"]:
        batch, row = batches[entry["position"] // 8], entry["position"] % 8
        substitute = entry["substitute"]
        assert substitute not in (10, 17)
        assert batch[1][row] == substitute % 7
        assert batch[2][row] == substitute
        assert batch[3][row] == f"{substitute:08d}"
        # The same pixels as those of the sample itself in its own place.
        assert torch.equal(batch[0][row], expected[substitute // 8][0][substitute % 8])
    for row in range(40):
        if row not in (10, 17):
            difference = batches[row // 8][0][row % 8] - expected[row // 8][0][row % 8]
            assert difference.abs().max() <= 1.01 / 255 / 0.25  # a level, as their batch may have been redone


@pytest.mark.parametrize("call", [1, 2, 3])
@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (dali_library.Pipeline, "feed_input"),
        (dali_library.Pipeline, "schedule_run"),
        (dali_library.Pipeline, "share_outputs"),
        (dali_library.Pipeline, "release_outputs"),
        (DaliPipeline, "submit"),
        (DaliPipeline, "collect"),
        (DaliQueue, "start"),
        (DaliQueue, "images"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_interrupt_at_any_place_mixes_nothing_up(
    shards: Path, owner: type, name: str, call: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If DALI had, or gave, a batch that nobody has recorded yet, all later ones would be another's."""
    dataset = ShardDataset(shards, RECIPE, fields=("index",))
    loader = DaliLoader(dataset, batch_size=8, shuffle=True)
    expected = list(loader)
    real, calls = getattr(owner, name), itertools.count(1)

    def interrupted(*arguments: Any, **options: Any) -> Any:
        result = real(*arguments, **options)
        if next(calls) == call:
            raise KeyboardInterrupt
        return result

    loader.set_epoch(0)
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, interrupted)
        with pytest.raises(KeyboardInterrupt):
            list(loader)
    for _ in range(2):
        loader.set_epoch(0)
        for (batch, labels, index), (wanted, wanted_labels, wanted_index) in zip(loader, expected, strict=True):
            torch.testing.assert_close(batch, wanted, atol=1.01 / 255 / 0.25, rtol=0)
            assert torch.equal(labels, wanted_labels)
            assert torch.equal(index, wanted_index)


@pytest.mark.parametrize("on_error", ["raise", "skip"])
@pytest.mark.parametrize("mix", [None, MixUp(), CutMix()], ids=str)
def test_what_only_dali_fails_on_is_kept(
    shards: Path, mix: Any, on_error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the CPU can decode it: the same samples at the same places, whatever the backend."""
    dataset = ShardDataset(shards, RECIPE, fields=("index",))
    options: dict[str, Any] = {"batch_size": 8, "shuffle": True, "num_workers": 2, "mix": mix, "device": "cpu"}
    expected = list(DaliLoader(dataset, **options))
    collect, runs = DaliPipeline.collect, itertools.count()

    def fails_now_and_then(pipeline: DaliPipeline, ticket: object, stream: Any = None) -> Any:
        if next(runs) % 3 == 1:
            pipeline.rebuild()
            raise PipelineError("it fails")
        return collect(pipeline, ticket, stream)

    monkeypatch.setattr(DaliPipeline, "collect", fails_now_and_then)
    loader = DaliLoader(dataset, on_error=on_error, **options)
    for (batch, labels, index), (wanted, wanted_labels, wanted_index) in zip(loader, expected, strict=True):
        # A level of a pixel, as the CPU rounds otherwise.
        torch.testing.assert_close(batch, wanted, atol=1.01 / 255 / 0.25, rtol=0)
        torch.testing.assert_close(labels, wanted_labels, atol=0, rtol=0)
        assert torch.equal(index, wanted_index)
    stats = loader.stats()
    assert (stats["skipped"], stats["substitutions"]) == (0, [])
    assert 0 < stats["redone_images"] < 33
    assert stats["redone_images"] + stats["dali_images"] == 33


@pytest.mark.parametrize("workers", [0, 2])
def test_held_batches_never_change(shards: Path, workers: int) -> None:
    dataset = ShardDataset(shards, RECIPE)
    loader = DaliLoader(dataset, batch_size=4, num_workers=workers, persistent_workers=workers > 0)
    held = list(loader)  # warns of nothing: they stand in memory of their own
    copies = [tuple(x.clone() for x in batch) for batch in held]
    for _ in range(2):
        for _ in loader:
            pass
    assert same_batches(held, copies)
    assert same_batches(held, copied_epoch(DaliLoader(dataset, batch_size=4)))


def test_two_loaders_at_once_train_and_validation(shards: Path) -> None:
    train = ShardDataset(shards, RECIPE)
    validation = ShardDataset(shards, Compose([Resize(20), CenterCrop(16)]))
    options: dict[str, Any] = {"batch_size": 8, "num_workers": 1}
    first, second = (
        copied_epoch(DaliLoader(train, shuffle=True, **options)),
        copied_epoch(DaliLoader(validation, **options)),
    )
    loaders = DaliLoader(train, shuffle=True, **options), DaliLoader(validation, **options)
    pairs = list(zip(*loaders, strict=True))
    assert same_batches([a for a, _ in pairs], first)
    assert same_batches([b for _, b in pairs], second)
    loaders[0].set_epoch(0)
    half = iter(loaders[0])
    assert same_batches([next(half) for _ in range(3)], first[:3])
    loaders[1].set_epoch(0)
    assert same_batches(copied_epoch(loaders[1]), second)
    loaders[1].close()
    assert same_batches(copied_epoch(half), first[3:])


@pytest.mark.parametrize("workers", [0, 2])
def test_lightning_trains_and_validates_with_two_loaders(shards: Path, tmp_path: Path, workers: int) -> None:
    """Epoch after epoch, with a last partial batch, a sanity check that is broken off, and limited epochs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        test_frameworks.test_lightning_sees_every_sample_of_every_epoch(shards, tmp_path, "shards", workers)


def test_lightning_resumes_in_the_middle_of_an_epoch(shards: Path, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        test_frameworks.test_lightning_resumes_in_the_middle_of_an_epoch(shards, tmp_path, "shards")


def test_closing_in_any_order_at_any_time_ends_well(shards: Path) -> None:
    loaders = [DaliLoader(ShardDataset(shards, RECIPE), batch_size=8, num_workers=k) for k in (0, 1)]
    iterators = [iter(loader) for loader in loaders]
    first = [next(iterator) for iterator in iterators]
    loaders[1].close()
    del iterators[0]
    loaders[0].close()
    loaders[0].close()
    with pytest.raises(StopIteration):
        next(iterators[0])
    for loader, batch in zip(loaders, first, strict=True):
        loader.set_epoch(0)
        assert same_batches([next(iter(loader))], [batch])


def test_the_trainers_decoding_is_what_the_stats_name_as_the_limit(
    shards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish = dali_backend.DaliDecoder.finish

    def slowly(*arguments: Any, **options: Any) -> Any:
        time.sleep(0.5)
        return finish(*arguments, **options)

    monkeypatch.setattr(dali_backend.DaliDecoder, "finish", slowly)
    loader = DaliLoader(ShardDataset(shards, RECIPE), batch_size=25)
    for _ in loader:
        pass
    assert loader.stats()["bottleneck"] == "decode"


def test_what_dali_makes_is_page_locked_if_wanted_and_what_it_reads_is_not(
    shards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It copies what it is fed to page-locked memory of its own, as a GPU would otherwise read it at any time."""
    pinned: list[int] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: pinned.append(id(tensor)) or tensor)
    batches = list(DaliLoader(ShardDataset(shards, RECIPE), batch_size=25, num_workers=2, pin_memory=True))
    assert pinned == [id(tensor) for batch in batches for tensor in batch]


def test_a_slot_that_dali_keeps_until_it_is_fed_again_is_reckoned_with(
    shards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU it does; the caller would get a warning for it."""
    kept: list[Any] = []
    submit = DaliPipeline.submit

    def keeping(self: DaliPipeline, rows: Any, payloads: Any, ticket: object) -> None:
        submit(self, rows, payloads, ticket)
        kept[:-1] = []
        kept.append([np.frombuffer(payload, np.uint8) for payload in payloads])

    monkeypatch.setattr(DaliPipeline, "submit", keeping)
    loader = DaliLoader(ShardDataset(shards, RECIPE), batch_size=4, num_workers=1, prefetch_factor=1, device="cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(list(loader)) == len(loader) > 5


def test_the_pipeline_is_built_once_and_closed_with_the_loader(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from feeder.decoders.dali import pipeline as dali_pipeline

    built: list[Any] = []
    build = dali_pipeline.build_pipeline
    monkeypatch.setattr(dali_pipeline, "build_pipeline", lambda options: built.append(options) or build(options))
    loader = DaliLoader(ShardDataset(shards, RECIPE), batch_size=70, num_workers=1)
    for _ in range(3):
        for _ in loader:
            break
        for _ in loader:
            pass
    assert [options.batch_size for options in built] == [70]
    assert built[0].preallocate == (24, 32)
    loader.close()
    gc.collect()
    assert len(copied_epoch(loader)) == 1
    assert len(built) == 2


@pytest.mark.parametrize(("given", "built"), [(None, 0.65), (0.0, 0.0), (0.3, 0.3)])
def test_the_load_of_the_hardware_engine_is_the_loaders_or_dalis_own(
    shards: Path, given: float | None, built: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    from feeder.decoders.dali import pipeline as dali_pipeline

    asked: list[float] = []
    build = dali_pipeline.build_pipeline
    monkeypatch.setattr(
        dali_pipeline, "build_pipeline", lambda options: asked.append(options.hw_decoder_load) or build(options)
    )
    next(iter(DaliLoader(ShardDataset(shards, RECIPE), batch_size=16, hw_decoder_load=given)))
    assert asked == [built]


def test_batches_in_parts_under_a_memory_limit_are_the_same(shards: Path) -> None:
    dataset = ShardDataset(shards, RECIPE)
    expected = copied_epoch(DaliLoader(dataset, batch_size=16))
    limited = DaliLoader(dataset, batch_size=16, num_workers=1, gpu_memory_limit_bytes=5 * 3 * 24 * 32)
    assert same_batches(copied_epoch(limited), expected)
    assert limited.stats()["dali_images"] == 33


@pytest.mark.parametrize("recipe", [RECIPE, NOISY], ids=["in the same pass", "after the noise"])
@pytest.mark.parametrize("mix", [MixUp(), CutMix()], ids=str)
def test_batches_are_mixed_and_the_substitutes_too(tmp_path: Path, mix: Any, recipe: Compose) -> None:
    dataset = ShardDataset(write_shards(tmp_path, 16, jpegs=True, cut=(10,)), recipe)
    options: dict[str, Any] = {"batch_size": 8, "on_error": "skip"}
    loader = DaliLoader(dataset, mix=mix, channels_last=True, device="cpu", **options)
    iterator = iter(DaliLoader(dataset, mix=mix, device="cpu", batch_size=8))
    whole = next(iterator)[0]
    with pytest.raises(DecodeError, match="00000010"):
        next(iterator)
    for step, (batch, (labels, others, weight)) in enumerate(loader):
        if step == 0:
            torch.testing.assert_close(batch, whole, atol=1e-5, rtol=0)
            plain = list(DaliLoader(dataset, **options))
        assert batch.is_contiguous(memory_format=torch.channels_last)
        drawn = mix.draw(0, 0, 8 * step, 16, 16)
        torch.testing.assert_close(batch, drawn.apply(plain[step][0]), atol=1e-5, rtol=0)
        assert torch.equal(labels, plain[step][1])
        assert torch.equal(others, labels.roll(1))
        assert weight == drawn.label_weight


def test_static_buffers_and_decoded_batches(shards: Path) -> None:
    dataset = ShardDataset(shards, RECIPE)
    plain = list(DaliLoader(dataset, batch_size=8))
    loader = DaliLoader(dataset, batch_size=8, device="cpu", static_buffers=True, num_workers=1)
    addresses = set()
    for (batch, labels), (expected, wanted) in zip(loader, plain, strict=True):
        addresses.add(batch.data_ptr())
        assert torch.equal(batch, expected)
        assert torch.equal(labels, wanted)
    assert len(addresses) == 1


def test_workers_have_neither_dali_nor_torch(shards: Path) -> None:
    loader = DaliLoader(ShardDataset(shards, RECIPE), batch_size=8, num_workers=1)
    iterator = iter(loader)
    next(iterator)
    (pid,) = loader.worker_pids()
    mapped = Path(f"/proc/{pid}/maps").read_text()
    assert "/torch/" not in mapped
    assert "/nvidia/" not in mapped
    assert "/nvidia/dali/" in Path("/proc/self/maps").read_text()


def test_a_script_without_a_main_guard_that_closes_nothing_ends_well(shards: Path) -> None:
    script = f"""
from feeder.dataset.shards import ShardDataset
from feeder.loader.dataloader import DataLoader
from feeder.transforms import RandomResizedCrop
loader = DataLoader(ShardDataset({str(shards)!r}, RandomResizedCrop(8)), 10, num_workers=2, backend="dali")
iterator = iter(loader)
print(len(next(iterator)[1]), len(next(iterator)[1]))
"""
    environment = os.environ | {"PYTHONWARNINGS": "ignore"}  # DALI's dependencies have some
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=environment, timeout=250
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "10 10\n", "")


def test_what_dali_cant_run_is_refused_when_the_loader_is_built(shards: Path) -> None:
    for op, reason in ((Lambda(abs), "it is a function"), (RandomRotation(9, expand=True), "with expand=True")):
        recipe = Compose([RandomResizedCrop(16), op, CenterCrop(16)])
        with pytest.raises(BackendError, match=f"'dali' can't run {type(op).__name__}: {reason}.*backend='cpu'"):
            DataLoader(ShardDataset(shards, recipe), backend="dali")


@pytest.mark.parametrize(
    "ops",
    [
        [ColorJitter(0.4, 0.4, 0.4), Normalize([0.5] * 3, [0.25] * 3), RandomErasing(1.0)],
        [RandAugment(), *NOISY.transforms[1:], RandomHorizontalFlip()],
    ],
    ids=["one pass", "batched ops"],
)
def test_ops_after_the_crop_are_the_same_whatever_the_workers_and_after_a_resume(shards: Path, ops: list[Any]) -> None:
    dataset = ShardDataset(shards, Compose([RandomResizedCrop(16), RandomHorizontalFlip(), *ops]))
    expected = copied_epoch(DaliLoader(dataset, 8))
    running = DaliLoader(dataset, 8, num_workers=2)
    iterator = iter(running)
    assert same_batches([next(iterator)], expected[:1])
    resumed = DaliLoader(dataset, 16, num_workers=1)  # other images lie together in a batch
    resumed.load_state_dict(running.state_dict())
    rest = torch.cat([batch[0] for batch in resumed])
    assert torch.equal(rest, torch.cat([batch[0] for batch in expected[1:]]))
    assert same_batches(copied_epoch(iterator), expected[1:])


@pytest.mark.parametrize("other", ["cpu", "pillow"])
def test_ops_after_the_crop_give_the_other_backends_pixels(shards: Path, other: str) -> None:
    dataset = ShardDataset(shards, NOISY)
    loader, expected = (DataLoader(dataset, 10, backend=name) for name in ("dali", other))
    for (found, _), (wanted, _) in zip(loader, expected, strict=True):
        assert (found - wanted).abs().mean() < 1.5 / 255 / 0.25
    assert loader.stats()["dali_images"] == 33


def test_a_missing_dali_is_one_line_with_the_remedy(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nvidia.dali", None)
    with pytest.raises(BackendError, match=r"pip install 'feeder-data\[dali-cuda13\]'") as caught:
        DataLoader(ShardDataset(shards, RECIPE), backend="dali")
    assert "\n" not in str(caught.value)


def test_auto_takes_dali_for_a_gpu_only_and_says_so(
    shards: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level("INFO")
    dataset = ShardDataset(shards, RECIPE)
    assert DataLoader(dataset).stats()["backend"] == "cpu"
    assert DataLoader(dataset, device="cpu").stats()["backend"] == "cpu"
    assert "backend 'auto' is 'cpu'" in caplog.text
    asked = []

    def on_the_cpu(*, device: str, **options: Any) -> Any:
        asked.append(device)
        return made(**options)

    made = dali_backend.DaliDecoder
    monkeypatch.setattr(dali_backend, "DaliDecoder", on_the_cpu)
    monkeypatch.setattr("feeder.loader.dataloader.checked_device", lambda device: torch.device("cuda", 1))
    assert DataLoader(dataset, device="cuda:1").stats()["backend"] == "dali"
    assert asked == ["cuda:1"]
    assert "backend 'auto' is 'dali'" in caplog.text


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("workers", [0, 2])
def test_batches_decoded_on_the_gpu_stay_as_they_are(tmp_path: Path, workers: int) -> None:
    """Against the CPU's pipeline, with a bad image, on a slowed stream, all of them held."""
    good = ShardDataset(write_shards(tmp_path / "good", 48, jpegs=True), RECIPE, fields=("index",))
    cut = ShardDataset(write_shards(tmp_path / "cut", 48, jpegs=True, cut=(10, 31)), RECIPE, fields=("index",))
    options: dict[str, Any] = {"batch_size": 8, "shuffle": True, "num_workers": workers, "on_error": "skip"}
    for dataset, bad in ((good, 0), (cut, 2)):
        expected = copied_epoch(DaliLoader(dataset, **options))
        loader = DaliLoader(dataset, device="cuda", channels_last=True, **options)
        held = []
        for batch in loader:
            torch.cuda._sleep(20_000_000)
            held.append((*batch, batch[0].clone()))
        assert loader.stats()["skipped"] == bad
        for (found, labels, index, copy), (wanted, *rest) in zip(held, expected, strict=True):
            assert found.is_cuda
            assert found.is_contiguous(memory_format=torch.channels_last)
            assert torch.equal(found, copy)
            assert torch.equal(labels.cpu(), rest[0])
            assert torch.equal(index.cpu(), rest[1])
            assert (found.cpu() - wanted).abs().mean() < 1.5 / 255 / 0.25
        loader.close()


def test_the_workers_stages_and_the_trainers_decode_are_metered(shards: Path) -> None:
    loader = DaliLoader(ShardDataset(shards, RECIPE), batch_size=10, num_workers=2)
    for _ in loader:
        pass
    stats = loader.stats()
    stages = stats["stages"]
    assert (stages["decode"]["count"], stages["decode"]["bytes"]) == (5, 50 * 3 * 16 * 16 * 4)
    assert stages["cut"]["bytes"] == stages["write"]["bytes"] > 0
    assert stats["fused"] == {"transform": "decode"}
    for worker in stats["workers"]:
        assert "decode" not in worker["stages"]


def _feed(decoder: Any, batches: int, **options: Any) -> DecodeFeed:
    """Over so many batches of one sample, all of them at hand."""
    work: Any = types.SimpleNamespace(recipe=types.SimpleNamespace(draw_rest=lambda *_: ()), seed=0, keys=lambda _: ())
    one = np.zeros(1, np.int64)
    finished = []
    for number in range(batches):
        memory = np.zeros((1, ROW.itemsize + 64), np.uint8)
        Staged(np.zeros(1, ROW), [bytes([number])]).pack(memory.reshape(-1))
        finished.append(Finished(SlotView(Samples.of(one, one), one, (memory,)), [], [], 0, [(0, 1)]))
    return DecodeFeed(iter(finished), work, decoder, lambda: True, **options)


def test_a_batch_for_which_there_was_no_room_is_started_before_those_behind_it() -> None:
    tried: list[tuple[str, int]] = []

    class Decoder:
        room = False

        def start(self, staged: Staged) -> bool:
            tried.append(("start", staged.payloads[0][0]))
            return self.room

        def finish(self, staged: Staged, *_: Any, **__: Any) -> Any:
            tried.append(("finish", staged.payloads[0][0]))
            return torch.zeros(len(staged), 1), [None]

    decoder = Decoder()
    feed = _feed(decoder, 6)
    next(feed)
    decoder.room = True
    next(feed)
    next(feed)
    first, second, third = tried[:3], tried[3:6], tried[6:]
    assert first == [("start", 0), ("start", 0), ("finish", 0)]  # the second batch is not tried before the first
    assert second == [("start", 1), ("start", 2), ("finish", 1)]
    assert third == [("start", 3), ("finish", 2)]  # and none twice


def test_batches_that_are_given_up_are_dropped_on_the_feeds_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """To drop one is to collect those before it, whose kernels go to the current device."""
    current: list[Any] = []
    dropped: list[tuple[Any, list[Any]]] = []

    @contextlib.contextmanager
    def stream(which: Any) -> Iterator[None]:
        current.append(which)
        yield
        current.pop()

    class Decoder:
        def start(self, staged: Staged) -> bool:
            return True

        def drop(self, staged: Staged) -> None:
            dropped.append((staged, list(current)))

        def finish(self, staged: Staged, *_: Any, **__: Any) -> Any:
            return torch.zeros(len(staged), 1), [None]

    monkeypatch.setattr(torch.cuda, "stream", stream)
    feed = _feed(Decoder(), 2, stream="the feed's")
    next(feed)
    feed.close()
    assert [on for _, on in dropped] == [["the feed's"]]

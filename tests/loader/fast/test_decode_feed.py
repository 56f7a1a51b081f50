"""Decoding in the trainer: what DALI is handed, in which order, and what is left when it fails."""

from __future__ import annotations

import contextlib
import gc
import itertools
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
from feeder.decoders.dali import dali_decoder as dali_backend
from feeder.decoders.dali.pipeline import DaliPipeline, PipelineError
from feeder.decoders.dali.queue import DaliQueue
from feeder.decoders.registry import Dali
from feeder.decoders.staged.capacity import plan_capacity, planning_sample
from feeder.decoders.staged.staged import ROW, Staged
from feeder.loader.fast.batch_queue import BatchRecord
from feeder.loader.fast.decode_feed import DecodeFeed
from feeder.loader.observe.meter import Meter
from feeder.loader.slots.image_slots import Samples, SlotView
from feeder.transforms import (
    CutMix,
    MixUp,
)
from tests.support import images
from tests.support.batches import copied_epoch, same_batches
from tests.support.dali_loader import RECIPE, DaliLoader
from tests.support.loader_data import write_shards

pytest.importorskip("nvidia.dali", reason="DALI is not installed")

import nvidia.dali as dali_library


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_shards(tmp_path_factory.mktemp("shards"), 50, jpegs=True)


def test_what_finds_no_room_in_a_slot_travels_another_way(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def narrow(*arguments: Any, **options: Any) -> Any:
        narrowed.append(share)
        return plan_capacity(*arguments, **options)._replace(share_bytes=share)

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
    room = plan_capacity(reader.peek(planning_sample(len(reader), in_shards=True)), [(16, 16)], 4)
    assert room.share_bytes % 64 == 0
    largest = max(int(reader.peek(np.arange(len(reader))).lengths.max()), 3 * 16 * 16)
    assert 3 * 16 * 16 < room.share_bytes <= largest + ROW.itemsize + 64
    # One large scan among many photos does not set the room.
    (tmp_path / "c").mkdir()
    photo = images.encode(images.pixels(1, 64, 64), quality=50)
    scan = images.encode(Image.new("RGB", (2500, 2500)), quality=50)
    for i in range(63):
        (tmp_path / f"c/{i}.jpg").write_bytes(photo)
    (tmp_path / "c/x.jpg").write_bytes(scan)
    files = FolderDataset(tmp_path).reader
    room = plan_capacity(files.peek(planning_sample(len(files), in_shards=False)), [(8, 8)], 64)
    assert room.outlier_pixels < 2500 * 2500
    assert room.share_bytes < 2 * len(photo) + ROW.itemsize


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
    """A batch that DALI has and nobody recorded would be taken for the next one, and so on to the end."""
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
    """The CPU decodes the batch instead: the same samples at the same places, whatever the backend."""
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
    """DALI keeps slots on a GPU: if they were not counted, the caller would be warned of batches that it holds."""
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
    next(iter(DaliLoader(ShardDataset(shards, RECIPE), batch_size=16, backend=Dali(hw_decoder_load=given))))
    assert asked == [built]


def test_batches_in_parts_under_a_memory_limit_are_the_same(shards: Path) -> None:
    dataset = ShardDataset(shards, RECIPE)
    expected = copied_epoch(DaliLoader(dataset, batch_size=16))
    limited = DaliLoader(dataset, batch_size=16, num_workers=1, backend=Dali(memory_limit_bytes=5 * 3 * 24 * 32))
    assert same_batches(copied_epoch(limited), expected)
    assert limited.stats()["dali_images"] == 33


def test_workers_have_neither_dali_nor_torch(shards: Path) -> None:
    loader = DaliLoader(ShardDataset(shards, RECIPE), batch_size=8, num_workers=1)
    iterator = iter(loader)
    next(iterator)
    (pid,) = loader.worker_pids()
    mapped = Path(f"/proc/{pid}/maps").read_text()
    assert "/torch/" not in mapped
    assert "/nvidia/" not in mapped
    assert "/nvidia/dali/" in Path("/proc/self/maps").read_text()


def test_the_workers_stages_and_the_trainers_decode_are_metered(shards: Path) -> None:
    loader = DaliLoader(ShardDataset(shards, RECIPE), batch_size=10, num_workers=2)
    for _ in loader:
        pass
    stats = loader.stats()
    stages = stats["stages"]
    assert (stages["decode"]["count"], stages["decode"]["bytes"]) == (5, 50 * 3 * 16 * 16 * 4)
    assert stages["cut"]["bytes"] == stages["write"]["bytes"] > 0
    for worker in stats["workers"]:
        assert "decode" not in worker["stages"]


def _feed(decoder: Any, batches: int, **options: Any) -> DecodeFeed:
    """A feed of so many batches of one sample, all of them finished."""
    recipe = types.SimpleNamespace(views=[types.SimpleNamespace(output_size=(4, 5))])
    work: Any = types.SimpleNamespace(
        recipe=recipe,
        recipes_at=lambda *_: recipe.views,
        as_drawn=lambda made, asked: made,
        draw_rest=lambda *_: [()],
        pad=None,
        views_of=[slice(0, 1)],
    )
    one = np.zeros(1, np.int64)
    finished = []
    for number in range(batches):
        memory = np.zeros((1, ROW.itemsize + 64), np.uint8)
        Staged(np.zeros(1, ROW), [bytes([number])]).pack(memory.reshape(-1))
        batch = BatchRecord(0, Samples.of(one, one), parts=[(0, 1)])
        batch.arrays = SlotView(batch.samples, one, (memory,))
        finished.append(batch)
    further: dict[str, Any] = {"mixing": lambda *_: None, "channels_last": False, "stream": None, "meter": Meter()}
    return DecodeFeed(source=iter(finished), work=work, decoder=decoder, source_ready=lambda: True, **further | options)


def test_a_batch_for_which_there_was_no_room_is_started_before_those_behind_it() -> None:
    tried: list[tuple[str, int]] = []

    class Decoder:
        room = False

        def start(self, staged: Staged) -> bool:
            tried.append(("start", staged.payloads[0][0]))
            return self.room

        def finish(self, staged: Staged, *_: Any, **__: Any) -> Any:
            tried.append(("finish", staged.payloads[0][0]))
            return [torch.zeros(len(staged), 1)], [None]

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
            return [torch.zeros(len(staged), 1)], [None]

    monkeypatch.setattr(torch.cuda, "stream", stream)
    feed = _feed(Decoder(), 2, stream="the feed's")
    next(feed)
    feed.close()
    assert [on for _, on in dropped] == [["the feed's"]]

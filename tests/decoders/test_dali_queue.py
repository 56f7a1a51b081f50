"""Batches that DALI works on ahead: started within the memory limit, finished in any order, lost to no failure."""

from __future__ import annotations

import collections
import dataclasses
import gc
import itertools
import weakref
from typing import Any

import numpy as np
import pytest
import torch

from feeder import transforms as T
from feeder.decoders.dali import crops
from feeder.decoders.dali import pipeline as dali_pipeline
from feeder.decoders.dali import queue as dali_queue
from feeder.decoders.dali.dali_decoder import DaliDecoder
from feeder.decoders.dali.pipeline import DaliPipeline, PipelineError
from feeder.decoders.registry import Dali
from feeder.decoders.staged.trainer_decoder import LeftToCpu
from tests.support.conformance import MEAN, STD, decode
from tests.support.dali_batches import BASE, HEIGHT, WIDTH, check_alike, draw, finish, jpeg, rest, run, staged
from tests.support.loader_data import without_tables

pytest.importorskip("nvidia.dali", reason="DALI is not installed")

import nvidia.dali as dali_library


@pytest.mark.parametrize("kind", [RuntimeError, ValueError, MemoryError])
def test_a_failure_of_whatever_kind_leaves_no_pipeline_behind(
    kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each would hold its threads and its memory until the garbage collector comes by, which some turn off."""
    good = [jpeg(k) for k in range(4)]
    decoder, draws = DaliDecoder(), draw(BASE, 4)
    expected = run(decoder, good)
    pipelines: list[weakref.ref[Any]] = []
    real = dali_library.Pipeline.share_outputs

    def failing(pipeline: Any, **options: Any) -> Any:
        pipelines.append(weakref.ref(pipeline))
        real(pipeline, **options)
        raise kind("it fails")

    gc.disable()
    try:
        with monkeypatch.context() as patch:
            patch.setattr(dali_library.Pipeline, "share_outputs", failing)
            for _ in range(3):
                batch = staged(decoder, good, BASE, draws)
                decoder.start(batch)
                _, errors = finish(decoder, batch, BASE, rest(BASE, draws))
                assert [type(error) for error in errors] == [LeftToCpu] * 4
        assert len(pipelines) == 3
        assert [pipeline() for pipeline in pipelines] == [None] * 3
    finally:
        gc.enable()
    np.testing.assert_array_equal(run(decoder, good), expected)


def test_batches_larger_than_the_pipelines_and_in_parts_are_the_same() -> None:
    buffers = [jpeg(k) for k in range(5)] * 15
    whole = run(DaliDecoder(), buffers)
    few = DaliDecoder(options=Dali(memory_limit_bytes=3 * HEIGHT * WIDTH))
    np.testing.assert_array_equal(run(few, buffers), whole)
    assert few.dali_images == len(buffers)
    for row in (0, 63, 64, 74):
        draws = draw(BASE, len(buffers)).take([row])
        np.testing.assert_array_equal(decode(few, [buffers[row]], BASE, draws, np.ones(1, np.uint8))[0], whole[row])


def decode_whole_images(decoder: DaliDecoder) -> None:
    """Makes a decoder on the CPU decode whole images, as DALI does on a GPU."""
    decoder._queue.options = dataclasses.replace(decoder._queue.options, crops=False)


class Memory:
    """Decoded images that DALI has or works on, in units of one image of these tests; a failure may be asked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.there = self.most = self.under_way = 0
        self.fails = ""
        submit, collect = DaliPipeline.submit, DaliPipeline.collect
        counts: collections.deque[int] = collections.deque()

        def failing(pipeline: DaliPipeline, step: str) -> None:
            if self.fails == step:
                self.fails = ""
                self.there -= sum(counts)
                self.under_way -= sum(counts)
                counts.clear()
                pipeline.rebuild()
                raise PipelineError("it fails")

        def submitted(pipeline: DaliPipeline, rows: Any, payloads: Any, ticket: object) -> None:
            failing(pipeline, "submit")
            submit(pipeline, rows, payloads, ticket)
            counts.append(len(rows))
            self.there += len(rows)
            self.under_way += len(rows)
            self.most = max(self.most, self.there)

        def collected(pipeline: DaliPipeline, ticket: object, stream: Any = None) -> Any:
            failing(pipeline, "collect")
            images = collect(pipeline, ticket, stream)
            count = counts.popleft()
            self.under_way -= count
            weakref.finalize(images, self.gone, count)
            return images

        monkeypatch.setattr(DaliPipeline, "submit", submitted)
        monkeypatch.setattr(DaliPipeline, "collect", collected)

    def gone(self, count: int) -> None:
        self.there -= count


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (1, 0, 3, 2)])
@pytest.mark.parametrize(("images_in_limit", "ahead"), [(2, 0), (7, 5), (9, 5), (10, 10), (14, 10), (None, 10)])
def test_batches_are_started_ahead_as_far_as_the_memory_limit_allows(
    images_in_limit: int | None, ahead: int, order: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = None if images_in_limit is None else images_in_limit * 3 * HEIGHT * WIDTH
    decoder, plain = DaliDecoder(options=Dali(memory_limit_bytes=limit)), DaliDecoder()
    draws = draw(BASE, 5)
    batches = [staged(decoder, [jpeg(k) for k in range(a, a + 5)], BASE, draws) for a in range(0, 20, 5)]
    expected = [finish(plain, batch, BASE, ())[0] for batch in batches]
    memory = Memory(monkeypatch)
    decode_whole_images(decoder)
    started = [decoder.start(batch) for batch in batches]
    assert started == [number < ahead // 5 for number in range(4)]
    assert memory.under_way == ahead
    assert decoder.start(batches[0]) == started[0]  # which starts nothing twice
    assert memory.under_way == ahead
    for step, number in enumerate(order):
        images, errors = finish(decoder, batches[number], BASE, ())
        assert errors == [None] * 5
        check_alike(images.numpy(), expected[number].numpy(), 1)
        if step < 2:  # there is room again, but for what is in flight
            fits = images_in_limit is None or memory.under_way + 5 <= images_in_limit
            assert decoder.start(batches[step + 2]) == fits
    assert memory.there == 0
    assert memory.most <= (images_in_limit or 10)
    assert decoder.dali_images == 20
    decoder.close()


def test_what_kernels_still_read_is_in_the_memory_limit() -> None:
    class Event:
        def __init__(self) -> None:
            self.come = False

        def query(self) -> bool:
            return self.come

        def synchronize(self) -> None:
            self.come = True

    decoder, event = DaliDecoder(options=Dali(memory_limit_bytes=10 * 3 * HEIGHT * WIDTH)), Event()
    decode_whole_images(decoder)
    batch = staged(decoder, [jpeg(k) for k in range(5)], BASE, draw(BASE, 5))
    decoder._queue._borrowed.hold(object(), 6 * 3 * HEIGHT * WIDTH, event)
    assert not decoder.start(batch)
    assert not event.come  # to start a batch waits for nothing
    finish(decoder, batch, BASE, ())
    assert event.query()
    assert decoder.start(batch)
    decoder.close()


@pytest.mark.parametrize("on_gpu", [False, True])
def test_a_pipeline_whose_first_run_was_small_gives_way_to_another(
    on_gpu: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU, the hardware engine would get as few images of every later run. What is in flight is not lost."""
    built: list[int] = []
    build = dali_pipeline.build_pipeline

    def as_on_a_gpu(options: dali_pipeline.PipelineOptions) -> Any:
        built.append(1)
        return build(dataclasses.replace(options, device_id=None))

    pipeline = dali_pipeline.DaliPipeline

    def made(options: dali_pipeline.PipelineOptions) -> dali_pipeline.DaliPipeline:
        return pipeline(dataclasses.replace(options, device_id=0 if on_gpu else None))

    monkeypatch.setattr(dali_pipeline, "build_pipeline", as_on_a_gpu)
    monkeypatch.setattr(dali_queue, "DaliPipeline", made)
    decoder = DaliDecoder()
    batches = [staged(decoder, [jpeg(k) for k in range(count)], BASE, draw(BASE, count)) for count in (4, 8, 9, 17, 3)]
    found = []
    for batch, following in itertools.zip_longest(batches, batches[1:]):
        assert decoder.start(batch)
        assert following is None or decoder.start(following)
        found.append(finish(decoder, batch, BASE, ())[0])
    assert len(built) == (2 if on_gpu else 1)
    assert (decoder.dali_images, decoder.redone_images) == (41, 0)
    for batch, images in zip(batches, found, strict=True):
        assert torch.equal(images, finish(DaliDecoder(), batch, BASE, ())[0])


def test_a_failure_gives_back_the_memory_of_what_it_loses(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = DaliDecoder(options=Dali(memory_limit_bytes=10 * 3 * HEIGHT * WIDTH))
    decode_whole_images(decoder)
    draws = draw(BASE, 5)
    batches = [staged(decoder, [jpeg(k) for k in range(a, a + 5)], BASE, draws) for a in range(0, 20, 5)]
    memory = Memory(monkeypatch)
    assert [decoder.start(batch) for batch in batches[:2]] == [True, True]
    memory.fails = "collect"
    finish(decoder, batches[0], BASE, ())
    assert memory.under_way == 0
    assert decoder.start(batches[1])
    memory.fails = "submit"
    assert not decoder.start(batches[2])
    assert memory.under_way == 0
    assert [decoder.start(batch) for batch in batches[1:]] == [True, True, False]
    for batch in batches[1:]:
        finish(decoder, batch, BASE, ())
    assert (memory.there, memory.most) == (0, 10)
    assert (decoder.dali_images, decoder.redone_images) == (15, 5)


def test_an_earlier_batch_is_never_written_again() -> None:
    decoder = DaliDecoder()
    recipe = T.Recipe.of([*BASE.ops, T.Normalize(MEAN, STD)])
    buffers = [jpeg(k) for k in range(3)]
    kept = []
    for epoch in range(4):
        draws = draw(recipe, 3, epoch)
        images, _ = finish(decoder, staged(decoder, buffers, recipe, draws), recipe, rest(recipe, draws))
        kept.append((images, images.clone()))
    decoder.close()
    for images, copy in kept:
        assert torch.equal(images, copy)
    assert not torch.equal(kept[0][0], kept[1][0])


@pytest.mark.parametrize("native", [True, False])
def test_whole_images_are_cropped_as_decoded_crops_are(native: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole batches, and batches in parts."""
    if not native:
        monkeypatch.setattr(crops, "on_cpu", crops.on_gpu)
    buffers = [jpeg(k) for k in range(6)]
    expected = run(DaliDecoder(), buffers)
    decoder, limited = DaliDecoder(), DaliDecoder(options=Dali(memory_limit_bytes=2 * 3 * HEIGHT * WIDTH))
    for each in (decoder, limited):
        decode_whole_images(each)
        check_alike(run(each, buffers), expected, 1)
        assert each.dali_images == 6
        assert each.redone_images == 0


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (1, 0, 3, 2)])
@pytest.mark.parametrize("broken", [None, 0, 1, 2])
def test_batches_that_were_started_are_finished_as_any_other(order: tuple[int, ...], broken: int | None) -> None:
    """In any order, also after a failure that loses DALI's batches in flight."""
    decoder, plain = DaliDecoder(), DaliDecoder()
    buffers = [[jpeg(10 * number + k) for k in range(3)] for number in range(4)]
    if broken is not None:
        buffers[broken][1] = without_tables(buffers[broken][1])
    draws = draw(BASE, 3)
    batches = [staged(decoder, each, BASE, draws) for each in buffers]
    decoder.start(batches[0])
    decoder.start(batches[1])
    decoder.start(batches[2])  # one too many: left to finish
    for step, number in enumerate(order):
        images, errors = finish(decoder, batches[number], BASE, ())
        if step + 2 < 4:
            decoder.start(batches[step + 2])
        expected, failed = finish(plain, batches[number], BASE, ())
        assert [str(error) for error in errors] == [str(error) for error in failed]
        assert [isinstance(error, LeftToCpu) for error in errors] == [number == broken] * 3
        assert torch.equal(images, expected)


def test_a_batch_that_was_started_can_be_dropped() -> None:
    decoder, plain = DaliDecoder(), DaliDecoder()
    draws = draw(BASE, 3)
    first, second = (staged(decoder, [jpeg(k) for k in range(a, a + 3)], BASE, draws) for a in (0, 3))
    decoder.start(first)
    decoder.start(second)
    decoder.drop(first)
    assert torch.equal(finish(decoder, second, BASE, ())[0], finish(plain, second, BASE, ())[0])
    decoder.start(first)
    decoder.close()
    assert torch.equal(finish(decoder, second, BASE, ())[0], finish(plain, second, BASE, ())[0])


def test_two_decoders_take_turns_without_touching_each_other() -> None:
    train, validation = DaliDecoder(), DaliDecoder()
    center = T.Recipe.of([T.Resize(64), T.CenterCrop(48)])
    buffers = [jpeg(k) for k in range(4)]
    first, second = run(train, buffers), run(validation, buffers, center)
    for _ in range(3):
        np.testing.assert_array_equal(run(train, buffers), first)
        np.testing.assert_array_equal(run(validation, buffers, center), second)
    train.close()
    np.testing.assert_array_equal(run(validation, buffers, center), second)
    np.testing.assert_array_equal(run(train, buffers), first)

"""Behaviour of the DALI backend alone; what every backend must hold is in test_conformance.py."""

from __future__ import annotations

import collections
import dataclasses
import gc
import itertools
import sys
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import PIL
import pytest
import torch

from feeder import transforms as T
from feeder.decoders.dali import pipeline as dali_pipeline
from feeder.decoders.dali import queue as dali_queue
from feeder.decoders.decoder import Decoder
from feeder.decoders.registry import available_decoders, get_decoder
from feeder.errors import ArgumentError, BackendError, DecodeError
from tests.support import conformance
from tests.support.conformance import MEAN, STD, decode, encode, natural_image
from tests.support.loader_data import without_tables

pytest.importorskip("nvidia.dali", reason="DALI is not installed")

import nvidia.dali as dali_library

from feeder.decoders.dali.decoder import DaliDecoder
from feeder.decoders.dali.pipeline import DaliPipeline, PipelineError

BASE = T.Recipe.of([T.RandomResizedCrop(48), T.RandomHorizontalFlip()])
HEIGHT, WIDTH = 120, 160

# The others make decoders of their own, without a device.
GPU_CHECKS = [
    conformance.check_bad_images_stay_alone,
    conformance.check_dtypes,
    conformance.check_fidelity,
    conformance.check_formats,
    conformance.check_further_ops,
    conformance.check_geometry,
    conformance.check_orientations,
]

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def jpeg(seed: int = 0, **options: Any) -> bytes:
    return encode(natural_image(seed, HEIGHT, WIDTH), **options)


def draw(recipe: T.Recipe, count: int, epoch: int = 0) -> T.Draws:
    return recipe.draw(1, epoch, np.arange(count), [[HEIGHT, WIDTH]] * count)


def run(decoder: DaliDecoder, buffers: list[bytes], recipe: T.Recipe = BASE, epoch: int = 0) -> npt.NDArray[Any]:
    ones = np.ones(len(buffers), np.uint8)
    return decode(decoder, buffers, recipe, draw(recipe, len(buffers), epoch), ones)


def staged(decoder: DaliDecoder, buffers: list[bytes], recipe: T.Recipe, draws: T.Draws) -> Any:
    batch, errors = decoder.stager.stage(buffers, np.ones(len(buffers), np.uint8), recipe, draws)
    assert errors == [None] * len(buffers)
    return batch


def rest(recipe: T.Recipe, draws: T.Draws) -> Any:
    return draws.ops[recipe.base_length :]


@pytest.mark.parametrize("native", [True, False])
def test_a_batch_that_dali_fails_on_is_redone_on_the_cpu(native: bool, hide_native: Callable[[], None]) -> None:
    if not native:
        hide_native()
    good = [jpeg(k) for k in range(4)]
    bad = without_tables(good[0])
    decoder = DaliDecoder()
    alone = run(decoder, good)
    buffers = [*good[:2], bad, *good[2:]]
    draws = draw(BASE, 4).take(np.array([0, 1, 0, 2, 3]))
    out = np.zeros((5, 3, 48, 48), np.uint8)
    errors = decoder.decode(buffers, np.ones(5, np.uint8), BASE, draws, out)
    assert [error is None for error in errors] == [True, True, False, True, True]
    assert isinstance(errors[2], DecodeError)
    check_alike(out[[0, 1, 3, 4]], alone, 1)
    assert (decoder.dali_images, decoder.redone_images) == (4, 5)
    np.testing.assert_array_equal(run(decoder, good), alone)


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
                images, errors = decoder.finish(batch, BASE, rest(BASE, draws))
                assert errors == [None] * 4
                check_alike(images.numpy(), expected, 1)
        assert len(pipelines) == 3
        assert [pipeline() for pipeline in pipelines] == [None] * 3
    finally:
        gc.enable()
    np.testing.assert_array_equal(run(decoder, good), expected)


def check_alike(found: npt.NDArray[Any], expected: npt.NDArray[Any], level: int = 8) -> None:
    """To what two decoders may differ by."""
    difference = np.abs(found.astype(int) - expected)
    assert difference.mean() <= 0.6
    assert np.quantile(difference, 0.999) <= level


def damaged(data: bytes) -> dict[str, bytes]:
    """A JPEG, not seekable or seekable, spoiled in several ways."""
    start = data.index(b"\xff\xda")
    middle, table = (start + len(data)) // 2, data.index(b"\xff\xdb")
    return {
        "no tables": without_tables(data),
        "no quantization table": data[:table] + data[table + 2 + int.from_bytes(data[table + 2 : table + 4], "big") :],
        "ends in its header": data[: start - 40] + b"\xff\xd9",
        "no end": data[:-2],
        "cut off": data[:middle],
        "cut off with an end": data[:middle] + b"\xff\xd9",
        "a marker in the data": data[:middle] + b"\xff\xd3" + data[middle:],
        "zeros in the data": data[:middle] + bytes(40) + data[middle + 40 :],
        "bytes lost": data[:middle] + data[middle + 25 :],
        "another size": data.replace(HEIGHT.to_bytes(2, "big") + WIDTH.to_bytes(2, "big"), b"\x00\x78\x00\xb0"),
        "bytes behind the end": data + b"trailing",
    }


# What DALI makes the best of and says nothing of.
CONCEALED = {"zeros in the data", "bytes lost"}


@pytest.mark.skipif("cpu" not in available_decoders(), reason="feeder._native is not built")
@pytest.mark.parametrize("fidelity", ["fast", "exact"])
@pytest.mark.parametrize("seekable", [False, True])
def test_damage_has_the_same_fate_as_with_the_cpu_backend(seekable: bool, fidelity: str) -> None:
    """Damage that the workers' check finds, and damage of any kind on which DALI fails; at every crop."""
    from feeder import _native

    data = jpeg(subsampling="4:2:0")
    bad = damaged(_native.transcode(data, keep_metadata=True) if seekable else data)
    cpu, dali = (get_decoder(name, fidelity=fidelity) for name in ("cpu", "dali"))
    assert isinstance(dali, DaliDecoder)
    recipe = T.Recipe.of([T.RandomResizedCrop(24, scale=(0.02, 0.6)), T.RandomHorizontalFlip()])

    def fates(decoder: Decoder, names: list[str], epoch: int) -> dict[str, bool]:
        draws = recipe.draw(1, epoch, np.arange(len(names)), [[HEIGHT, WIDTH]] * len(names))
        out = np.zeros((len(names), 3, 24, 24), np.uint8)
        errors = decoder.decode([bad[name] for name in names], np.ones(len(names), np.uint8), recipe, draws, out)
        return {name: error is None for name, error in zip(names, errors, strict=True)}

    expected = [fates(cpu, list(bad), epoch) for epoch in range(12)]
    assert all(each["bytes behind the end"] for each in expected)
    assert not any(each["no tables"] or each["another size"] or each["no end"] for each in expected)
    assert {True, False} == {each["cut off with an end"] for each in expected}  # by the crop
    # DALI fails on the first two, and so on their batch.
    assert [fates(dali, list(bad), epoch) for epoch in range(12)] == expected
    redone = dali.redone_images
    assert redone > 0
    concealed = CONCEALED if seekable else CONCEALED | {"cut off with an end", "a marker in the data"}
    found_before = [name for name in list(bad)[2:] if name not in concealed]
    for epoch in range(12):
        assert fates(dali, found_before, epoch) == fates(cpu, found_before, epoch)
    assert dali.redone_images == redone


def test_batches_larger_than_the_pipelines_and_in_parts_are_the_same() -> None:
    buffers = [jpeg(k) for k in range(5)] * 15
    whole = run(DaliDecoder(), buffers)
    few = DaliDecoder(gpu_memory_limit_bytes=3 * HEIGHT * WIDTH)
    np.testing.assert_array_equal(run(few, buffers), whole)
    assert few.dali_images == len(buffers)
    for row in (0, 63, 64, 74):
        draws = draw(BASE, len(buffers)).take([row])
        np.testing.assert_array_equal(decode(few, [buffers[row]], BASE, draws, np.ones(1, np.uint8))[0], whole[row])


def decode_whole_images(decoder: DaliDecoder) -> None:
    """As on a GPU, where DALI does not crop."""
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
    decoder, plain = DaliDecoder(gpu_memory_limit_bytes=limit), DaliDecoder()
    draws = draw(BASE, 5)
    batches = [staged(decoder, [jpeg(k) for k in range(a, a + 5)], BASE, draws) for a in range(0, 20, 5)]
    expected = [plain.finish(batch, BASE, ())[0] for batch in batches]
    memory = Memory(monkeypatch)
    decode_whole_images(decoder)
    started = [decoder.start(batch) for batch in batches]
    assert started == [number < ahead // 5 for number in range(4)]
    assert memory.under_way == ahead
    assert decoder.start(batches[0]) == started[0]  # which starts nothing twice
    assert memory.under_way == ahead
    for step, number in enumerate(order):
        images, errors = decoder.finish(batches[number], BASE, ())
        assert errors == [None] * 5
        check_alike(images.numpy(), expected[number].numpy(), 1)
        if step < 2:  # there is room again, but for what is under way
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

    decoder, event = DaliDecoder(gpu_memory_limit_bytes=10 * 3 * HEIGHT * WIDTH), Event()
    decode_whole_images(decoder)
    batch = staged(decoder, [jpeg(k) for k in range(5)], BASE, draw(BASE, 5))
    decoder._queue._borrowed.hold(object(), 6 * 3 * HEIGHT * WIDTH, event)
    assert not decoder.start(batch)
    assert not event.come  # to start a batch waits for nothing
    decoder.finish(batch, BASE, ())
    assert event.query()
    assert decoder.start(batch)
    decoder.close()


@pytest.mark.parametrize("on_gpu", [False, True])
def test_a_pipeline_whose_first_run_was_small_gives_way_to_another(
    on_gpu: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU: its hardware engine would get as few images of every run. What is under way is not lost."""
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
        found.append(decoder.finish(batch, BASE, ())[0])
    assert len(built) == (2 if on_gpu else 1)
    assert (decoder.dali_images, decoder.redone_images) == (41, 0)
    for batch, images in zip(batches, found, strict=True):
        assert torch.equal(images, DaliDecoder().finish(batch, BASE, ())[0])


def test_a_failure_gives_back_the_memory_of_what_it_loses(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = DaliDecoder(gpu_memory_limit_bytes=10 * 3 * HEIGHT * WIDTH)
    decode_whole_images(decoder)
    draws = draw(BASE, 5)
    batches = [staged(decoder, [jpeg(k) for k in range(a, a + 5)], BASE, draws) for a in range(0, 20, 5)]
    memory = Memory(monkeypatch)
    assert [decoder.start(batch) for batch in batches[:2]] == [True, True]
    memory.fails = "collect"
    decoder.finish(batches[0], BASE, ())
    assert memory.under_way == 0
    assert decoder.start(batches[1])
    memory.fails = "submit"
    assert not decoder.start(batches[2])
    assert memory.under_way == 0
    assert [decoder.start(batch) for batch in batches[1:]] == [True, True, False]
    for batch in batches[1:]:
        decoder.finish(batch, BASE, ())
    assert (memory.there, memory.most) == (0, 10)
    assert (decoder.dali_images, decoder.redone_images) == (15, 5)


def test_outliers_are_decoded_by_the_cpu_backend_and_join_the_batch() -> None:
    small, large = jpeg(1), encode(natural_image(2, 200, 300))
    recipe, ones = BASE, np.ones(3, np.uint8)
    draws = recipe.draw(0, 0, np.arange(3), [[HEIGHT, WIDTH], [200, 300], [HEIGHT, WIDTH]])
    decoder = DaliDecoder(outlier_pixels=200 * 300 - 1)
    out = decode(decoder, [small, large, small], recipe, draws, ones)
    assert (decoder.dali_images, decoder.cpu_images) == (2, 1)
    here = get_decoder("cpu" if "cpu" in available_decoders() else "pillow")
    np.testing.assert_array_equal(out[1], decode(here, [large], recipe, draws.take([1]), ones[:1])[0])
    np.testing.assert_array_equal(out[[0, 2]], decode(decoder, [small] * 2, recipe, draws.take([0, 2]), ones[:2]))


def test_seekable_images_give_the_pixels_of_whole_ones() -> None:
    if "cpu" not in available_decoders():
        pytest.skip("feeder._native is not built")
    from feeder import _native

    originals = [encode(natural_image(k, 300, 400), subsampling="4:2:0") for k in range(6)]
    seekable = [_native.transcode(data, keep_metadata=True) for data in originals]
    recipe = T.Recipe.of([T.RandomResizedCrop(64, scale=(0.05, 0.5))])
    draws = recipe.draw(0, 0, np.arange(6), [[300, 400]] * 6)
    ones = np.ones(6, np.uint8)
    found, expected = (decode(DaliDecoder(), each, recipe, draws, ones).astype(int) for each in (seekable, originals))
    difference = np.abs(found - expected)
    # A cut lacks its neighbours' chroma, so only pixels at its edge may differ.
    assert difference.mean() < 0.05
    assert difference[:, :, 4:-4, 4:-4].max() <= 1


def test_an_earlier_batch_is_never_written_again() -> None:
    decoder = DaliDecoder()
    recipe = T.Recipe.of([*BASE.ops, T.Normalize(MEAN, STD)])
    buffers = [jpeg(k) for k in range(3)]
    kept = []
    for epoch in range(4):
        draws = draw(recipe, 3, epoch)
        images, _ = decoder.finish(staged(decoder, buffers, recipe, draws), recipe, rest(recipe, draws))
        kept.append((images, images.clone()))
    decoder.close()
    for images, copy in kept:
        assert torch.equal(images, copy)
    assert not torch.equal(kept[0][0], kept[1][0])


@pytest.mark.parametrize("native", [True, False])
def test_whole_images_are_cropped_as_decoded_crops_are(native: bool, hide_native: Callable[[], None]) -> None:
    """In parts, too."""
    if not native:
        hide_native()
    buffers = [jpeg(k) for k in range(6)]
    expected = run(DaliDecoder(), buffers)
    decoder, limited = DaliDecoder(), DaliDecoder(gpu_memory_limit_bytes=2 * 3 * HEIGHT * WIDTH)
    for each in (decoder, limited):
        decode_whole_images(each)
        check_alike(run(each, buffers), expected, 1)
        assert each.dali_images == 6
        assert each.redone_images == 0


def test_kernel_2_resizes_as_the_native_module_does(hide_native: Callable[[], None]) -> None:
    """Images that lie on their side among others, so that there are two sizes before the turn."""
    recipe = T.Recipe.of([T.RandomResizedCrop((40, 56)), T.RandomHorizontalFlip()])
    orientations = np.array([1, 6, 3, 8], np.uint8)
    sizes = [[HEIGHT, WIDTH] if each < 5 else [WIDTH, HEIGHT] for each in orientations]
    draws = recipe.draw(0, 0, np.arange(4), sizes)
    buffers = [jpeg(k) for k in range(4)]
    expected = decode(DaliDecoder(), buffers, recipe, draws, orientations)
    hide_native()
    check_alike(decode(DaliDecoder(), buffers, recipe, draws, orientations), expected, 1)


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (1, 0, 3, 2)])
@pytest.mark.parametrize("broken", [None, 0, 1, 2])
def test_batches_that_were_started_are_finished_as_any_other(order: tuple[int, ...], broken: int | None) -> None:
    """In whichever order, and although a failure loses what DALI had under way."""
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
        images, errors = decoder.finish(batches[number], BASE, ())
        if step + 2 < 4:
            decoder.start(batches[step + 2])
        expected, failed = plain.finish(batches[number], BASE, ())
        assert [str(error) for error in errors] == [str(error) for error in failed]
        assert (errors[1] is not None) == (number == broken)
        good = [row for row, error in enumerate(errors) if error is None]
        assert len(good) == 3 - (number == broken)
        assert torch.equal(images[good], expected[good])


def test_a_batch_that_was_started_can_be_dropped() -> None:
    decoder, plain = DaliDecoder(), DaliDecoder()
    draws = draw(BASE, 3)
    first, second = (staged(decoder, [jpeg(k) for k in range(a, a + 3)], BASE, draws) for a in (0, 3))
    decoder.start(first)
    decoder.start(second)
    decoder.drop(first)
    assert torch.equal(decoder.finish(second, BASE, ())[0], plain.finish(second, BASE, ())[0])
    decoder.start(first)
    decoder.close()
    assert torch.equal(decoder.finish(second, BASE, ())[0], plain.finish(second, BASE, ())[0])


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


@pytest.mark.parametrize(
    "rest",
    [
        [T.ColorJitter(0.4, 0.4, 0.4)],
        [T.RandomGrayscale(0.5), T.ColorJitter(contrast=0.5)],
        [T.ColorJitter(0.4), T.RandomErasing(1.0, value=(300.0, 20.0, -5.0)), T.RandomHorizontalFlip()],
        [T.ColorJitter(0.3), T.ToDtype("float32"), T.RandomErasing(1.0, value=3.0), T.Normalize(MEAN, STD)],
        [T.RandomHorizontalFlip(1.0), T.Normalize(MEAN, STD), T.RandomErasing(0.5), T.RandomHorizontalFlip(0.5)],
        [T.AugMix(), T.RandomHorizontalFlip(), T.Normalize(MEAN, STD)],
        [T.RandAugment(4), T.RandomHorizontalFlip(), T.Normalize(MEAN, STD), T.RandomErasing(0.9, value="random")],
        [T.AutoAugment("svhn"), T.RandomPerspective(0.5, 0.8), T.RandomChoice([T.RandomInvert(), T.RandomEqualize()])],
        [T.TrivialAugmentWide(), T.ColorJitter(hue=0.2), T.Pad(3), T.RandomCrop((100, 90), 4), T.ToDtype("float32")],
    ],
    ids=lambda rest: "-".join(type(op).__name__ for op in rest),
)
def test_ops_after_the_resize_are_pillows(rest: list[T.Op]) -> None:
    # Nothing is scaled, so that the pixels which these ops get are Pillow's.
    recipe = T.Recipe.of([T.Resize((HEIGHT, WIDTH)), *rest])
    decoder = DaliDecoder(fidelity="exact")
    decoder.check(recipe)
    buffers = [jpeg(k, subsampling="4:4:4") for k in range(8)]
    found = run(decoder, buffers, recipe).astype(np.float64)
    expected = decode(get_decoder("pillow"), buffers, recipe, draw(recipe, 8), np.ones(8, np.uint8))
    level = np.array([1.0]) if recipe.affine is None else recipe.affine[0].astype(np.float64)
    difference = np.abs(found - expected) / level.reshape(-1, 1, 1)
    # A blend on the edge between two levels may take the other; pillow-simd's blends round differently, each of them.
    assert difference.max() <= (2.001 if "post" in PIL.__version__ else 1.001)
    assert difference.mean() <= 0.001


@pytest.mark.parametrize(
    ("ops", "name"),
    [
        ([T.Lambda(abs)], "Lambda: it is a function"),
        ([T.GaussianBlur(3), T.Normalize(MEAN, STD), T.Lambda(abs)], "Lambda: it is a function"),
        ([T.RandomRotation(9, expand=True), T.CenterCrop(32)], "RandomRotation: with expand=True"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_recipe_that_cant_run_is_refused_by_the_ops_name(ops: list[T.Op], name: str) -> None:
    recipe = T.Recipe.of([T.RandomResizedCrop(32), *ops])
    with pytest.raises(BackendError, match=rf"'dali' can't run {name}.*backend='cpu'"):
        get_decoder("dali", recipe)


def test_missing_dali_is_one_line_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nvidia.dali", None)
    with pytest.raises(BackendError, match=r"pip install 'feeder-data\[dali-cuda13\]'") as caught:
        get_decoder("dali")
    assert "\n" not in str(caught.value)
    assert "dali" not in available_decoders()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_cuda_device_that_is_not_there_is_refused_with_the_remedy() -> None:
    with pytest.raises(BackendError, match=r"device='cpu'"):
        DaliDecoder(device="cuda")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_auto_takes_dali_for_a_cuda_device_only(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level("INFO")
    assert get_decoder("auto", BASE).name != "dali"
    assert "dali" not in caplog.text
    assert get_decoder("auto", BASE, device="cuda").name != "dali"
    assert "finds none" in caplog.text  # it says why not dali
    monkeypatch.setattr("feeder.decoders.dali.decoder.DaliDecoder", lambda *, device, **options: DaliDecoder(**options))
    assert get_decoder("auto", BASE, device="cuda").name == "dali"
    function = T.Recipe.of([*BASE.ops, T.Lambda(abs)])
    assert get_decoder("auto", function, device="cuda").name != "dali"
    assert "can't run Lambda" in caplog.text


def test_bad_options_are_argument_errors() -> None:
    for options in (
        {"threads": 0},
        {"fidelity": "slow"},
        {"gpu_memory_limit_bytes": 0},
        {"hw_decoder_load": 1.5},
        {"device": "meta"},
        {"outlier_pixels": -1},
    ):
        with pytest.raises(ArgumentError, match=next(iter(options))):
            DaliDecoder(**options)


def test_wrong_outputs_are_argument_errors() -> None:
    decoder, draws, ones = DaliDecoder(), draw(BASE, 1), np.ones(1, np.uint8)
    for out in (np.zeros((2, 3, 48, 48), np.uint8), np.zeros((1, 3, 48, 48)), np.zeros((1, 3, 48, 47), np.uint8)):
        with pytest.raises(ArgumentError, match=r"out must be|one length"):
            decoder.decode([jpeg()], ones, BASE, draws, out)


@pytest.mark.gpu
@needs_gpu
class TestOnTheGpu:
    """Needs a CUDA device; run by bench/gpu.sh."""

    recipe = T.Recipe.of([*BASE.ops, T.Normalize(MEAN, STD), T.ToDtype("float16")])

    def batch(self, count: int = 32) -> list[bytes]:
        return [jpeg(k, subsampling="4:2:0") for k in range(count)]

    @pytest.mark.parametrize("check", GPU_CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
    def test_the_device_conforms(self, check: Callable[[Decoder], None]) -> None:
        decoder = DaliDecoder(device="cuda")
        check(decoder)
        if check is not conformance.check_bad_images_stay_alone:
            assert decoder.redone_images == 0

    def test_pixels_are_those_of_the_cpu_pipeline(self) -> None:
        buffers = self.batch()
        decoder = DaliDecoder(device="cuda")
        found, expected = (run(each, buffers).astype(int) for each in (decoder, DaliDecoder()))
        check_alike(found, expected)
        assert (decoder.dali_images, decoder.redone_images) == (len(buffers), 0)

    def test_a_batch_that_dali_fails_on_is_redone_on_the_cpu(self) -> None:
        good = self.batch(8)
        decoder = DaliDecoder(device="cuda")
        alone = run(decoder, good)
        buffers = [*good, without_tables(good[0])]
        draws = draw(BASE, 8).take(np.array([*range(8), 0]))
        out = np.zeros((9, 3, 48, 48), np.uint8)
        errors = decoder.decode(buffers, np.ones(9, np.uint8), BASE, draws, out)
        assert [error is None for error in errors] == [True] * 8 + [False]
        check_alike(out[:8], alone)
        check_alike(run(decoder, good), alone)  # by a pipeline that was built anew
        assert (decoder.dali_images, decoder.redone_images) == (16, 9)

    def test_held_batches_stay_as_they_are_on_several_streams(self) -> None:
        """200 batches on four streams against the CPU: some hardware decoders are known to have ignored streams.

        Some streams lag behind, so that DALI's memory is read when later batches have long been decoded.
        """
        buffers = self.batch()
        decoder = DaliDecoder(device="cuda")
        streams = [torch.cuda.Stream() for _ in range(4)]
        expected = {}
        kept: list[tuple[int, torch.Tensor]] = []
        for iteration in range(200):
            epoch = iteration % 8
            draws = draw(self.recipe, len(buffers), epoch)
            if epoch not in expected:
                expected[epoch] = torch.from_numpy(run(DaliDecoder(), buffers, self.recipe, epoch).astype(np.float32))
            with torch.cuda.stream(streams[iteration % 4]):
                if iteration % 3 == 0:
                    torch.cuda._sleep(50_000_000)
                images, errors = decoder.finish(
                    staged(decoder, buffers, self.recipe, draws), self.recipe, (), channels_last=True
                )
            assert errors == [None] * len(buffers)
            kept = [*kept[-15:], (epoch, images)]
            if iteration % 16 == 15:
                torch.cuda.synchronize()
                for number, held in kept:
                    difference = (held.float().cpu() - expected[number]).abs() / (1 / 255 / 0.225)
                    assert difference.mean() <= 0.7, iteration
                    assert difference.flatten().quantile(0.999) <= 9, iteration
        assert (decoder.dali_images, decoder.redone_images) == (200 * len(buffers), 0)

    def test_a_batch_asked_for_before_its_turn_has_those_before_it_made_on_its_stream(self) -> None:
        buffers = self.batch()
        decoder, plain = DaliDecoder(device="cuda"), DaliDecoder(device="cuda")
        draws = [draw(self.recipe, len(buffers), epoch) for epoch in range(6)]
        batches = [staged(decoder, buffers, self.recipe, each) for each in draws]
        expected = [plain.finish(batch, self.recipe, ())[0].cpu() for batch in batches]
        early, late = torch.cuda.Stream(), torch.cuda.Stream()
        found = {}
        for number in range(0, 6, 2):
            assert [decoder.start(batch) for batch in batches[number : number + 2]] == [True, True]
            with torch.cuda.stream(late):
                torch.cuda._sleep(100_000_000)
                found[number + 1], errors = decoder.finish(batches[number + 1], self.recipe, ())
                assert errors == [None] * len(buffers)
            with torch.cuda.stream(early):  # it was resized on the late stream
                found[number], errors = decoder.finish(batches[number], self.recipe, ())
                assert errors == [None] * len(buffers)
        torch.cuda.synchronize()
        assert [torch.equal(found[number].cpu(), wanted) for number, wanted in enumerate(expected)] == [True] * 6

    def test_a_memory_limit_holds_on_a_stream_that_lags_behind(self) -> None:
        buffers, limit = self.batch(), 70 * 3 * HEIGHT * WIDTH
        decoder, plain = DaliDecoder(device="cuda", gpu_memory_limit_bytes=limit), DaliDecoder(device="cuda")
        draws = [draw(self.recipe, len(buffers), epoch) for epoch in range(6)]
        batches = [staged(decoder, buffers, self.recipe, each) for each in draws]
        expected = [plain.finish(batch, self.recipe, ())[0].cpu() for batch in batches]
        found = []
        assert [decoder.start(batch) for batch in batches[:3]] == [True, True, False]
        for number, batch in enumerate(batches):
            torch.cuda._sleep(50_000_000)
            images, errors = decoder.finish(batch, self.recipe, ())
            assert errors == [None] * len(buffers)
            found.append(images)
            assert decoder._queue._borrowed.size_bytes <= limit
            for other in batches[number + 1 : number + 3]:
                decoder.start(other)
        for images, wanted in zip(found, expected, strict=True):
            assert torch.equal(images.cpu(), wanted)
        assert (decoder.dali_images, decoder.redone_images) == (6 * len(buffers), 0)

    def test_memory_on_the_gpu_stays_flat(self) -> None:
        decoder, buffers = DaliDecoder(device="cuda"), self.batch()
        free = []
        for epoch in range(60):
            draws = draw(self.recipe, len(buffers), epoch)
            decoder.finish(staged(decoder, buffers, self.recipe, draws), self.recipe, ())
            torch.cuda.synchronize()
            free.append(torch.cuda.mem_get_info()[0])
        assert free[19] - free[59] <= 8 << 20
        assert (decoder.dali_images, decoder.redone_images) == (60 * len(buffers), 0)

"""The native backend: which images go to Pillow, ops after the base path, and what it refuses."""

from __future__ import annotations

import io
import time
from typing import Any

import numpy as np
import pytest
from PIL import Image

from feeder import transforms as T
from feeder.decoders.decoder import DecodeResult, View
from feeder.errors import ArgumentError, BackendError, DecodeError
from tests.support.field_sets import npy
from tests.support.images import encode, pixels
from tests.support.resize_reference import pillow_resize

pytest.importorskip("feeder._native")
from feeder import _native
from feeder.decoders.cpu_decoder import CpuDecoder
from feeder.decoders.pillow.pillow_decoder import PillowDecoder


def draw(recipe: T.Recipe, count: int, size: tuple[int, int] = (60, 80)) -> T.Draws:
    return recipe.draw(1, 0, np.arange(count), np.array([size] * count))


def decode(
    decoder: CpuDecoder | PillowDecoder, buffers: list[bytes], recipe: T.Recipe
) -> tuple[np.ndarray, DecodeResult]:
    assert recipe.output_size is not None
    out = np.zeros((len(buffers), 3, *recipe.output_size), recipe.storage_dtype)
    ones = np.ones(len(buffers), np.uint8)
    return out, decoder.decode(buffers, ones, [View(recipe, draw(recipe, len(buffers)), out)])


def run(decoder: CpuDecoder | PillowDecoder, buffers: list[bytes], recipe: T.Recipe) -> tuple[np.ndarray, list]:
    out, result = decode(decoder, buffers, recipe)
    return out, result.errors


def of_pillow(result: DecodeResult) -> list[bool]:
    """Tells which images Pillow has decoded: the kernels write where they transform."""
    assert result.spent_ns is not None
    return (result.spent_ns[:, 2] > 0).tolist()


def jpeg(seed: int = 0, **options: Any) -> bytes:
    return encode(pixels(seed, 80, 60), "JPEG", quality=90, **options)


BASE = T.Recipe.of([T.RandomResizedCrop(32), T.RandomHorizontalFlip()])


def test_other_formats_go_to_pillow() -> None:
    array = io.BytesIO()
    np.save(array, np.asarray(pixels(1, 80, 60)))
    buffers = [jpeg(), encode(pixels(2, 80, 60), "GIF"), array.getvalue(), encode(pixels(3, 80, 60), "BMP"), b"junk"]
    buffers.append(encode(pixels(4, 80, 60), "PNG"))
    out, result = decode(CpuDecoder(), buffers, BASE)
    assert of_pillow(result) == [False, True, False, True, False, False]
    assert [error is None for error in result.errors] == [True, True, True, True, False, True]
    expected, _ = run(PillowDecoder(), buffers, BASE)
    np.testing.assert_array_equal(out[[1, 3]], expected[[1, 3]])
    image = np.asarray(pixels(1, 80, 60))
    assert np.abs(out[2].mean() - image.mean()) < 40


@pytest.mark.parametrize(
    "last", [T.RandomRotation(30), T.Pad(3), T.Lambda(lambda image: 255 - image)], ids=lambda op: type(op).__name__
)
def test_ops_after_the_base_path_are_pillows(last: T.Op) -> None:
    recipe = T.Recipe.of([*BASE.ops, last, T.Normalize((0.5,) * 3, (0.25,) * 3)])
    buffers = [jpeg(i, subsampling="4:4:4") for i in range(4)] + [encode(pixels(9, 80, 60), "BMP")]
    out, result = decode(CpuDecoder(fidelity="exact"), buffers, recipe)
    expected, _ = run(PillowDecoder(), buffers, recipe)
    assert result.errors == [None] * 5
    assert of_pillow(result) == [False] * 4 + [True]
    assert np.abs(out - expected).max() <= 2 / 255 / 0.25 + 1e-5


def test_damaged_image_is_an_error_with_a_reason() -> None:
    good = jpeg()
    _, errors = run(CpuDecoder(), [good, good[:-200], good], BASE)
    assert errors[0] is None
    assert errors[2] is None
    assert isinstance(errors[1], DecodeError)
    assert "truncated" in errors[1].reason
    after = T.Recipe.of([*BASE.ops, T.Pad(2)])
    _, errors = run(CpuDecoder(), [good, good[:-200]], after)
    assert errors[0] is None
    assert "truncated" in errors[1].reason


def test_fidelity_exact_is_pillows_within_a_level() -> None:
    buffers = [jpeg(i, subsampling="4:2:0") for i in range(4)]
    expected, _ = run(PillowDecoder(), buffers, BASE)
    found, _ = run(CpuDecoder(fidelity="exact"), buffers, BASE)
    assert np.abs(found.astype(int) - expected).max() <= 1


@pytest.mark.parametrize("fidelity", ["fast", "exact"])
@pytest.mark.parametrize("size", [20, 200])
@pytest.mark.parametrize("form", ["original", "seekable", "array"])
def test_bicubic_crops_are_native_and_have_pillows_bytes(form: str, size: int, fidelity: str) -> None:
    """Fast ones of JPEGs are close to them, as bilinear ones are."""
    recipe = T.Recipe.of([T.RandomResizedCrop(size, (0.2, 1.0), interpolation="bicubic"), T.RandomHorizontalFlip()])
    images = [jpeg(i, subsampling=sampling) for i, sampling in enumerate(["4:2:0", "4:2:2", "4:4:4"])]
    whole = [np.asarray(Image.open(io.BytesIO(data))) for data in images]
    if form == "seekable":
        images = [_native.transcode(data, keep_metadata=False, segment_px=16) for data in images]
    elif form == "array":
        images = [npy(pixels) for pixels in whole]
    out, result = decode(CpuDecoder(fidelity=fidelity), images, recipe)
    assert (result.errors, of_pillow(result), result.slow) == ([None] * 3, [False] * 3, 0)
    draws = draw(recipe, 3)
    for found, rgb, source, support, flip in zip(
        out, whole, draws.source_box.tolist(), draws.support_box.tolist(), draws.flip, strict=True
    ):
        expected = pillow_resize(rgb, source, support, (size, size), flip=bool(flip), filter="bicubic")
        differences = np.abs(found.transpose(1, 2, 0).astype(int) - expected)
        assert differences.max() <= (0 if fidelity == "exact" or form == "array" else 3)
        assert differences.mean() <= 0.5


@pytest.mark.parametrize("decoder", [CpuDecoder(), PillowDecoder()], ids=["cpu", "pillow"])
@pytest.mark.parametrize("behind", [[], [T.RandomInvert()]], ids=["base path", "ops after it"])
def test_images_have_the_pixels_of_the_interpolation_that_they_draw(
    decoder: CpuDecoder | PillowDecoder, behind: list[T.Op]
) -> None:
    images = [jpeg(i) for i in range(20)]
    names = "bilinear", "bicubic", "random"
    recipes = {name: T.Recipe.of([T.RandomResizedCrop(24, interpolation=name), *behind]) for name in names}
    made = {name: run(decoder, images, recipe)[0] for name, recipe in recipes.items()}
    bicubic = draw(recipes["random"], 20).bicubic
    assert bicubic is not None
    assert 4 < bicubic.sum() < 16
    for row, is_bicubic in enumerate(bicubic.tolist()):
        np.testing.assert_array_equal(made["random"][row], made[names[is_bicubic]][row])
        assert (made["random"][row] != made[names[not is_bicubic]][row]).any()


def test_bad_options_are_argument_errors() -> None:
    for options in ({"threads": 0}, {"max_pixels": 0}, {"fidelity": "slow"}):
        with pytest.raises(ArgumentError, match=next(iter(options))):
            CpuDecoder(**options)


def test_wrong_outputs_are_argument_errors() -> None:
    decoder, draws, ones = CpuDecoder(), draw(BASE, 1), np.ones(1, np.uint8)
    for out in (np.zeros((2, 3, 32, 32), np.uint8), np.zeros((1, 3, 32, 32)), np.zeros((1, 3, 32, 31), np.uint8)):
        with pytest.raises(ArgumentError, match=r"out must be|one length"):
            decoder.decode([jpeg()], ones, [View(BASE, draws, out)])


def test_an_unknown_op_is_refused_in_this_backends_name() -> None:
    class Sharpen(T.Op):
        pass

    with pytest.raises(BackendError, match=r"'cpu' can't run Sharpen"):
        CpuDecoder().check(T.Recipe((Sharpen(),)))


def test_an_empty_batch_is_no_work() -> None:
    view = View(BASE, draw(BASE, 0), np.zeros((0, 3, 32, 32), np.uint8))
    assert CpuDecoder().decode([], np.ones(0, np.uint8), [view]).errors == []


def test_images_of_one_size_are_decoded_whole() -> None:
    recipe = T.Recipe.of([T.CenterCrop((60, 80))])
    found, errors = run(CpuDecoder(fidelity="exact"), [jpeg()], recipe)
    assert errors == [None]
    expected = np.asarray(Image.open(io.BytesIO(jpeg())))
    assert np.abs(found[0].transpose(1, 2, 0).astype(int) - expected).max() <= 1


@pytest.mark.parametrize("ops", [[], [T.Pad(3)]], ids=["base path", "ops after it"])
@pytest.mark.parametrize("threads", [1, 2])
def test_each_image_of_a_call_has_its_times(ops: list[T.Op], threads: int) -> None:
    recipe = T.Recipe.of([*BASE.ops, *ops])
    decoder = CpuDecoder(threads=threads)
    buffers = [jpeg(), encode(pixels(2, 80, 60), "BMP"), b"junk", jpeg(1)]
    started = time.perf_counter_ns()
    _, result = decode(decoder, buffers, recipe)
    spent, wall = result.spent_ns, time.perf_counter_ns() - started
    assert spent is not None
    assert spent.shape == (4, 3)
    assert (spent[[0, 1, 3], :2] > 0).all()
    assert of_pillow(result) == [False, True, False, False]
    assert spent.sum() < wall * threads
    decode(decoder, buffers[:1], recipe)
    assert result.spent_ns is spent  # a result outlives the next call

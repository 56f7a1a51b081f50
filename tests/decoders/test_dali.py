"""The DALI backend's pixels, errors and options; what every backend must hold is in test_conformance.py."""

from __future__ import annotations

import sys

import numpy as np
import PIL
import pytest
import torch

from feeder import transforms as T
from feeder.decoders.dali import crops
from feeder.decoders.dali.dali_decoder import DaliDecoder
from feeder.decoders.decoder import Decoder, View
from feeder.decoders.registry import available_decoders, get_decoder
from feeder.errors import ArgumentError, BackendError, DecodeError
from tests.support.conformance import MEAN, STD, decode, encode, natural_image
from tests.support.dali_batches import BASE, HEIGHT, WIDTH, check_alike, draw, jpeg, run
from tests.support.loader_data import without_tables

pytest.importorskip("nvidia.dali", reason="DALI is not installed")


def test_a_batch_that_dali_fails_on_is_redone_on_the_cpu() -> None:
    good = [jpeg(k) for k in range(4)]
    bad = without_tables(good[0])
    decoder = DaliDecoder()
    alone = run(decoder, good)
    buffers = [*good[:2], bad, *good[2:]]
    draws = draw(BASE, 4).take(np.array([0, 1, 0, 2, 3]))
    out = np.zeros((5, 3, 48, 48), np.uint8)
    errors = decoder.decode(buffers, np.ones(5, np.uint8), [View(BASE, draws, out)]).errors
    assert [error is None for error in errors] == [True, True, False, True, True]
    assert isinstance(errors[2], DecodeError)
    check_alike(out[[0, 1, 3, 4]], alone)
    assert (decoder.dali_images, decoder.redone_images) == (4, 5)
    np.testing.assert_array_equal(run(decoder, good), alone)


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


# Damage that DALI conceals without an error.
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
        errors = decoder.decode(
            [bad[name] for name in names], np.ones(len(names), np.uint8), [View(recipe, draws, out)]
        ).errors
        return {name: error is None for name, error in zip(names, errors, strict=True)}

    expected = [fates(cpu, list(bad), epoch) for epoch in range(12)]
    assert all(each["bytes behind the end"] and each["no end"] for each in expected)
    assert not any(each["no tables"] or each["another size"] or each["cut off"] for each in expected)
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


def test_outliers_are_decoded_by_the_cpu_backend_and_join_the_batch() -> None:
    small, large = jpeg(1), encode(natural_image(2, 200, 300))
    recipe, ones = BASE, np.ones(3, np.uint8)
    draws = recipe.draw(0, 0, np.arange(3), [[HEIGHT, WIDTH], [200, 300], [HEIGHT, WIDTH]])
    decoder = DaliDecoder()
    decoder.prepare(3, outlier_pixels=200 * 300 - 1)
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


def test_kernel_2_resizes_as_the_native_module_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Images that lie on their side among others, so that there are two sizes before the turn."""
    recipe = T.Recipe.of([T.RandomResizedCrop((40, 56)), T.RandomHorizontalFlip()])
    orientations = np.array([1, 6, 3, 8], np.uint8)
    sizes = [[HEIGHT, WIDTH] if each < 5 else [WIDTH, HEIGHT] for each in orientations]
    draws = recipe.draw(0, 0, np.arange(4), sizes)
    buffers = [jpeg(k) for k in range(4)]
    expected = decode(DaliDecoder(), buffers, recipe, draws, orientations)
    monkeypatch.setattr(crops, "on_cpu", crops.on_gpu)
    check_alike(decode(DaliDecoder(), buffers, recipe, draws, orientations), expected, 1)


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
    monkeypatch.setattr(
        "feeder.decoders.dali.dali_decoder.DaliDecoder", lambda *, device, **options: DaliDecoder(**options)
    )
    assert get_decoder("auto", BASE, device="cuda").name == "dali"
    function = T.Recipe.of([*BASE.ops, T.Lambda(abs)])
    assert get_decoder("auto", function, device="cuda").name != "dali"
    assert "can't run Lambda" in caplog.text


def test_bad_options_are_argument_errors() -> None:
    for options in (
        {"threads": 0},
        {"fidelity": "slow"},
        {"device": "meta"},
    ):
        with pytest.raises(ArgumentError, match=next(iter(options))):
            DaliDecoder(**options)


def test_wrong_outputs_are_argument_errors() -> None:
    decoder, draws, ones = DaliDecoder(), draw(BASE, 1), np.ones(1, np.uint8)
    for out in (np.zeros((2, 3, 48, 48), np.uint8), np.zeros((1, 3, 48, 48)), np.zeros((1, 3, 48, 47), np.uint8)):
        with pytest.raises(ArgumentError, match=r"out must be|one length"):
            decoder.decode([jpeg()], ones, [View(BASE, draws, out)])

"""The reference backend: every op gives torchvision's pixels, and odd input is met with care."""

from __future__ import annotations

import io
import os
import threading
import warnings
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image, features

from feeder import transforms
from feeder.decoders import registry
from feeder.decoders.decoder import Decoder, View
from feeder.decoders.op_math import bfloat16_bits
from feeder.decoders.pillow.image_ops import ARRAY_OPS, IMAGE_OPS
from feeder.decoders.pillow.pillow_decoder import PillowDecoder
from feeder.errors import ArgumentError, BackendError, DecodeError
from feeder.transforms import (
    CenterCrop,
    ColorJitter,
    Lambda,
    Normalize,
    Op,
    RandAugment,
    RandomApply,
    RandomChoice,
    RandomCrop,
    RandomErasing,
    RandomGrayscale,
    RandomHorizontalFlip,
    RandomInvert,
    RandomPerspective,
    RandomResizedCrop,
    RandomRotation,
    RandomVerticalFlip,
    RandomZoomOut,
    Recipe,
    Resize,
    ToDtype,
    TrivialAugmentWide,
)
from tests.golden import torchvision_arrays, torchvision_cases
from tests.support.conformance import decode, encode, natural_image, sizes_of

# pillow-simd rounds its resize differently in the last level, and what a resize feeds may double that.
IS_SIMD = "post" in str(features.version("pil"))
ONES = np.ones(64, np.uint8)


def run_one(ops: list[Op], buffer: bytes, *, orientation: int = 1, sample_id: int = 0) -> npt.NDArray[Any]:
    recipe = Recipe.of(ops)
    size = sizes_of([buffer], np.array([orientation]))
    return decode_one(buffer, orientation, recipe, recipe.draw(3, 1, [sample_id], size))


def decode_one(
    buffer: bytes, orientation: int, recipe: Recipe, draws: transforms.Draws, decoder: Decoder | None = None
) -> npt.NDArray[Any]:
    out = np.empty((1, 3, *draws.output_size[0].tolist()), recipe.storage_dtype)
    view = View(recipe, draws, out)
    (error,) = (decoder or PillowDecoder()).decode([buffer], np.array([orientation], np.uint8), [view]).errors
    if error is not None:
        raise error
    return out[0]


def golden_pixels() -> list[Any]:
    cases = torchvision_cases("pixels")
    start = 0
    for case in cases:
        width, height = case["size"]
        case["slice"] = (start, start + 3 * width * height)
        start += 3 * width * height
    names = [f"{i}-{case['op']}-{case['args']}-{case['row'].get('kind', '')}" for i, case in enumerate(cases)]
    return [pytest.param(case, id=name) for case, name in zip(cases, names, strict=True)]


@pytest.mark.parametrize("case", golden_pixels())
def test_ops_give_the_pixels_of_torchvision(case: dict[str, Any]) -> None:
    arrays = torchvision_arrays()
    op = getattr(transforms, case["op"])(**case["args"])
    row = {name: np.array(value) for name, value in case["row"].items()}
    found = IMAGE_OPS[type(op)](Image.fromarray(arrays["input"]), op, row)
    width, height = case["size"]
    expected = arrays["pixels"][slice(*case["slice"])].reshape(height, width, 3)
    assert found.size == (width, height)
    difference = np.abs(np.asarray(found).astype(int) - expected)
    assert difference.max() <= (2 if IS_SIMD else 0)


def test_every_augmentation_is_covered_by_the_golden_pixels() -> None:
    for name in ("RandAugment", "TrivialAugmentWide"):
        kinds = {case["row"]["kind"][0] for case in torchvision_cases("pixels") if case["op"] == name}
        assert kinds == set(range(14))
    assert {case["op"] for case in torchvision_cases("pixels")} >= {op.__name__ for op in IMAGE_OPS} - {
        "CenterCrop",
        "ClampBoundingBoxes",
        "ClampKeyPoints",
        "CornerCrop",
        "Grayscale",
        "Lambda",
        "LetterBox",
        "RandomApply",
        "RandomChoice",
        "RandomIoUCrop",
        "RandomOrder",
        "RandomResize",
        "RandomShortestSize",
        "SanitizeBoundingBoxes",
        "SanitizeKeyPoints",
        "ScaleJitter",
        "TimmRandAugment",
    }


def test_erasing_after_normalize_is_that_of_torchvision() -> None:
    arrays = torchvision_arrays()
    op = RandomErasing(value=(1.5, -2.0, 0.0))
    row = {"erase": True, "i": 4, "j": 6, "h": 9, "w": 12, "key": 0}
    floats = run_one([Normalize([0.4] * 3, [0.2, 0.3, 0.1])], encode(arrays["input"], "png"))
    erased = ARRAY_OPS[RandomErasing](floats, op, row)
    np.testing.assert_allclose(erased, arrays["erased_floats"], atol=1e-5)


def test_random_erasing_noise_is_normal_and_keyed_by_sample() -> None:
    buffer = encode(natural_image(1), "png")
    ops: list[Op] = [ToDtype("float32"), RandomErasing(1.0, scale=(0.3, 0.3), value="random")]
    first, again, other = (run_one(ops, buffer, sample_id=i) for i in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()
    noise = first[first != np.rint(first)]
    assert noise.size > 0.25 * first.size
    assert abs(noise.mean()) < 0.03
    assert abs(noise.std() - 1.0) < 0.03


def test_erasing_leaves_the_rest_of_the_image_alone() -> None:
    buffer = encode(np.full((50, 60, 3), 200, np.uint8), "png")
    erased = run_one([RandomErasing(1.0, value=(300, 7.9, -4))], buffer)
    changed = (erased != 200).any(axis=0)
    assert 0.02 * 3000 * 0.8 < changed.sum() < 0.33 * 3000 * 1.2
    # On uint8 images a value is cut to 0-255, and to a whole number.
    assert {tuple(pixel) for pixel in erased[:, changed].T.tolist()} == {(255, 7, 0)}


@pytest.mark.parametrize(
    "ops",
    [
        [RandomResizedCrop(64), RandomHorizontalFlip()],
        [Resize(80), RandomHorizontalFlip(), RandomCrop((60, 70)), RandomHorizontalFlip()],
        [Resize(80), CenterCrop(64)],
        [Resize((70, 90)), CenterCrop((9, 80))],
    ],
)
def test_boxes_say_the_same_as_the_ops_one_by_one(ops: list[Op]) -> None:
    buffers = [encode(natural_image(i, *size), "png") for i, size in enumerate([(150, 200), (201, 133), (90, 91)] * 3)]
    recipe = Recipe.of(ops)
    assert recipe.is_base_path
    draws = recipe.draw(5, 6, np.arange(len(buffers)), sizes_of(buffers, ONES[: len(buffers)]))
    out = decode(PillowDecoder(), buffers, recipe, draws, ONES[: len(buffers)])
    for row, buffer in enumerate(buffers):
        left, top, *_ = support = draws.support_box[row].tolist()
        box = tuple((draws.source_box[row] - [left, top, left, top]).tolist())
        height, width = draws.base_size[row].tolist()
        image = Image.open(io.BytesIO(buffer)).crop(support).resize((width, height), Image.Resampling.BILINEAR, box)
        fused = np.asarray(image)[:, :: -1 if draws.flip[row] else 1].transpose(2, 0, 1)
        assert np.abs(fused.astype(int) - out[row]).max() <= 1


def test_finishing_a_base_path_gives_what_the_whole_recipe_gives() -> None:
    ops: list[Op] = [
        RandomResizedCrop(64),
        RandomHorizontalFlip(),
        RandAugment(),
        ColorJitter(0.4, 0.4, 0.4, 0.1),
        Normalize([0.5], [0.2]),
        RandomErasing(),
    ]
    recipe, base = Recipe.of(ops), Recipe.of(ops[:2])
    assert recipe.base_length == 2
    buffers = [encode(natural_image(i)) for i in range(4)]
    sizes = sizes_of(buffers, ONES[:4])
    draws = recipe.draw(1, 1, np.arange(4), sizes)
    whole = decode(PillowDecoder(), buffers, recipe, draws, ONES[:4])
    half = decode(PillowDecoder(), buffers, base, base.draw(1, 1, np.arange(4), sizes), ONES[:4])
    finished = np.zeros_like(whole)
    for row in range(4):
        pixels = np.ascontiguousarray(half[row].transpose(1, 2, 0))
        PillowDecoder().finish(pixels, recipe, draws, row, finished[row])
    np.testing.assert_array_equal(finished, whole)


def test_lambda_gets_what_stands_before_it_and_may_write_to_it() -> None:
    seen = []

    def invert(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        seen.append((array.dtype.name, array.shape))
        np.negative(array, out=array)
        return array

    buffer = encode(natural_image(1, 20, 30), "png")
    plain = run_one([], buffer)
    assert plain.shape == (3, 20, 30)
    changed = run_one([Lambda(invert), ToDtype("float32"), Lambda(invert)], buffer)
    assert seen == [("uint8", (3, 20, 30)), ("float32", (3, 20, 30))]
    np.testing.assert_array_equal(changed, -(-plain).astype(np.float32))
    with pytest.raises(ArgumentError, match=r"float64 \[2\]"):
        run_one([Lambda(lambda array: np.zeros(2))], buffer)
    with pytest.raises(ZeroDivisionError):
        run_one([Lambda(lambda array: array[0, 0, 0] // 0 if 1 / 0 else array)], buffer)


def test_a_flip_after_normalize_is_the_flip_before_it() -> None:
    buffer = encode(natural_image(1, 20, 30), "png")
    flip, normalize = RandomHorizontalFlip(1.0), Normalize([0.5], [0.2])
    after = run_one([normalize, flip, RandomErasing(0.0)], buffer)
    np.testing.assert_array_equal(after, run_one([flip, normalize], buffer))
    assert (after != run_one([normalize], buffer)).any()


def test_a_vertical_flip_turns_the_image_top_to_bottom() -> None:
    buffer = encode(natural_image(1, 20, 30), "png")
    whole = run_one([], buffer)
    np.testing.assert_array_equal(run_one([RandomVerticalFlip(1.0)], buffer), whole[:, ::-1])
    np.testing.assert_array_equal(
        run_one([RandomHorizontalFlip(1.0), RandomVerticalFlip(0.0)], buffer), whole[..., ::-1]
    )


def test_random_apply_does_all_of_its_ops_or_none() -> None:
    buffer = encode(natural_image(1, 20, 30), "png")
    whole = run_one([], buffer)
    ops: list[Op] = [ColorJitter(0.4, 0.4, 0.4, 0.1), transforms.GaussianBlur(5), RandomVerticalFlip(1.0)]
    np.testing.assert_array_equal(run_one([RandomApply(ops, 0.0)], buffer), whole)
    always = RandomApply(transforms.Compose(ops), 1.0)
    expected = Image.fromarray(np.ascontiguousarray(whole.transpose(1, 2, 0)))
    draws = Recipe.of([always]).draw(3, 1, [0], [[20, 30]])
    ((_, steps),) = always.branches({name: values[0] for name, values in draws.ops[0].items()})
    for op, params in steps:
        expected = IMAGE_OPS[type(op)](expected, op, params)
    found = run_one([always], buffer)
    np.testing.assert_array_equal(found, np.asarray(expected).transpose(2, 0, 1))
    assert np.abs(found.astype(int) - whole[:, ::-1]).mean() > 1
    kinds = {run_one([RandomApply(ops)], buffer, sample_id=i).tobytes() for i in range(20)}
    assert whole.tobytes() in kinds
    assert len(kinds) > 3


def test_random_choice_does_one_of_its_ops_as_a_whole() -> None:
    buffer = encode(natural_image(1, 20, 30), "png")
    whole = run_one([], buffer)
    both = transforms.Compose([RandomInvert(1.0), RandomHorizontalFlip(1.0)])
    op = RandomChoice([both, RandomVerticalFlip(1.0), transforms.Compose([])])
    expected = {whole[:, ::-1].tobytes(), (255 - whole)[..., ::-1].tobytes(), whole.tobytes()}
    assert {run_one([op], buffer, sample_id=i).tobytes() for i in range(20)} == expected
    draws = Recipe.of(RandomChoice([ColorJitter(0.4), ColorJitter(0.4)])).draw(3, 1, [0], [[20, 30]]).ops[0]
    assert draws["0.brightness"] != draws["1.brightness"]


def test_corners_that_no_perspective_makes_leave_the_image_as_it_is() -> None:
    image = Image.fromarray(natural_image(1, 20, 30))
    change = IMAGE_OPS[RandomPerspective]
    for corners in (
        [[5, 5], [5, 5], [29, 19], [0, 19]],  # two in one place
        [[0, 0], [10, 0], [20, 0], [0, 19]],  # three in a row
        [[4, 4], [8, 8], [10, 20], [3, 6]],  # to the upper left comes what is infinitely far
    ):
        row = {"distort": np.array(True), "corners": np.array(corners)}
        assert np.array_equal(np.asarray(change(image, RandomPerspective(), row)), np.asarray(image))
    for size in ((1, 1), (1, 30), (20, 1)):
        buffer = encode(natural_image(1, *size), "png")
        np.testing.assert_array_equal(run_one([RandomPerspective(1.0, 1.0)], buffer), run_one([], buffer))


def test_an_image_that_is_padded_beyond_the_limit_is_refused() -> None:
    buffer = encode(natural_image(1, 20, 30), "png")
    recipe = Recipe.of([RandomZoomOut(side_range=(2, 2), p=1.0)])
    draws = recipe.draw(0, 0, [0], [[20, 30]])
    assert decode_one(buffer, 1, recipe, draws, PillowDecoder(max_pixels=2400)).shape == (3, 40, 60)
    with pytest.raises(DecodeError, match="RandomZoomOut has 60x40 pixels, more than max_pixels=2399"):
        decode_one(buffer, 1, recipe, draws, PillowDecoder(max_pixels=2399))


def test_grayscale_is_gray_and_jitter_of_nothing_changes_nothing() -> None:
    buffer = encode(natural_image(1, 20, 30), "png")
    gray = run_one([RandomGrayscale(1.0)], buffer)
    np.testing.assert_array_equal(gray[0], gray[1])
    np.testing.assert_array_equal(gray[0], gray[2])
    np.testing.assert_array_equal(run_one([ColorJitter()], buffer), run_one([], buffer))


@pytest.mark.parametrize("center", [None, (3.0, 40.0)])
def test_sizes_of_expanded_rotations_are_those_that_pillow_makes(center: tuple[float, float] | None) -> None:
    buffer = encode(natural_image(1, 37, 54), "png")
    for low in (-180, -90, 0, 90, 17, 200):
        for spread in (0, 40):
            recipe = Recipe.of([RandomRotation((low, low + spread), expand=True, center=center)])
            draws = recipe.draw(0, 0, [1], [[37, 54]])
            decode_one(buffer, 1, recipe, draws)  # refuses an output of another size


def test_every_op_runs_in_a_recipe() -> None:
    ops: list[Op] = [
        transforms.Pad(3),
        RandomRotation(30, expand=True),
        transforms.RandomAffine(10, (0.1, 0.2), (0.8, 1.2), 5),
        RandomCrop(300, pad_if_needed=True, padding_mode="reflect"),
        RandomResizedCrop(48, interpolation="bicubic"),
        RandomVerticalFlip(),
        ColorJitter(0.4, 0.4, 0.4, 0.1),
        RandomGrayscale(),
        transforms.GaussianBlur(5),
        RandAugment(),
        TrivialAugmentWide(),
        ToDtype("float32", scale=True),
        RandomErasing(),
        Normalize([0.5], [0.5]),
        ToDtype("bfloat16"),
    ]
    recipe = Recipe.of(ops)
    buffers = [encode(natural_image(1, 100, 130))] * 16
    draws = recipe.draw(0, 0, np.arange(16), sizes_of(buffers, ONES[:16]))
    out = decode(PillowDecoder(), buffers, recipe, draws, ONES[:16])
    values = (out.astype(np.uint32) << 16).view(np.float32)
    assert np.abs(values).max() <= 1.0
    assert (values.std(axis=(1, 2, 3)) > 0).all()


def test_bfloat16_is_rounded_to_nearest_even() -> None:
    import torch

    numbers = np.random.default_rng(0).standard_normal(3000).astype(np.float32)
    numbers = np.concatenate([numbers, np.array([0.0, -0.0, np.inf, -np.inf, 1 + 2**-8, 1 + 3 * 2**-8], np.float32)])
    expected = torch.from_numpy(numbers).to(torch.bfloat16).view(torch.uint16).numpy()
    np.testing.assert_array_equal(bfloat16_bits(numbers), expected)
    assert np.isnan((bfloat16_bits(np.array([np.nan], np.float32)).astype(np.uint32) << 16).view(np.float32)).all()


def test_too_small_for_a_random_crop_is_the_error_of_that_image() -> None:
    recipe = Recipe.of([RandomCrop(40)])
    buffers = [encode(natural_image(0, 50, 60)), encode(natural_image(0, 39, 60))]
    draws = recipe.draw(0, 0, [0, 1], sizes_of(buffers, ONES[:2]))
    out = np.zeros((2, 3, 40, 40), np.uint8)
    first, second = PillowDecoder().decode(buffers, ONES[:2], [View(recipe, draws, out)]).errors
    assert first is None
    assert second is not None
    assert "pad_if_needed=True" in second.reason


def test_an_op_that_would_make_a_huge_image_is_refused() -> None:
    buffer = encode(np.zeros((1, 3000, 3), np.uint8), "png")
    with pytest.raises(DecodeError, match="Resize has 768000x256 pixels"):
        run_one([Resize(256), CenterCrop(224)], buffer)


def test_tiff_is_turned_upright_once() -> None:
    """Pillow does it while loading, so the orientation that is given must not be applied again."""
    exif = Image.Exif()
    exif[0x0112] = 6
    stored = natural_image(0, 20, 30)
    buffer = encode(stored, "tiff", exif=exif)
    recipe = Recipe.of([])
    for orientation in (1, 6):
        out = decode_one(buffer, orientation, recipe, recipe.draw(0, 0, [0], [[30, 20]]))
        np.testing.assert_array_equal(out, np.rot90(stored, -1).transpose(2, 0, 1))


def test_formats_that_could_start_programs_are_not_opened() -> None:
    file = io.BytesIO()
    Image.new("RGB", (8, 8)).save(file, "EPS")
    with pytest.raises(DecodeError, match="not an image"):
        run_one([], file.getvalue())


def test_oddities_that_pillow_warns_about_stay_quiet() -> None:
    """And the caller's filters are back afterwards."""
    palette = encode(Image.fromarray(natural_image(0, 9, 9)).quantize(8), "png", transparency=bytes(range(0, 80, 10)))
    cut = encode(natural_image(0, 20, 20), "tiff")[:-3]
    recipe = Recipe.of([])
    before = list(warnings.filters)
    with pytest.warns(UserWarning, match="Palette images with Transparency"):
        Image.open(io.BytesIO(palette)).convert("RGB")
    decode_one(palette, 1, recipe, recipe.draw(0, 0, [0], [[9, 9]]))
    with pytest.raises(DecodeError):
        decode_one(cut, 1, recipe, recipe.draw(0, 0, [0], [[20, 20]]))
    assert warnings.filters == before


def test_threads_that_overlap_leave_the_warning_filters_as_they_were() -> None:
    before = list(warnings.filters)
    inside, leave = threading.Barrier(3), [threading.Event(), threading.Event()]

    def hold(number: int) -> None:
        def wait(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
            inside.wait(30)
            leave[number].wait(30)
            return array

        run_one([Lambda(wait)], encode(natural_image(0, 8, 8), "png"))

    threads = [threading.Thread(target=hold, args=(number,)) for number in (0, 1)]
    for thread in threads:
        thread.start()
    inside.wait(30)
    for event, thread in zip(leave, threads, strict=True):
        event.set()
        thread.join(30)
    assert warnings.filters == before


def test_out_of_the_wrong_shape_or_dtype_is_the_callers_error() -> None:
    buffer = encode(natural_image(0, 20, 30))
    recipe = Recipe.of([Resize(10)])
    draws = recipe.draw(0, 0, [0], [[20, 30]])
    with pytest.raises(ArgumentError, match=r"out must be \[3, 10, 15\]"):
        PillowDecoder().decode([buffer], ONES[:1], [View(recipe, draws, np.zeros((1, 3, 10, 10), np.uint8))])
    with pytest.raises(ArgumentError, match="uint8"):
        PillowDecoder().decode([buffer], ONES[:1], [View(recipe, draws, np.zeros((1, 3, 10, 15), np.float32))])
    with pytest.raises(ArgumentError, match="one length"):
        PillowDecoder().decode([buffer], ONES[:2], [View(recipe, draws, np.zeros((1, 3, 10, 15), np.uint8))])


def test_an_op_that_nobody_knows_is_refused_by_name() -> None:
    class Swirl(Op):
        pass

    with pytest.raises(BackendError, match="Swirl"):
        registry.get_decoder("pillow", Recipe((Swirl(),)))
    with pytest.raises(BackendError, match="Swirl"):
        registry.get_decoder("pillow", Recipe.of(RandomApply([Swirl()])))
    with pytest.raises(BackendError, match="Swirl"):
        registry.get_decoder("pillow", Recipe.of(RandomChoice([RandomInvert(), Swirl()])))


def test_a_backend_asked_for_by_name_never_falls_back(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = ("feeder.decoders.no_such_module:Decoder", "install it: pip install this")
    monkeypatch.setitem(registry.BUILT_IN, "cpu", broken)
    with pytest.raises(BackendError, match=r"'cpu' is not installed .*; install it: pip install this"):
        registry.get_decoder("cpu")
    with pytest.raises(ArgumentError, match="'auto' or one of cpu, cuda, dali, pillow"):
        registry.get_decoder("opencv")


def test_auto_takes_the_first_that_can_run_the_recipe_and_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(registry.BUILT_IN, "cpu", (f"{__name__}:Picky", "install it"))
    caplog.set_level("INFO", "feeder")
    assert registry.get_decoder("auto", Recipe.of([Resize(9)])).name == "picky"
    assert "backend 'auto' is 'cpu'" in caplog.text
    assert registry.get_decoder("auto", Recipe.of([RandAugment()])).name == "pillow"
    assert "backend 'auto' is 'pillow', the first of cpu, pillow to run here; not RandAugment" in caplog.text
    assert "cpu" in registry.available_decoders()


def test_another_package_adds_a_backend_by_entry_point(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    info = tmp_path / "other-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        f"[feeder.decoders]\npicky = {__name__}:Picky\nlost = no_such_module:Decoder\n"
    )
    monkeypatch.syspath_prepend(os.fspath(tmp_path))
    assert registry.get_decoder("picky").name == "picky"
    assert set(registry.decoder_names()) == {"cpu", "cuda", "dali", "lost", "pillow", "picky"}
    assert "lost" not in registry.available_decoders()
    with pytest.raises(BackendError, match="repair or remove the package 'other'"):
        registry.get_decoder("lost")


class Picky(PillowDecoder):
    """Runs the base path only."""

    name = "picky"

    def check(self, recipe: Recipe) -> None:
        if not recipe.is_base_path:
            raise BackendError(f"not {type(recipe.rest[0]).__name__}")


def test_the_backends_satisfy_the_protocol() -> None:
    decoder: Decoder = PillowDecoder()
    assert decoder.name == "pillow"

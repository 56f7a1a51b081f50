"""Ops behind the base path in the kernels: the Pillow backend's pixels for the same draws."""

from __future__ import annotations

from io import BytesIO
from typing import Any

import numpy as np
import numpy.typing as npt
import PIL
import pytest
from PIL import Image

from feeder.decoders.cpu_decoder import CpuDecoder
from feeder.decoders.decode import decode
from feeder.decoders.decoder import View
from feeder.decoders.pillow.pillow_decoder import PillowDecoder
from feeder.decoders.programs import has_programs
from feeder.errors import BackendError, DecodeError
from feeder.transforms import (
    JPEG,
    AugMix,
    AutoAugment,
    CenterCrop,
    ColorJitter,
    Compose,
    GaussianBlur,
    GaussianNoise,
    Grayscale,
    Lambda,
    LetterBox,
    Normalize,
    Op,
    Pad,
    RandAugment,
    RandomAdjustSharpness,
    RandomAffine,
    RandomApply,
    RandomAutocontrast,
    RandomChoice,
    RandomCrop,
    RandomEqualize,
    RandomErasing,
    RandomGrayscale,
    RandomHorizontalFlip,
    RandomInvert,
    RandomOrder,
    RandomPerspective,
    RandomPhotometricDistort,
    RandomPosterize,
    RandomRotation,
    RandomSolarize,
    RandomVerticalFlip,
    Recipe,
    Resize,
    TimmRandAugment,
    ToDtype,
    TrivialAugmentWide,
)

COUNT = 40
NORMALIZE = Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
# pillow-simd rounds gray differently, and may be what is imported as PIL; equalizing makes more of a level.
ROUNDS_GRAY = ".post" in PIL.__version__

EXACT: list[list[Op]] = [
    [RandomVerticalFlip()],
    [ColorJitter(brightness=0.9)],
    [ColorJitter(hue=0.5)],
    [RandomAdjustSharpness(1.7)],
    [RandomAutocontrast()],
    [RandomEqualize()],
    [RandomInvert(), RandomPosterize(3), RandomSolarize(100.5)],
    [RandomPosterize(5), JPEG((1, 100)), RandomInvert()],
    [RandomApply([JPEG(100), JPEG(3)], 0.6)],
    [RandomRotation(180, fill=(9, 200, 31))],
    [RandomRotation(90, interpolation="bicubic", center=(3, 9))],
    [RandomAffine(30, (0.3, 0.2), (0.5, 1.5), (-20, 20, -30, 30), fill=7)],
    [RandomAffine(30, interpolation="bilinear", center=(10, 2))],
    [RandomAffine(0, (0.3, 0.2), (0.5, 1.5))],
    [RandomPerspective(0.6, 0.8, fill=(1, 2, 3)), RandomPerspective(0.3, interpolation="nearest")],
    [RandomErasing(0.7, value=(9, 300, -4)), RandomHorizontalFlip(), RandomInvert()],
    [RandomApply([RandomInvert(1.0), RandomHorizontalFlip()], 0.4), RandomErasing(0.7, value=9)],
    [RandomChoice([RandomInvert(), RandomRotation(20), RandomEqualize()], (1, 2, 3))],
    [RandomOrder([Compose([RandomInvert(), RandomRotation(20)]), RandomEqualize(), Compose([]), RandomErasing(0.8)])],
    [RandomPhotometricDistort(p=0.6, contrast=(1, 1), saturation=(1, 1)), RandomErasing(0.6, value=(1, 2, 3))],
    [RandomHorizontalFlip(), RandomPhotometricDistort((1, 1), (1, 1), (1, 1), (0, 0), 0.9), RandomVerticalFlip()],
]
GRAY: list[list[Op]] = [
    [RandomGrayscale(0.5)],
    [ColorJitter(0.4, 0.4, 0.4)],
    [ColorJitter((0.1, 2.5), (0.0, 2.0), (0.0, 3.0), 0.2)],
    [RandAugment(3, 20, fill=(1, 2, 3))],
    [TrivialAugmentWide(interpolation="bilinear")],
    [TimmRandAugment("rand-m9-mstd0.5-inc1-n4-p1")],
    [TimmRandAugment("rand-m10-mstd101-n4-p0.8", "bicubic", fill=7)],
    [TimmRandAugment("rand-n4-m7-mmax9", "nearest")],
    [TimmRandAugment("rand-n4-m9-p1", "random")],
    [AugMix(), RandomVerticalFlip(), AugMix(10, 2, 4, 0.3, False, "nearest", fill=(9, 8, 7))],
    [RandomInvert(), RandomApply([AugMix(5, 1)], 0.6), RandomSolarize(99)],
    [AutoAugment()],
    [AutoAugment("cifar10")],
    [AutoAugment("svhn", fill=77)],
    [RandomPhotometricDistort(), RandomOrder([RandomGrayscale(0.5), ColorJitter(contrast=0.4), RandomSolarize(99)])],
    [RandomApply([ColorJitter(0.4, 0.4, 0.2, 0.1)], 0.8), RandomGrayscale(0.2), RandomSolarize(128, 0.2)],
]


def check(ops: list[Op], size: tuple[int, int], *, atol: float = 0.0, share: float = 0.0) -> None:
    """Compares the backends on images of the size; up to a share of the values may differ by up to ``atol`` or more."""
    recipe = Recipe.of([Resize(size), *ops])
    assert has_programs(recipe)
    rng = np.random.default_rng(5)
    buffers = []
    for _ in range(COUNT):
        steps = rng.integers(0, 40, (*size, 3)).cumsum(axis=0) + rng.integers(0, 60, (*size, 3)).cumsum(axis=1)
        file = BytesIO()
        np.save(file, (np.abs(steps % 511 - 255)).astype(np.uint8))
        buffers.append(file.getvalue())
    draws = recipe.draw(11, 2, np.arange(COUNT), np.tile(size, (COUNT, 1)))
    made: list[npt.NDArray[Any]] = []
    for decoder in (CpuDecoder(), PillowDecoder()):
        out = np.zeros((COUNT, *recipe.leading_shape, *size), recipe.storage_dtype)
        result = decoder.decode(buffers, np.ones(COUNT, np.uint8), [View(recipe, draws, out)])
        assert not any(result.errors)
        made.append(out)
    if atol == 0.0:
        np.testing.assert_array_equal(made[0], made[1])
    else:
        difference = np.abs(made[0].astype(np.float64) - made[1])
        assert (difference > atol).mean() <= share


@pytest.mark.parametrize("size", [(17, 40), (64, 33), (2, 5)])
@pytest.mark.parametrize("ops", EXACT, ids=repr)
def test_ops_have_the_references_pixels(ops: list[Op], size: tuple[int, int]) -> None:
    check(ops, size)


@pytest.mark.parametrize("size", [(17, 40), (64, 33)])
@pytest.mark.parametrize("ops", GRAY, ids=repr)
def test_ops_that_take_gray_have_the_references_pixels(ops: list[Op], size: tuple[int, int]) -> None:
    if ROUNDS_GRAY:
        check(ops, size, atol=6.0, share=0.002)
    else:
        check(ops, size)


def test_blurs_have_the_references_pixels_within_a_level() -> None:
    check([RandomApply([GaussianBlur((5, 9))], 0.6)], (40, 31), atol=1.0)


@pytest.mark.parametrize("op", [GaussianNoise(), GaussianNoise(0.2, 1.5), GaussianNoise(-0.3, 10, clip=False)], ids=str)
def test_noise_of_bytes_is_the_references_within_a_level(op: Op) -> None:
    check([RandomInvert(), op, RandomHorizontalFlip()], (40, 31), atol=0.5, share=1e-4)
    check([RandomOrder([op, RandomInvert()])], (17, 9), atol=0.5, share=1e-3)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_floats_are_erased_after_normalization(dtype: str) -> None:
    values: list[Op] = [ToDtype(dtype, scale=True), NORMALIZE]
    flip = RandomHorizontalFlip()
    check([RandomInvert(), *values, RandomErasing(0.7, value=(0.1, -3.0, 70.0)), flip, RandomErasing(0.5)], (17, 40))
    check([ToDtype(dtype, scale=True), RandomErasing(0.7, value=0.3), flip, NORMALIZE], (17, 40), atol=2e-2, share=0.0)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("value", [float("nan"), float("-inf"), (float("inf"), 0.5, 1e4)])
def test_floats_are_erased_with_any_number(dtype: str, value: Any) -> None:
    check([RandomInvert(), ToDtype(dtype), RandomErasing(0.7, value=value)], (17, 40))


def test_fractions_of_a_level_are_cut_where_bytes_are_erased() -> None:
    check([RandomErasing(1.0, value=(127.999999999, 0.999999999, 255.0))], (17, 40))


def test_functions_run_on_finished_arrays() -> None:
    flip = RandomHorizontalFlip()
    for tail in ([Lambda(np.negative)], [GaussianNoise(0.3)], [RandomErasing(0.5), flip, Lambda(np.negative), flip]):
        check([RandomInvert(), NORMALIZE, *tail], (17, 40))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_noise_is_the_references_to_a_unit_in_the_last_place(dtype: str) -> None:
    values: list[Op] = [RandomInvert(), ToDtype(dtype, scale=True), NORMALIZE]
    noise, flip = RandomErasing(0.8, value="random"), RandomHorizontalFlip()
    check([*values, noise], (32, 40), atol=1e-6, share=1e-4)
    check([*values, flip, noise, RandomErasing(0.5), flip, noise, flip], (17, 23), atol=1e-6, share=1e-4)
    if dtype == "float32":
        check([*values, noise, Lambda(np.negative), noise], (17, 40), atol=1e-6)


def turned(image: Any) -> Any:
    """Turns an image upside down, in a copy."""
    if hasattr(image, "getbands"):
        return image.transpose(Image.Transpose.FLIP_TOP_BOTTOM)
    return image.flip(1) if hasattr(image, "flip") else image[:, ::-1]


def brightened(image: Any) -> Any:
    """Changes an image in place, where that can be changed."""
    if hasattr(image, "getbands"):
        return image.point(lambda level: min(255, level + 9))
    image[0, 1:] = 77
    return image


@pytest.mark.parametrize("on", ["array", "tensor", "pil"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_functions_run_between_ops_of_the_kernels(on: str, dtype: str) -> None:
    turn, brighten, flip = Lambda(turned, on=on), Lambda(brightened, on=on), RandomHorizontalFlip()
    values: list[Op] = [ToDtype(dtype, scale=True), NORMALIZE]
    check([turn], (17, 40))
    check([brighten, RandomInvert(), turn], (17, 40))
    check([RandomInvert(), flip, brighten, RandomRotation(20), flip, turn, *values, flip], (17, 40))
    check([turn, *values, RandomErasing(0.7, value=(0.1, -3.0, 70.0)), flip], (17, 40))
    if dtype == "float32":
        check([brighten, *values, flip, Lambda(np.negative), RandomErasing(0.5)], (17, 40))


def test_one_channel_is_written_alone() -> None:
    gray, level = Grayscale(1), 1.0 if ROUNDS_GRAY else 0.0
    check([gray], (17, 40), atol=level)
    check([Lambda(turned), gray, RandomVerticalFlip()], (17, 40), atol=level)
    check([gray, RandomRotation(30, fill=(9, 200, 31)), ToDtype("float32")], (17, 40), atol=level)
    check([RandomInvert(), gray, ToDtype("bfloat16"), RandomErasing(0.7, value=(10, 200, 30))], (17, 40), atol=256)
    check([gray, ToDtype("float32"), GaussianNoise(0.3)], (17, 40), atol=max(level, 1e-6))
    check([gray, ToDtype("float32"), RandomErasing(0.7, value="random")], (17, 40), atol=max(level, 1e-6), share=1e-4)


def halves(image: Any) -> Any:
    return image[:1] / 2


@pytest.mark.parametrize("on", ["array", "tensor"])
def test_functions_that_change_the_shape_get_what_the_kernels_made(on: str) -> None:
    tail = Lambda(halves, on=on, keeps_shape=False)
    check([tail], (17, 40))
    level = 1.0 if ROUNDS_GRAY else 0.0
    check([Grayscale(1), tail], (17, 40), atol=level)
    check([Grayscale(1), ToDtype("float32"), tail], (17, 40), atol=level)
    check([RandomInvert(), NORMALIZE, RandomErasing(0.7, value=(0.1, -3.0, 70.0)), tail], (17, 40))
    check([Lambda(turned, on="pil"), NORMALIZE, Lambda(np.negative), tail], (17, 40))


def test_subclasses_of_ops_are_refused_by_name_for_images_that_pillow_decodes() -> None:
    class OwnFlip(RandomHorizontalFlip):
        pass

    ops = [Resize((17, 40)), OwnFlip(), RandomInvert()]
    file = BytesIO()
    Image.new("RGB", (40, 17)).save(file, "JPEG")
    assert decode([file.getvalue()], ops).shape == (1, 3, 17, 40)
    file = BytesIO()
    Image.new("RGB", (40, 17)).save(file, "BMP")
    with pytest.raises(BackendError, match="'cpu' can't run OwnFlip"):
        decode([file.getvalue()], ops)


@pytest.mark.parametrize("ops", [[], [RandomInvert()], [Lambda(np.invert)]], ids=len)
def test_images_that_a_recipe_makes_too_large_are_bad(ops: list[Op]) -> None:
    file = BytesIO()
    np.save(file, np.zeros((1, 300, 3), np.uint8))
    with pytest.raises(DecodeError, match="makes 75000x250 pixels"):
        decode([file.getvalue()], [Resize(250), *ops])
    recipe = Recipe.of([Resize(4), RandomInvert()])
    draws = recipe.draw(0, 0, [0], [(1, 300)])
    out = np.zeros((1, 3, 4, 1200), np.uint8)
    (error,) = (
        CpuDecoder(max_pixels=4000).decode([file.getvalue()], np.ones(1, np.uint8), [View(recipe, draws, out)]).errors
    )
    assert "makes 1200x4 pixels" in str(error)
    padded = Recipe.of(Pad(50))
    draws = padded.draw(0, 0, [0], [(1, 300)])
    out = np.zeros((1, 3, 101, 400), np.uint8)
    (error,) = (
        CpuDecoder(max_pixels=4000).decode([file.getvalue()], np.ones(1, np.uint8), [View(padded, draws, out)]).errors
    )
    assert "makes 400x101 pixels" in str(error)


@pytest.mark.parametrize("backend", ["cpu", "pillow"])
def test_a_side_that_jpeg_does_not_have_is_the_image_s_error(backend: str) -> None:
    file = BytesIO()
    np.save(file, np.zeros((1, 300, 3), np.uint8))
    with pytest.raises(DecodeError, match="JPEG: a side of more than 65,500 pixels"):
        decode([file.getvalue()], [Resize((1, 65_520)), JPEG(50)], backend=backend)


BORDERS: list[list[Op]] = [
    [Pad(3, (9, 200, 31))],
    [RandomCrop(32, 4), RandomHorizontalFlip()],
    [RandomHorizontalFlip(), RandomCrop((48, 21), pad_if_needed=True, fill=9), RandomInvert()],
    [Pad((1, 2, 60, 0), 7), RandomCrop((15, 60), 20, fill=7)],
    [CenterCrop((70, 20)), RandomHorizontalFlip(), NORMALIZE],
    [RandomCrop(16, 90), ToDtype("float16")],  # often beside the image
    [LetterBox((64, 33)), RandomHorizontalFlip(), RandomRotation(20, fill=9)],
    [RandomHorizontalFlip(), LetterBox(50, (1, 2, 3), "bicubic"), NORMALIZE],
    [CenterCrop(30), Lambda(turned), LetterBox(20)],  # of which Pillow runs the last two
]


@pytest.mark.parametrize("ops", BORDERS, ids=lambda ops: "-".join(type(op).__name__ for op in ops))
def test_borders_have_the_references_pixels_on_images_of_any_size(ops: list[Op]) -> None:
    recipe = Recipe.of(ops)
    for size in [(40, 31), (33, 64), (28, 28), (90, 44)]:
        file = BytesIO()
        np.save(file, np.random.default_rng(size[0]).integers(0, 256, (*size, 3), np.uint8))
        draws = recipe.draw(11, 2, np.arange(COUNT), np.tile(size, (COUNT, 1)))
        made: list[npt.NDArray[Any]] = []
        for decoder in (CpuDecoder(), PillowDecoder()):
            out = np.zeros((COUNT, 3, *draws.output_size[0]), recipe.storage_dtype)
            result = decoder.decode([file.getvalue()] * COUNT, np.ones(COUNT, np.uint8), [View(recipe, draws, out)])
            assert not any(result.errors)
            made.append(out)
        if ROUNDS_GRAY and any(op.resizes for op in ops):  # other than Pillow, too
            np.testing.assert_allclose(*made, atol=1.0)  # type: ignore[call-overload]
        else:
            np.testing.assert_array_equal(made[0], made[1])


@pytest.mark.parametrize("size", [640, (32, 90), (7, 3)])
def test_letterboxes_are_in_the_place_of_ultralytics(size: Any) -> None:
    height, width = (size, size) if isinstance(size, int) else size
    sizes = np.random.default_rng(3).integers(1, 900, (2000, 2))
    (params,) = Recipe.of(LetterBox(size)).draw(0, 0, np.arange(2000), sizes).ops
    for k, (h, w) in enumerate(sizes.tolist()):
        # ultralytics.data.augment.LetterBox with its defaults
        r = min(height / h, width / w)
        new_w, new_h = round(w * r), round(h * r)
        dw, dh = (width - new_w) / 2, (height - new_h) / 2
        if new_w and new_h:  # it fails on others
            assert (params["resized_height"][k], params["resized_width"][k]) == (new_h, new_w)
            sides = [round(dw - 0.1), round(dh - 0.1), round(dw + 0.1), round(dh + 0.1)]
            assert params["padding"][k].tolist() == sides


def test_a_crop_that_is_larger_than_the_image_is_its_error() -> None:
    file = BytesIO()
    np.save(file, np.zeros((20, 30, 3), np.uint8))
    assert decode([file.getvalue()], RandomCrop(30, (0, 5))).shape == (1, 3, 30, 30)
    with pytest.raises(DecodeError, match="larger than what the ops before it leave of the image of 30x20 pixels"):
        decode([file.getvalue()], RandomCrop(30, (0, 4)))


def test_what_has_no_native_form_is_left_to_the_reference() -> None:
    others: list[list[Op]] = [
        [Pad(3, padding_mode="edge")],
        [Pad(3, 1), RandomCrop(20, 4, fill=2)],
        [Pad(3), Resize(20)],
        [LetterBox(20)],  # a second resize
        [RandomRotation(9, expand=True)],
        [GaussianBlur(65)],
        [NORMALIZE, RandomErasing(value="random"), ToDtype("float16")],
        [RandomApply([Lambda(np.negative)])],
        [ToDtype("float32", scale=True), GaussianNoise(), NORMALIZE],
    ]
    for ops in others:
        assert not has_programs(Recipe.of([Resize((17, 40)), *ops]))

"""Programs of augmentation: Pillow's bytes for each op, at every SIMD level and for images of any size."""

from __future__ import annotations

import math
from collections.abc import Callable
from io import BytesIO
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image, ImageEnhance, ImageOps

from feeder import _native as native
from feeder.decoders.pillow.image_ops import IMAGE_OPS
from feeder.order.random import uniform
from feeder.transforms import GaussianBlur
from feeder.transforms.matrices import affine_matrix, perspective_matrix, rotation_matrix

Pixels = npt.NDArray[np.uint8]
Change = Callable[[Image.Image], Image.Image]

SIZES = ((1, 1), (1, 9), (9, 1), (2, 2), (3, 3), (7, 5), (33, 65), (64, 64), (61, 130), (224, 224))
Op = native.AugmentOp


def step(op: native.AugmentOp, *values: float) -> list[float]:
    return [op.value, *values, *[0.0] * (11 - len(values))]


def run(image: Pixels, *steps: list[float]) -> Pixels:
    """Returns [H, W, 3] after a program."""
    planes = np.ascontiguousarray(image.transpose(2, 0, 1))
    native.augment(planes, planes[None], np.array([steps], np.float64))
    return planes.transpose(1, 2, 0)


def images(seed: int) -> list[Pixels]:
    """Noise, a smooth image, one of few values, and a constant one, of every size."""
    rng = np.random.default_rng(seed)
    made = []
    for height, width in SIZES:
        noise = rng.integers(0, 256, (height, width, 3), np.uint8)
        y, x = np.mgrid[:height, :width]
        smooth = np.stack([3 * x + y, 128 + x - y, 40 + 2 * y], axis=-1).clip(0, 255).astype(np.uint8)
        made += [noise, smooth, noise // 100 * 90 + 17, np.full_like(noise, rng.integers(256))]
    return made


def check(seed: int, change: Change, *steps: list[float]) -> None:
    for image in images(seed):
        expected = np.asarray(change(Image.fromarray(image)))
        found = run(image, *steps)
        assert np.array_equal(found, expected), (image.shape, np.abs(found.astype(int) - expected).max())


def hue(image: Image.Image, shift: int) -> Image.Image:
    h, s, v = image.convert("HSV").split()
    return Image.merge("HSV", (h.point([(i + shift) % 256 for i in range(256)]), s, v)).convert("RGB")


def gray(image: Image.Image) -> Image.Image:
    """Pillow's convert("L"), written out: pillow-simd rounds it differently and may be what is imported as PIL."""
    levels = (np.asarray(image).astype(np.int64) @ np.array([19595, 38470, 7471]) + 32768) // 65536
    return Image.merge("RGB", (Image.fromarray(levels.astype(np.uint8)),) * 3)


def contrast(image: Image.Image, factor: float) -> Image.Image:
    mean = int(np.asarray(gray(image))[:, :, 0].mean() + 0.5)
    return Image.blend(Image.new("RGB", image.size, (mean,) * 3), image, factor)


ENHANCEMENTS: dict[native.AugmentOp, Callable[[Image.Image, float], Image.Image]] = {
    Op.BRIGHTNESS: lambda image, factor: ImageEnhance.Brightness(image).enhance(factor),
    Op.CONTRAST: contrast,
    Op.SATURATION: lambda image, factor: Image.blend(gray(image), image, factor),
    Op.SHARPNESS: lambda image, factor: ImageEnhance.Sharpness(image).enhance(factor),
}


@pytest.mark.parametrize("op", ENHANCEMENTS, ids=lambda op: op.name.lower())
def test_enhancements_have_pillows_bytes(level: str, op: native.AugmentOp) -> None:
    rng = np.random.default_rng(op.value)
    for factor in (0.0, 1.0, 0.5, 1.5, 1.25, 0.01, 2.0, 1.9, 7.3, 1e9, *rng.uniform(0, 2, 12).tolist()):
        check(3, lambda image, f=factor: ENHANCEMENTS[op](image, f), step(op, factor))  # type: ignore[misc]


@pytest.mark.parametrize("shift", [0, 1, 25, 77, 128, 231, 255])
def test_hue_has_pillows_bytes(level: str, shift: int) -> None:
    check(5, lambda image: hue(image, shift), step(Op.HUE, shift))


def test_hue_of_a_lattice_of_all_colors_has_pillows_bytes(level: str) -> None:
    values = np.r_[0:256:5, 1, 2, 3, 127, 128, 254].astype(np.uint8)
    r, g, b = np.meshgrid(values, values, values)
    lattice = np.stack([r, g, b], axis=-1).reshape(len(values), -1, 3)
    for shift in (0, 13, 100, 200):
        assert np.array_equal(run(lattice, step(Op.HUE, shift)), np.asarray(hue(Image.fromarray(lattice), shift)))


@pytest.mark.parametrize(
    ("change", "steps"),
    [
        pytest.param(lambda i: i.transpose(Image.Transpose.FLIP_LEFT_RIGHT), (step(Op.MIRROR),), id="mirror"),
        pytest.param(lambda i: i.transpose(Image.Transpose.FLIP_TOP_BOTTOM), (step(Op.FLIP),), id="flip"),
        pytest.param(gray, (step(Op.GRAYSCALE),), id="grayscale"),
        pytest.param(lambda i: ImageOps.posterize(i, 3), (step(Op.POSTERIZE, 3),), id="posterize"),
        pytest.param(lambda i: ImageOps.solarize(i, 100), (step(Op.SOLARIZE, 100),), id="solarize"),
        pytest.param(
            lambda i: i.point([min(255, k + 70) if k < 128 else k for k in range(256)] * 3),
            (step(Op.SOLARIZE_ADD, 70),),
            id="solarize_add",
        ),
        pytest.param(ImageOps.autocontrast, (step(Op.AUTOCONTRAST),), id="autocontrast"),
        pytest.param(ImageOps.equalize, (step(Op.EQUALIZE),), id="equalize"),
        pytest.param(ImageOps.invert, (step(Op.INVERT),), id="invert"),
    ],
)
def test_ops_without_values_have_pillows_bytes(level: str, change: Change, steps: tuple[list[float], ...]) -> None:
    check(7, change, *steps)


# Each with what Pillow does, and whether it has a table that the next op takes along.
CHAINED: dict[str, tuple[Change, list[float]]] = {
    "invert": (ImageOps.invert, step(Op.INVERT)),
    "posterize": (lambda i: ImageOps.posterize(i, 4), step(Op.POSTERIZE, 4)),
    "solarize": (lambda i: ImageOps.solarize(i, 60), step(Op.SOLARIZE, 60)),
    "brightness": (lambda i: ImageEnhance.Brightness(i).enhance(1.3), step(Op.BRIGHTNESS, 1.3)),
    "contrast": (lambda i: contrast(i, 0.7), step(Op.CONTRAST, 0.7)),
    "saturation": (lambda i: Image.blend(gray(i), i, 1.4), step(Op.SATURATION, 1.4)),
    "sharpness": (lambda i: ImageEnhance.Sharpness(i).enhance(1.9), step(Op.SHARPNESS, 1.9)),
    "hue": (lambda i: hue(i, 20), step(Op.HUE, 20)),
    "gray": (gray, step(Op.GRAYSCALE)),
    "equalize": (ImageOps.equalize, step(Op.EQUALIZE)),
    "autocontrast": (ImageOps.autocontrast, step(Op.AUTOCONTRAST)),
    "mirror": (ImageOps.mirror, step(Op.MIRROR)),
}


def test_ops_in_any_order_have_pillows_bytes(level: str) -> None:
    rng = np.random.default_rng(11)
    names = list(CHAINED)
    for _ in range(40):
        chain = [CHAINED[names[k]] for k in rng.integers(0, len(names), 4)]

        def change(image: Image.Image, chain: Any = chain) -> Image.Image:
            for each, _ in chain:
                image = each(image)
            return image

        check(int(rng.integers(1 << 30)), change, *(steps for _, steps in chain))


FILTERS = {
    Image.Resampling.NEAREST: native.WarpFilter.NEAREST,
    Image.Resampling.BILINEAR: native.WarpFilter.BILINEAR,
    Image.Resampling.BICUBIC: native.WarpFilter.BICUBIC,
}


@pytest.mark.parametrize("resampling", FILTERS, ids=lambda each: each.name.lower())
def test_warps_have_pillows_bytes(level: str, resampling: Any) -> None:
    rng = np.random.default_rng(13)
    fill = (10, 200, 77)
    code = fill[0] + 256 * fill[1] + 65536 * fill[2]
    for image in images(17)[::2]:
        height, width = image.shape[:2]
        maps: list[tuple[float, ...]] = [
            (1, 0, 0, 0, 1, 0),
            (1, 0, -3, 0, 1, 2),
            (1, 0, 0.5, 0, 1, -0.5),
            (2.5, 0, -7, 0, 0.3, 2),
            (-1, 0, width, 0, -1, height),
            (1, 0.5, 1e6, 0.25, 1, -1e6),
            (40.0, 700.0, -3.0, 1e-3, 1.0, 0.0),
        ]
        maps += [rotation_matrix(width, height, float(angle)) for angle in (90, 180, 270, *rng.uniform(-180, 180, 4))]
        for _ in range(4):
            shear, shift = rng.uniform(-60, 60, 2), rng.integers(-width, width + 1, 2)
            options: dict[str, Any] = {"shear": tuple(shear.tolist()), "shift": tuple(shift.tolist())}
            maps.append(affine_matrix(width, height, angle=float(rng.uniform(-90, 90)), **options))
        for matrix in maps:
            expected = Image.fromarray(image).transform(
                (width, height), Image.Transform.AFFINE, matrix, resample=resampling, fillcolor=fill
            )
            found = run(image, step(Op.AFFINE, *matrix, code, FILTERS[resampling].value))
            assert np.array_equal(found, np.asarray(expected)), (image.shape, matrix)
        corners = [[0, 0], [width - 1, 0], [width - 1, height - 1], [0, height - 1]]
        moved = [
            [x + int(dx), y + int(dy)] for (x, y), (dx, dy) in zip(corners, rng.integers(-2, 3, (4, 2)), strict=True)
        ]
        tilt = perspective_matrix(width, height, moved)
        if tilt is not None and all(map(math.isfinite, tilt)):
            expected = Image.fromarray(image).transform(
                (width, height), Image.Transform.PERSPECTIVE, tilt, resample=resampling, fillcolor=fill
            )
            found = run(image, step(Op.PERSPECTIVE, *tilt, code, FILTERS[resampling].value))
            assert np.array_equal(found, np.asarray(expected)), (image.shape, tilt)


@pytest.mark.parametrize("size", [(3, 3), (23, 23), (5, 9), (1, 1), (63, 61)])
def test_blur_is_the_references_within_a_level_and_equal_at_all_levels(level: str, size: tuple[int, int]) -> None:
    op = GaussianBlur(size)
    for image in images(19):
        for sigma in (0.1, 0.4, 1.0, 2.0, 9.0):
            expected = np.asarray(IMAGE_OPS[GaussianBlur](Image.fromarray(image), op, {"sigma": sigma}))
            found = run(image, step(Op.BLUR, *size, sigma))
            difference = np.abs(found.astype(int) - expected)
            assert difference.max() <= 1, (image.shape, sigma)
            assert (difference > 0).mean() < 0.02 or image.size < 1000
            native.set_simd_level("portable")
            assert np.array_equal(found, run(image, step(Op.BLUR, *size, sigma)))
            native.set_simd_level(level)


def test_channels_are_exchanged_and_noise_is_added(level: str) -> None:
    image = images(29)[-4]
    height, width = image.shape[:2]
    exchanged = run(image, step(Op.INVERT), step(Op.PERMUTE, 2, 0, 1), step(Op.ERASE, 1, 2, 9, 8, 5, 6, 7))
    expected = 255 - image[:, :, [2, 0, 1]]
    expected[1:10, 2:10] = (5, 6, 7)
    assert np.array_equal(exchanged, expected)
    numbers = noise_of(77, height, width).transpose(1, 2, 0)
    for mean, deviation in ((0.0, 25.5), (-60.3, 300.0)):
        sums = image + (np.float32(mean) + numbers * np.float32(deviation)).astype(np.int64)
        assert np.array_equal(run(image, step(Op.ADD_NOISE, 0, 77, mean, deviation, 1)), sums.clip(0, 255))
        assert np.array_equal(run(image, step(Op.ADD_NOISE, 0, 77, mean, deviation, 0)), sums & 255)


def test_erasing_fills_a_rectangle(level: str) -> None:
    image = images(23)[-4]
    erased = image.copy()
    erased[3:10, 5:50] = (1, 2, 255)
    assert np.array_equal(run(image, step(Op.ERASE, 3, 5, 7, 45, 1, 2, 255)), erased)


@pytest.mark.parametrize("key", [0, 1, 0x0123456789ABCDEF, (1 << 64) - 1])
def test_noise_is_keyed_by_element_and_equal_at_all_levels(level: str, key: int) -> None:
    height, width = 61, 97
    numbers = uniform(key, 0, np.arange(3 * height * width), 0, 2)
    normal = np.sqrt(-2.0 * np.log1p(-numbers[:, 0])) * np.cos(2.0 * np.pi * numbers[:, 1])
    expected = normal.astype(np.float32).reshape(3, height, width)
    found = noise_of(key, height, width)
    difference = np.abs(found - expected) / np.spacing(np.abs(expected))
    assert difference.max() <= 1
    assert (difference > 0).mean() < 1e-4
    native.set_simd_level("portable")
    assert np.array_equal(found, noise_of(key, height, width))
    native.set_simd_level(level)


def noise_of(key: int, height: int, width: int) -> npt.NDArray[np.float32]:
    """Returns float32 [3, H, W] of an image that is erased as a whole."""
    file = BytesIO()
    np.save(file, np.zeros((height, width, 3), np.uint8))
    out = np.zeros((1, 3, height, width), np.float32)
    program = np.array([[step(Op.ERASE_NOISE, 0, 0, height, width, key >> 32, key & 0xFFFFFFFF)]])
    box = np.array([[0, 0, width, height]])
    ones = np.ones(3, np.float32)
    arguments = box.astype(np.float64), box.astype(np.int32), np.zeros(1, np.uint8), out
    view = native.View(*arguments, layout="nchw", dtype="float32", scale=ones, bias=ones, programs=program)
    native.decode_views([file.getvalue()], [view], np.ones(1, np.uint8), threads=1)
    return out[0]


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        (step(Op.BRIGHTNESS, -0.5), "negative"),
        (step(Op.BRIGHTNESS, math.nan), "not finite"),
        ([99.0, *[0.0] * 11], "unknown number"),
        ([2.5, *[0.0] * 11], "unknown number"),
        (step(Op.HUE, 256), "0-255"),
        (step(Op.POSTERIZE, 9), "0-8"),
        (step(Op.AFFINE, 1, 0, 0, 0, 1, 0, -1, 0), "fill or filter"),
        (step(Op.AFFINE, 1, 0, 0, 0, 1, 0, 0, 3), "fill or filter"),
        (step(Op.BLUR, 4, 3, 1.0), "kernel"),
        (step(Op.BLUR, 65, 3, 1.0), "kernel"),
        (step(Op.SOLARIZE_ADD, 256), "0-255"),
        (step(Op.MIX_START, 1.5), "weight"),
        (step(Op.MIX_ADD, 0.5), "before the first"),
        (step(Op.MIX_FINISH), "before the first"),
        (step(Op.PERMUTE, 0, 1, 1), "some order"),
        (step(Op.PERMUTE, 0, 1, 3), "some order"),
        (step(Op.ADD_NOISE, 1 << 32, 0, 0, 1, 1), "noise"),
        (step(Op.ADD_NOISE, 0, 0, 3000, 1, 1), "noise"),
        (step(Op.ADD_NOISE, 0, 0, 0, -1, 1), "noise"),
        (step(Op.ERASE, 1, 1, 8, 2, 0, 0, 0), "rectangle"),
        (step(Op.ERASE, 1, 1, 2, 2, 0, 256, 0), "color"),
        (step(Op.ERASE_OUTPUT, 0, -1, 1, 1, 0, 0, 0), "rectangle"),
        (step(Op.ERASE_NOISE, 0, 0, 9, 1), "rectangle"),
        (step(Op.ERASE_NOISE, 0, 0, 1, 1, -1, 0), "key"),
        (step(Op.ERASE_NOISE, 0, 0, 1, 1, 0, 0, 2), "mirror"),
    ],
)
def test_wrong_programs_are_refused(values: list[float], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        run(np.zeros((8, 8, 3), np.uint8), values)


@pytest.mark.parametrize("size", [(5, 9), (33, 65)])
def test_images_of_any_strides_are_written_in_any_form(level: str, size: tuple[int, int]) -> None:
    pixels = np.random.default_rng(3).integers(0, 256, (*size, 3), np.uint8)
    planes, scale, bias = (
        np.ascontiguousarray(pixels.transpose(2, 0, 1)),
        np.array([2, 3, 4], "f4"),
        np.array([5, 6, 7], "f4"),
    )
    expected = planes * scale[:, None, None] + bias[:, None, None]
    for image in (planes, pixels.transpose(2, 0, 1), planes[:, :, ::-1].copy()[:, :, ::-1]):
        for channels, layout in ((3, "nchw"), (1, "nchw"), (3, "nhwc")):
            out = np.zeros((1, channels, *size) if layout == "nchw" else (1, *size, 3), np.float32)
            native.augment(image, out, dtype="float32", layout=layout, scale=scale, bias=bias)
            found = out[0] if layout == "nchw" else out[0].transpose(2, 0, 1)
            np.testing.assert_array_equal(found, expected[:channels])
    with pytest.raises(ValueError, match="out must be one image of the image's size"):
        native.augment(planes, np.zeros((1, 3, 4, 4), np.uint8))

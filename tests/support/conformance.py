"""Checks that every decode backend must pass, on images that they make themselves.

A backend is right if its pixels are those of torchvision's sequence of ops on Pillow, within the bounds of
``feeder.tools.parity.differences``.
The reference here is written with Pillow's own calls, so that the Pillow backend is held to it too.
"""

from __future__ import annotations

import functools
import io
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, features

from feeder.decoders.decoder import Decoder, View
from feeder.decoders.registry import get_decoder
from feeder.errors import BackendError, DecodeError
from feeder.tools.parity.differences import BOUNDS, BUCKETS, Differences, crop_ratio
from feeder.transforms import (
    CenterCrop,
    ClampBoundingBoxes,
    ColorJitter,
    Draws,
    GaussianBlur,
    Lambda,
    Normalize,
    Op,
    Pad,
    RandomAdjustSharpness,
    RandomAffine,
    RandomApply,
    RandomChoice,
    RandomCrop,
    RandomErasing,
    RandomGrayscale,
    RandomHorizontalFlip,
    RandomInvert,
    RandomIoUCrop,
    RandomPerspective,
    RandomResizedCrop,
    RandomRotation,
    RandomShortestSize,
    RandomVerticalFlip,
    RandomZoomOut,
    Recipe,
    Resize,
    SanitizeBoundingBoxes,
    ScaleJitter,
    ToDtype,
)
from feeder.transforms.boxes import Boxes, SampleBoxes
from tests.support.target_conformance import check_targets_on

__all__ = [
    "CHECKS",
    "check_bad_images_stay_alone",
    "check_batches",
    "check_dtypes",
    "check_exact",
    "check_fidelity",
    "check_formats",
    "check_further_ops",
    "check_geometry",
    "check_limits",
    "check_orientations",
    "check_targets",
    "check_views",
    "decode",
    "encode",
    "natural_image",
]

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

_TRANSPOSES = (
    None,
    None,
    Image.Transpose.FLIP_LEFT_RIGHT,
    Image.Transpose.ROTATE_180,
    Image.Transpose.FLIP_TOP_BOTTOM,
    Image.Transpose.TRANSPOSE,
    Image.Transpose.ROTATE_270,
    Image.Transpose.TRANSVERSE,
    Image.Transpose.ROTATE_90,
)


def natural_image(seed: int, height: int = 300, width: int = 400) -> npt.NDArray[np.uint8]:
    """An image with the 1/f amplitude spectrum of photos and their correlation between channels: uint8 [H, W, 3]."""
    return _natural_image(seed, height, width).copy()


@functools.lru_cache(256)  # all checks of all backends take the same few
def _natural_image(seed: int, height: int, width: int) -> npt.NDArray[np.uint8]:
    rng = np.random.default_rng(seed)
    fy, fx = np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None, :]
    amplitude = 1.0 / np.maximum(np.hypot(fy, fx), 1.0 / max(height, width))
    planes = []
    for _ in range(3):
        phase = rng.uniform(0.0, 2.0 * np.pi, amplitude.shape)
        plane = np.fft.irfft2(amplitude * np.exp(1j * phase), (height, width))
        planes.append((plane - plane.mean()) / max(plane.std(), 1e-9))
    luma, blue, red = planes
    rgb = np.stack([luma + 0.4 * red, luma - 0.1 * blue - 0.2 * red, luma + 0.4 * blue], axis=-1)
    return np.clip(rng.uniform(90, 160) + 45.0 * rgb, 0, 255).astype(np.uint8)


def encode(pixels: npt.NDArray[np.uint8] | Image.Image, extension: str = "jpeg", **options: Any) -> bytes:
    """An encoded image."""
    image = pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)
    file = io.BytesIO()
    image.save(file, extension, **({"quality": 90} if extension == "jpeg" else {}) | options)
    return file.getvalue()


def npy(array: npt.NDArray[Any]) -> bytes:
    """An .npy file."""
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def open_image(buffer: bytes) -> Image.Image:
    """The stored image; an .npy file counts as one."""
    if buffer[:6] == b"\x93NUMPY":
        return Image.fromarray(np.load(io.BytesIO(buffer)))
    return Image.open(io.BytesIO(buffer))


@functools.lru_cache(64)
def upright(buffer: bytes, orientation: int) -> Image.Image:
    """The stored image, turned by its EXIF orientation: RGB."""
    image = open_image(buffer).convert("RGB")
    turn = _TRANSPOSES[orientation]
    return image if turn is None else image.transpose(turn)


def sizes_of(buffers: list[bytes], orientations: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
    """Upright (height, width) of each image."""
    sizes = [open_image(buffer).size for buffer in buffers]
    return np.array([s if o > 4 else s[::-1] for s, o in zip(sizes, orientations, strict=True)], np.int64)


def decode(
    decoder: Decoder, buffers: list[bytes], recipe: Recipe, draws: Draws, orientations: npt.NDArray[np.uint8]
) -> npt.NDArray[Any]:
    """The batch; fails if an image fails."""
    assert recipe.output_size is not None
    out = np.full((len(buffers), 3, *recipe.output_size), 77, recipe.storage_dtype)
    errors = decoder.decode(buffers, orientations, [View(recipe, draws, out)]).errors
    failed = {row: error for row, error in enumerate(errors) if error is not None}
    assert not failed, f"images failed: {failed}"
    return out


def reference(buffer: bytes, orientation: int, recipe: Recipe, draws: Draws, row: int) -> npt.NDArray[np.uint8]:
    """torchvision's sequence of ops, one by one: uint8 [3, H, W]."""
    image = upright(buffer, orientation)
    for params in draws.ops:
        sample = {name: int(column[row]) for name, column in params.items()}
        if "top" in sample:
            left, top = sample["left"], sample["top"]
            image = image.crop((left, top, left + sample["width"], top + sample["height"]))
        if "resized_width" in sample:
            size = (sample["resized_width"], sample["resized_height"])
            image = image.resize(size, Image.Resampling.BILINEAR)
        if sample.get("flip"):
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return np.asarray(image).transpose(2, 0, 1)


def compare(
    decoder: Decoder,
    buffers: list[bytes],
    ops: list[Op],
    *,
    orientations: npt.NDArray[np.uint8] | None = None,
    into: Differences | None = None,
    epoch: int = 0,
) -> Differences:
    """Decodes the images as a batch and compares each with the reference."""
    recipe = Recipe.of(ops)
    decoder.check(recipe)
    turns = np.ones(len(buffers), np.uint8) if orientations is None else orientations
    draws = recipe.draw(7, epoch, np.arange(len(buffers)), sizes_of(buffers, turns))
    out = decode(decoder, buffers, recipe, draws, turns)
    comparison = Differences() if into is None else into
    for row, buffer in enumerate(buffers):
        expected = reference(buffer, int(turns[row]), recipe, draws, row)
        comparison.add(expected, out[row], crop_ratio(draws.source_box[row], draws.base_size[row]))
    return comparison


def assert_within(
    comparison: Differences,
    what: str = "",
    *,
    fidelity: str = "fast",
    bias: float = BOUNDS["fast"].bias,
    mean: float | None = None,
) -> None:
    """Holds every bucket to the bounds."""
    bounds = replace(BOUNDS[fidelity], bias=bias, mean=BOUNDS[fidelity].mean if mean is None else mean)
    for figures in comparison.figures():
        assert figures.within(bounds), f"{what} {figures}"


def check_exact(decoder: Decoder) -> None:
    """With fidelity="exact" the pixels are Pillow's to one level."""
    check_fidelity(get_decoder(decoder.name, fidelity="exact"), "exact")


def check_fidelity(decoder: Decoder, fidelity: str = "fast") -> None:
    """All buckets of crop-to-target ratio, and all chroma subsamplings, are within the bounds."""
    by_subsampling = {
        name: [encode(natural_image(seed, *size), subsampling=name) for seed, size in enumerate(_SIZES)]
        for name in ("4:4:4", "4:2:2", "4:2:0")
    }
    for name, buffers in by_subsampling.items():
        comparison = Differences()
        for epoch in range(3):
            for size, scale in ((224, (0.05, 0.15)), (112, (0.2, 0.4)), (64, (0.2, 0.4)), (40, (0.4, 1.0))):
                compare(decoder, buffers, [RandomResizedCrop(size, scale)], into=comparison, epoch=epoch)
        assert all(figures.images >= len(buffers) for figures in comparison.figures()), BUCKETS
        assert_within(comparison, name, fidelity=fidelity)


_SIZES = ((300, 400), (375, 500), (401, 331), (512, 384), (333, 500), (480, 360))


def check_geometry(decoder: Decoder) -> None:
    """Every way to write a base path gives the reference's pixels."""
    buffers = [encode(natural_image(20 + i, *size)) for i, size in enumerate(_SIZES)]
    recipes: list[list[Op]] = [
        [Resize(128), CenterCrop(112)],
        [Resize((96, 160))],
        [Resize((140, 100), cover=True), RandomCrop((140, 100))],
        [RandomShortestSize([110, 150, 190]), RandomHorizontalFlip(), CenterCrop(100)],
        [Resize(140), RandomCrop((100, 120)), RandomHorizontalFlip()],
        [Resize(140), RandomHorizontalFlip(), RandomCrop((100, 120))],
        [RandomResizedCrop((96, 128)), RandomHorizontalFlip(1.0)],
        [RandomResizedCrop(128), CenterCrop(100)],
        [Resize((700, 900)), CenterCrop((224, 320))],
    ]
    for ops in recipes:
        # Few images a recipe: the mean over them says less of a bias than the fidelity check does.
        assert_within(compare(decoder, buffers, ops), str(ops), bias=0.2)


def check_orientations(decoder: Decoder) -> None:
    """EXIF orientations 1-8 are applied before the boxes, for JPEG and for other formats."""
    image = natural_image(40, 301, 403)
    orientations = np.arange(1, 9, dtype=np.uint8)
    for extension, options in (("jpeg", {"subsampling": "4:2:0"}), ("jpeg", {"subsampling": "4:2:2"}), ("png", {})):
        buffers = [encode(image, extension, **options)] * len(orientations)
        for ops in ([RandomResizedCrop(96), RandomHorizontalFlip()], [Resize(96), CenterCrop((80, 90))]):
            comparison = compare(decoder, buffers, ops, orientations=orientations)
            assert_within(comparison, f"{extension} {options} {ops}", bias=0.2)


def check_formats(decoder: Decoder, *, tiny: tuple[float, float] | None = None) -> None:
    """Color models, bit depths, containers and odd sizes give what Pillow's convert("RGB") gives.

    Args:
        decoder: The decoder.
        tiny: Bounds of bias and mean of the tiny JPEGs; None: those of the other images.
    """
    pixels = natural_image(50, 120, 150)
    rgb = Image.fromarray(pixels)
    alpha = Image.fromarray(pixels[:, :, 1])
    rgba = rgb.copy()
    rgba.putalpha(alpha)
    deep = Image.fromarray(pixels[:, :, 0].astype(np.uint16) * 3)
    palette = rgb.quantize(32)
    buffers = {
        "grayscale jpeg": encode(rgb.convert("L")),
        "cmyk jpeg": encode(rgb.convert("CMYK")),
        "progressive jpeg": encode(rgb, progressive=True),
        "optimized jpeg": encode(rgb, optimize=True),
        "jpeg with restart markers": encode(rgb, restart_marker_blocks=3),
        "rgb in jpeg": encode(rgb, keep_rgb=True),
        "palette png": encode(palette, "png"),
        "palette png with transparency": encode(palette, "png", transparency=3),
        "16-bit png": encode(deep, "png"),
        "rgba png": encode(rgba, "png"),
        "gray and alpha png": encode(rgba.convert("LA"), "png"),
        "1-bit png": encode(rgb.convert("1"), "png"),
        "bmp": encode(rgb, "bmp"),
        "gif": encode(palette, "gif"),
        "tiff": encode(rgb, "tiff"),
    }
    if features.check("webp"):  # a Pillow compiled by hand may lack it
        buffers["webp"] = encode(rgb, "webp", lossless=True)
    buffers |= {"npy": npy(pixels), "gray npy": npy(pixels[:, :, 0])}
    shapes = ((1, 1), (1, 37), (41, 1), (7, 9), (17, 33), (16, 16))
    tinies = {
        f"jpeg of {height}x{width}": encode(natural_image(60, height, width), subsampling="4:2:0")
        for height, width in shapes
    }
    buffers |= tinies
    for name, buffer in buffers.items():
        for ops in ([RandomResizedCrop(32), RandomHorizontalFlip()], [Resize((24, 30)), CenterCrop(20)]):
            comparison = compare(decoder, [buffer], ops)
            # One image, tiny at times: differences in rounding don't average out over it.
            bias, mean = tiny if tiny is not None and name in tinies else (0.6, None)
            assert_within(comparison, f"{name} {ops}", bias=bias, mean=mean)


def check_further_ops(decoder: Decoder) -> None:
    """Ops after the base path give the Pillow backend's pixels, or are refused by name."""
    pillow = get_decoder("pillow")
    buffers = [encode(natural_image(60 + i, *size)) for i, size in enumerate(_SIZES)]
    buffers[2] = encode(natural_image(69, 130, 120), "png")
    orientations = (1 + np.arange(len(buffers)) % 8).astype(np.uint8)
    recipes: list[list[Op]] = [
        [RandomResizedCrop(64), RandomHorizontalFlip(), RandomGrayscale(0.5), ToDtype("float32"), RandomErasing(0.7)],
        [RandomResizedCrop(64), ColorJitter(0.2, 0.2, 0.2), RandomHorizontalFlip(), Pad((3, 5)), ToDtype("float16")],
        [RandomResizedCrop(64), RandomRotation(20, interpolation="bilinear"), ColorJitter(0.2, 0.2, 0.2, 0.05)],
        [Resize((70, 60)), RandomAffine(20, (0.1, 0.1), (0.8, 1.2), 5), CenterCrop(64), RandomResizedCrop(32)],
        [RandomResizedCrop(64), RandomErasing(0.9, value=9), GaussianBlur(5), RandomCrop(60, 4), RandomGrayscale(0.5)],
        [Resize((64, 64)), Normalize(MEAN, STD), RandomErasing(0.9, value="random"), ToDtype("float16")],
        [Resize(80), RandomRotation(20, interpolation="bilinear"), CenterCrop(64)],
        [RandomCrop(64)],
        [Pad(4, padding_mode="edge"), CenterCrop(100), Resize(64)],
        [RandomResizedCrop(64), RandomHorizontalFlip(), RandomVerticalFlip(), ToDtype("float32", scale=True)],
        [RandomVerticalFlip(0.7), RandomResizedCrop(64)],
        [RandomResizedCrop(64), RandomApply([ColorJitter(0.4, 0.4, 0.4, 0.1), GaussianBlur(5)]), Normalize(MEAN, STD)],
        [Resize((64, 60)), RandomApply([RandomErasing(1.0, value=9), RandomAffine(20)], 1.0), RandomHorizontalFlip()],
        [Resize((64, 64)), RandomApply([Lambda(np.negative)])],
        [
            RandomResizedCrop(64),
            RandomChoice([RandomInvert(), RandomVerticalFlip(), GaussianBlur(5)]),
            RandomInvert(0.3),
        ],
        [RandomIoUCrop(), RandomHorizontalFlip(), Resize((64, 60)), SanitizeBoundingBoxes(), Normalize(MEAN, STD)],
        [RandomResizedCrop(64), ColorJitter(0.2), ClampBoundingBoxes(), Normalize(MEAN, STD), SanitizeBoundingBoxes()],
        [ScaleJitter((300, 250), (0.4, 1.2)), CenterCrop(64)],
        [RandomShortestSize([60, 80], max_size=90), CenterCrop(64)],
        [RandomZoomOut(9, (1.0, 2.0)), RandomResizedCrop(64), RandomHorizontalFlip()],
        [RandomResizedCrop(64, interpolation="bicubic"), RandomHorizontalFlip(), Normalize(MEAN, STD)],
        [Resize(80, "bicubic"), CenterCrop(64), ColorJitter(0.2), RandomHorizontalFlip()],
        [RandomResizedCrop(64), RandomPerspective(0.5, 0.8), RandomAdjustSharpness(0.5, 0.7), Normalize(MEAN, STD)],
    ]
    for ops in recipes:
        recipe = Recipe.of(ops)
        refusal = ""
        try:
            decoder.check(recipe)
        except BackendError as error:
            refusal = str(error)
        if refusal:
            assert any(f"can't run {type(op).__name__}" in refusal for op in recipe.ops), refusal
            continue
        boxes = SampleBoxes([Boxes(np.array([[20, 30, 90, 80]], np.float32))] * len(buffers))
        draws = recipe.draw(3, 4, np.arange(len(buffers)), sizes_of(buffers, orientations), boxes)
        found, expected = (
            decode(each, buffers, recipe, draws, orientations).astype(np.float64) for each in (decoder, pillow)
        )
        level = 1.0 if recipe.affine is None else recipe.affine[0][:, None, None]
        difference = np.abs(found - expected) / level
        assert difference.mean() <= BOUNDS["fast"].mean, ops
        assert np.quantile(difference, 0.999) <= 1.5 * BOUNDS["fast"].percentile_999, ops


def check_dtypes(decoder: Decoder) -> None:
    """Float outputs are the pixels times scale plus bias, rounded to the dtype."""
    buffers = [encode(natural_image(70 + i)) for i in range(3)]
    ones = np.ones(len(buffers), np.uint8)
    ops: list[Op] = [RandomResizedCrop(64), RandomHorizontalFlip()]
    sizes = sizes_of(buffers, ones)

    def run(*tail: Op) -> npt.NDArray[Any]:
        recipe = Recipe.of([*ops, *tail])
        return decode(decoder, buffers, recipe, recipe.draw(1, 2, np.arange(3), sizes), ones)

    pixels = run().astype(np.float64)
    mean, std = (np.array(v)[:, None, None] for v in (MEAN, STD))
    level = 1.0 / 255.0 / std
    # A backend may keep a fraction of a level that uint8 rounds away.
    for tail, unit, expected in (
        ((ToDtype("float32"),), np.ones((3, 1, 1)), pixels),
        ((ToDtype("float32", scale=True),), np.full((3, 1, 1), 1 / 255), pixels / 255),
        ((Normalize(MEAN, STD),), level, (pixels / 255 - mean) / std),
        ((ToDtype("float32", scale=True), Normalize(MEAN, STD)), level, (pixels / 255 - mean) / std),
        ((ToDtype("float32"), Normalize(MEAN, STD)), level * 255, (pixels - mean) / std),
    ):
        found = run(*tail)
        assert found.dtype == np.float32
        assert (np.abs(found - expected) <= 0.51 * unit + 1e-4).all(), tail
    exact = run(Normalize(MEAN, STD)).astype(np.float64)
    half = run(Normalize(MEAN, STD), ToDtype("float16"))
    assert half.dtype == np.float16
    assert (np.abs(half - exact) <= 2.0**-11 * np.abs(exact) + 1e-6).all()
    bits = run(Normalize(MEAN, STD), ToDtype("bfloat16"))
    assert bits.dtype == np.uint16
    brain = (bits.astype(np.uint32) << 16).view(np.float32)
    assert (np.abs(brain - exact) <= 2.0**-8 * np.abs(exact) + 1e-6).all()


def check_batches(decoder: Decoder) -> None:
    """Bit-exact whatever the batch, the order in it, the thread count and what came before."""
    buffers = [encode(natural_image(80 + i, *size)) for i, size in enumerate(_SIZES * 2)]
    buffers[3] = encode(natural_image(99), "png")
    recipe = Recipe.of([RandomResizedCrop(96), RandomHorizontalFlip(), Normalize(MEAN, STD)])
    orientations = (1 + np.arange(len(buffers)) % 8).astype(np.uint8)
    draws = recipe.draw(5, 1, np.arange(len(buffers)), sizes_of(buffers, orientations))
    whole = decode(decoder, buffers, recipe, draws, orientations)
    order = np.random.default_rng(0).permutation(len(buffers))
    for rows in (*np.arange(len(buffers))[:, None], order, order[:5]):
        for threads in (1, 2):
            other = get_decoder(decoder.name, threads=threads)
            part = decode(other, [buffers[i] for i in rows], recipe, draws.take(rows), orientations[rows])
            np.testing.assert_array_equal(part, whole[rows])


def check_views(decoder: Decoder) -> None:
    """An image's views are those of one view alone, to the bit, and a bad image has one error."""
    buffers = [encode(natural_image(80 + i, *size)) for i, size in enumerate(_SIZES)]
    buffers += [
        encode(natural_image(99), "png"),
        encode(natural_image(98), progressive=True),
        buffers[0][: len(buffers[0]) // 2],
    ]
    flip, affine = RandomHorizontalFlip(), Normalize(MEAN, STD)
    recipes = [
        Recipe.of([RandomResizedCrop(64, scale=(0.4, 1.0)), flip, affine]),
        Recipe.of([RandomResizedCrop(24, scale=(0.01, 0.05)), flip]),
        Recipe.of([RandomResizedCrop(24, scale=(0.01, 0.05)), flip, RandomGrayscale(0.5), affine]),
        Recipe.of([Resize(40), CenterCrop(32), ToDtype("float16", scale=True)]),
    ]
    orientations = (1 + np.arange(len(buffers)) % 8).astype(np.uint8)
    sizes = sizes_of(buffers, orientations)
    views = []
    for number, recipe in enumerate(recipes):
        assert recipe.output_size is not None
        draws = recipe.draw(6, 1, np.arange(len(buffers)) * len(recipes) + number, sizes)
        out = np.full((len(buffers), 3, *recipe.output_size), 77, recipe.storage_dtype)
        views.append(View(recipe, draws, out))
    errors = decoder.decode(buffers, orientations, views).errors
    assert [row for row, error in enumerate(errors) if error is not None] == [len(buffers) - 1]
    good = slice(0, len(buffers) - 1)
    for recipe, draws, out in views:
        alone = decode(decoder, buffers[good], recipe, draws.take(good), orientations[good])
        np.testing.assert_array_equal(out[good], alone)


def check_bad_images_stay_alone(decoder: Decoder) -> None:
    """A bad image has its own error with a reason, and the others come out as they would without it."""
    jpeg, png = encode(natural_image(90)), encode(natural_image(91, 64, 80), "png")
    bad = {
        "empty": b"",
        "text": b"not an image at all " * 20,
        "cut jpeg": jpeg[: len(jpeg) * 6 // 10],
        "jpeg header only": jpeg[:300],
        "jpeg without a scan": jpeg[:2] + b"\xff\xd9",
        "cut png": png[: len(png) // 2],
        "png with a bad checksum": png[:40] + bytes(byte ^ 0xFF for byte in png[40:60]) + png[60:],
        "zeros": bytes(5000),
        "npy of floats": npy(np.zeros((64, 80, 3))),
        "cut npy": npy(np.zeros((64, 80, 3), np.uint8))[:-1],
        "npy that claims to be huge": npy(np.zeros((10, 10, 3), np.uint8)).replace(b"(10, 10, 3)", b"(9999999, 3)"),
    }
    recipe = Recipe.of([RandomResizedCrop(48), RandomHorizontalFlip()])
    buffers = [jpeg, *bad.values(), png]
    ones = np.ones(len(buffers), np.uint8)
    sizes = np.array([[300, 400]] * (len(buffers) - 1) + [[64, 80]])
    sizes[[6, 7]] = 64, 80
    draws = recipe.draw(0, 0, np.arange(len(buffers)), sizes)
    out = np.zeros((len(buffers), 3, 48, 48), np.uint8)
    errors = decoder.decode(buffers, ones, [View(recipe, draws, out)]).errors
    assert errors[0] is None, errors[0]
    assert errors[-1] is None, errors[-1]
    for name, error in zip(bad, errors[1:-1], strict=True):
        assert isinstance(error, DecodeError), name
        assert error.reason, name
    rows = np.array([0, len(buffers) - 1])
    alone = decode(decoder, [jpeg, png], recipe, draws.take(rows), ones[:2])
    np.testing.assert_array_equal(out[rows], alone)


def check_limits(decoder: Decoder) -> None:
    """An image larger than max_pixels, or of another size than the draws are for, is refused alone."""
    small, large = encode(natural_image(95, 40, 50)), encode(natural_image(96, 90, 100))
    recipe = Recipe.of([RandomResizedCrop(32)])
    ones = np.ones(2, np.uint8)
    draws = recipe.draw(0, 0, np.arange(2), np.array([[40, 50], [90, 100]]))
    out = np.zeros((2, 3, 32, 32), np.uint8)
    limited = get_decoder(decoder.name, max_pixels=5000)
    first, second = limited.decode([small, large], ones, [View(recipe, draws, out)]).errors
    assert first is None, first
    assert isinstance(second, DecodeError)
    assert "max_pixels" in second.reason
    wrong = recipe.draw(0, 0, np.arange(2), np.array([[40, 50], [9000, 1]]))
    first, second = decoder.decode([small, large], ones, [View(recipe, wrong, out)]).errors
    assert first is None, first
    assert isinstance(second, DecodeError)
    assert "9000" in second.reason


# All of them; each takes a decoder.
def check_targets(decoder: Decoder) -> None:
    """Masks, boxes and keypoints of the same draws show the places that the images show, in every orientation."""
    for extension in ("jpeg", "png"):
        check_targets_on(decoder, extension)


CHECKS = [
    check_bad_images_stay_alone,
    check_batches,
    check_dtypes,
    check_exact,
    check_fidelity,
    check_formats,
    check_further_ops,
    check_geometry,
    check_limits,
    check_orientations,
    check_targets,
    check_views,
]

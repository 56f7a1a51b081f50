"""The native resize against Pillow on libjpeg: colors, boxes, orientations, dtypes, layouts and SIMD levels."""

from __future__ import annotations

import ctypes
import mmap
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import PIL
import pytest
from PIL import Image

from feeder import _native as native
from tests.support.resize_reference import Case, resize_pass, smooth_noise

LEVELS = ("portable without SSE2", "portable", "avx2", "avx512")
SCALE, BIAS = (0.0171, 0.0175, -0.0174), (-2.1179, -2.0357, 1.8044)


@pytest.fixture(autouse=True)
def _level_is_restored() -> Iterator[None]:
    level = native.simd_level()
    yield
    native.set_simd_level(level)


def use(level: str) -> bool:
    name, _, rest = level.partition(" ")
    return native.set_simd_level(name, no_sse2=bool(rest))


def resample(
    case: Case, layout: str = "nhwc", dtype: str = "uint8", *, offset: int = 0, **options: Any
) -> npt.NDArray[Any]:
    """``offset``: bytes from a cache line to the output."""
    width, height = case.size
    shape = (height, width, 3) if layout == "nhwc" else (3, height, width)
    size = 3 * width * height * np.dtype({"bfloat16": "uint16"}.get(dtype, dtype)).itemsize
    memory = np.full(size + 64 + offset, 99, np.uint8)
    start = -memory.ctypes.data % 64 + offset
    out = memory[start : start + size].view({"bfloat16": "uint16"}.get(dtype, dtype)).reshape(shape)
    native.resample_planes(**case.arguments(), out=out, layout=layout, dtype=dtype, **options)
    assert (memory[:start] == 99).all()
    assert (memory[start + size :] == 99).all()
    return out


def random_boxes(
    rng: np.random.Generator, width: int, height: int
) -> tuple[tuple[float, float, float, float], tuple[int, int, int, int]]:
    """A source and a support box: equal, or the source fractional inside the support."""
    left, top = int(rng.integers(0, width)), int(rng.integers(0, height))
    right, bottom = int(rng.integers(left + 1, width + 1)), int(rng.integers(top + 1, height + 1))
    support = (left, top, right, bottom)
    if rng.random() < 0.5:
        return (float(left), float(top), float(right), float(bottom)), support
    shrink = rng.random(4) * 0.45
    w, h = right - left, bottom - top
    return (left + shrink[0] * w, top + shrink[1] * h, right - shrink[2] * w, bottom - shrink[3] * h), support


def planes_of(
    rng: np.random.Generator, color: str, sampling: list[tuple[int, int]], width: int, height: int, slope: float = 1.0
) -> list[npt.NDArray[np.uint8]]:
    most = max(h for h, _ in sampling), max(v for _, v in sampling)
    return [
        np.ascontiguousarray(smooth_noise(rng, -(-height * v // most[1]), -(-width * h // most[0]), 1, slope)[:, :, 0])
        for h, v in sampling
    ]


def muted(planes: list[npt.NDArray[np.uint8]]) -> list[npt.NDArray[np.uint8]]:
    """In gamut: out of it, clamping before the resize (as libjpeg does) and after it are not the same."""
    return [(96 + plane // 4).astype(np.uint8) for plane in planes]


def random_case(rng: np.random.Generator, color: str, largest: int = 200) -> Case:
    width, height = (int(n) for n in rng.integers(1, largest, 2))
    count = {"gray": 1, "rgb": 3, "cmyk": 4, "ycck": 4}[color]
    sampling = [(1, 1)] * count
    orientation = int(rng.integers(1, 9))
    upright = (height, width) if orientation >= 5 else (width, height)
    source, support = random_boxes(rng, *upright)
    planes = [rng.integers(0, 256, (height, width), dtype=np.uint8) for _ in range(count)]
    size = tuple(int(n) for n in rng.integers(1, 120, 2))
    return Case(
        planes,
        color,
        sampling,
        width,
        height,
        source,
        support,
        (size[0], size[1]),
        orientation,
        bool(rng.integers(0, 2)),
    )


@pytest.mark.parametrize("filter", ["bilinear", "bicubic"])
@pytest.mark.parametrize("color", ["gray", "rgb", "cmyk", "ycck"])
@pytest.mark.parametrize("level", LEVELS)
def test_planes_of_full_resolution_give_pillows_bytes(color: str, level: str, filter: str) -> None:
    if not use(level):
        pytest.skip(f"this CPU has no {level}")
    rng = np.random.default_rng(7)
    for _ in range(60):
        case = random_case(rng, color)
        case.filter = filter
        np.testing.assert_array_equal(resample(case), case.expected())


@pytest.mark.parametrize("level", LEVELS)
def test_interleaved_rgb_gives_the_bytes_of_separate_planes(level: str) -> None:
    if not use(level):
        pytest.skip(f"this CPU has no {level}")
    rng = np.random.default_rng(8)
    for _ in range(60):
        case = random_case(rng, "rgb")
        expected = case.expected()
        pixels = np.stack(case.planes, axis=-1)
        # The array ends with its last sample: reading beside it would be caught by a sanitizer.
        case.planes = [pixels[:, :, c] for c in range(3)]
        np.testing.assert_array_equal(resample(case), expected)


def test_the_reference_is_pillows_own_resize() -> None:
    rng = np.random.default_rng(10)
    most = 2 if "post" in PIL.__version__ else 0  # pillow-simd rounds differently
    for _ in range(40):
        width, height, out_width, out_height = rng.integers(1, 90, 4).tolist()
        pixels = rng.integers(0, 256, (height, width, 3), np.uint8)
        left, right = np.sort(rng.uniform(0, width, 2)).tolist()
        if right - left < 0.1:
            continue
        image = Image.fromarray(pixels)
        wide = image.resize((out_width, height), Image.Resampling.BILINEAR, (left, 0, right, height))
        tall = image.resize((width, out_height), Image.Resampling.BILINEAR)
        for ours, theirs in (
            (resize_pass(pixels, 1, left, right, out_width), wide),
            (resize_pass(pixels, 0, 0, height, out_height), tall),
        ):
            assert np.abs(ours.astype(int) - np.asarray(theirs).astype(int)).max() <= most


def test_adobes_inverted_cmyk_is_turned_back() -> None:
    rng = np.random.default_rng(9)
    for _ in range(10):
        case = random_case(rng, "cmyk")
        expected = case.expected()
        case.planes = [255 - plane for plane in case.planes]
        np.testing.assert_array_equal(resample(case, inverted=True), expected)


SAMPLINGS = {
    "4:4:4": [(1, 1), (1, 1), (1, 1)],
    "4:2:2": [(2, 1), (1, 1), (1, 1)],
    "4:4:0": [(1, 2), (1, 1), (1, 1)],
    "4:2:0": [(2, 2), (1, 1), (1, 1)],
    "4:1:1": [(4, 1), (1, 1), (1, 1)],
    "4:1:0": [(4, 2), (1, 1), (1, 1)],
    "uneven": [(2, 2), (2, 1), (1, 2)],
}


def ycbcr_case(
    rng: np.random.Generator,
    sampling: list[tuple[int, int]],
    width: int,
    height: int,
    size: tuple[int, int],
    orientation: int = 1,
) -> Case:
    upright = (height, width) if orientation >= 5 else (width, height)
    source, support = random_boxes(rng, *upright)
    planes = planes_of(rng, "ycbcr", sampling, width, height)
    return Case(planes, "ycbcr", sampling, width, height, source, support, size, orientation, bool(rng.integers(0, 2)))


@pytest.mark.parametrize("filter", ["bilinear", "bicubic"])
@pytest.mark.parametrize("name", SAMPLINGS)
def test_subsampled_planes_stay_close_to_pillow(name: str, filter: str) -> None:
    rng = np.random.default_rng(10)
    differences = []
    for n in range(24):
        width, height = (int(v) for v in rng.integers(40, 400, 2))
        case = ycbcr_case(rng, SAMPLINGS[name], width, height, (64, 96), n % 8 + 1)
        case.planes = muted(case.planes)
        case.filter = filter
        differences.append((resample(case).astype(int) - case.expected()).reshape(-1, 3))
    difference = np.concatenate(differences)
    size = np.abs(difference)
    assert size.mean() < 0.35
    assert np.percentile(size, 99.9) <= 2
    assert np.abs(difference.mean(axis=0)).max() < 0.05


@pytest.mark.parametrize("orientation", range(1, 9))
def test_every_orientation_is_that_of_the_upright_image(orientation: int) -> None:
    rng = np.random.default_rng(11)
    case = ycbcr_case(rng, SAMPLINGS["4:2:0"], 97, 61, (50, 40), orientation)
    case.planes = muted(case.planes)
    assert np.abs(resample(case).astype(int) - case.expected()).max() <= 3


@pytest.mark.parametrize("filter", ["bilinear", "bicubic"])
@pytest.mark.parametrize("name", SAMPLINGS)
def test_extreme_sizes_resize(name: str, filter: str) -> None:
    rng = np.random.default_rng(12)
    sizes = [(1, 1), (1, 7), (7, 1), (2, 2), (3, 2), (5, 4), (33, 1), (1, 700), (700, 3), (65, 64)]
    for width, height in sizes:
        for size in [(1, 1), (17, 3), (1, 40), (224, 2)]:
            planes = muted(planes_of(rng, "ycbcr", SAMPLINGS[name], width, height))
            source, support = (0.0, 0.0, float(width), float(height)), (0, 0, width, height)
            case = Case(planes, "ycbcr", SAMPLINGS[name], width, height, source, support, size, filter=filter)
            difference = np.abs(resample(case).astype(int) - case.expected())
            assert difference.max() <= 2, (width, height, size)


@pytest.mark.parametrize("level", LEVELS)
def test_hard_edges_do_not_wrap_round_in_a_bicubic_filter(level: str) -> None:
    """Between the passes it goes beyond what samples are. Pillow has its passes in the other order."""
    if not use(level):
        pytest.skip(f"this CPU has no {level}")
    rng = np.random.default_rng(17)
    for size in ((40, 30), (210, 170)):
        planes = [(rng.random(shape) < 0.5).astype(np.uint8) * 255 for shape in ((90, 120), (45, 60), (45, 60))]
        planes[1:] = muted(planes[1:])
        box, whole = (3.0, 2.0, 117.0, 88.0), (3, 2, 117, 88)
        case = Case(planes, "ycbcr", SAMPLINGS["4:2:0"], 120, 90, box, whole, size, filter="bicubic")
        assert np.abs(resample(case).astype(int) - case.expected()).max() <= 80


def test_every_level_gives_the_same_bytes() -> None:
    found = [level for level in LEVELS if use(level)]
    rng = np.random.default_rng(13)
    combinations = [
        (layout, dtype) for layout in ("nchw", "nhwc") for dtype in ("uint8", "float32", "float16", "bfloat16")
    ]
    for n in range(80):
        width, height = (int(v) for v in rng.integers(1, 300, 2))
        size = (int(rng.integers(1, 150)), int(rng.integers(1, 60)))
        if n % 3:
            sampling = list(SAMPLINGS.values())[n % len(SAMPLINGS)]
            case = ycbcr_case(rng, sampling, width, height, size, n % 8 + 1)
            if n % 2:  # weights below 0 lead out of what samples are
                case.filter = "bicubic"
                case.planes = [(plane > 127).astype(np.uint8) * np.uint8(255) for plane in case.planes]
        else:
            case = random_case(rng, "rgb")
            case.planes = [np.stack(case.planes, axis=-1)[:, :, c] for c in range(3)]
        layout, dtype = combinations[n % len(combinations)]
        normalize: dict[str, Any] = {} if dtype == "uint8" else {"scale": SCALE, "bias": BIAS}
        results = []
        for level in found:
            assert use(level)
            results.append(resample(case, layout, dtype, **normalize).tobytes())
        assert all(result == results[0] for result in results), (n, layout, dtype)


def rounded_to_bfloat16(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


@pytest.mark.pairwise
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("size", [(1, 1), (5, 3), (16, 16), (31, 17), (48, 4), (100, 35), (224, 10)])
def test_floats_are_the_normalized_bytes(level: str, layout: str, size: tuple[int, int]) -> None:
    if not use(level):
        pytest.skip(f"this CPU has no {level}")
    rng = np.random.default_rng(14)
    case = ycbcr_case(rng, SAMPLINGS["4:2:0"], 90, 70, size)
    pixels = resample(case, layout)
    if layout == "nhwc":
        np.testing.assert_array_equal(np.moveaxis(pixels, 2, 0), resample(case, "nchw"))
    shape = (1, 1, 3) if layout == "nhwc" else (3, 1, 1)
    scale, bias = (np.asarray(v, np.float32).reshape(shape) for v in (SCALE, BIAS))
    floats = pixels.astype(np.float32) * scale + bias
    normalize: dict[str, Any] = {"scale": SCALE, "bias": BIAS}
    for offset in (0, 4, 32, 60):  # whole cache lines may be stored past the caches
        np.testing.assert_array_equal(resample(case, layout, "float32", offset=offset, **normalize), floats)
    np.testing.assert_array_equal(resample(case, layout, "float16", **normalize), floats.astype(np.float16))
    np.testing.assert_array_equal(resample(case, layout, "bfloat16", **normalize), rounded_to_bfloat16(floats))
    np.testing.assert_array_equal(resample(case, layout, "float32"), pixels.astype(np.float32))


def check_map(sides: tuple[int, int], at_end: bool) -> None:
    """Fails unless pixels between forbidden pages become the floats of numpy, which neither fuse nor reorder."""
    rng = np.random.default_rng(21)
    pixels = rng.integers(0, 256, (2, 3, *sides), np.uint8)
    scale, bias = (np.array(v, np.float32) for v in (SCALE, BIAS))
    fences = Fence(pixels.nbytes), Fence(4 * pixels.nbytes)
    out = fences[1].place(np.full(pixels.shape, 99, np.float32), at_end)
    native.map_pixels(fences[0].place(pixels, at_end), scale, bias, out)
    expected = pixels.astype(np.float32) * scale.reshape(3, 1, 1) + bias.reshape(3, 1, 1)
    np.testing.assert_array_equal(out.view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("at_end", [False, True])
def test_pixels_are_mapped_to_the_floats_of_decoded_images(level: str, at_end: bool) -> None:
    if not use(level):
        pytest.skip(f"this CPU has no {level}")
    for sides in ((1, 1), (3, 5), (1, 16), (1, 47), (2, 48), (95, 1), (97, 1), (17, 31), (224, 224), (1030, 1021)):
        check_map(sides, at_end)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("at_end", [False, True])
def test_bytes_are_copied_and_none_beside_them(level: str, at_end: bool) -> None:
    if not use(level):
        pytest.skip(f"this CPU has no {level}")
    rng = np.random.default_rng(3)
    for size in (0, 1, 63, 64, 65, 1000, (1 << 20) - 1, (1 << 20) + 70):
        data = rng.integers(0, 256, size, np.uint8)
        fences = Fence(size), Fence(size)
        out = fences[1].place(~data, at_end)
        native.copy_bytes(fences[0].place(data, at_end), out)
        np.testing.assert_array_equal(out, data)
    with pytest.raises(ValueError, match="size"):
        native.copy_bytes(np.zeros(3, np.uint8), np.zeros(4, np.uint8))


def test_arrays_that_can_not_be_mapped_are_refused() -> None:
    pixels, out = np.zeros((2, 3, 4, 4), np.uint8), np.zeros((2, 3, 4, 4), np.float32)
    with pytest.raises(ValueError, match="shape"):
        native.map_pixels(pixels, SCALE, BIAS, out[:1])
    wrong: tuple[Any, ...] = (pixels.astype(np.int8), pixels[:, :, :, ::2], pixels[:, :1], pixels[0])
    for each in wrong:
        with pytest.raises(TypeError):
            native.map_pixels(each, SCALE, BIAS, np.zeros(each.shape, np.float32))


@pytest.mark.parametrize("level", LEVELS)
def test_half_precisions_round_to_even_over_their_whole_range(level: str) -> None:
    if not use(level):
        pytest.skip(f"this CPU has no {level}")
    ramp = np.arange(256, dtype=np.uint8).reshape(1, 256)
    whole = (0, 0, 256, 1)
    case = Case([ramp], "gray", [(1, 1)], 256, 1, (0.0, 0.0, 256.0, 1.0), whole, (256, 1))
    for scale in (2.0**-26, 2.0**-24, 3.1e-7, 2.0**-15, 1.0, 257.0, 300.0, -1e5):
        floats = ramp[0].astype(np.float32) * np.float32(scale) + np.float32(0)
        with np.errstate(over="ignore"):
            expected = floats.astype(np.float16)
        found = resample(case, "nchw", "float16", scale=(scale,) * 3, bias=(0.0,) * 3)
        np.testing.assert_array_equal(found[0, 0], expected)
        found = resample(case, "nchw", "bfloat16", scale=(scale,) * 3, bias=(0.0,) * 3)
        np.testing.assert_array_equal(found[0, 0], rounded_to_bfloat16(floats))


@pytest.mark.parametrize("color", ["gray", "rgb", "ycbcr"])
def test_a_constant_image_stays_constant(color: str) -> None:
    rng = np.random.default_rng(15)
    for value in (0, 1, 127, 128, 254, 255):
        for name in SAMPLINGS if color == "ycbcr" else ["4:4:4"]:
            width, height = (int(v) for v in rng.integers(1, 500, 2))
            sampling = SAMPLINGS[name][:1] if color == "gray" else SAMPLINGS[name]
            planes = planes_of(rng, color, sampling, width, height)
            for i, plane in enumerate(planes):
                plane[:] = 128 if i and color == "ycbcr" else value
            source, support = random_boxes(rng, width, height)
            case = Case(planes, color, sampling, width, height, source, support, (61, 47))
            assert set(np.unique(resample(case))) == {value}, (value, name)


def test_a_flip_mirrors_the_output() -> None:
    rng = np.random.default_rng(16)
    for color in ("ycbcr", "rgb"):
        planes = planes_of(rng, color, SAMPLINGS["4:4:4"], 80, 50)
        case = Case(planes, color, SAMPLINGS["4:4:4"], 80, 50, (3.0, 2.0, 71.0, 44.0), (3, 2, 71, 44), (33, 20))
        straight = resample(case)
        case.flip = True
        np.testing.assert_array_equal(resample(case), straight[:, ::-1])


def test_a_window_gives_the_pixels_of_the_whole_image() -> None:
    rng = np.random.default_rng(17)
    for orientation in range(1, 9):
        width, height = 200, 160
        case = ycbcr_case(rng, SAMPLINGS["4:2:0"], width, height, (48, 40), orientation)
        support = (50, 42, 120, 100)
        case.source, case.support = (50.5, 43.0, 119.25, 99.0), support
        expected = resample(case)
        # In stored coordinates the support is somewhere inside these margins, whatever the orientation.
        x, y, w, h = 32, 16, 144, 126
        arguments = case.arguments()
        arguments["planes"] = [
            np.ascontiguousarray(plane[y // s : (y + h) // s, x // s : (x + w) // s])
            for plane, s in zip(case.planes, (1, 2, 2), strict=True)
        ]
        arguments["window"] = (x, y, w, h)
        out = np.empty((40, 48, 3), np.uint8)
        native.resample_planes(**arguments, out=out, layout="nhwc")
        np.testing.assert_array_equal(out, expected)


def test_scaled_planes_stand_for_the_pixels_that_they_cover() -> None:
    rng = np.random.default_rng(18)
    small = muted(planes_of(rng, "ycbcr", SAMPLINGS["4:2:0"], 120, 96))
    case = Case(small, "ycbcr", SAMPLINGS["4:2:0"], 240, 192, (10.0, 8.0, 230.0, 180.0), (10, 8, 230, 180), (32, 24))
    arguments = case.arguments()
    arguments["most"] = (4, 4)
    out = np.empty((24, 32, 3), np.uint8)
    native.resample_planes(**arguments, out=out, layout="nhwc")
    luma = small[0].repeat(2, 0).repeat(2, 1)
    chroma = [plane.repeat(4, 0).repeat(4, 1) for plane in small[1:]]
    full = Case([luma, *chroma], "ycbcr", SAMPLINGS["4:4:4"], 240, 192, case.source, case.support, case.size)
    assert np.abs(out.astype(int) - full.expected()).max() <= 2


class Fence:
    """Memory between two pages that may not be touched."""

    def __init__(self, size_bytes: int) -> None:
        page = mmap.PAGESIZE
        self.middle = -(-size_bytes // page) * page
        self.map = mmap.mmap(-1, self.middle + 2 * page)
        bytes_ = np.frombuffer(self.map, np.uint8)
        libc = ctypes.CDLL(None, use_errno=True)
        for at in (0, page + self.middle):
            address = ctypes.c_void_p(bytes_.ctypes.data + at)
            assert libc.mprotect(address, ctypes.c_size_t(page), 0) == 0
        self.inside = bytes_[page : page + self.middle]

    def place(self, array: npt.NDArray[Any], at_end: bool) -> npt.NDArray[Any]:
        """A copy that starts right after the first forbidden page, or ends right before the last one."""
        start = self.middle - array.nbytes if at_end else 0
        copy = self.inside[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
        copy[:] = array
        return copy


def resample_between_fences() -> None:
    rng = np.random.default_rng(20)
    fences = [Fence(1 << 18) for _ in range(4)]
    for n in range(60):
        width, height = (int(v) for v in rng.integers(1, 150, 2))
        size = (int(rng.integers(1, 80)), int(rng.integers(1, 40)))
        at_end = bool(n % 2)
        if n % 4 < 2:
            case = ycbcr_case(rng, list(SAMPLINGS.values())[n % len(SAMPLINGS)], width, height, size, n % 3 * 3 + 1)
            case.planes = [fence.place(p, at_end) for fence, p in zip(fences, case.planes, strict=False)]
        else:
            case = random_case(rng, "rgb", 150)
            pixels = fences[0].place(np.stack(case.planes, axis=-1), at_end)
            case.planes = [pixels[:, :, c] for c in range(3)]
        # A box that ends with the image: here reading too far would show.
        upright = (case.height, case.width) if case.orientation >= 5 else (case.width, case.height)
        case.support, case.source = (0, 0, *upright), (0.0, 0.0, float(upright[0]), float(upright[1]))
        for layout in ("nchw", "nhwc"):
            for dtype in ("uint8", "float32", "float16", "bfloat16"):
                shape = (case.size[1], case.size[0], 3) if layout == "nhwc" else (3, case.size[1], case.size[0])
                stored = np.zeros(shape, {"bfloat16": "uint16"}.get(dtype, dtype))
                out = fences[3].place(stored, at_end)
                native.resample_planes(**case.arguments(), out=out, layout=layout, dtype=dtype)


@pytest.mark.parametrize("level", LEVELS)
def test_nothing_beside_planes_and_output_is_touched(level: str) -> None:
    if not use(level):
        pytest.skip(f"this CPU has no {level}")
    # In a process of its own, which a touch would end.
    script = f"import test_resize as t; t.use({level!r}); t.resample_between_fences()"
    path = [str(Path(__file__).parent), *sys.path]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


def test_calls_leave_nothing_behind_in_working_memory() -> None:
    rng = np.random.default_rng(19)
    cases = [
        ycbcr_case(rng, sampling, int(width), int(height), (int(rng.integers(1, 90)), 31))
        for sampling in list(SAMPLINGS.values()) * 3
        for width, height in [rng.integers(1, 200, 2)]
    ] + [random_case(rng, color) for color in ("gray", "rgb", "cmyk", "ycck") * 3]
    first = [resample(case).tobytes() for case in cases]
    order = rng.permutation(len(cases))
    again = {int(i): resample(cases[int(i)]).tobytes() for i in order}
    assert [again[i] for i in range(len(cases))] == first


def good_arguments() -> dict[str, Any]:
    planes = [np.zeros((8, 10), np.uint8), np.zeros((4, 5), np.uint8), np.zeros((4, 5), np.uint8)]
    case = Case(planes, "ycbcr", SAMPLINGS["4:2:0"], 10, 8, (0.0, 0.0, 10.0, 8.0), (0, 0, 10, 8), (4, 4))
    return case.arguments()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"color": "lab"}, "color must be"),
        ({"color": "gray"}, "expected 1 plane for gray"),
        ({"color": "rgb"}, "full resolution"),
        ({"sampling": [(2, 2), (1, 1)]}, "sampling factors"),
        ({"sampling": [(2, 2), (0, 1), (1, 1)]}, "sampling factors"),
        ({"sampling": [(3, 2), (2, 1), (1, 1)], "most": (3, 2)}, "sampling factors"),
        ({"window": (0, 0, 12, 8)}, "window inside the image"),
        ({"window": (1, 0, 9, 8)}, "whole sample"),
        ({"image_size": (100, 8), "window": (0, 0, 20, 8)}, "cover the window"),
        ({"support_box": (0, 0, 11, 8)}, "support box inside"),
        ({"support_box": (5, 0, 5, 8)}, "support box inside"),
        ({"source_box": (0.0, 0.0, 10.5, 8.0)}, "source box"),
        ({"source_box": (4.0, 0.0, 4.0, 8.0)}, "source box"),
        ({"source_box": (float("nan"), 0.0, 4.0, 8.0)}, "source box"),
        ({"orientation": 0}, "orientation"),
        ({"orientation": 9}, "orientation"),
        ({"out": np.zeros((4, 4, 4), np.uint8)}, "3 channels"),
        ({"out": np.zeros((3, 0, 4), np.uint8)}, "rows and columns"),
        ({"dtype": "float32"}, "dtype asked for"),
        ({"dtype": "int8"}, "dtype must be"),
        ({"layout": "chw"}, "layout must be"),
        ({"scale": (1.0, 1.0, 1.0), "bias": (0.0, 0.0, 0.0)}, "no scale or bias"),
        ({"out": np.zeros((3, 4, 4), np.float32), "dtype": "float32", "scale": (1.0, 1.0, 1.0)}, "or neither"),
        (
            {
                "out": np.zeros((3, 4, 4), np.float32),
                "dtype": "float32",
                "scale": (1.0, float("inf"), 1.0),
                "bias": (0.0, 0.0, 0.0),
            },
            "finite",
        ),
    ],
)
def test_arguments_that_make_no_sense_are_refused(change: dict[str, Any], message: str) -> None:
    arguments = {"out": np.zeros((3, 4, 4), np.uint8), "layout": "nchw", **good_arguments()}
    native.resample_planes(**arguments)
    with pytest.raises(ValueError, match=message):
        native.resample_planes(**{**arguments, **change})


def test_the_level_can_be_chosen_among_those_that_the_cpu_has() -> None:
    assert native.set_simd_level("portable")
    assert native.simd_level() == "portable"
    with pytest.raises(ValueError, match="level must be"):
        native.set_simd_level("sse9")
    if os.uname().machine != "x86_64":
        assert not native.set_simd_level("avx2")
        assert native.simd_level() == "portable"

"""fidelity="draft": half and quarter size where the crop is 2 or 4 times the output, the same from every encoding."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from feeder import _native as native
from tests.support import jpegs
from tests.support.packed import packed

Status = native.Status
Box = tuple[int, int, int, int]
OURS = [kind for kind in jpegs.KINDS if not kind.startswith("progressive")]


def decode(
    data: Any, box: Box, size: tuple[int, int], fidelity: str = "draft", orientation: int = 1, first_row: int = -1
) -> npt.NDArray[np.uint8]:
    """uint8 [H, W, 3]; ``size`` is (width, height)."""
    out = np.zeros((1, size[1], size[0], 3), np.uint8)
    statuses, reasons = native.decode_batch(
        [data],
        np.array([box], np.float64),
        np.array([box], np.int32),
        np.zeros(1, np.uint8),
        np.array([orientation], np.uint8),
        out,
        layout="nhwc",
        dtype="uint8",
        fidelity=fidelity,
        first_rows=np.array([first_row], np.int32),
    )
    assert statuses.tolist() == [Status.OK], reasons
    return out[0]


def basis(n: int) -> npt.NDArray[np.float64]:
    """The orthonormal DCT of n samples, [frequency, sample]."""
    k, x = np.mgrid[0:n, 0:n]
    return np.where(k == 0, np.sqrt(1 / n), np.sqrt(2 / n) * np.cos((2 * x + 1) * k * np.pi / (2 * n)))


def reduced(plane: npt.NDArray[np.uint8], shrink: int) -> npt.NDArray[np.uint8]:
    """The samples of the lowest frequencies of each whole block of a plane, each as many times as it stands for."""
    n = 8 // shrink
    height, width = plane.shape[0] // 8, plane.shape[1] // 8
    blocks = plane[: 8 * height, : 8 * width].reshape(height, 8, width, 8).transpose(0, 2, 1, 3) - 128.0
    low = (basis(8) @ blocks @ basis(8).T)[..., :n, :n] / shrink
    small = basis(n).T @ low @ basis(n) + 128
    small = small.round().clip(0, 255).astype(np.uint8).transpose(0, 2, 1, 3).reshape(height * n, width * n)
    return small.repeat(shrink, 0).repeat(shrink, 1)


def expected(data: bytes, box: Box, size: tuple[int, int], shrink: int) -> npt.NDArray[np.int64]:
    width, height = Image.open(io.BytesIO(data)).size
    planes = [reduced(plane, shrink) for plane in native.jpeg_planes(data, (0, 0, width, height))]
    full = [plane.repeat(height // plane.shape[0], 0).repeat(width // plane.shape[1], 1) for plane in planes]
    image = Image.fromarray(full[0]) if len(full) == 1 else Image.merge("YCbCr", [*map(Image.fromarray, full)])
    return np.asarray(image.convert("RGB").crop(box).resize(size, Image.Resampling.BILINEAR), np.int64)


@pytest.mark.parametrize("shrink", [2, 4])
@pytest.mark.parametrize("kind", ["gray", "4:4:4", "4:2:2", "4:2:0", "4:4:0", "restart rows"])
def test_pixels_are_those_of_the_low_frequencies(kind: str, shrink: int) -> None:
    data = jpegs.jpeg(kind, (256, 192))
    for box, ratio in (
        ((0, 0, 256, 192), shrink),
        ((32, 16, 240, 176), shrink * 1.3),
        ((3, 7, 250, 188), shrink * 1.9),
    ):
        size = int((box[2] - box[0]) / ratio), int((box[3] - box[1]) / ratio)
        difference = np.abs(decode(data, box, size) - expected(data, box, size, shrink))
        # Beside roundings, colors that leave the gamut are clamped elsewhere; of the strange colors of 4:4:0 many do.
        assert difference.max() <= {"gray": 2, "4:4:0": 16}.get(kind, 7)
        assert difference.mean() < (0.5 if kind == "gray" else 1.0)


def test_only_crops_of_twice_the_output_are_drafts() -> None:
    data = jpegs.jpeg("high quality", (256, 192))
    half, full = (0, 0, 128, 96), (0, 0, 256, 192)
    for box, size, differs in (
        (full, (128, 96), True),
        (full, (128, 97), False),
        (full, (129, 96), False),
        (half, (128, 96), False),
        (half, (64, 48), True),
        (half, (32, 24), True),
    ):
        assert np.array_equal(decode(data, box, size), decode(data, box, size, "fast")) != differs
    # Half and quarter size are not the same.
    quarter, fast = decode(data, full, (64, 48)).astype(int), decode(data, full, (64, 48), "fast").astype(int)
    assert 0.2 < np.abs(quarter - fast).mean() < 4
    # A quarter from a crop of four times the output on: below, the half is closer.
    half_size = decode(data, full, (65, 49)).astype(int) - decode(data, full, (65, 49), "fast")
    assert np.abs(half_size).mean() < np.abs(quarter - fast).mean()


def test_a_smooth_image_is_the_same_as_ever() -> None:
    y, x = np.mgrid[0:192, 0:256]
    smooth = np.stack([100 + 60 * np.sin(x / 60), 120 + 50 * np.cos(y / 50), 90 + 40 * np.sin((x + y) / 70)], -1)
    for mode in ("RGB", "L"):
        data = jpegs.encode(Image.fromarray(smooth.astype(np.uint8)), mode=mode, quality=95)
        for size in ((100, 80), (60, 40), (50, 30)):
            box = (5, 9, 249, 190)
            difference = np.abs(decode(data, box, size).astype(int) - decode(data, box, size, "fast"))
            assert difference.max() <= 4
            assert difference.mean() < 0.6


@pytest.mark.parametrize("kind", OURS)
def test_every_encoding_and_level_gives_the_same_pixels(kind: str, level: str) -> None:
    width, height = 300, 210
    data = jpegs.jpeg(kind, (width, height))
    files = (data, native.transcode(data, keep_metadata=True, segment_px=32), packed(data))
    for number, (box, size) in enumerate(
        (
            ((0, 0, width, height), (150, 105)),
            ((0, 0, width, height), (40, 50)),
            ((33, 17, 290, 207), (70, 60)),
            ((width - 90, height - 80, width, height), (31, 40)),
            ((7, 3, 250, 60), (24, 14)),
        )
    ):
        orientation = number % 8 + 1
        if orientation >= 5:
            box, size = (box[1], box[0], box[3], box[2]), (size[1], size[0])
        native_level = native.simd_level()
        native.set_simd_level("portable")
        first = decode(data, box, size, orientation=orientation)
        native.set_simd_level(native_level)
        for file in files:
            np.testing.assert_array_equal(decode(file, box, size, orientation=orientation), first)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation_is_applied_to_drafts(orientation: int) -> None:
    data = jpegs.jpeg("4:2:0", (256, 192))
    upright = (192, 256) if orientation >= 5 else (256, 192)
    size = (upright[0] // 4, upright[1] // 4)
    whole = Image.fromarray(decode(data, (0, 0, 256, 192), (64, 48)))
    transposes = [None, 0, 3, 1, 5, 4, 6, 2]
    turn = transposes[orientation - 1]
    turned = whole if turn is None else whole.transpose(Image.Transpose(turn))
    found = decode(data, (0, 0, *upright), size, orientation=orientation)
    assert np.abs(found.astype(int) - np.asarray(turned)).max() <= 1


@pytest.mark.parametrize("kind", ["seekable", "packed"])
def test_rows_alone_give_the_same_drafts(kind: str) -> None:
    width, height = 256, 640
    data = jpegs.encode(jpegs.photo(0, width, height), quality=90, subsampling="4:2:0")
    file = packed(data) if kind == "packed" else native.transcode(data, keep_metadata=True)
    places = np.frombuffer(native.row_places(file) or b"", np.uint32)
    cut = 0
    for top in range(0, height - 100, 31):
        box = (10, top, 90, top + 97)
        ((first, head, begin, end),) = native.row_extents(
            places,
            np.zeros(1, np.uint64),
            np.array([len(places)], np.uint64),
            np.array([len(file)], np.uint64),
            np.array([height], np.uint32),
            np.array([[box[1], box[3]]], np.int32),
        ).tolist()
        part = file[:head] + file[begin:end] if first >= 0 else file
        cut += first >= 0
        for size in ((40, 40), (20, 24)):
            np.testing.assert_array_equal(decode(part, box, size, first_row=first), decode(file, box, size))
    assert cut > 5


def test_views_of_other_sizes_do_not_change_a_draft() -> None:
    data = jpegs.jpeg("4:2:0", (400, 300))
    wanted = [((0, 0, 400, 300), (200, 150)), ((20, 10, 390, 280), (60, 50)), ((0, 0, 400, 300), (300, 280))]
    for file in (data, native.transcode(data, keep_metadata=True), packed(data)):
        outs = [np.zeros((1, height, width, 3), np.uint8) for _, (width, height) in wanted]
        views = [
            native.View(
                np.array([box], np.float64), np.array([box], np.int32), np.zeros(1, np.uint8), out, layout="nhwc",
                dtype="uint8",
            )
            for (box, _), out in zip(wanted, outs, strict=True)
        ]  # fmt: skip
        statuses, reasons = native.decode_views([file], views, np.ones(1, np.uint8), fidelity="draft")
        assert statuses.tolist() == [Status.OK], reasons
        for (box, size), out in zip(wanted, outs, strict=True):
            np.testing.assert_array_equal(out[0], decode(file, box, size))


@pytest.mark.parametrize("kind", ["progressive", "progressive gray", "cmyk", "npy"])
def test_images_of_other_decoders_are_as_fast_makes_them(kind: str) -> None:
    if kind == "npy":
        buffer = io.BytesIO()
        np.save(buffer, np.asarray(jpegs.photo(0, 200, 160)))
        data = buffer.getvalue()
    elif kind == "cmyk":
        data = jpegs.encode(jpegs.photo(0, 200, 160), mode="CMYK")
    else:
        data = jpegs.jpeg(kind, (200, 160))
    for size in ((90, 70), (40, 30)):
        box = (0, 0, 200, 160)
        np.testing.assert_array_equal(decode(data, box, size), decode(data, box, size, "fast"))


def test_damage_has_the_status_that_it_always_has() -> None:
    data = jpegs.jpeg("4:2:0", (200, 160))
    start = jpegs.entropy_offset(data)
    box = np.array([[0, 0, 200, 160]])
    seen = set()
    for at in range(start, len(data), 37):
        for broken in (data[:at], jpegs.patched(data, at, 0xFF, 0xD3)):
            found = []
            for fidelity in ("fast", "draft"):
                out = np.zeros((1, 40, 50, 3), np.uint8)
                statuses, reasons = native.decode_batch(
                    [broken], box.astype(np.float64), box.astype(np.int32), np.zeros(1, np.uint8), np.ones(1, np.uint8),
                    out, layout="nhwc", dtype="uint8", fidelity=fidelity,
                )  # fmt: skip
                found.append((int(statuses[0]), reasons[0]))
            assert found[0] == found[1]
            seen.add(found[0][0])
    assert len(seen) > 0
    assert Status.OK not in seen


def test_large_coefficients_do_not_overflow(level: str) -> None:
    """Sums of anything that a file may claim stay in range: saturated, not wrapped."""
    codes = ([0] * 4 + [16], range(16))
    for seed in range(20):
        data = jpegs.random_codes((0x11,), (64, 64), seed)
        box = (0, 0, 64, 64)
        out = np.zeros((1, 30, 30, 3), np.uint8)
        native.decode_batch(
            [data], np.array([box], np.float64), np.array([box], np.int32), np.zeros(1, np.uint8), np.ones(1, np.uint8),
            out, layout="nhwc", dtype="uint8", fidelity="draft",
        )  # fmt: skip
    # A DC coefficient of 15 bits, times 1: white and black.
    for sign, value in ((1, 255), (-1, 0)):
        bits = f"{15:05b}" + (f"{16384:015b}" if sign > 0 else f"{16383:015b}") + "0"
        bits += "00000" + "0"
        bits = bits + ("00000" + "0") * 62
        bits += "1" * (-len(bits) % 8)
        entropy = int(bits, 2).to_bytes(len(bits) // 8, "big").replace(b"\xff", b"\xff\0")
        data = jpegs.built((0x11,), (64, 64), codes, ([1], [0]), entropy)
        for size in ((32, 32), (16, 16)):
            assert (decode(data, (0, 0, 64, 64), size) == value).all()

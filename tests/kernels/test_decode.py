"""decode_batch: right pixels for every kind of JPEG and raw array, and a status for every bad one."""

from __future__ import annotations

import ast
import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

import feeder
from feeder import _native as native
from tests.support import jpegs
from tests.support.resize_reference import pillow_resize

Status = native.Status
Box = tuple[int, int, int, int]


def decode(
    buffers: Sequence[bytes | bytearray | memoryview],
    boxes: list[Box],
    size: tuple[int, int] = (24, 20),
    *,
    flips: list[int] | None = None,
    orientations: list[int] | None = None,
    **options: Any,
) -> tuple[npt.NDArray[np.uint8], list[int], list[str]]:
    """uint8 [N, H, W, 3], the statuses and the reasons; ``size`` is (width, height)."""
    count = len(buffers)
    out = np.full((count, size[1], size[0], 3), 77, np.uint8)
    statuses, reasons = native.decode_batch(
        buffers,
        np.array(boxes, np.float64).reshape(-1, 4),
        np.array(boxes, np.int32).reshape(-1, 4),
        np.array(flips or [0] * count, np.uint8),
        np.array(orientations or [1] * count, np.uint8),
        out,
        layout="nhwc",
        dtype="uint8",
        **options,
    )
    return out, statuses.tolist(), reasons


def reference(data: bytes, box: Box, size: tuple[int, int]) -> npt.NDArray[np.int64]:
    image = Image.open(io.BytesIO(data)).convert("RGB").crop(box).resize(size, Image.Resampling.BILINEAR)
    return np.asarray(image).astype(np.int64)


def boxes_in(width: int, height: int) -> list[Box]:
    rng = np.random.default_rng(width * 1000 + height)
    found: list[Box] = [(0, 0, width, height)]
    for _ in range(6):
        left, right = sorted(rng.choice(width + 1, 2, replace=False).tolist())
        top, bottom = sorted(rng.choice(height + 1, 2, replace=False).tolist())
        found.append((left, top, right, bottom))
    return found


@pytest.mark.pairwise
@pytest.mark.parametrize("size", [*jpegs.SIZES, (300, 200)], ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("kind", jpegs.KINDS)
def test_pixels_are_pillows(kind: str, size: tuple[int, int]) -> None:
    data = jpegs.jpeg(kind, size)
    seekable = native.transcode(data, keep_metadata=False, segment_px=32)
    boxes = boxes_in(*size)
    # Where blocks are harsh, single colors leave the gamut, and the fast path clamps them elsewhere than Pillow.
    for fidelity, most in (("exact", 1), ("fast", 48)):
        whole, statuses, reasons = decode([data] * len(boxes), boxes, fidelity=fidelity)
        assert statuses == [Status.OK] * len(boxes), reasons
        cut, statuses, reasons = decode([seekable] * len(boxes), boxes, fidelity=fidelity)
        assert statuses == [Status.OK] * len(boxes), reasons
        np.testing.assert_array_equal(cut, whole)
        differences = [np.abs(out - reference(data, box, (24, 20))) for out, box in zip(whole, boxes, strict=True)]
        assert max(difference.max() for difference in differences) <= most
        assert max(difference.mean() for difference in differences) <= 0.75


def test_cmyk_is_pillows() -> None:
    data = jpegs.encode(jpegs.photo(3, 120, 90), mode="CMYK")
    for fidelity in ("exact", "fast"):
        out, statuses, _ = decode([data], [(10, 10, 100, 80)], fidelity=fidelity)
        assert statuses == [Status.OK]
        assert np.abs(out[0] - reference(data, (10, 10, 100, 80), (24, 20))).max() <= 1


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["4:2:0", "gray", "npy"])
def test_orientation_and_flip_are_applied_after_the_box(kind: str, orientation: int) -> None:
    stored = jpegs.photo(1, 90, 70)
    if kind == "npy":
        buffer = io.BytesIO()
        np.save(buffer, np.asarray(stored))
        data, stored_pixels = buffer.getvalue(), stored
    else:
        data = native.transcode(jpegs.jpeg(kind, (90, 70), 1), keep_metadata=False)
        stored_pixels = Image.open(io.BytesIO(data)).convert("RGB")
    turn = {2: 0, 3: 3, 4: 1, 5: 5, 6: 4, 7: 6, 8: 2}.get(orientation)
    upright = stored_pixels if turn is None else stored_pixels.transpose(Image.Transpose(turn))
    box = (8, 3, 65, 50)
    expected = np.asarray(upright.crop(box).resize((24, 20), Image.Resampling.BILINEAR)).astype(int)
    out, statuses, reasons = decode(
        [data] * 2, [box] * 2, orientations=[orientation] * 2, flips=[0, 1], fidelity="exact"
    )
    assert statuses == [Status.OK] * 2, reasons
    assert np.abs(out[0] - expected).max() <= 1
    np.testing.assert_array_equal(out[1], out[0][:, ::-1])


def test_bit_exact_for_any_threads_batch_and_order() -> None:
    buffers, boxes = [], []
    for i, kind in enumerate([*jpegs.KINDS] * 2):
        size = (60 + 7 * i, 50 + 5 * i)
        data = jpegs.jpeg(kind, size, i)
        buffers.append(data if i % 3 == 0 else native.transcode(data, keep_metadata=False))
        boxes.append(boxes_in(*size)[i % 7])
    buffers[4] = buffers[4][:-40]
    expected, statuses, reasons = decode(buffers, boxes)
    order = np.random.default_rng(0).permutation(len(buffers)).tolist()
    for threads in (1, 2, 5, 64):
        out, found, why = decode([buffers[i] for i in order], [boxes[i] for i in order], threads=threads)
        np.testing.assert_array_equal(out, expected[order])
        assert found == [statuses[i] for i in order]
        assert why == [reasons[i] for i in order]
    for i in range(0, len(buffers), 5):
        out, _, _ = decode([buffers[i]], [boxes[i]])
        np.testing.assert_array_equal(out[0], expected[i])


@pytest.mark.parametrize("dtype", ["uint8", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_layouts_and_dtypes_hold_the_same_pixels(layout: str, dtype: str) -> None:
    data, box = jpegs.jpeg("4:2:0"), (3, 5, 120, 90)
    pixels, _, _ = decode([data], [box])
    out = np.zeros((1, 3, 20, 24) if layout == "nchw" else (1, 20, 24, 3), {"bfloat16": "uint16"}.get(dtype, dtype))
    scale, bias = np.array([0.02, 0.03, 0.04], np.float32), np.array([-1, 0, 1], np.float32)
    affine: dict[str, Any] = {} if dtype == "uint8" else {"scale": scale, "bias": bias}
    native.decode_batch(
        [data],
        np.array([box], float),
        np.array([box], np.int32),
        np.zeros(1, np.uint8),
        np.ones(1, np.uint8),
        out,
        layout=layout,
        dtype=dtype,
        **affine,
    )
    found = out[0].transpose(1, 2, 0) if layout == "nchw" else out[0]
    if dtype == "uint8":
        np.testing.assert_array_equal(found, pixels[0])
        return
    values = (found.astype(np.uint32) << 16).view(np.float32) if dtype == "bfloat16" else found.astype(np.float32)
    expected = pixels[0] * scale + bias
    tolerance = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 2e-2}[dtype] * np.abs(expected).max() + 0.51 * scale
    assert (np.abs(values - expected) <= tolerance).all()


# Bad files.


@pytest.mark.parametrize("seekable", [False, True])
@pytest.mark.parametrize("kind", ["4:2:0", "gray", "progressive"])
def test_every_truncation_has_a_status(kind: str, seekable: bool) -> None:
    data = jpegs.jpeg(kind, (56, 40))
    if seekable:
        data = native.transcode(data, keep_metadata=False, segment_px=16)
    lengths = range(len(data))
    for box in ((0, 0, 56, 40), (4, 2, 40, 9)):  # the second one's data is whole in most of the files
        good = decode([data], [box])[0][0]
        buffers = [data[:length] for length in lengths] + [data]
        out, statuses, reasons = decode(buffers, [box] * len(buffers))
        # All blocks of a single scan are there without an end-of-image marker, or with half of one.
        whole = 3 if kind != "progressive" or seekable else 1
        bad = zip(statuses[:-whole], reasons, strict=False)
        assert all(status != Status.OK and reason for status, reason in bad)
        assert statuses[-whole:] == [Status.OK] * whole
        np.testing.assert_array_equal(out[-whole:], [good] * whole)
        damaged = [i for i in lengths if statuses[i] == Status.DAMAGED]
        if kind != "progressive" or seekable:
            assert len(damaged) > (len(data) - jpegs.entropy_offset(data)) * 0.9


@pytest.mark.parametrize("seekable", [False, True])
@pytest.mark.parametrize("kind", ["4:2:0", "4:4:4", "gray", "progressive", "restart blocks"])
def test_bit_flips_have_a_status_and_stay_alone(kind: str, seekable: bool) -> None:
    data = jpegs.jpeg(kind, (72, 56))
    if seekable:
        data = native.transcode(data, keep_metadata=False, segment_px=16)
    rng = np.random.default_rng(11)
    box: Box = (5, 5, 70, 50)
    buffers = []
    for bit in rng.integers(16, 8 * len(data), 300).tolist():
        buffers += [jpegs.patched(data, bit // 8, data[bit // 8] ^ 1 << bit % 8), data]
    out, statuses, reasons = decode(buffers, [box] * len(buffers), max_pixels=1 << 20, threads=2)
    assert statuses[1::2] == [Status.OK] * 300
    assert (out[1::2] == out[1]).all()
    assert {bool(reason) for reason, status in zip(reasons, statuses, strict=True) if status != Status.OK} == {True}
    assert {reason for reason, status in zip(reasons, statuses, strict=True) if status == Status.OK} == {""}
    assert sum(status != Status.OK for status in statuses) >= 15


def test_damage_inside_a_segment_is_found() -> None:
    """A run of random bytes, in each segment in turn. Some make sense by chance."""
    data = native.transcode(jpegs.jpeg("4:2:0", (256, 64)), keep_metadata=False)
    rng = np.random.default_rng(2)
    found = []
    for start in range(jpegs.entropy_offset(data) + 10, len(data) - 40, 97):
        noise = rng.integers(0, 255, 24, dtype=np.uint8).tobytes()
        found.append(decode([data[:start] + noise + data[start + 24 :]], [(0, 0, 256, 64)])[1][0])
    assert found.count(Status.DAMAGED) > 0.5 * len(found)


RESTART = re.compile(rb"\xff[\xd0-\xd7]")


@pytest.mark.parametrize("stray", [b"\0", b"\0\0\0", b"\xff", b"\xff\xff", b"\x12\x34\x56", b"\xff\0\x12"])
@pytest.mark.parametrize("kind", ["restart blocks", "restart rows"])
def test_bytes_before_restart_markers_are_skipped_as_pillow_does(kind: str, stray: bytes) -> None:
    """Some webcams write them."""
    plain = jpegs.jpeg(kind)
    data = RESTART.sub(lambda marker: stray + marker[0], plain)
    boxes = boxes_in(128, 96)
    assert len(data) > len(plain)
    np.testing.assert_array_equal(jpegs.pixels_of(data), jpegs.pixels_of(plain))
    np.testing.assert_array_equal(native.libjpeg_decode(data), jpegs.pixels_of(data))
    for fidelity in ("fast", "exact"):
        expected, _, _ = decode([plain] * len(boxes), boxes, fidelity=fidelity)
        out, statuses, reasons = decode([data] * len(boxes), boxes, fidelity=fidelity)
        assert statuses == [Status.OK] * len(boxes), reasons
        np.testing.assert_array_equal(out, expected)
    assert native.transcode(data, keep_metadata=True) == native.transcode(plain, keep_metadata=True)


@pytest.mark.parametrize("end", [b"", b"\0", bytes(8), bytes(999), b"\xff" * 9, b"\xff\0" * 9, b"\x12\x34" * 9])
@pytest.mark.parametrize("kind", ["4:2:0", "gray", "restart blocks"])
def test_a_scan_needs_no_end_marker_if_all_its_blocks_are_there(kind: str, end: bytes) -> None:
    plain = jpegs.jpeg(kind)
    data = plain[:-2] + end
    boxes = boxes_in(128, 96)
    np.testing.assert_array_equal(jpegs.pixels_of(data + bytes(8)), jpegs.pixels_of(plain))  # Pillow reads ahead
    np.testing.assert_array_equal(native.libjpeg_decode(data).squeeze(), jpegs.pixels_of(plain))
    for fidelity in ("fast", "exact"):
        expected, _, _ = decode([plain] * len(boxes), boxes, fidelity=fidelity)
        out, statuses, reasons = decode([data] * len(boxes), boxes, fidelity=fidelity)
        assert statuses == [Status.OK] * len(boxes), reasons
        np.testing.assert_array_equal(out, expected)
    assert native.transcode(data, keep_metadata=True) == native.transcode(plain, keep_metadata=True)


@pytest.mark.parametrize("padding", [0, 1, 999])
@pytest.mark.parametrize("seekable", [False, True])
def test_padding_does_not_stand_for_blocks_that_are_missing(seekable: bool, padding: int) -> None:
    """Pillow decodes zeros like any other bytes."""
    data = jpegs.jpeg("4:2:0")
    if seekable:
        data = native.transcode(data, keep_metadata=False, segment_px=16)
    for missing in (3, 20, len(data) // 3):
        cut = data[:-missing] + bytes(padding)
        assert decode([cut] * 2, [(0, 0, 128, 96), (0, 0, 16, 16)])[1] == [Status.DAMAGED] * 2
        with pytest.raises(native.Unsupported, match="truncated") as caught:
            native.transcode(cut, keep_metadata=True)
        assert caught.value.status == Status.DAMAGED


def test_restart_markers_out_of_order_are_damage() -> None:
    data = native.transcode(jpegs.jpeg("4:2:0", (256, 64)), keep_metadata=False)
    first = data.index(b"\xff\xd0", jpegs.entropy_offset(data))
    _, statuses, reasons = decode([jpegs.patched(data, first + 1, 0xD5)], [(0, 0, 256, 64)])
    assert statuses == [Status.DAMAGED]
    assert reasons[0]


def test_an_absurd_number_of_scans_is_refused() -> None:
    """Each costs a pass over the whole image, however short it is."""
    data = jpegs.jpeg("progressive")
    last = data.rindex(b"\xff\xda")
    many = data[:last] + data[last:-2] * 120 + b"\xff\xd9"
    _, statuses, reasons = decode([many], [(0, 0, 128, 96)])
    assert statuses == [Status.CORRUPT]
    assert "100 scans" in reasons[0]
    with pytest.raises(native.Unsupported, match="100 scans"):
        native.transcode(many, keep_metadata=True)


ADOBE_RGB = b"\xff\xee\0\x0eAdobe\0\x64\0\0\0\0\0"
ODD = {
    "luma subsampled": jpegs.flat_blocks((0x11, 0x12, 0x12), (150, 90)),
    "luma and one chroma": jpegs.flat_blocks((0x11, 0x21, 0x12), (150, 90)),
    "thirds": jpegs.flat_blocks((0x11, 0x13, 0x11), (150, 90)),
    "rgb 4:2:0": jpegs.with_segments(jpegs.flat_blocks((0x22, 0x11, 0x11), (150, 90)), ADOBE_RGB),
    "rgb 4:2:2": jpegs.with_segments(jpegs.flat_blocks((0x21, 0x11, 0x11), (150, 90)), ADOBE_RGB),
    "cmyk": jpegs.flat_blocks((0x22, 0x11, 0x11, 0x22), (150, 90)),
}


@pytest.mark.parametrize("name", ODD)
def test_what_fast_is_not_for_is_decoded_exactly_and_counted(name: str) -> None:
    data, boxes = ODD[name], boxes_in(150, 90)
    slow = np.zeros(len(boxes), np.uint8)
    exact, statuses, reasons = decode([data] * len(boxes), boxes, fidelity="exact", slow=slow)
    assert statuses == [Status.OK] * len(boxes), reasons
    assert not slow.any()
    fast, statuses, reasons = decode([data] * len(boxes), boxes, slow=slow)
    assert statuses == [Status.OK] * len(boxes), reasons
    assert slow.all()
    np.testing.assert_array_equal(fast, exact)
    for out, box in zip(fast, boxes, strict=True):
        assert np.abs(out - reference(data, box, (24, 20))).max() <= 2
    if name == "cmyk":
        return
    seekable, statuses, _ = decode([native.transcode(data, keep_metadata=True, segment_px=16)] * len(boxes), boxes)
    assert statuses == [Status.OK] * len(boxes)
    np.testing.assert_array_equal(seekable, exact)


def test_what_fast_is_for_is_not_counted_as_slow() -> None:
    files = [jpegs.jpeg(kind) for kind in jpegs.KINDS]
    slow = np.ones(len(files), np.uint8)
    decode(files, [(0, 0, 128, 96)] * len(files), slow=slow)
    assert not slow.any()


def test_scan_parameters_that_no_decoder_uses_are_no_damage() -> None:
    """Some phones write a spectral selection of 0 to 0 into sequential files."""
    data = jpegs.jpeg("4:2:0")
    odd = jpegs.patched(data, jpegs.entropy_offset(data) - 3, 0, 0, 0)
    boxes = boxes_in(128, 96)
    expected, _, _ = decode([data] * len(boxes), boxes)
    for found in (odd, native.transcode(odd, keep_metadata=True)):
        out, statuses, reasons = decode([found] * len(boxes), boxes)
        assert statuses == [Status.OK] * len(boxes), reasons
        np.testing.assert_array_equal(out, expected)
    progressive = jpegs.jpeg("progressive")
    unused = jpegs.patched(progressive, jpegs.entropy_offset(progressive) - 4, 0x1F)  # the last component's AC table
    assert decode([unused], [(0, 0, 128, 96)])[1] == [Status.OK]


def test_bytes_after_the_end_are_no_damage() -> None:
    data = jpegs.jpeg("4:2:0")
    for tail in (b"\0" * 100, b"\xff", b"\xff\xff", b"a second picture \xff\xd8\xff"):
        _, statuses, reasons = decode([data + tail], [(0, 0, 128, 96)])
        assert statuses == [Status.OK], reasons


COLOR = jpegs.jpeg("4:2:0")
FRAME = jpegs.frame_offset(COLOR)
BAD = {
    "empty": (b"", Status.NOT_JPEG),
    "png": (b"\x89PNG\r\n\x1a\n" + bytes(60), Status.NOT_JPEG),
    "12 bits": (jpegs.patched(COLOR, FRAME + 4, 12), Status.UNSUPPORTED),
    "lossless": (jpegs.patched(COLOR, FRAME + 1, 0xC3), Status.UNSUPPORTED),
    "no scan": (b"\xff\xd8\xff\xd9" + bytes(60), Status.CORRUPT),
    "header only": (jpegs.jpeg("4:2:0")[:200], Status.CORRUPT),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_file_has_its_status(name: str) -> None:
    data, status = BAD[name]
    _, statuses, reasons = decode([data], [(0, 0, 128, 96)])
    assert statuses == [status]
    assert reasons[0]


def test_limits_and_mismatches_are_refused_one_by_one() -> None:
    data = jpegs.jpeg("4:2:0")
    whole: Box = (0, 0, 128, 96)
    assert decode([data], [whole], max_pixels=128 * 96)[1] == [Status.OK]
    assert decode([data], [whole], max_pixels=128 * 96 - 1)[1] == [Status.TOO_LARGE]
    sizes = np.array([[96, 128], [96, 127], [128, 96]], np.int32)
    _, statuses, reasons = decode([data] * 3, [whole] * 3, image_sizes=sizes)
    assert statuses == [Status.OK, Status.CORRUPT, Status.CORRUPT]
    assert "127x96" in reasons[1]
    assert "128x96" in reasons[1]
    for box in ((0, 0, 129, 96), (0, 0, 128, 97), (-1, 0, 5, 5), (5, 5, 5, 8)):
        assert decode([data], [box])[1] == [Status.CORRUPT]
    # Upright, the image is 96 wide: the same box fits no more.
    assert decode([data], [whole], orientations=[6])[1] == [Status.CORRUPT]


# Raw arrays.


def npy(array: npt.NDArray[Any], version: tuple[int, int] = (1, 0)) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, array, version)
    return buffer.getvalue()


@pytest.mark.parametrize("version", [(1, 0), (2, 0)])
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_raw_array_is_pillows(mode: str, version: tuple[int, int]) -> None:
    image = jpegs.photo(9, 130, 70).convert(mode)
    out, statuses, reasons = decode([npy(np.asarray(image), version)], [(11, 7, 120, 66)])
    assert statuses == [Status.OK], reasons
    expected = pillow_resize(np.asarray(image.convert("RGB")), (11, 7, 120, 66), (11, 7, 120, 66), (24, 20))
    np.testing.assert_array_equal(out[0], expected)


PIXELS = np.zeros((70, 130, 3), np.uint8)
BAD_ARRAYS = {
    "float": (npy(PIXELS.astype(np.float32)), Status.UNSUPPORTED),
    "fortran order": (npy(np.asfortranarray(PIXELS)), Status.UNSUPPORTED),
    "four channels": (npy(np.zeros((70, 130, 4), np.uint8)), Status.UNSUPPORTED),
    "one dimension": (npy(np.zeros(130, np.uint8)), Status.UNSUPPORTED),
    "four dimensions": (npy(np.zeros((1, 70, 130, 3), np.uint8)), Status.UNSUPPORTED),
    "no rows": (npy(np.zeros((0, 130, 3), np.uint8)), Status.UNSUPPORTED),
    "too short": (npy(PIXELS)[:-1], Status.CORRUPT),
    "too long": (npy(PIXELS) + b"\0", Status.CORRUPT),
    "header only": (npy(PIXELS)[:60], Status.CORRUPT),
    "magic only": (npy(PIXELS)[:6], Status.CORRUPT),
}


@pytest.mark.parametrize("name", BAD_ARRAYS)
def test_bad_array_has_its_status(name: str) -> None:
    data, status = BAD_ARRAYS[name]
    _, statuses, reasons = decode([data], [(0, 0, 10, 10)])
    assert statuses == [status]
    assert reasons[0].startswith("npy: ")


# The call itself.


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"source_boxes": np.zeros((2, 4))}, "one entry per buffer"),
        ({"flips": np.zeros(0, np.uint8)}, "one entry per buffer"),
        ({"out": np.zeros((1, 4, 8, 8), np.float32)}, "3 channels"),
        ({"out": np.zeros((1, 3, 8, 8), np.uint8)}, "dtype"),
        ({"out": np.zeros((1, 3, 0, 8), np.float32)}, "1-65535"),
        ({"layout": "chwn"}, "layout"),
        ({"dtype": "float64"}, "dtype"),
        ({"fidelity": "slow"}, "fidelity"),
        ({"threads": 0}, "threads"),
        ({"scale": np.ones(3, np.float32)}, "go together"),
        ({"orientations": np.array([9], np.uint8)}, "1-8"),
    ],
)
def test_bad_arguments_are_value_errors(changes: dict[str, Any], words: str) -> None:
    arguments: dict[str, Any] = {
        "buffers": [jpegs.jpeg("4:2:0")],
        "source_boxes": np.array([[0, 0, 9, 9.0]]),
        "support_boxes": np.array([[0, 0, 9, 9]], np.int32),
        "flips": np.zeros(1, np.uint8),
        "orientations": np.ones(1, np.uint8),
        "out": np.zeros((1, 3, 8, 8), np.float32),
        "layout": "nchw",
        "dtype": "float32",
    }
    native.decode_batch(**arguments)
    with pytest.raises(ValueError, match=words):
        native.decode_batch(**{**arguments, **changes})


@pytest.mark.parametrize("dtype", ["uint8", "float32", "float16", "bfloat16"])
@pytest.mark.usefixtures("level")
def test_an_output_may_be_a_part_of_a_larger_array(dtype: str) -> None:
    data, stored = jpegs.jpeg("4:2:0", (300, 200)), "uint16" if dtype == "bfloat16" else dtype
    boxes = np.array([[10, 20, 250, 180], [0, 0, 300, 200]])
    flips, ones = np.array([1, 0], np.uint8), np.ones(2, np.uint8)

    def run(out: npt.NDArray[Any]) -> None:
        statuses, _ = native.decode_batch(
            [data, data], boxes.astype(float), boxes.astype(np.int32), flips, ones, out, layout="nchw", dtype=dtype
        )
        assert statuses.tolist() == [Status.OK] * 2

    for height, width in ((1, 1), (7, 17), (20, 31), (33, 64), (40, 65)):
        dense, larger = np.empty((2, 3, height, width), stored), np.full((2, 3, 40, 65), 77, stored)
        run(dense)
        part = larger[:, :, :height, :width]
        run(part)
        np.testing.assert_array_equal(part, dense)
        part[...] = 77
        assert (larger == 77).all()


@pytest.mark.parametrize(
    "cut", [np.s_[..., ::2], np.s_[:, :, ::-1, :8], np.s_[:, ::-1, :, :8], np.s_[:, :, 8:, 15:7:-1]], ids=str
)
def test_an_output_that_is_no_part_of_rows_and_columns_is_refused(cut: Any) -> None:
    _refuse_output(np.zeros((1, 3, 16, 16), np.uint8)[cut], "nchw")


def test_rows_that_overlap_are_refused() -> None:
    for strides in ((192, 64, 0, 1), (192, 64, 7, 1), (192, 63, 8, 1), (192, 64, 1, 8)):
        _refuse_output(np.lib.stride_tricks.as_strided(np.zeros(512, np.uint8), (1, 3, 8, 8), strides), "nchw")


def test_a_part_of_interleaved_pixels_is_refused() -> None:
    _refuse_output(np.zeros((1, 16, 16, 3), np.uint8)[:, :8, :8], "nhwc")


def _refuse_output(out: npt.NDArray[np.uint8], layout: str) -> None:
    ones, box = np.ones(1, np.uint8), np.array([[0, 0, 9, 9]])
    with pytest.raises(ValueError, match="out must be C-contiguous, or rows and columns of"):
        native.decode_batch(
            [b""], box.astype(float), box.astype(np.int32), ones, ones, out, layout=layout, dtype="uint8"
        )


def test_any_bytes_like_buffer_is_taken() -> None:
    data = jpegs.jpeg("4:2:0")
    padded = np.frombuffer(b"xx" + data, np.uint8)
    out, statuses, _ = decode([data, bytearray(data), memoryview(data), padded[2:].data], [(0, 0, 60, 60)] * 4)
    assert statuses == [Status.OK] * 4
    assert (out == out[0]).all()
    with pytest.raises(TypeError):
        decode(["text"], [(0, 0, 9, 9)])  # type: ignore[list-item]


def test_stage_times_are_filled_in() -> None:
    times: dict[str, int] = {}
    decode([native.transcode(jpegs.jpeg("4:2:0", (300, 300)), keep_metadata=False)], [(0, 0, 300, 300)], times=times)
    assert times["entropy_ns"] > 0
    assert times["idct_ns"] > 0
    assert times["resize_ns"] > 0


def test_stub_names_what_the_module_has() -> None:
    stub = ast.parse((Path(feeder.__file__).parent / "_native.pyi").read_text())
    declared = {node.name for node in stub.body if isinstance(node, (ast.ClassDef, ast.FunctionDef))}
    assert declared == {name for name in dir(native) if not name.startswith("_")}
    statuses = next(node for node in stub.body if isinstance(node, ast.ClassDef) and node.name == "Status")
    values = {node.targets[0].id: node.value.value for node in statuses.body if isinstance(node, ast.Assign)}  # type: ignore[attr-defined]
    assert values == {status.name: status.value for status in Status}

"""The lossless transcode: the same pixels for every decoder, a segment grid, metadata, and refusals with a reason."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from feeder import _native as native
from tests.support import jpegs

Status = native.Status


def mcu_columns(data: bytes) -> int:
    frame = jpegs.frame_offset(data)
    width, components, factors = int.from_bytes(data[frame + 7 : frame + 9], "big"), data[frame + 9], data[frame + 11]
    return -(-width // (8 if components == 1 else 8 * (factors >> 4)))


@pytest.mark.pairwise
@pytest.mark.parametrize("size", jpegs.SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("kind", jpegs.KINDS)
def test_output_has_the_same_pixels_and_a_segment_grid(kind: str, size: tuple[int, int]) -> None:
    data = jpegs.jpeg(kind, size)
    for keep_metadata in (False, True):
        seekable = native.transcode(data, keep_metadata=keep_metadata)
        assert Image.open(io.BytesIO(seekable)).mode == Image.open(io.BytesIO(data)).mode
        np.testing.assert_array_equal(jpegs.pixels_of(seekable), jpegs.pixels_of(data))
        np.testing.assert_array_equal(native.libjpeg_decode(seekable), native.libjpeg_decode(data))
        assert seekable[jpegs.frame_offset(seekable) + 1] == 0xC0
        assert mcu_columns(seekable) % jpegs.restart_interval(seekable) == 0
        assert native.transcode(seekable, keep_metadata=keep_metadata) == seekable


def test_libjpeg_yardstick_is_pillow_and_refuses_damage() -> None:
    for kind in ("4:2:0", "gray", "progressive", "rgb"):
        data = jpegs.jpeg(kind)
        np.testing.assert_array_equal(native.libjpeg_decode(data).squeeze(), jpegs.pixels_of(data))
    for damaged in (jpegs.jpeg("4:2:0")[:-200], b"no image"):
        with pytest.raises(native.Unsupported):
            native.libjpeg_decode(damaged)


def test_dali_decodes_the_output_to_the_same_pixels(tmp_path: Path) -> None:
    fn = pytest.importorskip("nvidia.dali.fn")
    from nvidia.dali import pipeline_def

    data = [jpegs.jpeg(kind, (120, 88)) for kind in jpegs.KINDS]
    files = [np.frombuffer(d, np.uint8) for d in data]
    files += [np.frombuffer(native.transcode(d, keep_metadata=False), np.uint8) for d in data]

    @pipeline_def(batch_size=len(files), num_threads=1, device_id=None, prefetch_queue_depth=1)
    def decode() -> object:
        return fn.decoders.image(fn.external_source(source=[files], cycle=True), device="cpu")

    pipeline = decode()
    pipeline.build()
    (images,) = pipeline.run()
    arrays = [np.asarray(images[i]) for i in range(len(files))]
    for kind, before, after in zip(jpegs.KINDS, arrays[: len(data)], arrays[len(data) :], strict=True):
        np.testing.assert_array_equal(after, before, kind)


@pytest.mark.parametrize(
    ("width", "segment_px", "expected"),
    [(256, 64, 4), (256, 32, 2), (256, 1, 1), (256, 4096, 16), (16 * 31, 64, 31), (16 * 33, 64, 3), (16, 64, 1)],
)
def test_segment_width_is_the_divisor_nearest_to_the_one_asked_for(width: int, segment_px: int, expected: int) -> None:
    data = jpegs.jpeg("4:2:0", (width, 32))
    seekable = native.transcode(data, keep_metadata=False, segment_px=segment_px)
    assert jpegs.restart_interval(seekable) == expected


def test_metadata_is_kept_on_request() -> None:
    exif = Image.Exif()
    exif[0x010F] = "a camera"
    exif[0x0112] = 6
    data = jpegs.encode(jpegs.photo(0, 40, 30), exif=exif, icc_profile=b"profile" * 10_000, comment=b"words")
    before = Image.open(io.BytesIO(data))
    after = Image.open(io.BytesIO(native.transcode(data, keep_metadata=True)))
    for key in ("exif", "icc_profile", "comment", "jfif_version"):
        assert after.info[key] == before.info[key], key


@pytest.mark.parametrize("orientation", range(1, 9))
def test_stripping_leaves_the_given_orientation_and_nothing_else(orientation: int) -> None:
    exif = Image.Exif()
    exif[0x010F] = "a camera"
    exif[0x0112] = orientation
    data = jpegs.encode(jpegs.photo(0, 40, 30), exif=exif, icc_profile=b"profile" * 1000, comment=b"words")
    seekable = native.transcode(data, keep_metadata=False, orientation=orientation)
    image = Image.open(io.BytesIO(seekable))
    assert dict(image.getexif()) == ({} if orientation == 1 else {0x0112: orientation})
    assert "icc_profile" not in image.info
    assert "comment" not in image.info
    np.testing.assert_array_equal(jpegs.pixels_of(seekable), jpegs.pixels_of(data))


def truncated_progressive(data: bytes) -> bytes:
    """A progressive file that ends, properly, in front of its last scans."""
    second_scan = data.index(b"\xff\xda", jpegs.entropy_offset(data))
    third_scan = data.index(b"\xff\xda", second_scan + 2)
    return data[:third_scan] + b"\xff\xd9"


COLOR = jpegs.jpeg("4:2:0")
GRAY = jpegs.jpeg("gray")
FRAME = jpegs.frame_offset(COLOR)
REFUSED = {
    "cmyk": (jpegs.encode(jpegs.photo(0, 64, 48), mode="CMYK"), Status.UNSUPPORTED, "CMYK"),
    "12 bits": (jpegs.patched(COLOR, FRAME + 4, 12), Status.UNSUPPORTED, "8 bits"),
    "arithmetic": (jpegs.patched(COLOR, FRAME + 1, 0xC9), Status.UNSUPPORTED, "arithmetic"),
    "lossless": (jpegs.patched(COLOR, FRAME + 1, 0xC3), Status.UNSUPPORTED, "lossless"),
    "truncated": (COLOR[: len(COLOR) * 2 // 3], Status.DAMAGED, "truncated"),
    "header only": (COLOR[:100], Status.CORRUPT, "ends inside its header"),
    "damaged": (COLOR[:-300] + b"\xff\xd3" + COLOR[-298:], Status.DAMAGED, "JPEG"),
    "no scan": (b"\xff\xd8\xff\xd9", Status.CORRUPT, "before any scan"),
    "width of 0": (jpegs.patched(COLOR, FRAME + 7, 0, 0), Status.CORRUPT, "width"),
    "thirds of halves": (jpegs.flat_blocks((0x12, 0x13, 0x13), (64, 48)), Status.UNSUPPORTED, "sampling factors"),
    "height of 0": (jpegs.patched(COLOR, FRAME + 5, 0, 0), Status.UNSUPPORTED, "height"),
    "sampling factor 0": (jpegs.patched(COLOR, FRAME + 11, 0x02), Status.CORRUPT, "sampling"),
    "progressive without its last scans": (
        truncated_progressive(jpegs.jpeg("progressive")),
        Status.UNSUPPORTED,
        "scans are missing",
    ),
    "png": (b"\x89PNG\r\n\x1a\n" + bytes(100), Status.NOT_JPEG, "FF D8 FF"),
    "empty": (b"", Status.NOT_JPEG, "FF D8 FF"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusal_says_why(name: str) -> None:
    data, status, words = REFUSED[name]
    with pytest.raises(native.Unsupported, match=words) as caught:
        native.transcode(data, keep_metadata=True)
    assert caught.value.status == status


def test_max_pixels_is_a_limit() -> None:
    with pytest.raises(native.Unsupported, match="max_pixels=100") as caught:
        native.transcode(COLOR, keep_metadata=True, max_pixels=100)
    assert caught.value.status == Status.TOO_LARGE


def test_every_truncation_is_refused() -> None:
    data = jpegs.jpeg("4:2:0", (40, 24))
    for length in range(len(data) - 2):
        with pytest.raises(native.Unsupported):
            native.transcode(data[:length], keep_metadata=True)


@pytest.mark.parametrize("kind", ["4:2:0", "gray", "progressive", "restart blocks"])
def test_bit_flips_are_refused_or_transcoded(kind: str) -> None:
    data = jpegs.jpeg(kind, (56, 40))
    rng = np.random.default_rng(5)
    for bit in rng.integers(16, 8 * len(data), 400).tolist():
        flipped = jpegs.patched(data, bit // 8, data[bit // 8] ^ 1 << bit % 8)
        try:
            seekable = native.transcode(flipped, keep_metadata=False, max_pixels=1 << 22)
        except native.Unsupported:
            continue
        assert jpegs.restart_interval(seekable) > 0

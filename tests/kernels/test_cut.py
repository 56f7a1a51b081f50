"""The cut in the compressed domain: a small valid JPEG whose pixels are those of the whole image."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from feeder import _native as native
from tests.support import jpegs

CUTTABLE = [kind for kind in jpegs.KINDS if kind != "restart blocks"]


def cut_of(data: bytes, support_box: tuple[int, int, int, int]) -> tuple[bytes, int, int]:
    """Cuts a JPEG that must be one that can be cut."""
    found = native.cut(data, support_box)
    assert found is not None
    return found


def boxes(size: tuple[int, int], count: int, seed: int) -> list[tuple[int, int, int, int]]:
    """The corners, the whole, and random ones."""
    width, height = size
    rng = np.random.default_rng(seed)
    found = [(0, 0, width, height), (0, 0, 1, 1), (width - 1, height - 1, width, height), (width - 1, 0, width, 1)]
    for _ in range(count):
        left, right = sorted(rng.choice(width + 1, 2, replace=False).tolist())
        top, bottom = sorted(rng.choice(height + 1, 2, replace=False).tolist())
        found.append((left, top, right, bottom))
    return found


@pytest.mark.pairwise
@pytest.mark.parametrize("size", jpegs.SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("kind", CUTTABLE)
def test_cut_has_the_pixels_of_the_whole(kind: str, size: tuple[int, int]) -> None:
    seekable = native.transcode(jpegs.jpeg(kind, size), keep_metadata=False, segment_px=16)
    whole = jpegs.pixels_of(seekable)
    for left, top, right, bottom in boxes(size, 20, 3):
        data, x, y = cut_of(seekable, (left, top, right, bottom))
        part = jpegs.pixels_of(data)
        assert 0 <= x <= left
        assert 0 <= y <= top
        np.testing.assert_array_equal(part[top - y : bottom - y, left - x : right - x], whole[top:bottom, left:right])


def test_cut_is_small() -> None:
    seekable = native.transcode(jpegs.jpeg("4:2:0", (512, 512)), keep_metadata=True, segment_px=32)
    data, x, y = cut_of(seekable, (200, 200, 240, 230))
    assert (x, y) == (192, 192)
    assert jpegs.pixels_of(data).shape[:2] == (48, 64)
    assert len(data) < len(seekable) / 20


def test_restart_markers_of_a_cut_count_from_zero() -> None:
    seekable = native.transcode(jpegs.jpeg("4:2:0", (256, 256)), keep_metadata=False, segment_px=16)
    data, _, _ = cut_of(seekable, (100, 100, 180, 180))
    entropy = data[jpegs.entropy_offset(data) :]
    markers = [b for a, b in itertools.pairwise(entropy) if a == 0xFF and 0xD0 <= b <= 0xD7]
    assert len(markers) > 20
    assert markers == [0xD0 + i % 8 for i in range(len(markers))]


def test_cut_leaves_metadata_behind() -> None:
    data = jpegs.encode(jpegs.photo(0, 256, 64), comment=b"words" * 1000, icc_profile=b"profile" * 1000)
    data, _, _ = cut_of(native.transcode(data, keep_metadata=True), (0, 0, 10, 10))
    assert b"words" not in data
    assert b"profile" not in data


@pytest.mark.parametrize("kind", ["4:2:0", "progressive", "restart blocks"])
def test_ordinary_jpeg_is_not_cut(kind: str) -> None:
    assert native.cut(jpegs.jpeg(kind), (0, 0, 8, 8)) is None


def test_segments_out_of_order_are_damage() -> None:
    seekable = native.transcode(jpegs.jpeg("4:2:0", (256, 64)), keep_metadata=False)
    first = seekable.index(b"\xff\xd0", jpegs.entropy_offset(seekable))
    assert native.cut(seekable, (0, 0, 256, 64)) is not None
    with pytest.raises(native.Unsupported, match="out of order") as caught:
        native.cut(jpegs.patched(seekable, first + 1, 0xD5), (0, 0, 256, 64))
    assert caught.value.status == native.Status.DAMAGED


def test_missing_segments_are_damage_and_those_behind_the_box_are_not_looked_at() -> None:
    seekable = native.transcode(jpegs.jpeg("4:2:0", (256, 64)), keep_metadata=False)
    third = seekable.index(b"\xff\xd2", jpegs.entropy_offset(seekable))
    for rest in (b"\xff\xd9", b"\xff\xd9" + seekable[third:], b"\xff\xd5" + seekable[third:]):
        with pytest.raises(native.Unsupported, match="missing"):
            native.cut(seekable[: third - 4] + rest, (0, 0, 256, 64))
        with pytest.raises(native.Unsupported, match="missing"):  # the last that is needed ends too early
            native.cut(seekable[: third - 4] + rest, (130, 0, 180, 10))
        whole = cut_of(seekable, (0, 0, 40, 10))
        assert native.cut(seekable[: third - 4] + rest, (0, 0, 40, 10)) == whole


@pytest.mark.parametrize(
    "box", [(0, 0, 0, 5), (5, 5, 5, 9), (-1, 0, 4, 4), (0, 0, 129, 4), (0, 0, 4, 97), (9, 0, 3, 4)]
)
def test_box_outside_the_image_is_an_error(box: tuple[int, int, int, int]) -> None:
    seekable = native.transcode(jpegs.jpeg("4:2:0"), keep_metadata=False)
    with pytest.raises(ValueError, match="128x96"):
        native.cut(seekable, box)

"""The parts of feeder's own JPEG decoder: its inverse DCT is libjpeg-turbo's to the bit, at every SIMD level."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from feeder import _native as native
from tests.support import jpegs


def blocks_of(kind: str, count: int) -> tuple[npt.NDArray[np.int16], npt.NDArray[np.int16]]:
    """int16 [count, 8, 8] coefficients and an int16 [64] quantization table."""
    rng = np.random.default_rng(len(kind))
    quant: npt.NDArray[Any] = rng.integers(1, 256, 64)
    shape = (count, 8, 8)
    blocks: npt.NDArray[Any]
    if kind == "photo":
        fall = np.add.outer(np.arange(8), np.arange(8)) + 1
        blocks = rng.normal(0, 60 / fall, shape)
        quant = 2 + fall.ravel() * 3
    elif kind == "noise":
        blocks = rng.integers(-1024, 1024, shape)
        quant = np.ones(64)
    elif kind == "extreme":
        blocks = rng.choice([-32768, -2048, -1, 0, 1, 2047, 32767], shape)
    elif kind == "any bits":
        blocks = rng.integers(-32768, 32768, shape)
        quant = rng.integers(-32768, 32768, 64)
    else:  # only the first row, on both sides of where libjpeg's short cut wraps
        blocks = np.zeros(shape)
        blocks[:, 0, :] = rng.integers(-9000, 9000, (count, 8))
        blocks[::3, 0, 1:] = 0
        quant = np.ones(64)
    return blocks.astype(np.int16), quant.astype(np.int16)


@pytest.mark.pairwise
@pytest.mark.parametrize("corner", [False, True])
@pytest.mark.parametrize("kind", ["photo", "noise", "extreme", "any bits", "first row"])
def test_inverse_dct_is_libjpegs_to_the_bit(level: str, kind: str, corner: bool) -> None:
    blocks, quant = blocks_of(kind, 4003)
    if corner:
        blocks[:, 4:] = 0
        blocks[:, :, 4:] = 0
    blocks[7] = 0
    blocks = blocks.reshape(-1, 64)
    expected = native.inverse_dct(blocks, quant, libjpeg=True)
    np.testing.assert_array_equal(native.inverse_dct(blocks, quant, corner=corner), expected)
    for count in (1, 2, 3, 5):
        np.testing.assert_array_equal(native.inverse_dct(blocks[:count], quant, corner=corner), expected[:count])


@pytest.mark.parametrize("kind", [kind for kind in jpegs.KINDS if "progressive" not in kind])
def test_pixels_are_libjpegs_to_the_bit(level: str, kind: str) -> None:
    """Bytes left over before a restart marker are for libjpeg, which skips them."""
    size = (203, 151)
    data = jpegs.jpeg(kind, size)
    seekable = native.transcode(data, keep_metadata=False, segment_px=16)
    first = seekable.index(b"\xff\xd0", jpegs.entropy_offset(seekable))
    files = [data, seekable, seekable[:first] + bytes(20) + seekable[first:]]
    box = np.array([[0, 0, *size]] * len(files))
    out = np.zeros((len(files), 3, 96, 80), np.uint8)
    ones = np.ones(len(files), np.uint8)
    statuses, _ = native.decode_batch(
        files, box.astype(np.float64), box.astype(np.int32), ones * 0, ones, out, layout="nchw", dtype="uint8"
    )
    assert statuses.tolist() == [native.Status.OK] * len(files)
    np.testing.assert_array_equal(out[0], out[2])
    np.testing.assert_array_equal(out[1], out[2])


@pytest.mark.pairwise
@pytest.mark.parametrize(("size", "interval"), [((90, 70), 2), ((256, 184), 16)])
@pytest.mark.parametrize("sampling", ["4:4:4", "4:2:0"])
@pytest.mark.parametrize("quality", [60, 95, 100])
def test_blocks_filled_to_the_last_coefficient_are_libjpegs(
    level: str, quality: int, sampling: str, size: tuple[int, int], interval: int
) -> None:
    """No symbol of the next block is taken along with the last one, and tables of both kinds of file can take turns."""
    pixels = np.random.default_rng(quality).normal(128, 400 / quality, (*size[::-1], 3))
    noise = pixels.clip(0, 255).astype(np.uint8)

    def encoded(**options: Any) -> bytes:
        buffer = io.BytesIO()
        Image.fromarray(noise).save(buffer, "jpeg", quality=quality, subsampling=sampling, **options)
        return buffer.getvalue()

    plain, restarts = encoded(), encoded(restart_marker_blocks=interval)
    best = encoded(optimize=True)
    for data in (plain, restarts, plain, best, restarts):
        assert native.entropy_decode(data) > 0
        box = (0, 0, *size)
        found, expected = native.jpeg_planes(data, box), native.jpeg_planes(data, box, libjpeg=True)
        assert all(map(np.array_equal, found, expected))


@pytest.mark.parametrize("kind", ["gray", "4:4:4", "4:2:0"])
def test_damage_is_noticed_alike_at_every_level(level: str, kind: str) -> None:
    """Of many short segments, which are decoded together, one has a wrong byte."""
    size = (203, 151)
    whole = native.transcode(jpegs.jpeg(kind, size), keep_metadata=False, segment_px=16)
    rng = np.random.default_rng(len(kind))

    def planes(data: bytes, box: tuple[int, int, int, int]) -> list[bytes] | None:
        try:
            return [plane.tobytes() for plane in native.jpeg_planes(data, box)]
        except native.Unsupported:
            return None

    refused = 0
    for at in rng.integers(jpegs.entropy_offset(whole), len(whole), 150):
        data = whole[:at] + rng.bytes(1) + whole[at + 1 :]
        left, top = rng.integers(0, 60, 2)
        box = (int(left), int(top), *size)
        found = planes(data, box)
        native.set_simd_level("portable")
        assert found == planes(data, box)
        native.set_simd_level(level)
        refused += found is None
    assert 10 < refused < 140


def test_fuzz_seeds_are_what_they_are_for(tmp_path: Path) -> None:
    """All but the kinds that are libjpeg's are decoded by feeder's own decoder, and as libjpeg does it."""
    script = Path(__file__).parents[2] / "kernels/fuzz/make_corpus.py"
    subprocess.run([sys.executable, str(script), str(tmp_path)], check=True)
    files = {path.name.removesuffix("_0"): path.read_bytes()[:-12] for path in sorted(tmp_path.glob("*_0"))}
    refused = set()
    for name, data in files.items():
        if name.startswith(("npy", "png")):
            continue
        width, height = Image.open(io.BytesIO(data)).size
        expected = None if name == "cmyk" else native.jpeg_planes(data, (0, 0, width, height), libjpeg=True)
        try:
            found = native.jpeg_planes(data, (0, 0, width, height))
        except native.Unsupported:
            refused.add(name)
            continue
        assert expected is not None
        assert all(map(np.array_equal, found, expected)), name
    assert refused == {"cmyk", "progressive", "progressive_gray"}
    assert len(files) > 60


def test_entropy_decoding_alone_counts_blocks_and_refuses_damage() -> None:
    data = jpegs.jpeg("4:2:0", (100, 50))
    seekable = native.transcode(data, keep_metadata=False, segment_px=16)
    for file in (data, seekable):
        assert native.entropy_decode(file) == 7 * 4 * 6
        assert native.entropy_decode(file, libjpeg=True) == 0
    with pytest.raises(native.Unsupported):
        native.entropy_decode(seekable[:-60])
    with pytest.raises(native.Unsupported, match="own decoder"):
        native.entropy_decode(jpegs.jpeg("progressive"))

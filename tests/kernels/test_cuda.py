"""The CUDA kernels, run on the CPU as C++: libjpeg's planes and the CPU kernels' pixels, in any order of threads."""

from __future__ import annotations

import ctypes
import itertools
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from feeder import _native as native
from tests.support import ROOT, cuda_emulator, jpeg_corpus, jpegs
from tests.support.cuda_emulator import Image
from tests.support.packed import codebook, packed

Box = tuple[int, int, int, int]
SEQUENTIAL = [kind for kind in jpegs.KINDS if not kind.startswith("progressive")]
# kernels/cuda/batch.h
BAD_CODE, BAD_LENGTH, BAD_LEVEL, UNUSUAL = 1, 2, 4, 8
LEFT_BY_THE_HOST = 0


@pytest.fixture(scope="module", autouse=True)
def known_codebook() -> None:
    cuda_emulator.add_codebook(codebook())


SUMS = """
#include "cuda/emulate.h"
using namespace feeder::cuda;
template <uint32_t kPlaces> struct Sums {
    static constexpr int kThreads = 4, kPhases = 1;
    struct Shared { uint32_t sum[kPlaces]; };
    using Local = Nothing;
    template <int kPhase> static void run(const Batch&, Place place, Shared& shared, Local&) {
        uint32_t& sum = shared.sum[place.thread % kPlaces];
        sum = 0;
        for (uint32_t i = 0; i <= place.thread; ++i) sum += i;
    }
};
extern "C" bool feeder_sums(bool shared) {
    return shared ? emulate<Sums<2>>(Batch{}, 1, Order::forward) : emulate<Sums<4>>(Batch{}, 1, Order::forward);
}
"""


def test_threads_that_share_memory_for_what_is_their_own_are_a_race(tmp_path: Path) -> None:
    """In any order each reads what it wrote itself."""
    source, library = tmp_path / "sums.cc", tmp_path / "sums.so"
    source.write_text(SUMS)
    command = [os.environ.get("CXX", "g++"), "-std=c++20", "-fPIC", "-shared", "-I", str(ROOT / "kernels")]
    subprocess.run([*command, str(source), "-o", str(library)], check=True)
    sums = ctypes.CDLL(str(library)).feeder_sums
    sums.restype = ctypes.c_bool
    assert sums(False)
    assert not sums(True)


def forms(data: bytes) -> dict[str, bytes]:
    """A sequential JPEG as the kernels may get it."""
    return {
        "ordinary": data,
        "segments of 8": native.transcode(data, keep_metadata=False, segment_px=8),
        "segments of 32": native.transcode(data, keep_metadata=False, segment_px=32),
        "packed": packed(data),
    }


def boxes_in(width: int, height: int, seed: int = 0) -> list[Box]:
    boxes = [(0, 0, width, height), (width - 1, height - 1, width, height)]
    rng = np.random.default_rng(seed)
    for _ in range(2):
        left, right = sorted(rng.choice(width + 1, 2, replace=False).tolist())
        top, bottom = sorted(rng.choice(height + 1, 2, replace=False).tolist())
        boxes.append((left, top, right, bottom))
    return boxes


def assert_libjpegs(file: bytes, jpeg: bytes, box: Box, what: object) -> None:
    """Fails unless the kernels take the file, and have libjpeg's samples of the JPEG."""
    found, expected = cuda_emulator.planes(file, box), native.jpeg_planes(jpeg, box, libjpeg=True)
    assert found is not None, what
    assert len(found) == len(expected) > 0, what
    for ours, theirs in zip(found, expected, strict=True):
        assert np.array_equal(ours, theirs), what


def fault_of(data: bytes, box: Box) -> int:
    """Returns the fault for which an image is left to the CPU."""
    decoded = cuda_emulator.decode([Image(data, box)], (4, 4))
    assert not decoded.taken[0]
    return int(decoded.faults[0])


@pytest.mark.parametrize("kind", SEQUENTIAL)
def test_planes_are_libjpegs(kind: str) -> None:
    for size in jpegs.SIZES:
        data = jpegs.jpeg(kind, size)
        for (name, file), box in itertools.product(forms(data).items(), boxes_in(*size)):
            assert_libjpegs(file, data, box, (name, size, box))


@pytest.mark.parametrize(("kind", "size"), [("4:2:0", (1100, 20)), ("gray", (4500, 9))])
def test_planes_of_wide_images_are_libjpegs(kind: str, size: tuple[int, int]) -> None:
    """Lines of more blocks, and of more groups of 8 blocks, than a block of threads has threads."""
    data = jpegs.jpeg(kind, size)
    for (name, file), box in itertools.product(forms(data).items(), ((0, 0, *size), (601, 3, size[0] - 70, 9))):
        assert_libjpegs(file, data, box, (name, box))


@pytest.mark.parametrize("factors", [(0x41, 0x11, 0x11), (0x14, 0x11, 0x11), (0x42, 0x11, 0x11), (0x22, 0x21, 0x12)])
def test_planes_of_every_sampling_are_libjpegs(factors: tuple[int, ...]) -> None:
    data = jpegs.flat_blocks(factors, (93, 71))
    for (name, file), box in itertools.product(forms(data).items(), boxes_in(93, 71)):
        assert_libjpegs(file, data, box, (name, box))


def test_planes_of_the_fuzz_corpus_are_libjpegs_also_of_damaged_files() -> None:
    """Damaged files may also be left to the CPU."""
    taken = left = 0
    for name, data in jpeg_corpus.seeds():
        if name == "cmyk" or name.startswith("progressive"):
            continue
        frame = jpegs.frame_offset(data)
        height, width = (int.from_bytes(data[at : at + 2], "big") for at in (frame + 5, frame + 7))
        for form, file in forms(data).items():
            assert_libjpegs(file, data, (0, 0, width, height), (name, form))
            if form == "packed":
                continue
            for damaged in jpeg_corpus.damaged(file, jpegs.entropy_offset(file), 4):
                found = cuda_emulator.planes(damaged, (0, 0, width, height))
                left += found is None
                if found is not None:
                    taken += 1
                    expected = native.jpeg_planes(damaged, (0, 0, width, height), libjpeg=True)
                    assert all(np.array_equal(a, b) for a, b in zip(found, expected, strict=True)), (name, form)
    assert taken > 50
    assert left > 50


def random_codes(factors: tuple[int, ...], size: tuple[int, int], seed: int) -> bytes:
    """Random bytes as codes of 1 to 16 bits, with the levels that an encoder may write."""
    rng = np.random.default_rng(seed)
    symbols = rng.choice([run << 4 | level for run in range(2) for level in range(1, 11)], 14, replace=False).tolist()
    symbols[2:2], symbols[9:9] = [0x00], [0xF0]
    entropy = rng.integers(0, 255, 40_000, dtype=np.uint8).tobytes()
    quant = rng.integers(1, 9, 64, dtype=np.uint8).tobytes()
    sizes = np.concatenate([rng.permutation(6), rng.integers(0, 6, 10)]).tolist()
    return jpegs.built(factors, size, ([1] * 16, sizes), ([1] * 16, symbols), entropy, quant)


@pytest.mark.parametrize("factors", [(0x11,), (0x22, 0x11, 0x11), (0x11, 0x11, 0x11)])
def test_codes_of_all_lengths_have_libjpegs_samples(factors: tuple[int, ...]) -> None:
    taken = 0
    for seed in range(60):
        data = random_codes(factors, (40, 24), seed)
        found = cuda_emulator.planes(data, (0, 0, 40, 24))
        if found is None:
            assert fault_of(data, (0, 0, 40, 24)) == BAD_CODE  # of a run past the block's end
            continue
        taken += 1
        for ours, theirs in zip(found, native.jpeg_planes(data, (0, 0, 40, 24), libjpeg=True), strict=True):
            assert np.array_equal(ours, theirs), seed
    assert taken > 5


@pytest.mark.pairwise
@pytest.mark.parametrize("dtype", ["uint8", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("kind", ["4:4:4", "4:2:2", "4:2:0", "4:4:0", "4:1:1", "rgb", "gray"])
def test_finished_images_are_those_of_the_cpu_kernels(kind: str, dtype: str) -> None:
    """To the bit: filters, turns, flips, color, normalizing, dtype and layout."""
    stored: tuple[int, int] = (203, 151)
    jpeg = native.transcode(jpegs.jpeg(kind, stored), keep_metadata=False, segment_px=32)
    rng = np.random.default_rng(len(kind))
    affine: dict[str, Any] = {}
    if dtype != "uint8":
        affine = {"scale": np.array([0.01, 0.02, 0.017], np.float32), "bias": np.array([-2, 0.3, 2], np.float32)}
    for orientation, file in itertools.product(range(1, 9), (jpeg, packed(jpeg))):
        width, height = stored if orientation < 5 else stored[::-1]
        left, top = int(rng.integers(0, width // 2)), int(rng.integers(0, height // 2))
        box = (left, top, width - left // 3, height - top // 4)
        source = (left + 0.3, top, box[2] - 7.25, box[3] - 0.1)
        rows, columns = (int(number) for number in rng.integers(3, 90, 2))
        flip, channels_last = bool(rng.integers(2)), bool(rng.integers(2))
        shape = (1, rows, columns, 3) if channels_last else (1, 3, rows, columns)
        expected = np.zeros(shape, {"bfloat16": "uint16"}.get(dtype, dtype))
        statuses, reasons = native.decode_batch(
            [file], np.array([source]), np.array([box], np.int32), np.array([flip], np.uint8),
            np.array([orientation], np.uint8), expected, layout="nhwc" if channels_last else "nchw", dtype=dtype,
            **affine,
        )  # fmt: skip
        assert statuses[0] == native.Status.OK, reasons
        image = Image(file, box, source, orientation=orientation, flip=flip)
        decoded = cuda_emulator.decode([image], (rows, columns), dtype=dtype, channels_last=channels_last, **affine)
        assert decoded.taken[0]
        assert decoded.out.tobytes() == expected.tobytes(), (orientation, box, rows, columns, flip)


def test_an_image_does_not_depend_on_its_batch() -> None:
    """Of several kinds and sizes, and images among them that are left to the CPU."""
    images = []
    for number, (kind, size) in enumerate(itertools.product(SEQUENTIAL[:8], ((128, 96), (75, 43)))):
        data = native.transcode(jpegs.jpeg(kind, size, number), keep_metadata=False, segment_px=16)
        images.append(Image(packed(data) if number % 3 == 0 else data, (number, 2, size[0] - 3, size[1])))
    data = images[1].data
    damaged = data[:-40] + bytes(38) + b"\xff\xd9"
    out_of_order = jpegs.patched(data, data.index(b"\xff\xd0", jpegs.entropy_offset(data)) + 1, 0xD5)
    left = (jpegs.jpeg("progressive"), damaged, out_of_order, b"")
    images[4:4] = [Image(data, images[1].box) for data in left]
    together = cuda_emulator.decode(images, (20, 24))
    assert np.flatnonzero(~together.taken).tolist() == [4, 5, 6, 7]
    for number, image in enumerate(images):
        alone = cuda_emulator.decode([image], (20, 24))
        assert alone.taken[0] == together.taken[number]
        assert alone.faults[0] == together.faults[number]
        if alone.taken[0]:
            assert np.array_equal(alone.out[0], together.out[number]), number


def test_the_rows_that_a_crop_needs_are_enough() -> None:
    data = native.transcode(jpegs.jpeg("4:2:0", (200, 160)), keep_metadata=False, segment_px=32)
    box = (10, 100, 120, 126)
    for file in (data, packed(data)):
        places = np.frombuffer(native.row_places(file) or b"", np.uint32).tolist()
        first = (box[1] - 4) // places[0]
        rows = file[: places[1]] + file[places[1 + first] - 2 : places[-1]]
        whole, part = (
            cuda_emulator.decode([Image(given, box, first_row=row)], (30, 30))
            for given, row in ((file, -1), (rows, first * places[0]))
        )
        assert whole.taken[0]
        assert part.taken[0]
        assert np.array_equal(whole.out, part.out)


def test_damage_is_left_to_the_cpu_or_changes_what_libjpeg_sees_too() -> None:
    data = native.transcode(jpegs.jpeg("4:2:0", (48, 40)), keep_metadata=False, segment_px=16)
    box, start = (0, 0, 48, 40), jpegs.entropy_offset(data)
    left = 0
    for at in range(start, len(data) - 2, 3):
        for value in (data[at] ^ 0x10, 0xFF, 0x00):
            damaged = jpegs.patched(data, at, value)
            found = cuda_emulator.planes(damaged, box)
            if found is None:
                left += 1
                continue
            expected = native.jpeg_planes(damaged, box, libjpeg=True)
            assert all(np.array_equal(a, b) for a, b in zip(found, expected, strict=True)), (at, value)
    assert left > 50


def entropy_coded(bits: str) -> bytes:
    bits += "1" * (-len(bits) % 8)
    return int(bits, 2).to_bytes(len(bits) // 8, "big").replace(b"\xff", b"\xff\0")


def one_block(bits: str, *, quant: int = 1, size: tuple[int, int] = (8, 8)) -> bytes:
    """A gray JPEG. DC codes: 0 (no bits), 10 (11), 110 (15). AC codes: 0 (end), 10 (1 bit), 110 (15 zeros, 1 bit)."""
    dc, ac = ([1, 1, 1], [0, 11, 15]), ([1, 1, 1], [0x00, 0x01, 0xF1])
    return jpegs.built((0x11,), size, dc, ac, entropy_coded(bits), bytes([quant] * 64))


END = "0"
ONE = "101"  # a coefficient of 1
FULL = ONE * 63


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (one_block("111" + END), BAD_CODE),
        (one_block("0" + "111"), BAD_CODE),
        (one_block("0" + ONE * 62 + "1101"), BAD_CODE),  # past the block's end
        (one_block("0" + ONE * 21), BAD_LENGTH),  # no end of block before the bytes end
        (one_block("110" + "1" * 15 + END + "110" + "1" * 15 + END, size=(16, 8)), BAD_LEVEL),
        (one_block("110" + "1" * 14 + "0" + END), UNUSUAL),
        (one_block("10" + "1" * 11 + END, quant=5), UNUSUAL),
    ],
    ids=["DC code", "AC code", "run past the end", "too short", "DC out of range", "large DC", "large level"],
)
def test_a_fault_leaves_the_image_to_the_cpu(data: bytes, fault: int) -> None:
    width = 16 if fault == BAD_LEVEL else 8
    assert fault_of(data, (0, 0, width, 8)) & fault


@pytest.mark.parametrize("bits", ["0" + END, "0" + FULL, "10" + "1" * 11 + FULL], ids=["empty", "full", "full with DC"])
def test_unusual_blocks_are_decoded(bits: str) -> None:
    assert_libjpegs(one_block(bits), one_block(bits), (0, 0, 8, 8), bits)


def test_bytes_left_over_in_a_segment_are_a_fault() -> None:
    data = jpegs.jpeg("restart blocks", (96, 40))
    at = data.index(b"\xff\xd1", jpegs.entropy_offset(data))
    assert cuda_emulator.planes(data, (0, 0, 96, 40)) is not None
    assert fault_of(data[:at] + b"\0" + data[at:], (0, 0, 96, 40)) & BAD_LENGTH
    assert fault_of(data[:at] + b"\xff" + data[at:], (0, 0, 96, 40)) & BAD_LENGTH  # a fill byte


def test_files_that_the_host_leaves_to_the_cpu() -> None:
    data = jpegs.jpeg("4:2:0", (48, 40))
    segments = native.transcode(data, keep_metadata=False, segment_px=16)
    restart = segments.index(b"\xff\xd0", jpegs.entropy_offset(segments))
    following = segments.index(b"\xff\xd1", restart)
    files = {
        "no JPEG": b"\x89PNG",
        "progressive": jpegs.jpeg("progressive", (48, 40)),
        "no end of image": data[:-2],
        "cut off": data[: len(data) // 2],
        "a restart marker out of order": jpegs.patched(segments, restart + 1, 0xD3),
        "an empty segment": segments[: restart + 2] + segments[following:],
        "a packed file cut off": packed(data)[:-9],
        "an unknown codebook": jpegs.patched(packed(data), 4, 1, 2, 3),
    }
    for name, file in files.items():
        assert fault_of(file, (0, 0, 48, 40)) == LEFT_BY_THE_HOST, name
    for box in ((0, 0, 49, 40), (-1, 0, 48, 40), (5, 5, 5, 9)):
        assert fault_of(data, box) == LEFT_BY_THE_HOST, box
    assert fault_of(jpegs.flat_blocks((0x31, 0x21, 0x11), (48, 40)), (0, 0, 48, 40)) == LEFT_BY_THE_HOST


@pytest.mark.slow
def test_the_kernels_stay_inside_their_memory() -> None:
    """All other tests of this file, under AddressSanitizer."""
    environment = cuda_emulator.preloaded()
    if environment is None:
        pytest.skip("the compiler has no AddressSanitizer that could be loaded")
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-o", "addopts=", "-m", "not slow"]
    done = subprocess.run([*command, __file__], cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]

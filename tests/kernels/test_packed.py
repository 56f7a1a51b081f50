"""Packed JPEGs: the JPEG comes back to the byte, crops have its pixels, and what can't be packed is refused by name."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from feeder import _native as native
from feeder.decoders.packed import add_codebooks, codebook_id
from tests.support import jpegs
from tests.support.packed import codebook, packed
from tests.support.packed_reference import jpeg_of

Status = native.Status
Box = tuple[int, int, int, int]
HEAD_BYTES = 64
GOLDEN = Path(__file__).resolve().parent.parent / "golden" / "packed.npz"
SEQUENTIAL = [kind for kind in jpegs.KINDS if not kind.startswith("progressive")]


def refusal(data: bytes) -> str:
    with pytest.raises(native.Unsupported) as raised:
        packed(data)
    return str(raised.value)


def decoded(
    data: bytes, box: Box, *, first_row: int = -1, fidelity: str = "fast", orientation: int = 1
) -> tuple[npt.NDArray[np.uint8], int, str]:
    """A box of an image: uint8 [20, 24, 3], its status and the reason."""
    out = np.zeros((1, 20, 24, 3), np.uint8)
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
    return out[0], int(statuses[0]), reasons[0]


def boxes_in(width: int, height: int) -> Sequence[Box]:
    boxes = [
        (0, 0, width, height),
        (width // 2, height // 2, width, height),
        (0, 0, width, 1),
        (width - 1, 0, width, 1),
    ]
    rng = np.random.default_rng(width)
    for _ in range(4):
        left, right = sorted(rng.choice(width + 1, 2, replace=False).tolist())
        top, bottom = sorted(rng.choice(height + 1, 2, replace=False).tolist())
        boxes.append((left, top, right, bottom))
    return boxes


@pytest.mark.pairwise
@pytest.mark.parametrize("size", jpegs.SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("kind", SEQUENTIAL)
def test_jpegs_come_back_to_the_byte(kind: str, size: tuple[int, int]) -> None:
    data = jpegs.jpeg(kind, size)
    file = packed(data)
    assert native.unpack(file) == data
    assert file[:4] == b"FPK\x01"
    assert file[4:12] == hashlib.sha256(codebook()).digest()[:8]
    assert file[12:44] == hashlib.sha256(data).digest()
    seekable = native.transcode(data, keep_metadata=True)
    assert native.unpack(packed(seekable)) == seekable


def test_files_of_version_1_stay_as_they_are(packed_level: str) -> None:
    """Bytes that tests/golden/make_packed.py has written: another format needs another version."""
    golden = {name: array.tobytes() for name, array in np.load(GOLDEN).items()}
    data, book, file = golden["jpeg"], golden["codebook"], golden["packed"]
    add_codebooks([book])
    assert native.pack(data, codebook_id(book), hashlib.sha256(data).digest()) == file
    assert native.unpack(file) == data
    np.testing.assert_array_equal(decoded(file, (9, 5, 70, 40))[0], decoded(data, (9, 5, 70, 40))[0])


@pytest.mark.parametrize("kind", SEQUENTIAL)
def test_files_are_as_their_specification_says(kind: str) -> None:
    """Read by its steps in Python, also with a codebook that leaves much to patches."""
    data = jpegs.jpeg(kind, (75, 43))
    assert jpeg_of(packed(data), codebook()) == data
    narrow = b"FPC\x01\0\1" + b"".join(shape.to_bytes(3, "little") for shape in (0o1133, 0o11111111, 0o1133))
    add_codebooks([narrow])
    if kind != "high quality":
        file = native.pack(data, codebook_id(narrow), bytes(32))
        assert jpeg_of(file, narrow) == native.unpack(file) == data


@pytest.mark.parametrize("factors", [(0x41, 0x11, 0x11), (0x21, 0x21, 0x11), (0x22, 0x12, 0x21), (0x11, 0x22, 0x11)])
def test_any_sampling_factors_come_back(factors: tuple[int, ...]) -> None:
    data = jpegs.flat_blocks(factors, (75, 43))
    assert jpeg_of(packed(data), codebook()) == native.unpack(packed(data)) == data


def test_what_lies_around_the_scan_comes_back() -> None:
    exif = Image.Exif()
    exif[0x010F] = "a camera"
    data = jpegs.encode(jpegs.photo(0, 40, 30), exif=exif.tobytes(), icc_profile=bytes(range(256)) * 300)
    comment = b"\xff\xfe\x00\x06abcd"
    for each in (data, jpegs.with_segments(data, comment, comment), data + b"behind the end", data + b"\xff\xd9\xff"):
        assert native.unpack(packed(each)) == each


def test_segments_may_be_filled_up_with_zeros() -> None:
    data = jpegs.built((0x11,), (8, 8), ([0, 0, 6], range(6)), ([1], [0]), b"\x00")
    filled = jpegs.built((0x11,), (8, 8), ([0, 0, 6], range(6)), ([1], [0]), b"\x0f")
    for each in (data, filled):
        assert jpeg_of(packed(each), codebook()) == native.unpack(packed(each)) == each
    assert refusal(jpegs.built((0x11,), (8, 8), ([0, 0, 6], range(6)), ([1], [0]), b"\x0a")) == "mixed padding"


@pytest.mark.parametrize("seed", range(12))
def test_random_codes_come_back_or_are_refused_by_name(seed: int) -> None:
    data = jpegs.random_codes((0x21, 0x11, 0x11), (40, 24), seed)
    reason = ""
    try:
        assert native.unpack(packed(data)) == data
    except native.Unsupported as error:
        reason = str(error)
    known = ("an odd EOB or ZRL", "a damaged scan", "bytes left over before a marker", "coefficients out of range")
    assert reason in ("", "mixed padding", "an unusual Huffman code", *known)


def test_refusals_name_the_reason() -> None:
    plain = jpegs.jpeg("4:2:0")
    restarts = jpegs.jpeg("restart blocks")
    first = restarts.index(b"\xff\xd0", jpegs.entropy_offset(restarts))
    codes = ([0, 0, 6], range(6))
    quantization = plain.index(b"\xff\xdb\x00\x43")
    reasons = {
        "progressive": jpegs.jpeg("progressive"),
        "four components": jpegs.encode(jpegs.photo(0, 20, 20), mode="CMYK"),
        "fill bytes": restarts[:first] + b"\xff" + restarts[first:],
        "wrong restart markers": jpegs.patched(restarts, first + 1, 0xD5),
        "no end-of-image marker": plain[:-2],
        "much data after its end": plain + bytes(70_000),
        "arithmetic coding": jpegs.patched(plain, jpegs.frame_offset(plain) + 1, 0xC9),
        "more than 8 bits a sample": jpegs.patched(
            jpegs.patched(plain, jpegs.frame_offset(plain) + 4, 12), jpegs.frame_offset(plain) + 1, 0xC1
        ),
        # A ZRL, then the end of the block.
        "an odd EOB or ZRL": jpegs.built((0x11,), (8, 8), codes, ([0, 2], [0, 0xF0]), b"\x09"),
        "bytes left over before a marker": jpegs.built((0x11,), (8, 8), codes, ([1], [0]), b"\x0f\x00"),
        "a damaged scan": plain[: jpegs.entropy_offset(plain) + 40] + b"\xff\xd9",
        "lossless or hierarchical coding": jpegs.patched(plain, jpegs.frame_offset(plain) + 1, 0xC3),
        "two components": jpegs.flat_blocks((0x11, 0x11), (16, 16)),
        "several scans": of_one_component(jpegs.flat_blocks((0x11, 0x11, 0x11), (16, 16))),
        "a missing table": plain[:quantization] + plain[quantization + 69 :],
        "more than 10 blocks in an MCU": jpegs.flat_blocks((0x42, 0x11, 0x21), (40, 24)),
        "sampling factors that no decoder upsamples": jpegs.flat_blocks((0x31, 0x21, 0x11), (40, 24)),
    }
    assert {reason: refusal(data) for reason, data in reasons.items()} == {reason: reason for reason in reasons}
    large = jpegs.jpeg("gray", (17, 33))
    with pytest.raises(native.Unsupported, match="too large"):
        native.pack(large, codebook_id(codebook()), bytes(32), max_pixels=17 * 33 - 1)


def of_one_component(data: bytes) -> bytes:
    """The file with a scan of its first component alone."""
    at = jpegs.entropy_offset(data)
    frame = b"\xff\xda" + (6 + 2 * data[jpegs.frame_offset(data) + 9]).to_bytes(2, "big")
    return data[: data.index(frame)] + b"\xff\xda\x00\x08\x01\x01\x00\x00\x3f\x00" + data[at:]


def test_a_row_has_a_limit_of_large_coefficients() -> None:
    """65,535, which take the widest image and a codebook without any bits for coefficients."""
    flat = b"FPC\x01\0\0" + bytes(6)
    add_codebooks([flat])
    noise = np.random.default_rng(0).integers(0, 256, (8, 65_000), dtype=np.uint8)
    data = jpegs.encode(Image.fromarray(noise), quality=20)
    with pytest.raises(native.Unsupported, match=r"^too many large coefficients in a row$"):
        native.pack(data, codebook_id(flat), bytes(32))
    half = jpegs.encode(Image.fromarray(noise[:, :20_000]), quality=20)
    assert native.unpack(native.pack(half, codebook_id(flat), bytes(32))) == half


def test_coefficients_beyond_any_patch_are_refused() -> None:
    flat = b"FPC\x01\0\0" + bytes(6)
    add_codebooks([flat])
    with pytest.raises(native.Unsupported, match=r"^coefficients out of range$"):
        native.pack(jpegs.jpeg("high quality"), codebook_id(flat), bytes(32))


@pytest.mark.pairwise
@pytest.mark.parametrize("fidelity", ["fast", "exact"])
@pytest.mark.parametrize("size", [(128, 96), (75, 43), (1, 40)], ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("kind", SEQUENTIAL)
def test_crops_have_the_pixels_of_the_jpeg(kind: str, size: tuple[int, int], fidelity: str, packed_level: str) -> None:
    data = jpegs.jpeg(kind, size)
    file = packed(data)
    for number, box in enumerate(boxes_in(*size)):
        orientation = number % 8 + 1
        if orientation >= 5:
            box = (box[1], box[0], box[3], box[2])
        expected = decoded(data, box, fidelity=fidelity, orientation=orientation)
        found = decoded(file, box, fidelity=fidelity, orientation=orientation)
        np.testing.assert_array_equal(found[0], expected[0])
        assert found[1:] == expected[1:] == (Status.OK, "")


@pytest.mark.parametrize("options", [{"subsampling": "4:2:0"}, {"subsampling": "4:4:4"}, {"mode": "L"}], ids=str)
def test_rows_alone_give_the_same_pixels(options: dict[str, Any]) -> None:
    width, height = 256, 330
    file = packed(jpegs.encode(jpegs.photo(0, width, height), quality=95, **options))
    stored = native.row_places(file)
    assert stored is not None
    places = np.frombuffer(stored, np.uint32)
    lengths = np.array([len(file)], np.uint64)
    starts, ends = np.zeros(1, np.uint64), np.array([len(places)], np.uint64)
    cut = 0
    for top in range(0, height - 20, 40):
        box = (10, top, 80, top + 20)
        rows = np.array([[box[1], box[3]]], np.int32)
        ((first, head, begin, end),) = native.row_extents(
            places, starts, ends, lengths, np.array([height], np.uint32), rows
        ).tolist()
        part = file[:head] + file[begin:end]
        cut += len(part) < len(file)
        for fidelity in ("fast", "exact"):
            expected = decoded(file, box, fidelity=fidelity)
            found = decoded(part, box, first_row=first, fidelity=fidelity)
            np.testing.assert_array_equal(found[0], expected[0])
            assert found[1] == Status.OK
    assert cut > 0
    wrong = decoded(part, (0, 0, width, 20), first_row=first)
    assert wrong[1] == Status.CORRUPT


def test_the_same_images_give_the_same_codebook() -> None:
    images = [jpegs.jpeg("4:2:0", seed=seed) for seed in range(3)] + [jpegs.jpeg("progressive"), b"no image"]
    first, second = native.train_codebook(images), native.train_codebook(images)
    assert first == second
    assert first != native.train_codebook(images[:1])
    assert native.train_codebook([]) == b"FPC\x01\x00\x00" + b"\xff\xff\xff" * 2


def test_every_simd_level_trains_and_packs_to_the_same_bytes(packed_level: str) -> None:
    images = [jpegs.jpeg(kind) for kind in ("4:2:0", "high quality")]
    found = [packed(data) for data in images]
    trained = native.train_codebook(images)
    native.set_simd_level("portable")
    assert [packed(data) for data in images] == found
    assert native.train_codebook(images) == trained


def test_a_codebook_of_few_shapes_is_enough() -> None:
    few = native.train_codebook([])
    add_codebooks([few])
    data = jpegs.jpeg("high quality")
    file = native.pack(data, codebook_id(few), bytes(32))
    assert native.unpack(file) == data


def test_an_unknown_codebook_is_named() -> None:
    file = jpegs.patched(packed(jpegs.jpeg("gray")), 4, *range(8))
    reason = decoded(file, (0, 0, 8, 8))[2]
    assert "0001020304050607" in reason
    assert "feeder.packed_decoder(SET)" in reason
    with pytest.raises(native.Unsupported, match="0001020304050607"):
        native.unpack(file)
    with pytest.raises(native.Unsupported, match="0001020304050607"):
        native.pack(jpegs.jpeg("gray"), bytes(range(8)), bytes(32))
    with pytest.raises(ValueError, match="not a codebook"):
        native.add_codebook(bytes(8), codebook() + b"x")


def test_damage_is_an_error_at_every_byte(packed_level: str) -> None:
    data = jpegs.jpeg("4:2:0", (40, 24))
    file = packed(data)
    header_end = HEAD_BYTES + jpegs.entropy_offset(data)
    assert decoded(file[:-1], (0, 0, 8, 8))[2] == "packed JPEG: truncated"
    assert decoded(file + b"x", (0, 0, 8, 8))[2] == "packed JPEG: there are bytes after its end"
    for length in range(0, len(file), 7):
        assert decoded(file[:length], (0, 0, 40, 24))[1] != Status.OK
    for at in [*range(44, HEAD_BYTES), *range(header_end, len(file))]:
        for change in (1, 0x80, 0xFF):
            broken = jpegs.patched(file, at, file[at] ^ change)
            status, reason = decoded(broken, (3, 3, 37, 20))[1:]
            assert (status == Status.OK) == (reason == "")
            with contextlib.suppress(native.Unsupported):
                assert len(native.unpack(broken)) == len(data)
    assert decoded(jpegs.patched(file, 3, 9), (0, 0, 8, 8))[2].startswith("packed JPEG: version 9")

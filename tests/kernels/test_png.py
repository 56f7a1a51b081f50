"""PNGs of every plain kind have Pillow's pixels; what is odd or damaged is left to Pillow."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

import feeder
from feeder import _native as native
from feeder import transforms as T
from tests.support.conformance import encode, natural_image

KINDS = [(1, 0), (2, 0), (4, 0), (8, 0), (8, 2), (1, 3), (2, 3), (4, 3), (8, 3), (8, 4), (8, 6)]  # depth, color
CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
SIZES = [(1, 1), (9, 7), (33, 20)]


def chunk(kind: bytes, body: bytes = b"") -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def png(
    size: tuple[int, int],
    depth: int,
    color: int,
    *,
    seed: int = 0,
    colors: int = 256,
    before: bytes = b"",
    after: bytes = b"",
) -> bytes:
    """A PNG of random rows, each with a random filter, in two IDAT chunks; and further chunks around these."""
    rng = np.random.default_rng(seed)
    width, height = size
    rows = rng.integers(0, 256, (height, 1 + (width * depth * CHANNELS[color] + 7) // 8), np.uint8)
    rows[:, 0] %= 5
    deflated = zlib.compress(rows.tobytes())
    palette = rng.integers(0, 256, 3 * min(colors, 1 << depth), np.uint8).tobytes()
    parts = [chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, 0)), before]
    parts += [chunk(b"PLTE", palette)] if color == 3 else []
    parts += [chunk(b"IDAT", deflated[:9]), chunk(b"IDAT", deflated[9:]), after, chunk(b"IEND")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def pillow(data: bytes) -> npt.NDArray[np.uint8]:
    with Image.open(io.BytesIO(data)) as image:
        return np.asarray(image.convert("RGB"))


def decoded(data: bytes, box: tuple[int, int, int, int]) -> npt.NDArray[np.uint8] | int:
    """The box (left, top, right, bottom) of the image without a resize, or the kernels' status."""
    out = np.zeros((1, box[3] - box[1], box[2] - box[0], 3), np.uint8)
    boxes, ones = np.array([box]), np.ones(1, np.uint8)
    statuses, reasons = native.decode_batch(
        [data], boxes.astype(np.float64), boxes.astype(np.int32), 0 * ones, ones, out, layout="nhwc", dtype="uint8"
    )
    assert bool(statuses[0]) == bool(reasons[0])
    return int(statuses[0]) or out[0]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("depth", "color"), KINDS)
def test_every_kind_has_pillows_pixels(depth: int, color: int, size: tuple[int, int]) -> None:
    width, height = size
    for seed in range(4):
        data = png(size, depth, color, seed=seed)
        for box in ((0, 0, width, height), (width // 3, height // 2, width, height), (0, 0, 1, (height + 1) // 2)):
            left, top, right, bottom = box
            np.testing.assert_array_equal(decoded(data, box), pillow(data)[top:bottom, left:right])


@pytest.mark.parametrize(
    "extra",
    [
        chunk(b"gAMA", bytes(4)) + chunk(b"pHYs", bytes(9)) + chunk(b"eXIf", b"II*\0"),
        chunk(b"iCCP", b"name\0\0" + zlib.compress(np.random.default_rng(0).bytes(5000))),
        chunk(b"iTXt", b"XML:com.adobe.xmp\0\0\0\0\0" + bytes(5000)),
        chunk(b"tEXt", b"key\0value") + chunk(b"zTXt", b"key\0\0" + zlib.compress(b"value")) + chunk(b"iDOT", b"??"),
    ],
    ids=["small", "profile", "xmp", "text"],
)
def test_chunks_that_say_nothing_of_the_pixels_are_passed(extra: bytes) -> None:
    for data in (png((9, 7), 8, 2, before=extra), png((9, 7), 8, 2, after=extra)):
        np.testing.assert_array_equal(decoded(data, (0, 0, 9, 7)), pillow(data))


def odd() -> Iterator[tuple[str, bytes]]:
    plain = png((9, 7), 8, 2)
    bomb = zlib.compress(bytes(2 << 20))
    yield "interlaced", plain[:28] + b"\1" + struct.pack(">I", zlib.crc32(plain[12:28] + b"\1")) + plain[33:]
    yield "16 bits", encode(Image.fromarray(np.zeros((7, 9), np.uint16)), "png")
    yield "animated", png((9, 7), 8, 2, before=chunk(b"acTL", struct.pack(">II", 1, 0)))
    yield "large profile", png((9, 7), 8, 2, before=chunk(b"iCCP", b"name\0\0" + bomb))
    yield "large text", png((9, 7), 8, 2, before=chunk(b"zTXt", b"name\0\0" + bomb))
    yield "short gamma", png((9, 7), 8, 2, before=chunk(b"gAMA", b"\0"))
    yield "critical chunk", png((9, 7), 8, 2, before=chunk(b"ABCD"))
    yield "no palette", png((9, 7), 8, 3).replace(b"PLTE", b"teST")
    yield "two palettes", png((9, 7), 8, 3, before=chunk(b"PLTE", bytes(3)))
    yield "pixels in two places", png((9, 7), 8, 2, after=chunk(b"teST") + chunk(b"IDAT", b"x"))
    yield "cut", plain[:-20]
    yield "no end", plain[:-12]
    yield "header only", plain[:33]
    yield "signature only", plain[:8]
    yield "huge", plain[:16] + struct.pack(">II", 1 << 30, 1 << 30) + plain[24:]


@pytest.mark.parametrize("name", dict(odd()))
def test_odd_files_are_left_to_pillow(name: str) -> None:
    assert decoded(dict(odd())[name], (0, 0, 1, 1)) == native.Status.NOT_JPEG.value


def test_a_place_that_the_palette_lacks_is_left_to_pillow() -> None:
    short = png((9, 7), 8, 3, colors=3)
    assert decoded(short, (0, 0, 9, 7)) == native.Status.NOT_JPEG.value
    assert pillow(short).shape == (7, 9, 3)


def test_what_is_decoded_of_damaged_files_is_what_pillow_decodes() -> None:
    rng = np.random.default_rng(0)
    kept = 0
    for data in [png((9, 7), depth, color, after=chunk(b"tEXt", b"a\0b")) for depth, color in KINDS] * 20:
        damaged = bytearray(data)
        at = int(rng.integers(8, len(data)))
        damaged[at] ^= 1 << int(rng.integers(8))
        found = decoded(bytes(damaged[: rng.integers(at, 2 * len(data))]), (0, 0, 1, 1))
        if not isinstance(found, int):
            kept += 1
            np.testing.assert_array_equal(found, pillow(bytes(damaged))[:1, :1])
    assert kept


def test_a_bomb_takes_no_memory() -> None:
    size = struct.pack(">II", 13_000, 13_000)
    plain = png((9, 7), 8, 6)
    header = b"IHDR" + size + plain[24:29]
    data = plain[:12] + header + struct.pack(">I", zlib.crc32(header)) + plain[33:]
    assert decoded(data, (0, 0, 1, 1)) == native.Status.NOT_JPEG.value


@pytest.mark.parametrize("mode", ["L", "LA", "P", "RGB", "RGBA", "1"])
def test_the_cpu_backend_gives_pillows_pixels_and_refusals(mode: str) -> None:
    image = Image.fromarray(natural_image(5, 40, 50)).convert(mode)
    files = [encode(image, "png"), encode(image, "png", exif=Image.Exif())]
    ops = [T.RandomCrop(24), T.RandomHorizontalFlip()]
    ours, theirs = (feeder.decode(files, ops, seed=3, backend=backend) for backend in ("cpu", "pillow"))
    np.testing.assert_array_equal(ours, theirs)

    cut = files[0][: len(files[0]) // 2]
    for backend in ("cpu", "pillow"):
        with pytest.raises(feeder.DecodeError, match="Pillow"):
            feeder.decode([cut], ops, backend=backend)

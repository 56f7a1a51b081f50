"""JPEGs of every kind that the native decoder has to know, made by Pillow or by patching bytes."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

__all__ = [
    "KINDS",
    "SIZES",
    "built",
    "encode",
    "entropy_offset",
    "flat_blocks",
    "frame_offset",
    "jpeg",
    "patched",
    "photo",
    "pixels_of",
    "random_codes",
    "restart_interval",
    "with_segments",
]

# (width, height): whole MCUs, partial ones, a single pixel, a single column and row.
SIZES = ((128, 96), (75, 43), (17, 33), (1, 1), (1, 40), (41, 1), (200, 16))

KINDS: dict[str, dict[str, Any]] = {
    "4:4:4": {"subsampling": "4:4:4"},
    "4:2:2": {"subsampling": "4:2:2"},
    "4:2:0": {"subsampling": "4:2:0"},
    "4:4:0": {"subsampling": "4:2:2", "stand_up": True},
    "4:1:1": {"subsampling": "4:1:1"},
    "rgb": {"keep_rgb": True},
    "gray": {"mode": "L"},
    "gray with factors 2x2": {"mode": "L", "factors": 0x22},
    "progressive": {"progressive": True, "subsampling": "4:2:0"},
    "progressive gray": {"progressive": True, "mode": "L"},
    "optimized": {"optimize": True},
    "restart blocks": {"restart_marker_blocks": 3},
    "restart rows": {"restart_marker_rows": 1},
    "low quality": {"quality": 5},
    "high quality": {"quality": 100, "subsampling": "4:4:4"},
}


def photo(seed: int, width: int, height: int) -> Image.Image:
    """Smooth shapes with some grain, which exercise long and short codes."""
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 256, (5, 6, 3), dtype=np.uint8))
    smooth = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC), np.float64)
    return Image.fromarray((smooth + rng.normal(0, 6, smooth.shape)).clip(0, 255).astype(np.uint8))


def encode(
    image: Image.Image, *, mode: str | None = None, factors: int | None = None, quality: int = 85, **options: Any
) -> bytes:
    """The image as a JPEG; ``factors`` overwrites the first component's sampling factors."""
    buffer = io.BytesIO()
    (image if mode is None else image.convert(mode)).save(buffer, "jpeg", quality=quality, **options)
    data = buffer.getvalue()
    return data if factors is None else patched(data, frame_offset(data) + 11, factors)


def jpeg(kind: str, size: tuple[int, int] = (128, 96), seed: int = 0) -> bytes:
    """A JPEG of one of :data:`KINDS`."""
    options = dict(KINDS[kind])
    if not options.pop("stand_up", False):
        return encode(photo(seed, *size), **options)
    # Pillow doesn't write 4:4:0. An image twice as wide and half as high has as many MCUs in 4:2:2, of as many blocks;
    # calling its pairs of blocks upright makes a valid file (of a stranger picture).
    width, height = size
    data = encode(photo(seed, 2 * width, (height + 1) // 2), **options)
    frame = frame_offset(data)
    return patched(patched(data, frame + 5, *height.to_bytes(2, "big"), *width.to_bytes(2, "big")), frame + 11, 0x12)


def built(
    factors: Sequence[int],
    size: tuple[int, int],
    dc: tuple[Sequence[int], Sequence[int]],
    ac: tuple[Sequence[int], Sequence[int]],
    entropy: bytes,
    quant: bytes = bytes([1] * 64),
) -> bytes:
    """A baseline JPEG of parts: a component for each byte of sampling factors, one table of each kind for all.

    Args:
        size: (width, height).
        dc, ac: How many codes there are of each length from 1 bit on, and their symbols.
        entropy: The scan's bytes, stuffed.
    """

    def segment(code: int, *payload: int) -> bytes:
        return bytes([0xFF, code]) + (len(payload) + 2).to_bytes(2, "big") + bytes(payload)

    def table(kind: int, codes: tuple[Sequence[int], Sequence[int]]) -> bytes:
        return segment(0xC4, kind, *codes[0], *[0] * (16 - len(codes[0])), *codes[1])

    numbers = range(1, len(factors) + 1)
    frame = [value for number, both in zip(numbers, factors, strict=True) for value in (number, both, 0)]
    edges = [*size[1].to_bytes(2, "big"), *size[0].to_bytes(2, "big")]
    parts = [
        segment(0xDB, 0, *quant),
        segment(0xC0, 8, *edges, len(factors), *frame),
        table(0x00, dc),
        table(0x10, ac),
        segment(0xDA, len(factors), *[value for number in numbers for value in (number, 0)], 0, 63, 0),
    ]
    return b"\xff\xd8" + b"".join(parts) + entropy + b"\xff\xd9"


def flat_blocks(factors: Sequence[int], size: tuple[int, int], seed: int = 0) -> bytes:
    """A JPEG of any sampling factors, whose blocks are each of one random level."""
    rng = np.random.default_rng(seed)
    across, down = max(both >> 4 for both in factors), max(both & 15 for both in factors)
    blocks = sum((both >> 4) * (both & 15) for both in factors)
    count = blocks * -(-size[0] // (8 * across)) * -(-size[1] // (8 * down))
    bits = ""
    for value in rng.integers(-15, 16, count).tolist():
        length = abs(value).bit_length()
        extra = f"{value if value > 0 else value + (1 << length) - 1:0{length}b}" if length else ""
        bits += f"{length:03b}{extra}0"  # the code of its length, its bits, the end of the block
    bits += "1" * (-len(bits) % 8)
    entropy = int(bits, 2).to_bytes(len(bits) // 8, "big").replace(b"\xff", b"\xff\0")
    return built(factors, size, ([0, 0, 6], range(6)), ([1], [0]), entropy, bytes([16] * 64))


def random_codes(factors: Sequence[int], size: tuple[int, int], seed: int = 0) -> bytes:
    """A JPEG whose entropy-coded bytes are random: codes of 1 to 16 bits, of which nearly any bits are a sequence,
    coefficients of 0 to 15 bits, any number of them in a block."""
    rng = np.random.default_rng(seed)
    ac = rng.permutation(16)
    where = int(rng.integers(0, 5))  # an end of block that is not too rare, or the image takes too many bytes
    ac[np.flatnonzero(ac == 0)[0]], ac[where] = ac[where], 0
    count = 64 * sum((both >> 4) * (both & 15) for both in factors) * (size[0] // 8 + 4) * (size[1] // 8 + 4)
    entropy = rng.integers(0, 255, min(count, 60_000), dtype=np.uint8).tobytes()
    quant = rng.integers(1, 256, 64, dtype=np.uint8).tobytes()
    return built(factors, size, ([1] * 16, rng.permutation(16).tolist()), ([1] * 16, ac.tolist()), entropy, quant)


def with_segments(data: bytes, *segments: bytes) -> bytes:
    """The file with more bytes right behind its start of image."""
    return data[:2] + b"".join(segments) + data[2:]


def pixels_of(data: bytes) -> npt.NDArray[np.uint8]:
    """uint8 [H, W, 3] or [H, W], as Pillow decodes it."""
    return np.asarray(Image.open(io.BytesIO(data)))


def patched(data: bytes, offset: int, *values: int) -> bytes:
    """The bytes with some of them overwritten."""
    return data[:offset] + bytes(values) + data[offset + len(values) :]


def _segments(data: bytes) -> list[tuple[int, int, int]]:
    """(marker code, offset of its FF, length with the marker) up to the first scan's header."""
    found, at = [], 2
    while True:
        code, length = data[at + 1], 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        found.append((code, at, length))
        at += length
        if code == 0xDA:
            return found


def frame_offset(data: bytes) -> int:
    """Offset of the frame header's FF."""
    return next(at for code, at, _ in _segments(data) if code in (0xC0, 0xC1, 0xC2))


def entropy_offset(data: bytes) -> int:
    """Offset of the first scan's entropy-coded bytes."""
    _, at, length = _segments(data)[-1]
    return at + length


def restart_interval(data: bytes) -> int:
    """The restart interval in MCUs, 0 without one."""
    return next((int.from_bytes(data[at + 4 : at + 6], "big") for code, at, _ in _segments(data) if code == 0xDD), 0)

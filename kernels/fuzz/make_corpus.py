"""Writes a small starting corpus for the fuzz targets: tiny JPEGs and PNGs of every kind that the decoders know,
and an .npy."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

__all__ = ["main"]

SIZES = ((1, 1), (7, 9), (17, 33), (40, 24))
# What the last bytes of an input choose: a box, orientation, flip, fidelity, SIMD level. The baseline target's whole
# image at each level, and a box.
CHOICES = tuple(bytes([1, 0, 5, 0, 3, 0, 40, 2, 3, 30, 20, level]) for level in (0x80, 0x81, 0x82, 0x01))
# A box near the bottom, at both fidelities.
LOW = tuple(bytes([0, fidelity, 1, 0, 80, 0, 9, 0, 12, 0, 20, 30]) for fidelity in (2, 3))


def picture(width: int, height: int) -> Image.Image:
    """A smooth image with grain, so that codes of many lengths occur."""
    rng = np.random.default_rng(width)
    coarse = Image.fromarray(rng.integers(0, 256, (3, 4, 3), dtype=np.uint8))
    smooth = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC), np.float64)
    return Image.fromarray((smooth + rng.normal(0, 8, smooth.shape)).clip(0, 255).astype(np.uint8))


def encoded(image: Image.Image, **options: Any) -> bytes:
    """Returns the image as a JPEG, without Pillow's JFIF header."""
    buffer = io.BytesIO()
    image.save(buffer, "jpeg", **options)
    return buffer.getvalue()


def segment(data: bytes, code: int, number: int = 0) -> tuple[int, int]:
    """Returns the offsets of the FF and of the end of the number-th marker segment with this code."""
    at = 2
    while True:
        end = at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        if data[at + 1] == code:
            if number == 0:
                return at, end
            number -= 1
        at = end


def upright(data: bytes) -> bytes:
    """Turns a 4:2:2 file into a 4:4:0 one, in which pairs of blocks are vertical. Pillow writes no 4:4:0."""
    frame, _ = segment(data, 0xC0)
    width, height = data[frame + 7 : frame + 9], data[frame + 5 : frame + 7]
    return data[: frame + 5] + width + height + data[frame + 9 : frame + 11] + b"\x12" + data[frame + 12 :]


def with_quant16(data: bytes) -> bytes:
    """The first quantization table with 16-bit entries."""
    start, end = segment(data, 0xDB)
    wide = b"".join(bytes([0, value]) for value in data[start + 5 : start + 69])
    return data[:start] + b"\xff\xdb\x00\x83\x10" + wide + data[start + 69 :] if end - start == 69 else data


def with_long_codes(data: bytes) -> bytes:
    """Returns a grayscale file whose Huffman codes are 9 to 16 bits long, more than a lookup table holds."""
    frame, frame_end = segment(data, 0xC0)
    dc_bits, dc_symbols = [0] * 8 + [1] * 8, [0, 1, 2, 3, 4, 5, 6, 7]
    ac_bits, ac_symbols = [0] * 8 + [1] * 8, [0x00, 0x01, 0x02, 0x11, 0xF0, 0x03, 0x51, 0x0A]
    tables = b"".join(
        b"\xff\xc4" + (19 + len(symbols)).to_bytes(2, "big") + bytes([kind, *bits, *symbols])
        for kind, bits, symbols in ((0x00, dc_bits, dc_symbols), (0x10, ac_bits, ac_symbols))
    )
    quant, quant_end = segment(data, 0xDB)
    scan = b"\xff\xda\x00\x08\x01\x01\x00\x00\x3f\x00"

    def code(index: int) -> str:
        value, length = 0, 9
        for _ in range(index):
            value, length = (value + 1) << 1, length + 1
        return f"{value:0{length}b}"

    width, height = (int.from_bytes(data[frame + at : frame + at + 2], "big") for at in (7, 5))
    blocks = -(-width // 8) * -(-height // 8)
    bits = ""
    for number in range(blocks):
        size = number % 8
        bits += code(size) + "10110110"[:size]
        for index, extra in ((7, "1011001101"), (3, "1"), (4, ""), (6, "0"), (5, "010")):
            bits += code(index) + extra
        bits += code(0)
    bits += "1" * (-len(bits) % 8)
    entropy = int(bits, 2).to_bytes(len(bits) // 8, "big").replace(b"\xff", b"\xff\x00")
    return b"\xff\xd8" + data[quant:quant_end] + data[frame:frame_end] + tables + scan + entropy + b"\xff\xd9"


def files(sizes: Sequence[tuple[int, int]] = SIZES) -> Iterator[tuple[str, bytes]]:
    """Names and bytes of the seeds; the kinds that are made in several sizes, in these: (width, height)."""
    for size in sizes:
        image, name = picture(*size), f"{size[0]}x{size[1]}"
        for sampling in ("4:4:4", "4:2:2", "4:2:0", "4:1:1"):
            label = sampling.replace(":", "")
            yield f"{label}_{name}", encoded(image, subsampling=sampling, quality=50)
            yield (
                f"{label}_{name}_restart",
                encoded(image, subsampling=sampling, quality=50, optimize=True, restart_marker_blocks=1),
            )
        standing = image.transpose(Image.Transpose.ROTATE_90)
        yield f"440_{name}", upright(encoded(standing, subsampling="4:2:2", quality=50))
        gray = image.convert("L")
        yield f"gray_{name}", encoded(gray, quality=50)
        yield f"gray_{name}_long_codes", with_long_codes(encoded(gray, quality=90))
        for quality in (1, 100):
            yield f"gray_{name}_q{quality}", encoded(gray, quality=quality, optimize=True, restart_marker_blocks=2)
            yield f"420_{name}_q{quality}", encoded(image, quality=quality, optimize=True, subsampling="4:2:0")
        yield f"quant16_{name}", with_quant16(encoded(gray, quality=50, optimize=True))
    image = picture(17, 33)
    yield "rgb", encoded(image, keep_rgb=True)
    yield "restart_rows", encoded(image, restart_marker_rows=1, optimize=True)
    yield "progressive", encoded(image, progressive=True)
    yield "progressive_gray", encoded(image.convert("L"), progressive=True)
    yield "cmyk", encoded(image.convert("CMYK"))
    tall = picture(24, 112)  # several bands of rows
    for sampling in ("4:4:4", "4:2:0"):
        label = sampling.replace(":", "")
        yield f"tall_{label}", encoded(tall, subsampling=sampling, quality=20, restart_marker_rows=1)
    yield "tall_gray", encoded(tall.convert("L"), quality=20, restart_marker_blocks=1)
    # More blocks in a row, and more groups of 8 blocks, than a block of a GPU's threads has threads.
    yield "wide_420", encoded(picture(1100, 16), quality=1, optimize=True, restart_marker_blocks=3)
    yield "wide_gray", encoded(picture(4200, 8).convert("L"), quality=1, optimize=True)
    for mode in ("1", "L", "LA", "P", "RGB", "RGBA"):
        buffer = io.BytesIO()
        image.convert(mode).save(buffer, "png")
        yield f"png_{mode}", buffer.getvalue()
    array = io.BytesIO()
    np.save(array, np.asarray(image))
    yield "npy", array.getvalue()


def main(folder: str) -> None:
    """Writes the corpus into ``folder``."""
    out = Path(folder)
    out.mkdir(parents=True, exist_ok=True)
    for name, data in files():
        for number, choice in enumerate(CHOICES + LOW * name.startswith(("tall", "wide"))):
            (out / f"{name}_{number}").write_bytes(data + choice)


if __name__ == "__main__":
    main(sys.argv[1])

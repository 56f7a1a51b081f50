"""The filters of a PNG's rows."""

from __future__ import annotations

import io
import itertools
import struct
import zlib

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from feeder import _native
from feeder.decoders.targets.mask import decode_mask
from feeder.errors import DecodeError
from tests.support.conformance import natural_image


def filtered(pixels: npt.NDArray[np.uint8], filters: list[int], pixel_bytes: int = 1) -> bytes:
    """Rows [H, B] filtered as the specification says, row by row with these filters."""
    found = bytearray()
    before = np.zeros(pixels.shape[1], np.uint8)
    for row, kind in zip(pixels, filters, strict=True):
        found.append(kind)
        for x, value in enumerate(row.tolist()):
            left = int(row[x - pixel_bytes]) if x >= pixel_bytes else 0
            above, corner = int(before[x]), int(before[x - pixel_bytes]) if x >= pixel_bytes else 0
            estimate = left + above - corner
            nearest = min((left, above, corner), key=lambda each: abs(estimate - each))
            found.append((value - (0, left, above, (left + above) // 2, nearest)[kind]) % 256)
        before = row
    return bytes(found)


def png(pixels: npt.NDArray[np.uint8], rows: bytes, depth: int = 8, *, parts: int = 1, damage: int = 0) -> bytes:
    """A grayscale PNG with these filtered rows, in several IDAT chunks."""
    height, width = pixels.shape[0], pixels.shape[1] * 8 // depth
    packed = bytearray(zlib.compress(rows))
    packed[-1] ^= damage
    edges = np.linspace(0, len(packed), parts + 1).astype(int)
    chunks = [(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, 0, 0, 0, 0)), (b"tEXt", b"a\0b")]
    chunks += [(b"IDAT", bytes(packed[start:end])) for start, end in itertools.pairwise(edges)]
    chunks.append((b"IEND", b""))
    body = (struct.pack(">I", len(d)) + k + d + struct.pack(">I", zlib.crc32(k + d)) for k, d in chunks)
    return b"\x89PNG\r\n\x1a\n" + b"".join(body)


@pytest.mark.parametrize("pixel_bytes", [1, 2, 3])
@pytest.mark.parametrize("kind", range(5))
def test_each_filter_is_undone(kind: int, pixel_bytes: int) -> None:
    for pixels in (natural_image(1, 9, 12)[..., 0], np.full((9, 12), 200, np.uint8), natural_image(2, 9, 1)[..., 0]):
        for filters in ([kind] * 9, [(kind + y) % 5 for y in range(9)]):
            out = np.zeros_like(pixels)
            _native.unfilter_png(filtered(pixels, filters, pixel_bytes), out, pixel_bytes)
            np.testing.assert_array_equal(out, pixels)


def test_rows_of_the_wrong_number_or_with_an_unknown_filter_are_refused() -> None:
    out = np.zeros((2, 3), np.uint8)
    with pytest.raises(ValueError, match="row 1 has an unknown filter"):
        _native.unfilter_png(bytes([0, 1, 2, 3, 5, 1, 2, 3]), out)
    for rows in (bytes(7), bytes(9)):
        with pytest.raises(ValueError, match="each with one byte more"):
            _native.unfilter_png(rows, out)
    with pytest.raises(ValueError, match="pixel_bytes"):
        _native.unfilter_png(bytes(8), out, 0)


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("depth", [8, 16])
def test_masks_of_any_filters_are_those_of_pillow(depth: int, parts: int) -> None:
    pixels = natural_image(3, 20, 24)[..., 1]
    data = png(pixels, filtered(pixels, [y % 5 for y in range(20)], depth // 8), depth, parts=parts)
    with Image.open(io.BytesIO(data)) as image:
        np.testing.assert_array_equal(decode_mask(data, "int32"), np.asarray(image))


def test_a_damaged_mask_is_an_error() -> None:
    pixels = natural_image(3, 20, 24)[..., 1]
    rows = filtered(pixels, [1] * 20)
    whole = png(pixels, rows)
    np.testing.assert_array_equal(decode_mask(whole, "uint8"), pixels)
    for data in (png(pixels, rows, damage=1), png(pixels, rows[:-30]), whole[:100], png(pixels, bytes([9]) + rows[1:])):
        with pytest.raises(DecodeError, match="the mask: Pillow"):
            decode_mask(data, "uint8")

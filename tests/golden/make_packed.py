"""Writes packed.npz: a small JPEG, a codebook, and the JPEG packed with it, each to the byte.

Version 1 of the format is what makes these bytes of each other: a change of any of them is a change of the format, and
needs another version. Last written with Pillow 12.1.1: ``python -m tests.golden.make_packed [FILE]``.
"""

from __future__ import annotations

import hashlib
import os
import sys

import numpy as np
from PIL import Image

from feeder import _native as native
from feeder.decoders.packed import add_codebooks, codebook_id
from tests.support import jpegs

# Widths of the groups of 8 coefficients, as codes, 0 for no bits and 7 for 8 of them. With as few as these many
# numbers need patches.
LUMA = ((0,) * 8, (4, 2, 0, 0, 0, 0, 0, 0), (6, 5, 3, 2, 1, 0, 0, 0), (7,) * 8)
CHROMA = ((0,) * 8, (3, 1, 0, 0, 0, 0, 0, 0), (6, 6, 6, 6, 6, 6, 6, 6))


def codebook() -> bytes:
    """A codebook of these shapes, as docs/packed-format.md describes it."""
    shapes = [sum(code << 3 * group for group, code in enumerate(shape)) for shape in (*LUMA, *CHROMA)]
    head = b"FPC\x01" + bytes([len(LUMA) - 1, len(CHROMA) - 1])
    return head + b"".join(bits.to_bytes(3, "little") for bits in shapes)


def jpeg() -> bytes:
    """An image of 4:2:0 with incomplete MCUs, a restart interval, a comment, and bytes behind its end.

    Part of it is black and white, so that some DC differences and other coefficients are too large for their fields.
    """
    image = np.asarray(jpegs.photo(7, 75, 43)).copy()
    image[20:, 30:60] = 255 * (np.indices((23, 30)).sum(0) // 5 % 2)[..., None]
    data = jpegs.encode(Image.fromarray(image), quality=92, subsampling="4:2:0", restart_marker_blocks=4)
    return jpegs.with_segments(data, b"\xff\xfe\x00\x06abcd") + b"behind the end"


def main() -> None:
    """Writes the file."""
    book, original = codebook(), jpeg()
    add_codebooks([book])
    file = native.pack(original, codebook_id(book), hashlib.sha256(original).digest())
    out = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(__file__), "packed.npz")
    jpeg_bytes, book_bytes, packed_bytes = (np.frombuffer(data, np.uint8) for data in (original, book, file))
    np.savez_compressed(out, jpeg=jpeg_bytes, codebook=book_bytes, packed=packed_bytes)


if __name__ == "__main__":
    main()

"""The JPEGs that decoders are tried on: the fixtures of all kinds and sizes, the seeds of the fuzz targets, and damage.

python -m tests.support.jpeg_corpus DIR     writes the fixtures as inputs of kernels/fuzz/fuzz_cuda.cc
"""

from __future__ import annotations

import importlib.util
import itertools
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from tests.support import ROOT, jpegs

__all__ = ["damaged", "fixtures", "fuzz_inputs", "seeds"]


def fixtures() -> Iterator[tuple[str, bytes]]:
    """Names and bytes of the JPEGs of every kind, size and sampling that tests decode."""
    for kind, size in itertools.product(jpegs.KINDS, jpegs.SIZES):
        yield f"{kind} {size[0]}x{size[1]}", jpegs.jpeg(kind, size)
    # Lines of more blocks, and of more groups of 8 blocks, than a block of a GPU's threads has threads.
    for kind, size in (("4:2:0", (1100, 20)), ("gray", (4500, 9))):
        yield f"{kind} {size[0]}x{size[1]}", jpegs.jpeg(kind, size)
    for factors in ((0x41, 0x11, 0x11), (0x14, 0x11, 0x11), (0x42, 0x11, 0x11), (0x22, 0x21, 0x12), (0x31, 0x21, 0x11)):
        yield f"factors {bytes(factors).hex()}", jpegs.flat_blocks(factors, (93, 71))
    gray, color = (0x11,), (0x22, 0x11, 0x11)
    yield "random codes, gray", jpegs.random_codes(gray, (40, 24))
    yield "random codes, color", jpegs.random_codes(color, (40, 24), 1)


def seeds(sizes: Sequence[tuple[int, int]] | None = None) -> Iterator[tuple[str, bytes]]:
    """Names and bytes of the JPEGs that the fuzz targets start from.

    Args:
        sizes: (width, height) of those that come in several; None for those of the targets.
    """
    spec = importlib.util.spec_from_file_location("make_corpus", ROOT / "kernels" / "fuzz" / "make_corpus.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name, data in module.files() if sizes is None else module.files(sizes):
        if data[:2] == b"\xff\xd8":
            yield name, data


def damaged(data: bytes, start: int, count: int) -> Iterator[bytes]:
    """Yields copies of a file in which a byte from ``start`` on has changed, always the same ones."""
    rng = np.random.default_rng(len(data))
    for number in range(count):
        at = int(rng.integers(start, len(data) - 2))
        yield jpegs.patched(data, at, (0x00, 0xFF, data[at] ^ 1 << int(rng.integers(8)))[number % 3])


def fuzz_inputs() -> Iterator[bytes]:
    """Yields each fixture, whole and damaged, with choices for kernels/fuzz/fuzz_cuda.cc behind it.

    They are orientation, rows only (8) and flip (128); layout, dtype and forms left out; left, top, width - 1 and
    height - 1 of the box; how much less the source box has at the left and at the bottom.
    """
    for _, data in fixtures():
        frame = jpegs.frame_offset(data)
        height, width = (int.from_bytes(data[at : at + 2], "big") - 1 for at in (frame + 5, frame + 7))
        yield data + bytes([0, 0b000, 0, 0, 0, 0, *width.to_bytes(2, "little"), *height.to_bytes(2, "little"), 0, 0])
        yield data + bytes([5 | 8, 0b101, 9, 0, 30, 0, 60, 0, 90, 0, 40, 30])
        yield data + bytes([3 | 8 | 128, 0b010, 30, 0, 9, 0, 90, 0, 20, 0, 0, 90])
        last = bytes([6 | 128, 0b111, 2, 0, 2, 0, 33, 0, 33, 0, 99, 7])
        yield data + last
        yield from (copy + last for copy in damaged(data, jpegs.entropy_offset(data), 2))


def main(folder: str) -> None:
    """Writes the fixtures with their choices into ``folder``."""
    out = Path(folder)
    out.mkdir(parents=True, exist_ok=True)
    for number, data in enumerate(fuzz_inputs()):
        (out / f"{number:04d}").write_bytes(data)


if __name__ == "__main__":
    main(sys.argv[1])

"""Checks of a CUDA decoder, on a GPU or with the driver of :mod:`tests.support.cuda_driver`."""

from __future__ import annotations

import numpy as np

from feeder import _native as native
from feeder import transforms as T
from feeder.decoders.cuda.decoder import CudaDecoder
from feeder.decoders.native import CpuDecoder
from tests.support import jpegs
from tests.support.packed import packed

__all__ = ["check_damaged"]


def check_damaged(decoder: CudaDecoder, step: int) -> None:
    """Damages an image byte by byte: verdicts and pixels are the CPU backend's.

    Args:
        decoder: The decoder.
        step: Distance of the bytes.
    """
    width, height = 48, 40
    data = native.transcode(jpegs.jpeg("4:2:0", (width, height)), keep_metadata=False, segment_px=16)
    files = []
    for file, start in ((data, jpegs.entropy_offset(data)), (packed(data), len(packed(data)) // 2)):
        for at in range(start, len(file) - 2, step):
            files += [jpegs.patched(file, at, value) for value in (file[at] ^ 0x10, 0xFF, 0x00)]
    recipe, count = T.Recipe.of([T.Resize((20, 24))]), len(files)
    draws = recipe.draw(1, 0, np.arange(count), [(height, width)] * count)
    found, expected = np.zeros((2, count, 3, 20, 24), np.uint8)
    before = decoder.redone_images
    errors, wanted = (
        each.decode(files, np.ones(count, np.uint8), recipe, draws, out)
        for each, out in ((decoder, found), (CpuDecoder(), expected))
    )
    assert list(map(str, errors)) == list(map(str, wanted))
    good = [row for row, error in enumerate(wanted) if error is None]
    assert np.array_equal(found[good], expected[good])
    assert 0 < len(good) < count
    assert decoder.redone_images > before

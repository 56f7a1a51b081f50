"""Checks of a CUDA decoder, on a GPU or with the driver of :mod:`tests.support.cuda_driver`."""

from __future__ import annotations

import re

import numpy as np
import pytest

from feeder import _native as native
from feeder import transforms as T
from feeder.decoders.cpu_decoder import CpuDecoder
from feeder.decoders.cuda.cuda_decoder import CudaDecoder
from feeder.decoders.decoder import View
from feeder.errors import BackendError
from tests.support import jpeg_corpus, jpegs
from tests.support.packed import packed

__all__ = ["check_corpus", "check_damaged", "check_fixtures", "decoder_on_gpu"]

_CHUNK = 256  # files of a batch
_FEW_PIXELS = 1024  # up to which the CPU decodes a box


def decoder_on_gpu() -> CudaDecoder:
    """Returns a decoder; skips where feeder was built without the kernels, or the driver or the GPU is too old."""
    try:
        return CudaDecoder(device="cuda")
    except BackendError as error:
        if re.search(r"left out when this feeder was built|needs NVIDIA's driver|needs a GPU", str(error)):
            pytest.skip(str(error))
        raise


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
    before = decoder.redone_images
    good = _check_alike(decoder, files, [(height, width)] * len(files), T.Recipe.of([T.Resize((20, 24))]))
    assert 0 < good < len(files)
    assert decoder.redone_images > before


def check_fixtures(decoder: CudaDecoder, every: int = 1) -> None:
    """Decodes the fixtures in all forms, enlarged and in crops: verdicts and pixels are the CPU backend's.

    Args:
        decoder: The decoder.
        every: Takes one fixture of as many.
    """
    files, sizes = _forms(list(jpeg_corpus.fixtures())[::every])
    before = decoder.cuda_images
    for recipe in (
        T.Recipe.of([T.Resize((90, 150))]),
        T.Recipe.of([T.RandomResizedCrop(48), T.RandomHorizontalFlip()]),
    ):
        good = _check_alike(decoder, files, sizes, recipe)
        assert good > 0.9 * len(files)
    taken, large = decoder.cuda_images - before, sum(height * width > _FEW_PIXELS for height, width in sizes)
    assert taken > large


def check_corpus(decoder: CudaDecoder, damaged: int) -> None:
    """Decodes the seeds of the fuzz targets, larger than there, and damaged: verdicts and pixels are the CPU backend's.

    Args:
        decoder: The decoder.
        damaged: Number of damaged copies of each.
    """
    whole = _forms(list(jpeg_corpus.seeds(((40, 33), (97, 66)))))
    files, sizes = [], []
    for data, size in zip(*whole, strict=True):
        start = jpegs.entropy_offset(data) if data[:2] == b"\xff\xd8" else len(data) // 2
        copies = list(jpeg_corpus.damaged(data, start, damaged))
        files += copies
        sizes += [size] * len(copies)
    before = decoder.cuda_images, decoder.redone_images
    _check_alike(decoder, files, sizes, T.Recipe.of([T.Resize((44, 100))]))
    assert decoder.cuda_images > before[0]
    assert decoder.redone_images > before[1]


def _forms(images: list[tuple[str, bytes]]) -> tuple[list[bytes], list[tuple[int, int]]]:
    """Returns images as they are, seekable and packed, and (height, width) of each."""
    files, sizes = [], []
    for _, data in images:
        frame = jpegs.frame_offset(data)
        size = (int.from_bytes(data[frame + 5 : frame + 7], "big"), int.from_bytes(data[frame + 7 : frame + 9], "big"))
        found = [data]
        try:
            found.append(native.transcode(data, keep_metadata=False, segment_px=16))
            found.append(packed(found[1]))
        except native.Unsupported:
            pass  # it stays as it is
        files += found
        sizes += [size] * len(found)
    return files, sizes


def _check_alike(decoder: CudaDecoder, files: list[bytes], sizes: list[tuple[int, int]], recipe: T.Recipe) -> int:
    """Decodes files with the decoder and the CPU's; returns how many are good."""
    assert recipe.output_size is not None
    good = 0
    for start in range(0, len(files), _CHUNK):
        some = files[start : start + _CHUNK]
        count = len(some)
        draws = recipe.draw(1, 0, np.arange(start, start + count), sizes[start : start + _CHUNK])
        found, expected = np.zeros((2, count, 3, *recipe.output_size), np.uint8)
        errors, wanted = (
            each.decode(some, np.ones(count, np.uint8), [View(recipe, draws, out)]).errors
            for each, out in ((decoder, found), (CpuDecoder(), expected))
        )
        assert list(map(str, errors)) == list(map(str, wanted))
        rows = [row for row, error in enumerate(wanted) if error is None]
        wrong = [row for row in rows if not np.array_equal(found[row], expected[row])]
        assert wrong == [], [start + row for row in wrong]
        good += len(rows)
    return good

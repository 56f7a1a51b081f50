"""The codebook of a source's packed images: one that the set has, or a new one, trained on some of the samples."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from feeder.decoders.decoder import MAX_PIXELS
from feeder.decoders.packed import MOST_CODEBOOKS, add_codebooks, codebook_id
from feeder.order.permutation import permute
from feeder.shard.source.source import Source
from feeder.shard.write.shard_writer import read_sample

__all__ = ["chosen_codebook"]

_SAMPLES = 256
_MOST_BYTES = 64 << 20  # of their images, which are in memory together
_COMPARED = 64  # of these images, for the choice among codebooks
_GAIN = 0.02  # share of the bytes that a new codebook must save where the set has one


def chosen_codebook(source: Source, seed: int, known: Sequence[bytes] = (), *, sequential: bool = False) -> bytes:
    """Returns the codebook for a source, the same bytes for the same source and the same codebooks.

    It is the one of the set that takes the fewest bytes, or a new one if that saves more than a fiftieth of them, and
    the set may have another one.

    Args:
        source: The samples, of which some are drawn by the seed. Those that can't be read or packed are passed over.
        seed: Seed of the set.
        known: The set's codebooks.
        sequential: True if sequential copies of progressive images are packed.
    """
    from feeder import _native

    images = _drawn(source, seed)
    if sequential:
        images = [_sequential(image) for image in images]
    trained = _native.train_codebook(images, max_pixels=MAX_PIXELS)
    if not known or trained in known:
        return trained
    compared = images[:_COMPARED]
    least, best = min((_packed_bytes(compared, codebook), k) for k, codebook in enumerate(known))
    is_full = len(known) >= MOST_CODEBOOKS
    return trained if not is_full and _packed_bytes(compared, trained) < (1 - _GAIN) * least else known[best]


def _drawn(source: Source, seed: int) -> list[bytes]:
    """Returns the images of samples that are drawn by the seed."""
    count = len(source.table)
    images: list[bytes] = []
    size_bytes = 0
    for i in permute(np.arange(min(_SAMPLES, count)), count, seed).tolist():
        if images and size_bytes + source.table.size(i) > _MOST_BYTES:
            break
        try:
            image, _ = read_sample(source, i)
        except (MemoryError, OSError, ValueError):  # the run rejects it, or stops there
            continue
        images.append(image[1])
        size_bytes += len(image[1])
    return images


def _sequential(image: bytes) -> bytes:
    from feeder import _native

    try:
        return _native.transcode(image, keep_metadata=False, max_pixels=MAX_PIXELS)
    except _native.Unsupported:  # it is not a JPEG, or stays as it is
        return image


def _packed_bytes(images: Sequence[bytes], codebook: bytes) -> int:
    """Returns the size of images that are packed with a codebook; a JPEG that it has no shape for counts twice."""
    from feeder import _native

    add_codebooks([codebook])
    total = 0
    for image in images:
        try:
            total += len(_native.pack(image, codebook_id(codebook), bytes(32), max_pixels=MAX_PIXELS))
        except _native.Unsupported as error:
            total += 2 * len(image) if str(error) == "coefficients out of range" else 0
    return total

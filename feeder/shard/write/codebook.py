"""The codebook of a set of packed images, trained on some of its samples."""

from __future__ import annotations

import numpy as np

from feeder.decoders.decoder import MAX_PIXELS
from feeder.order.permutation import permute
from feeder.shard.source.source import Source
from feeder.shard.write.shard_writer import read_sample

__all__ = ["trained_codebook"]

_SAMPLES = 256
_MOST_BYTES = 64 << 20  # of their images, which are in memory together


def trained_codebook(source: Source, seed: int) -> bytes:
    """Trains a codebook on samples drawn by the seed: the same bytes for the same source.

    Args:
        source: The samples. Those that can't be read or packed are passed over.
        seed: Seed of the set.
    """
    from feeder import _native

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
    return _native.train_codebook(images, max_pixels=MAX_PIXELS)

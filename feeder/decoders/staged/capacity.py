"""Memory that staged images and their decoder need, planned from a sample of the images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from feeder.decoders.staged.staged import ROW
from feeder.order.permutation import permute
from feeder.system.arrays import Bools, Int64s, Size, aligned

_PEEK = 1024
# The same where each sample is a file to open.
_PEEK_AT_FILES = 64
_GROUPS = 512
_ALIGN = 64
# Size of a plan's tables for one view, beside the rows of segments: these take up to a quarter of the file's bytes.
_TABLES_BYTES = 4096
# Outliers have this many times the pixels of all but one image in a hundred, and at least this many.
_OUTLIER_TIMES = 4
_OUTLIER_LEAST = 4_000_000


class Capacity(NamedTuple):
    """The plan.

    Attributes:
        share_bytes: Bytes of a slot for each staged image; a multiple of 64.
        outlier_pixels: Images with more stored pixels are better decoded by the CPU backend.
    """

    share_bytes: int
    outlier_pixels: int


class Peek(NamedTuple):
    """Sizes of N samples, known without decoding them.

    Attributes:
        lengths: int64 [N], of the encoded images, bytes.
        sizes: int64 [N, 2], (height, width), stored or upright, pixels.
        is_jpeg: bool [N], by the name of the field or file.
    """

    lengths: Int64s
    sizes: Int64s
    is_jpeg: Bools


def planning_sample(samples: int, *, in_shards: bool) -> Int64s:
    """Returns the samples to plan from, int64 [N]; the same for the same dataset.

    Args:
        samples: Number of samples in the dataset.
        in_shards: Whether an index has their facts; otherwise each is a file to open, and fewer are taken.
    """
    count = min(samples, _PEEK if in_shards else _PEEK_AT_FILES)
    return permute(np.arange(count), samples, 0) if samples else np.zeros(0, np.int64)


def plan_capacity(found: Peek, sizes: Sequence[Size], part_rows: int, *, plans: bool = False) -> Capacity:
    """Plans the memory for staged images.

    Args:
        found: A sample of the images, see :func:`planning_sample`.
        sizes: (height, width) of each view. Images that the trainer's decoder does not get are staged as pixels.
        part_rows: Number of images that share their memory, at least 1.
        plans: True if JPEGs are staged as plans, which have tables beside the file's bytes.
    """
    rows_bytes, pixels_bytes = len(sizes) * ROW.itemsize, sum(3 * height * width for height, width in sizes)
    if not len(found.lengths):
        return Capacity(aligned(rows_bytes + pixels_bytes, _ALIGN), _OUTLIER_LEAST)
    pixels = found.sizes.prod(axis=1)
    usual = float(np.quantile(pixels[found.is_jpeg], 0.99, method="lower")) if found.is_jpeg.any() else 0.0
    outlier = max(_OUTLIER_LEAST, int(_OUTLIER_TIMES * usual))
    decoded_there = found.is_jpeg & (pixels <= outlier)
    tables = len(sizes) * _TABLES_BYTES
    payloads = found.lengths + found.lengths // 4 + tables if plans else found.lengths
    needs = np.where(decoded_there, payloads, pixels_bytes)
    # Images of a part share their memory, so the largest likely sum counts, not the largest image. Cuts take even less;
    # what does not fit travels another way.
    sums = np.random.default_rng(0).choice(needs, (_GROUPS, part_rows)).sum(axis=1)
    share = rows_bytes + -(-int(sums.max()) // part_rows)
    return Capacity(aligned(share, _ALIGN), outlier)

"""Counter-based random numbers: pure functions of (seed, epoch, sample id, stream)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from feeder.errors import ArgumentError
from feeder.system.arrays import Float64s, Int64s, Uint32s, Uint64s
from feeder.system.checks import check_int


class Stream:
    """Streams of whatever is drawn beside a recipe's ops, whose streams count from 0.

    Each has its own number, but for ``MIXUP``, which has always had that of ``SUBSTITUTE``.
    """

    ORDER = 65_535
    SUBSTITUTE = 65_534
    MIXUP = SUBSTITUTE
    CUTMIX = 65_533
    PICK = 65_532  # the choice of one of several ops that mix a batch
    COLLATE = 65_531  # seeds for functions that collate
    BUCKET = 65_530
    BUCKET_SEQUENCE = 65_529
    LANE_WINDOW = 65_528
    LANE_SHARDS = 65_527
    CHOICE = 65_526  # one of several values of a field
    MIXTURE = 65_525
    MIXTURE_RUN = 65_524


def philox(
    seed: int | Uint64s, epoch: int | Int64s, sample_ids: npt.ArrayLike, stream: int, blocks: int = 1
) -> Uint32s:
    """Draws counter-based random numbers of 32 bits by Philox4x32-10.

    Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011. Key: the seed (64 bits). Counter:
    sample id (64 bits), epoch (32 bits), stream (16 bits) and block (16 bits).

    Args:
        seed: 0 to 2**64-1, or uint64 [N].
        epoch: 0 to 2**32-1, or int64 [N].
        sample_ids: non-negative integers [N].
        stream: 0 to 65,535; number of the op that draws.
        blocks: Blocks of four numbers to draw for each sample, 1 to 65,536.

    Returns:
        uint32 [N, 4 * blocks].

    Raises:
        ArgumentError: if a number is outside its range.
    """
    for name, number, bits in (("seed", seed, 64), ("epoch", epoch, 32)):
        if not isinstance(number, np.ndarray):
            check_int(name, number, 0, (1 << bits) - 1)
    check_int("stream", stream, 0, (1 << 16) - 1)
    check_int("blocks", blocks, 1, 1 << 16)

    from feeder import _native

    seeds, epochs = np.asarray(seed, np.uint64).reshape(-1), np.asarray(epoch).astype(np.uint32).reshape(-1)
    return _native.philox(seeds, epochs, np.asarray(sample_ids).astype(np.uint64), stream, blocks)


def uniform(seed: int, epoch: int, sample_ids: npt.ArrayLike, stream: int, count: int) -> Float64s:
    """Draws uniform numbers in [0, 1) with 53 random bits each, from :func:`philox`.

    Args:
        seed: 0 to 2**64-1.
        epoch: 0 to 2**32-1.
        sample_ids: non-negative integers [N].
        stream: 0 to 65,535; number of the op that draws.
        count: Numbers to draw for each sample.

    Returns:
        float64 [N, count].

    Raises:
        ArgumentError: if a number is outside its range.
    """
    from feeder import _native

    for name, number, most in (("seed", seed, 2**64), ("epoch", epoch, 2**32), ("stream", stream, 2**16)):
        check_int(name, number, 0, most - 1)
    return _native.uniform(seed, epoch, np.asarray(sample_ids, np.int64), stream, count)


def numbers_in(end: int, numbers: npt.ArrayLike, what: str) -> Int64s:
    """Returns integers as int64 [N].

    Raises:
        ArgumentError: if one is not in [0, end); it names them by ``what`` they are.
    """
    found = np.array(numbers, dtype=np.int64, ndmin=1)
    if found.size and (found.min() < 0 or found.max() >= end):
        raise ArgumentError(f"{what} must be in [0, {end}), got {found.min()} to {found.max()}")
    return found

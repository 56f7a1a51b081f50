"""Keyed permutations of 0..n-1, in O(1) memory."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from feeder.order.random import Stream, numbers_in, philox
from feeder.system.arrays import Int64s, Uint32s, Uint64s
from feeder.system.checks import check_int

FEISTEL_ROUNDS = 12


def permute(positions: npt.ArrayLike, n: int, seed: int, epoch: int = 0, *, inverse: bool = False) -> Int64s:
    """Maps positions to sample ids by a keyed permutation of 0..n-1, in O(1) memory.

    A Feistel network over the next power of two with cycle walking (Black and Rogaway, "Ciphers with arbitrary finite
    domains", CT-RSA 2002).

    Args:
        positions: integers [N] in [0, n).
        n: Size of the permutation, 1 to 2**62.
        seed: 0 to 2**64-1.
        epoch: 0 to 2**32-1; each epoch has its own permutation.
        inverse: True maps sample ids to positions.

    Returns:
        int64 [N], each in [0, n); distinct for distinct positions.

    Raises:
        ArgumentError: if a position or a number is outside its range.
    """
    check_int("n", n, 1, 1 << 62)
    values = numbers_in(n, positions, "positions")

    keys = philox(seed, epoch, np.arange(FEISTEL_ROUNDS), Stream.ORDER).view(np.uint64)[:, 0]
    return permute_each(values, np.array([n]), keys[None], np.zeros(len(values), np.intp), inverse=inverse)


def joined(words: Uint32s) -> Uint64s:
    """Returns the seeds in the last two words of each row, uint64 [N]."""
    found: Uint64s = np.ascontiguousarray(words[:, :-3:-1]).view(np.uint64)[:, 0]  # the last one is the low one
    return found


def keys_of(seeds: Uint64s, epochs: Int64s) -> Uint64s:
    """Returns the keys by which :func:`permute` maps, uint64 [N, FEISTEL_ROUNDS], for seeds and epochs, both [N]."""
    rounds = np.tile(np.arange(FEISTEL_ROUNDS), len(seeds))
    words = philox(seeds.repeat(FEISTEL_ROUNDS), epochs.repeat(FEISTEL_ROUNDS), rounds, Stream.ORDER)
    return words.view(np.uint64).reshape(-1, FEISTEL_ROUNDS, 2)[:, :, 0]


def permute_each(
    positions: Int64s,
    sizes: Int64s,
    keys: Uint64s,
    groups: npt.NDArray[np.intp],
    *,
    inverse: bool = False,
) -> Int64s:
    """Maps positions by several keyed permutations at once, as :func:`permute` does by one.

    Args:
        positions: int64 [N], each in [0, size of its group).
        sizes: int64 [groups], sizes of the permutations, 1 to 2**62; 0 for a group without positions.
        keys: uint64 [groups, FEISTEL_ROUNDS], random words.
        groups: intp [N], the permutation of each position.
        inverse: True for the inverse permutations.

    Returns:
        int64 [N].
    """
    from feeder import _native

    return _native.permute(positions, sizes, keys, groups, inverse)

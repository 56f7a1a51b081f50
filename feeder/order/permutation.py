"""Keyed permutations of 0..n-1, in O(1) memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from feeder.order.random import Stream, numbers_in, philox
from feeder.system.arrays import Int64s, Uint32s, Uint64s
from feeder.system.checks import check_int

FEISTEL_ROUNDS = 12
_AT_ONCE = 1 << 16  # positions, each with a key for each round


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
    bits = max(2, (n - 1).bit_length())

    state = values.astype(np.uint64)
    outside = np.arange(state.size)
    while outside.size:
        state[outside] = _feistel(state[outside], np.uint64(bits // 2), np.uint64(bits - bits // 2), keys, inverse)
        outside = outside[state[outside] >= np.uint64(n)]
    return state.astype(np.int64)


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
    if len(positions) > _AT_ONCE:
        parts = (np.split(each, range(_AT_ONCE, len(positions), _AT_ONCE)) for each in (positions, groups))
        return np.concatenate(
            [permute_each(some, sizes, keys, own, inverse=inverse) for some, own in zip(*parts, strict=True)]
        )

    bits = np.frexp((sizes - 1).astype(np.float64))[1]  # from 2**53 on it may be rounded up
    bits = np.maximum(bits - ((sizes - 1) >> np.maximum(bits - 1, 0) == 0), 2).astype(np.uint64)

    state, by_round = positions.astype(np.uint64), np.ascontiguousarray(keys.T)
    outside = np.arange(state.size)
    while outside.size:
        group = groups[outside]
        low_bits = bits[group] >> np.uint64(1)
        state[outside] = _feistel(
            state[outside], low_bits, bits[group] - low_bits, by_round.take(group, axis=1), inverse
        )
        outside = outside[state[outside] >= sizes[group].astype(np.uint64)]
    return state.astype(np.int64)


def _feistel(values: Uint64s, low_bits: Any, high_bits: Any, keys: Any, inverse: bool) -> Uint64s:
    """Runs the network.

    Args:
        values: uint64 [N].
        low_bits, high_bits: Numbers of bits of both halves, uint64 or uint64 [N].
        keys: uint64 [rounds] or [rounds, N].
        inverse: Undoes it, by the same rounds from the last to the first.
    """
    low_mask, high_mask = (np.uint64(1) << low_bits) - np.uint64(1), (np.uint64(1) << high_bits) - np.uint64(1)
    low = values & low_mask
    high = values >> low_bits
    for i in range(len(keys))[:: -1 if inverse else 1]:
        if i % 2:
            high ^= _mix(low ^ keys[i]) & high_mask
        else:
            low ^= _mix(high ^ keys[i]) & low_mask
    joined: Uint64s = high << low_bits | low
    return joined


def _mix(x: Uint64s) -> Uint64s:
    """The finalizer of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014), in place."""
    x ^= x >> np.uint64(30)
    x *= np.uint64(0xBF58476D1CE4E5B9)
    x ^= x >> np.uint64(27)
    x *= np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    return x

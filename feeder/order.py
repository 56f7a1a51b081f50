"""The order of samples and every random draw, as pure functions of (seed, epoch, position or sample id).

Nothing here is a stream: any process can compute any part at any time, in O(1) memory, and gets the same numbers
whatever the worker count, the world size or the moment of a resume.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from feeder.errors import ArgumentError

__all__ = ["permute", "philox", "uniform"]

_MASK32 = np.uint64(0xFFFFFFFF)
_SHIFT32 = np.uint64(32)
_ROUNDS = 10
_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (0x9E3779B9, 0xBB67AE85)

# Stream numbers 0..65,534 belong to the ops of a recipe.
_ORDER_STREAM = 65_535
_FEISTEL_ROUNDS = 12


def philox(seed: int, epoch: int, sample_ids: npt.ArrayLike, stream: int, blocks: int = 1) -> npt.NDArray[np.uint32]:
    """Counter-based random words: Philox4x32-10.

    Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011. Key: the seed (64 bits). Counter:
    sample id (64 bits), epoch (32 bits), stream (16 bits) and block (16 bits).

    Args:
        seed: 0 to 2**64-1.
        epoch: 0 to 2**32-1.
        sample_ids: non-negative integers [N].
        stream: 0 to 65,535; which op draws.
        blocks: How many blocks of four words to draw for each sample, 1 to 65,536.

    Returns:
        uint32 [N, 4 * blocks].

    Raises:
        ArgumentError: if a number is outside its range.
    """
    _check("seed", seed, 1 << 64)
    _check("epoch", epoch, 1 << 32)
    _check("stream", stream, 1 << 16)
    _check("blocks", blocks - 1, 1 << 16)
    ids = np.asarray(sample_ids).astype(np.uint64)[:, None]
    high_word = np.uint64(stream << 16) | np.arange(blocks, dtype=np.uint64)
    c0, c1, c2, c3 = np.broadcast_arrays(ids & _MASK32, ids >> _SHIFT32, np.uint64(epoch), high_word[None, :])
    k0, k1 = seed & 0xFFFFFFFF, seed >> 32
    for _ in range(_ROUNDS):
        p0 = c0 * _MULTIPLIERS[0]
        p1 = c2 * _MULTIPLIERS[1]
        c0 = (p1 >> _SHIFT32) ^ c1 ^ np.uint64(k0)
        c1 = p1 & _MASK32
        c2 = (p0 >> _SHIFT32) ^ c3 ^ np.uint64(k1)
        c3 = p0 & _MASK32
        k0 = (k0 + _WEYL[0]) & 0xFFFFFFFF
        k1 = (k1 + _WEYL[1]) & 0xFFFFFFFF
    words = np.stack([c0, c1, c2, c3], axis=-1).astype(np.uint32)
    return words.reshape(words.shape[0], 4 * blocks)


def uniform(seed: int, epoch: int, sample_ids: npt.ArrayLike, stream: int, count: int) -> npt.NDArray[np.float64]:
    """Uniform numbers in [0, 1) with 53 random bits each, from :func:`philox`.

    Args:
        seed: 0 to 2**64-1.
        epoch: 0 to 2**32-1.
        sample_ids: non-negative integers [N].
        stream: 0 to 65,535; which op draws.
        count: How many numbers to draw for each sample.

    Returns:
        float64 [N, count].

    Raises:
        ArgumentError: if a number is outside its range.
    """
    words = philox(seed, epoch, sample_ids, stream, max(1, -(-count // 2))).astype(np.uint64)
    bits = (words[:, 0::2] << _SHIFT32 | words[:, 1::2]) >> np.uint64(11)
    unit: npt.NDArray[np.float64] = bits[:, :count].astype(np.float64) * 2.0**-53
    return unit


def permute(positions: npt.ArrayLike, n: int, seed: int, epoch: int = 0) -> npt.NDArray[np.int64]:
    """Maps positions to sample ids by a keyed permutation of 0..n-1, in O(1) memory.

    A Feistel network over the next power of two with cycle walking (Black and Rogaway, "Ciphers with arbitrary finite
    domains", CT-RSA 2002).

    Args:
        positions: integers [N] in [0, n).
        n: Size of the permutation, 1 to 2**62.
        seed: 0 to 2**64-1.
        epoch: 0 to 2**32-1; each epoch has a permutation of its own.

    Returns:
        int64 [N], each in [0, n); distinct for distinct positions.

    Raises:
        ArgumentError: if a position or a number is outside its range.
    """
    values = np.array(positions, dtype=np.int64, ndmin=1)
    if n < 1 or n > 1 << 62:
        raise ArgumentError(f"n must be 1 to 2**62, got {n}")
    if values.size and (values.min() < 0 or values.max() >= n):
        raise ArgumentError(f"positions must be in [0, {n}), got {values.min()} to {values.max()}")
    keys = philox(seed, epoch, np.arange(_FEISTEL_ROUNDS), _ORDER_STREAM).view(np.uint64)[:, 0]
    bits = max(2, (n - 1).bit_length())
    state = values.astype(np.uint64)
    outside = np.arange(state.size)
    while outside.size:
        state[outside] = _feistel(state[outside], bits, keys)
        outside = outside[state[outside] >= np.uint64(n)]
    return state.astype(np.int64)


def _feistel(values: npt.NDArray[np.uint64], bits: int, keys: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    low_bits = bits // 2
    low_mask = np.uint64((1 << low_bits) - 1)
    high_mask = np.uint64((1 << (bits - low_bits)) - 1)
    low = values & low_mask
    high = values >> np.uint64(low_bits)
    for i in range(0, keys.size, 2):
        low = low ^ (_mix(high ^ keys[i]) & low_mask)
        high = high ^ (_mix(low ^ keys[i + 1]) & high_mask)
    joined: npt.NDArray[np.uint64] = high << np.uint64(low_bits) | low
    return joined


def _mix(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The finalizer of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: npt.NDArray[np.uint64] = x ^ (x >> np.uint64(31))
    return mixed


def _check(name: str, value: int, end: int) -> None:
    if not 0 <= value < end:
        raise ArgumentError(f"{name} must be 0 to {end - 1}, got {value}")

"""The order of samples and every random draw, as pure functions of (seed, epoch, position or sample id).

Nothing here is a stream: any process can compute any part at any time, in O(1) memory, and gets the same numbers
whatever the worker count, the world size or the moment of a resume.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from feeder.errors import ArgumentError

__all__ = ["Order", "Split", "Window", "permute", "philox", "substitute", "uniform"]

_MASK32 = np.uint64(0xFFFFFFFF)
_SHIFT32 = np.uint64(32)
_ROUNDS = 10
_MULTIPLIERS = np.array([0xD2511F53, 0xCD9E8D57], np.uint64)[:, None, None]
_WEYL = np.array([0x9E3779B9, 0xBB67AE85], np.uint64)[:, None, None]

# Stream numbers 0..65,533 belong to the ops of a recipe.
_ORDER_STREAM = 65_535
_SUBSTITUTE_STREAM = 65_534
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
    # Words 0 and 2 of the counter, and words 1 and 3, side by side: half as many calls of numpy.
    even = np.empty((2, len(ids), blocks), np.uint64)
    odd = np.empty_like(even)
    even[0], odd[0] = ids & _MASK32, ids >> _SHIFT32
    even[1], odd[1] = np.uint64(epoch), np.uint64(stream << 16) | np.arange(blocks, dtype=np.uint64)
    key = np.array([seed & 0xFFFFFFFF, seed >> 32], np.uint64)[:, None, None]
    for _ in range(_ROUNDS):
        product = even * _MULTIPLIERS
        even = (product[::-1] >> _SHIFT32) ^ odd ^ key
        odd = product[::-1] & _MASK32
        key = (key + _WEYL) & _MASK32
    words = np.stack([even[0], odd[0], even[1], odd[1]], axis=-1).astype(np.uint32)
    return words.reshape(len(ids), 4 * blocks)


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


def substitute(position: int, attempt: int, n: int, seed: int, epoch: int) -> int:
    """The sample that takes the place of one that can't be read, a pure function of its arguments.

    Args:
        position: The position in the epoch that the bad sample stood at.
        attempt: 0 for the first substitute, 1 for the one in place of that, and so on; below 65,536.
        n: Number of samples in the dataset.
        seed: 0 to 2**64-1.
        epoch: 0 to 2**32-1.

    Returns:
        A sample id in [0, n).
    """
    words = philox(seed, epoch, [position], _SUBSTITUTE_STREAM, attempt + 1)[0, -4:]
    return int((int(words[0]) << 32 | int(words[1])) % n)


@dataclass(frozen=True)
class Window:
    """Shuffle within a window: shards in random order, then samples at random inside consecutive windows.

    Reads stay within a few shards at a time, for disks that are slow at random reads.

    Args:
        samples: How many consecutive samples are shuffled together, 1 or more.
    """

    samples: int = 8192

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise ArgumentError(f"Window(samples) must be 1 or more, got {self.samples}")


@dataclass(frozen=True)
class Order:
    """The order of a dataset's epochs: (epoch, position) -> sample id, the same on every rank.

    Args:
        samples: Number of samples, 0 or more.
        seed: 0 to 2**64-1.
        shuffle: True for a full permutation, a :class:`Window`, or False for the stored order.
        shard_sizes: Samples in each shard, in stored order; used by a window only. Empty: one shard.
    """

    samples: int
    seed: int = 0
    shuffle: bool | Window = False
    shard_sizes: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        _check("seed", self.seed, 1 << 64)
        if self.shard_sizes and sum(self.shard_sizes) != self.samples:
            raise ArgumentError(f"shard_sizes add up to {sum(self.shard_sizes)}, expected {self.samples} samples")

    def ids(self, epoch: int, positions: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """Sample ids at the given positions.

        Args:
            epoch: 0 to 2**32-1.
            positions: integers [N] in [0, samples).

        Returns:
            int64 [N].
        """
        places = np.array(positions, dtype=np.int64, ndmin=1)
        if places.size and (places.min() < 0 or places.max() >= self.samples):
            raise ArgumentError(f"positions must be in [0, {self.samples}), got {places.min()} to {places.max()}")
        if self.shuffle is False or not places.size:
            return places
        if self.shuffle is True:
            return permute(places, self.samples, self.seed, epoch)
        return self._windowed(epoch, places, self.shuffle.samples)

    def neighbour_distance(self, epoch: int = 0, *, pairs: int = 4096) -> float:
        """How well the order separates samples that are stored side by side, relative to a full shuffle.

        Args:
            epoch: The epoch to look at.
            pairs: At most how many pairs of neighbouring positions are looked at.

        Returns:
            Mean stored distance of samples that follow each other in the order, divided by the mean for a full
            shuffle (a third of the samples): about 1.0 for a full shuffle, near 0 for the stored order.
        """
        if self.samples < 2:
            return 1.0
        places = np.unique(np.linspace(0, self.samples - 2, min(pairs, self.samples - 1)).astype(np.int64))
        distance = np.abs(self.ids(epoch, places + 1) - self.ids(epoch, places))
        return float(distance.mean() / ((self.samples + 1) / 3))

    def _windowed(self, epoch: int, places: npt.NDArray[np.int64], window: int) -> npt.NDArray[np.int64]:
        number = places // window
        within = places - number * window
        for w in np.unique(number):
            chosen = number == w
            size = min(window, self.samples - int(w) * window)
            # Each window has a permutation of its own: the window's number is mixed into the seed.
            words = philox(self.seed, epoch, [int(w)], _ORDER_STREAM, _FEISTEL_ROUNDS)[0, -2:]
            within[chosen] = permute(within[chosen], size, int(words[0]) << 32 | int(words[1]), epoch)
        places = number * window + within
        if len(self.shard_sizes) < 2:
            return places
        stored_starts, shards, starts = _shard_order(self.shard_sizes, self.seed, epoch)
        turn = np.searchsorted(starts, places, side="right") - 1
        ids: npt.NDArray[np.int64] = stored_starts[shards[turn]] + places - starts[turn]
        return ids


@functools.lru_cache(maxsize=2)
def _shard_order(
    sizes: tuple[int, ...], seed: int, epoch: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """First stored sample of each shard; shards in the epoch's order; first position of each turn."""
    stored = np.array(sizes, dtype=np.int64)
    shards = permute(np.arange(stored.size), stored.size, seed, epoch)
    return np.cumsum(stored) - stored, shards, np.cumsum(stored[shards]) - stored[shards]


@dataclass(frozen=True)
class Split:
    """Which positions of an epoch each rank takes at each step.

    Step t of a job with the global batch G = world_size * batch_size takes the G positions from ``start + t * G``;
    rank r takes the r-th slice. Where fewer than G are left, each rank takes an equal share of them, and positions past
    the end wrap around to the epoch's first ones (padding, at most world_size - 1 in an epoch). Every rank has the
    same number of batches of the same sizes. What is left after any step is a plain range of positions: it can be
    split anew over any world size and batch size.

    Args:
        samples: Positions in the epoch, 0 or more.
        batch_size: Samples in a rank's batch, 1 or more.
        rank: This rank, 0 to world_size - 1.
        world_size: Number of ranks, 1 or more.
        drop_last: Leave out a last step that can't fill every rank's batch.
        start: Positions that the job has consumed already.
    """

    samples: int
    batch_size: int
    rank: int = 0
    world_size: int = 1
    drop_last: bool = False
    start: int = 0

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise ArgumentError(f"batch_size must be 1 or more, got {self.batch_size}")
        if self.world_size < 1 or not 0 <= self.rank < self.world_size:
            raise ArgumentError(f"rank must be 0 to world_size - 1, got rank {self.rank} of {self.world_size}")
        if not 0 <= self.start <= self.samples:
            raise ArgumentError(f"start must be 0 to {self.samples}, got {self.start}")

    def __len__(self) -> int:
        """Steps that are left from ``start``; the same on every rank."""
        full, rest = divmod(self.samples - self.start, self._global_batch)
        return full + (1 if rest and not self.drop_last else 0)

    def positions(self, step: int) -> npt.NDArray[np.int64]:
        """Positions of this rank's batch at a step: int64 [at most batch_size], in [0, samples)."""
        first, size = self._share(step)
        return (first + np.arange(size, dtype=np.int64)) % self.samples

    def padding(self, step: int) -> int:
        """How many of the last positions of this rank's batch at a step are padding."""
        first, size = self._share(step)
        return min(size, max(0, first + size - self.samples))

    def consumed(self, steps: int) -> int:
        """Positions that the whole job has consumed after that many steps from ``start``."""
        return min(self.samples, self.start + steps * self._global_batch)

    def samples_here(self) -> int:
        """Samples that this rank takes from ``start``, padding included."""
        steps = len(self)
        return (steps - 1) * self.batch_size + self._share(steps - 1)[1] if steps else 0

    @property
    def _global_batch(self) -> int:
        return self.batch_size * self.world_size

    def _share(self, step: int) -> tuple[int, int]:
        if not 0 <= step < len(self):
            raise ArgumentError(f"step must be in [0, {len(self)}), got {step}")
        base = self.start + step * self._global_batch
        size = min(self.batch_size, -(-(self.samples - base) // self.world_size))
        return base + self.rank * size, size


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

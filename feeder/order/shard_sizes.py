"""The numbers of samples in the shards of a set."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from feeder.system.arrays import AnyArray, Int64s

_RUN = 16  # shards; their starts within a run of so many take 2 bytes if none has more than 4,369 samples
_CHUNK = _RUN << 10  # shards that are looked at together


@dataclass(frozen=True)
class EqualSizes:
    """Shards of one size, the last one of any size up to that; takes no memory. numpy makes int64 [shards] of it.

    Args:
        samples: Number of samples in all shards.
        size: Number of samples in a shard, 1 or more.
    """

    samples: int
    size: int

    def __len__(self) -> int:
        return -(-self.samples // self.size)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> AnyArray:
        sizes = np.full(len(self), self.size, np.int64)
        sizes[-1:] += self.samples - len(self) * self.size
        return sizes if dtype is None else sizes.astype(dtype, copy=False)

    def starts(self, shards: Int64s) -> Int64s:
        """Returns the numbers of samples before shards, int64 as the shards; those after the last one are empty."""
        return np.minimum(shards * self.size, self.samples)

    def shards_of(self, ids: Int64s) -> Int64s:
        """Returns the shards of samples, int64 [N]."""
        return ids // self.size


class UnequalSizes:
    """Shards of any sizes, in 2.5 bytes a shard, or 4.5 where 16 of them have 65,536 samples and more; numpy makes
    int64 [shards] of it.

    Args:
        sizes: integers [shards], number of samples in each shard.

    Attributes:
        samples: Number of samples in all shards.
        smallest: Number of samples in the smallest shard; 0 without shards.
        size: 0, as there is no size of each.
    """

    size = 0

    def __init__(self, sizes: AnyArray) -> None:
        self._count = len(sizes)
        self.smallest = int(sizes.min()) if len(sizes) else 0
        firsts = np.arange(0, self._count, _RUN)
        runs = np.add.reduceat(sizes, firsts, dtype=np.int64) if self._count else np.zeros(0, np.int64)
        self._runs = np.concatenate([np.zeros(1, np.int64), np.cumsum(runs)])
        self.samples = int(self._runs[-1])
        # The last start is that after all shards.
        dtype = next(d for d in (np.uint16, np.uint32, np.int64) if runs.max(initial=0) <= np.iinfo(d).max)
        self._within: AnyArray = np.zeros((len(runs), _RUN), dtype)
        for first in range(0, self._count, _CHUNK):
            chunk = np.zeros((-(-min(_CHUNK, self._count - first) // _RUN), _RUN), np.int64)
            own = sizes[first : first + _CHUNK]
            chunk.reshape(-1)[: len(own)] = own
            rows = slice(first // _RUN, first // _RUN + len(chunk))
            self._within[rows] = np.cumsum(chunk, axis=1) - chunk

    def __len__(self) -> int:
        return self._count

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> AnyArray:
        sizes = np.diff(self.starts(np.arange(self._count + 1)))
        return sizes if dtype is None else sizes.astype(dtype, copy=False)

    def starts(self, shards: Int64s) -> Int64s:
        """See :meth:`EqualSizes.starts`."""
        runs = shards // _RUN
        inside = runs < len(self._within)
        starts = self._runs[np.where(inside, runs, -1)]
        starts[inside] += self._within.reshape(-1)[shards[inside]]
        return starts

    def sizes(self, shards: Int64s) -> Int64s:
        """Returns the numbers of samples in shards, int64 as the shards; those after the last one are empty."""
        return self.starts(shards + 1) - self.starts(shards)

    def shards_of(self, ids: Int64s) -> Int64s:
        """See :meth:`EqualSizes.shards_of`."""
        runs = np.searchsorted(self._runs, ids, side="right") - 1
        found = np.unique(runs)
        shards = (found[:, None] * _RUN + np.arange(_RUN)).reshape(-1)
        return shards[np.searchsorted(self.starts(shards), ids, side="right") - 1]


CompactSizes: TypeAlias = EqualSizes | UnequalSizes
ShardSizes: TypeAlias = Int64s | CompactSizes


def compact_sizes(sizes: npt.ArrayLike | CompactSizes) -> CompactSizes:
    """Returns the sizes of shards, in stored order, in as little memory as they need."""
    if isinstance(sizes, EqualSizes | UnequalSizes):
        return sizes
    found = np.asarray(sizes)
    if found.dtype.kind not in "iu":
        found = found.astype(np.int64)
    if len(found) and found[0] and (found[:-1] == found[0]).all() and 0 < found[-1] <= found[0]:
        return EqualSizes(int(found.sum(dtype=np.int64)), int(found[0]))
    return UnequalSizes(found)

"""The numbers of samples in the shards of a set."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from feeder.system.arrays import AnyArray, Int64s

__all__ = ["CompactSizes", "EqualSizes", "ShardSizes", "UnequalSizes", "compact_sizes"]


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
    """Shards of any sizes, in 8 bytes a shard; numpy makes int64 [shards] of it.

    Args:
        sizes: integers [shards], number of samples in each shard.

    Attributes:
        samples: Number of samples in all shards.
        size: 0, as there is no size of each.
    """

    size = 0

    def __init__(self, sizes: AnyArray) -> None:
        self._starts = np.zeros(len(sizes) + 1, np.int64)  # the last one is that after all shards
        np.cumsum(sizes, dtype=np.int64, out=self._starts[1:])
        self.samples = int(self._starts[-1])

    def __len__(self) -> int:
        return len(self._starts) - 1

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> AnyArray:
        sizes = np.diff(self._starts)
        return sizes if dtype is None else sizes.astype(dtype, copy=False)

    def starts(self, shards: Int64s) -> Int64s:
        """See :meth:`EqualSizes.starts`."""
        return self._starts[np.minimum(shards, len(self))]

    def shards_of(self, ids: Int64s) -> Int64s:
        """See :meth:`EqualSizes.shards_of`."""
        return np.searchsorted(self._starts, ids, side="right") - 1


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

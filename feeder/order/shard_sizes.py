"""The numbers of samples in the shards of a set."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["EqualSizes", "ShardSizes", "compact_sizes"]


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

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        sizes = np.full(len(self), self.size, np.int64)
        sizes[-1:] += self.samples - len(self) * self.size
        return sizes if dtype is None else sizes.astype(dtype, copy=False)


ShardSizes: TypeAlias = npt.NDArray[np.int64] | EqualSizes


def compact_sizes(sizes: npt.ArrayLike | EqualSizes) -> ShardSizes:
    """Returns the sizes of shards, in stored order, in as little memory as they need: int64 [shards] if they differ."""
    if isinstance(sizes, EqualSizes):
        return sizes
    found = np.asarray(sizes, np.int64)
    if len(found) and found[0] and (found[:-1] == found[0]).all() and 0 < found[-1] <= found[0]:
        return EqualSizes(int(found.sum()), int(found[0]))
    return found

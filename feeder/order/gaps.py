"""Positions that are left out of an epoch, and the places of those that are kept."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from feeder.system.arrays import Int64s


class Gaps:
    """Ranges of positions that an epoch goes without; 24 bytes a range.

    A place is the number of a position among those that are kept.

    Args:
        positions: int64 [N], single positions, in any order; repeats count once.
        ranges: Further ranges, each (first, end).
    """

    def __init__(self, positions: Int64s, ranges: Iterable[tuple[int, int]] = ()) -> None:
        more = np.array([*ranges], np.int64).reshape(-1, 2)
        first = np.concatenate([positions, more[:, 0]])
        ends = np.concatenate([positions + 1, more[:, 1]])
        by_first = np.argsort(first, kind="stable")
        by_first = by_first[ends[by_first] > first[by_first]]
        first, ends = first[by_first], np.maximum.accumulate(ends[by_first])
        apart = first[1:] > ends[:-1]  # ranges that touch are one
        self._first = first[np.append(True, apart)[: len(first)]]
        self._ends = ends[np.append(apart, True)[: len(ends)]]
        self._before = np.zeros(len(self._first) + 1, np.int64)
        np.cumsum(self._ends - self._first, out=self._before[1:])
        self._places = self._first - self._before[:-1]

    def __len__(self) -> int:
        """Number of positions that are left out."""
        return int(self._before[-1])

    def positions(self, places: npt.ArrayLike) -> Int64s:
        """Returns the positions of kept ones by their places, int64 [N]."""
        asked = np.asarray(places, np.int64)
        return asked + self._before[np.searchsorted(self._places, asked, side="right")]

    def places(self, positions: npt.ArrayLike) -> Int64s:
        """Returns the number of positions kept before each of these, int64 [N]."""
        asked = np.asarray(positions, np.int64)
        number = np.searchsorted(self._first, asked, side="right")
        inside = np.maximum(0, np.append(0, self._ends)[number] - asked)  # the rest of a range that has not ended
        return asked - self._before[number] + inside

"""The latest results of a function, kept by its owner."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

_T = TypeVar("_T")


class Recent(Generic[_T]):
    """Keeps the results that were made last. Copies and pickles begin empty, so results are never sent to a process.

    ``functools.lru_cache`` would hash all arguments at each call, and keep them alive.

    Args:
        most: Number of results to keep, 1 or more.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: dict[Hashable, _T] = {}

    def get(self, key: Hashable, make: Callable[[], _T]) -> _T:
        """Returns the result that is kept under a key, or a new one."""
        kept = self._kept
        if key not in kept:
            # Another dict, as threads may use this one.
            kept = self._kept = {**dict([*kept.items()][max(0, len(kept) - self._most + 1) :]), key: make()}
        return kept[key]

    def __getstate__(self) -> int:
        return self._most

    def __setstate__(self, most: int) -> None:
        self._most = most
        self._kept = {}

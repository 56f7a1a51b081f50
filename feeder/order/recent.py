"""The latest results of a function, kept by its owner."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, Generic, TypeVar

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
        return self.get_all([key], lambda _: [make()])[0]

    def get_all(self, keys: Sequence[Hashable], make: Callable[[Sequence[Any]], Iterable[_T]]) -> list[_T]:
        """Returns the results that are kept under keys, and new ones for the others, which are made at once."""
        kept = self._kept
        if missing := [key for key in dict.fromkeys(keys) if key not in kept]:
            made = dict(zip(missing, make(missing), strict=True))
            kept = {**kept, **made}  # another dict, as threads may use this one
            self._kept = dict([*kept.items()][-self._most :])
        return [kept[key] for key in keys]

    def __getstate__(self) -> int:
        return self._most

    def __setstate__(self, most: int) -> None:
        self._most = most
        self._kept = {}

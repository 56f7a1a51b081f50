"""The latest results of a function, kept by its owner."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, Generic, TypeVar

_T = TypeVar("_T")


class Recent(Generic[_T]):
    """Keeps the results that were used last. Copies and pickles begin empty, so results are never sent to a process.

    ``functools.lru_cache`` would hash all arguments at each call, and keep them alive.

    Args:
        most: Number of results that are kept at least, 1 or more; at most twice as many are.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._used: dict[Hashable, _T] = {}
        self._before: dict[Hashable, _T] = {}

    def get(self, key: Hashable, make: Callable[[], _T]) -> _T:
        """Returns the result that is kept under a key, or a new one."""
        return self.get_all([key], lambda _: [make()])[0]

    def get_all(self, keys: Sequence[Hashable], make: Callable[[Sequence[Any]], Iterable[_T]]) -> list[_T]:
        """Returns the results that are kept under keys, and new ones for the others, which are made at once."""
        used, before = self._used, self._before  # other threads may replace both attributes
        with contextlib.suppress(KeyError):
            return [used[key] for key in keys]
        found = {key: kept[key] for kept in (before, used) for key in keys if key in kept}
        missing = [key for key in dict.fromkeys(keys) if key not in found]
        found.update(zip(missing, make(missing) if missing else (), strict=True))

        used.update(found)
        if len(used) > self._most:
            self._before = used
            self._used = {}
        return [found[key] for key in keys]

    def __getstate__(self) -> int:
        return self._most

    def __setstate__(self, most: int) -> None:
        self._most = most
        self._used = {}
        self._before = {}

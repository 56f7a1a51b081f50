"""The key-value store of torch.distributed's default group: for what ranks tell each other without a collective."""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

from torch import distributed

__all__ = ["group_life", "group_store", "is_initialized", "within"]

_T = TypeVar("_T")
_lives: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
_inherited: weakref.ref[Any] | None = None  # the group of the process that this one was forked from


def is_initialized() -> bool:
    """Whether torch.distributed has a default group."""
    return distributed.is_available() and distributed.is_initialized()


def group_store() -> Any | None:
    """The store; None without a group, or if that is of the process that this one was forked from."""
    if not is_initialized() or (_inherited is not None and _inherited() is distributed.group.WORLD):
        return None
    return distributed.distributed_c10d._get_default_store()


def group_life(store: Any, rank: int) -> int:
    """A number that is another one whenever the group was made anew, on the same store or not: ranks that are started
    again find what they wrote before. The same for all ranks that were started equally often.

    Raises:
        Exception: whatever the store raises.
    """
    group = distributed.group.WORLD
    if group not in _lives:
        _lives[group] = store.add(f"feeder/life/{rank}", 1)
    return _lives[group]


def within(seconds: float, call: Callable[[], _T]) -> _T | None:
    """The call's result, or None if it fails or takes too long; then it is left behind in a thread of its own."""
    results: list[_T] = []

    def work() -> None:
        with contextlib.suppress(Exception):
            results.append(call())

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(seconds)
    return results[0] if results else None


def _forked() -> None:
    global _inherited
    if is_initialized():
        _inherited = weakref.ref(distributed.group.WORLD)


os.register_at_fork(after_in_child=_forked)

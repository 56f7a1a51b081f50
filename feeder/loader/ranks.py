"""The rank of this process and the world size; and the key-value store of torch.distributed's default group, by which
ranks exchange values without a collective."""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

from torch import distributed

_T = TypeVar("_T")
_lives: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
_inherited: weakref.ref[Any] | None = None  # the parent's group, in a forked process


def is_initialized() -> bool:
    """Returns True if torch.distributed has a default group."""
    return distributed.is_available() and distributed.is_initialized()


def current_ranks(given: tuple[int, int] | None) -> tuple[int, int]:
    """Returns (rank, world size): as given, else torch.distributed's, else torchrun's, else (0, 1)."""
    if given is not None:
        return given
    if is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def is_in_group(given: tuple[int, int] | None) -> bool:
    """Returns True if the ranks are those of a torch.distributed group of two or more."""
    return given is None and is_initialized() and distributed.get_world_size() > 1


def group_store() -> Any | None:
    """Returns the store; None without a group, or in a forked process, whose group is its parent's."""
    if not is_initialized() or (_inherited is not None and _inherited() is distributed.group.WORLD):
        return None
    return distributed.distributed_c10d._get_default_store()


def group_life(store: Any, rank: int) -> int:
    """Returns a number that changes whenever the group is made anew, also on the same store, where ranks that are
    restarted find what they wrote before. Ranks that were started equally often have the same number.

    Raises:
        Exception: any that the store raises.
    """
    group = distributed.group.WORLD
    if group not in _lives:
        _lives[group] = store.add(f"feeder/life/{rank}", 1)
    return _lives[group]


def within(seconds: float, call: Callable[[], _T]) -> _T | None:
    """Returns the call's result, or None if it fails or takes too long. A slow call goes on in a thread."""
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

"""Calls that wait for a store, made ahead of the items that are taken."""

from __future__ import annotations

import collections
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def ahead(
    call: Callable[[_Item], _Result], items: Iterable[_Item], most: int
) -> Generator[tuple[_Item, Future[_Result]], None, None]:
    """Yields items in their order, each with the result of a call with it.

    Args:
        call: The function, which is called in threads.
        items: The items.
        most: Number of calls that are made at once, and ahead.
    """
    waiting: collections.deque[tuple[_Item, Future[_Result]]] = collections.deque()
    pool = ThreadPoolExecutor(most, thread_name_prefix="feeder-ahead")
    try:
        for item in items:
            waiting.append((item, pool.submit(call, item)))
            if len(waiting) > most:
                yield waiting.popleft()
        yield from waiting
    finally:
        pool.shutdown(cancel_futures=True)

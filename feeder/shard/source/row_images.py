"""Images of a manifest's rows that lie in a store: they are looked up, many at once, and read when they are sharded."""

from __future__ import annotations

import collections
import posixpath
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from feeder.errors import NotFoundError
from feeder.shard.source.image_file import MAX_FILE_BYTES
from feeder.shard.store.store import Entry, Store

__all__ = ["looked_up"]

_REQUESTS = 32  # at once

_Row = TypeVar("_Row")


def looked_up(
    store: Store | None, rows: Iterable[tuple[int, _Row]], path_of: Callable[[int, _Row], str | None]
) -> Generator[tuple[int, _Row, Future[Entry] | None]]:
    """Yields the rows in their order, with the entries of their images in a store.

    Args:
        store: The store that paths are keys in; None where they are local paths.
        rows: Numbers and rows.
        path_of: Returns the path of a row's image; None if it has none.
    """
    waiting: collections.deque[tuple[int, _Row, Future[Entry] | None]] = collections.deque()
    pool = ThreadPoolExecutor(_REQUESTS, thread_name_prefix="feeder-images")
    try:
        for number, row in rows:
            found = None
            if store is not None and (path := path_of(number, row)) is not None:
                found = pool.submit(_entry, store, path)
            waiting.append((number, row, found))
            if len(waiting) > _REQUESTS:
                yield waiting.popleft()
        yield from waiting
    finally:
        pool.shutdown(cancel_futures=True)


def _entry(store: Store, path: str) -> Entry:
    entry = store.size(posixpath.normpath(path))
    if entry.size_bytes > MAX_FILE_BYTES:
        raise NotFoundError(f"{store.url.object(path)}: has more than {MAX_FILE_BYTES:,} bytes")
    return entry

"""Images of a manifest's rows that are not local files: in a store, or behind URLs.

Those in a store are looked up, and read when they are sharded. Those behind URLs are read at once: their size is not
known before, and they may be gone by then. A run that is started again does not read them again.
"""

from __future__ import annotations

import collections
import os
import posixpath
import urllib.parse
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import TypeAlias, TypeVar

from feeder.errors import NotFoundError, StoreError
from feeder.shard.source.image_file import MAX_FILE_BYTES, read_image
from feeder.shard.source.spool import KeptImage, KeptImages
from feeder.shard.source.web import WebReader, shown_url
from feeder.shard.store.store import Entry, Store
from feeder.shard.store.url import is_remote

__all__ = ["RowImage", "RowImages", "is_url"]

_REQUESTS = 32  # at once

_Row = TypeVar("_Row")
RowImage: TypeAlias = "bytes | KeptImage | Entry"


class RowImages:
    """Reads images ahead, many at once.

    Args:
        store: The store that paths are keys in; None where they are local paths.
        allow_private: URLs may lead to this machine and to private networks.
        kept: Images that an earlier run has read.
    """

    def __init__(self, store: Store | None, allow_private: bool, kept: KeptImages) -> None:
        self._store = store
        self._allow_private = allow_private
        self._kept = kept
        self._web: WebReader | None = None
        self._pool: ThreadPoolExecutor | None = None

    def __enter__(self) -> RowImages:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._web is not None:
            self._web.close()
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def ahead(
        self, rows: Iterable[tuple[int, _Row]], path_of: Callable[[_Row], str | None]
    ) -> Iterator[tuple[int, _Row, Future[RowImage] | None]]:
        """Yields the rows in their order, with those images that are not local files: the bytes of those behind URLs,
        and the entries of those in the store.

        Args:
            rows: Numbers and rows.
            path_of: Returns the path or URL of a row's image; None if it has none.
        """
        waiting: collections.deque[tuple[int, _Row, Future[RowImage] | None]] = collections.deque()
        for number, row in rows:
            waiting.append((number, row, self._started(number, path_of(row))))
            if len(waiting) > _REQUESTS:
                yield waiting.popleft()
        yield from waiting

    def _started(self, number: int, path: str | None) -> Future[RowImage] | None:
        if path is None or (self._store is None and not is_url(path)):
            return None
        if is_remote(path) and (kept := self._kept.find(number, path)) is not None:
            found = Future[RowImage]()
            found.set_result(kept)
            return found
        if self._pool is None:
            self._pool = ThreadPoolExecutor(_REQUESTS, thread_name_prefix="feeder-images")
            self._web = WebReader(allow_private=self._allow_private)
        return self._pool.submit(self._read, path)

    def _read(self, path: str) -> RowImage:
        if is_url(path):
            assert self._web is not None
            return self._web.get(path) if is_remote(path) else self._file(path)
        assert self._store is not None
        entry = self._store.size(posixpath.normpath(path))
        if entry.size_bytes > MAX_FILE_BYTES:
            raise NotFoundError(f"{self._store.url.object(path)}: has more than {MAX_FILE_BYTES:,} bytes")
        return entry

    def _file(self, url: str) -> bytes:
        parts = urllib.parse.urlsplit(url)
        if not self._allow_private:
            raise StoreError(
                f"{shown_url(url)}: a manifest's file: URLs are refused; write paths, or use --allow-private"
            )
        path = urllib.parse.unquote(parts.path)
        try:
            return read_image(path)
        except FileNotFoundError:
            raise NotFoundError(f"{path}: not found") from None
        except (OSError, ValueError) as error:
            raise StoreError(f"{os.fspath(path)}: {error}") from None


def is_url(path: str) -> bool:
    """Returns whether a path in a manifest is a URL."""
    return is_remote(path) or path[:5].lower() == "file:"

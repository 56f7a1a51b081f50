"""A copy of what the tools read of a shard set in a store: the index, the manifest, and shards one at a time."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from feeder.errors import ChangedError, FormatError, NotFoundError
from feeder.shard.format.index_file import INDEX_NAME
from feeder.shard.format.manifest import MANIFEST_NAME
from feeder.shard.format.open_index import open_index
from feeder.shard.format.set_index import SetIndex
from feeder.shard.store.store import Store, download, open_store
from feeder.shard.store.url import is_remote, local_path

__all__ = ["SetCopy"]

_REQUESTS = 16  # at once


class SetCopy:
    """A shard set as the tools read it: in its own folder, or a copy of one in a store.

    Args:
        path: The folder or index file to read.
        shown: The set's name in messages.
        store: Its store; None for a local set.
    """

    def __init__(self, path: str, shown: str, store: Store | None = None) -> None:
        self.path = path
        self.shown = shown
        self._store = store

    @classmethod
    @contextlib.contextmanager
    def of(cls, place: str) -> Iterator[SetCopy]:
        """Opens the set at a path or a URL.

        Args:
            place: The set's folder, or a local index file.

        Raises:
            FormatError: if there is none, or its index is damaged.
            StoreError: if the store can't be read.
        """
        if not is_remote(place):
            yield cls(local_path(place), place)
            return
        store = open_store(place)
        with tempfile.TemporaryDirectory(prefix="feeder-set-") as folder:
            copy = cls(folder, str(store.url), store)
            try:
                copy._fetch_index(store)
                yield copy
            except FormatError as error:
                raise FormatError(str(error).replace(folder, copy.shown)) from None

    @contextlib.contextmanager
    def shard(self, name: str) -> Iterator[None]:
        """Has a shard in the folder for the duration of the context, if the set is in a store."""
        if self._store is None:
            yield
            return
        path = os.path.join(self.path, name)
        try:
            with contextlib.suppress(NotFoundError, ChangedError):  # a missing shard is for the caller to name
                self._fetch(self._store, name)
            yield
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)

    def _fetch_index(self, store: Store) -> None:
        try:
            self._fetch(store, INDEX_NAME)
        except NotFoundError:
            raise FormatError(
                f"{store.url.object(INDEX_NAME)}: there is no index; expected the URL of a shard set, as `feeder "
                "shard` writes one"
            ) from None
        with contextlib.suppress(NotFoundError):  # sets of tars from elsewhere have none
            self._fetch(store, MANIFEST_NAME)
        index = open_index(os.path.join(self.path, INDEX_NAME))
        if isinstance(index, SetIndex):
            names = map(index.header.index_name, range(index.shard_count))
            with ThreadPoolExecutor(_REQUESTS) as pool:
                for _ in pool.map(lambda name: self._fetch(store, name), names):
                    pass

    def _fetch(self, store: Store, name: str) -> None:
        entry = store.size(name)  # refuses names that lead out of the set
        path = os.path.join(self.path, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        download(store, entry, path)

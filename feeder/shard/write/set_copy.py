"""A copy of what the tools need of a shard set in a store: the index, the manifest, and shards one at a time."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from feeder.errors import ChangedError, FormatError, NotFoundError
from feeder.shard.format.index_file import INDEX_NAME
from feeder.shard.format.manifest import MANIFEST_NAME
from feeder.shard.format.open_index import open_index
from feeder.shard.format.set_index import SetIndex
from feeder.shard.store.store import RANGE_BYTES, Store, download, open_store
from feeder.shard.store.url import Url, is_remote, local_path
from feeder.shard.write.store_lock import StoreLock
from feeder.system.files import exclusive_lock

__all__ = ["SetCopy"]

_REQUESTS = 16  # at once


class SetCopy:
    """A shard set as the tools read and change it: in its own folder, or a copy of one in a store.

    Args:
        path: The folder or index file to read.
        shown: The set's name in messages.
        store: Its store; None for a local set.
        lock: The lock on the store, for one that may be changed.
    """

    def __init__(self, path: str, shown: str, store: Store | None = None, lock: StoreLock | None = None) -> None:
        self.path = path
        self.shown = shown
        self._store, self._lock = store, lock

    @classmethod
    @contextlib.contextmanager
    def of(cls, place: str, *, whole: bool = False) -> Iterator[SetCopy]:
        """Opens the set at a path or a URL.

        Args:
            place: The set's folder, or a local index file.
            whole: True to have the optional groups of a remote set's indexes, too; see Note [Shard index].

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
            with copy._shown_in_errors():
                copy._fetch_index(store, whole)
                yield copy

    @classmethod
    @contextlib.contextmanager
    def locked(cls, place: str | Url) -> Iterator[SetCopy]:
        """Opens the folder at a path or a URL to change it; a copy of one in a store is empty at first.

        Args:
            place: The set's folder.

        Raises:
            LockedError: if another process is writing there.
            OSError: if a local folder can't be written.
            StoreError: if the store can't be read or written.
        """
        if isinstance(place, str) and not is_remote(place):
            folder = os.path.abspath(local_path(place))
            with exclusive_lock(os.path.join(folder, ".lock")):
                yield cls(folder, place)
            return
        store = open_store(place)
        with tempfile.TemporaryDirectory(prefix="feeder-set-") as folder, StoreLock.held(store) as lock:
            copy = cls(folder, str(store.url), store, lock)
            with copy._shown_in_errors():
                yield copy

    def fetch(self, name: str) -> bool:
        """Has a file in the folder, if the set has it; returns True then."""
        if self._store is not None:
            with contextlib.suppress(NotFoundError):
                self._fetch(self._store, name)
        return os.path.exists(os.path.join(self.path, name))

    @property
    def is_copy(self) -> bool:
        """True if the set is in a store."""
        return self._store is not None

    def remove(self, name: str) -> None:
        """Removes a file of the set, if it is there."""
        if self._store is not None:
            assert self._lock is not None
            self._lock.check()
            self._store.delete(name)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(self.path, name))

    def publish(self, *paths: str) -> None:
        """Puts files of the folder into the store, in this order; those of a local set are there already."""
        if self._store is not None:
            assert self._lock is not None
            for path in paths:
                self._lock.check()
                self._store.put(os.path.relpath(path, self.path), Path(path))

    @contextlib.contextmanager
    def shard(self, name: str, *, may_be_missing: bool = False) -> Iterator[None]:
        """Has a shard in the folder for the duration of the context, if the set is in a store.

        Args:
            name: The shard.
            may_be_missing: True if a missing shard is for the caller to name.
        """
        if self._store is None:
            yield
            return
        path = os.path.join(self.path, name)
        try:
            with contextlib.suppress(*((NotFoundError, ChangedError) if may_be_missing else ())):
                self._fetch(self._store, name)
            yield
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)

    @contextlib.contextmanager
    def _shown_in_errors(self) -> Iterator[None]:
        try:
            yield
        except FormatError as error:
            raise FormatError(str(error).replace(self.path, self.shown)) from None

    def _fetch_index(self, store: Store, whole: bool) -> None:
        if not self.fetch(INDEX_NAME):
            raise FormatError(
                f"{store.url.object(INDEX_NAME)}: there is no index; expected the URL of a shard set, as `feeder "
                "shard` writes one"
            )
        self.fetch(MANIFEST_NAME)  # sets of tars from elsewhere have none
        index = open_index(os.path.join(self.path, INDEX_NAME))
        if isinstance(index, SetIndex):
            header = index.header

            def fetch(shard: int) -> None:
                name = header.index_name(shard)
                if whole:
                    self._fetch(store, name)
                    return
                path = Path(self.path, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                with path.open("wb") as file:  # in ranges, as no more is known of its size than the header says
                    size_bytes = header.shard(shard).index_bytes
                    for start in range(0, size_bytes, RANGE_BYTES):
                        file.write(store.get(name, start, min(start + RANGE_BYTES, size_bytes)))

            with ThreadPoolExecutor(_REQUESTS) as pool:
                for _ in pool.map(fetch, range(index.shard_count)):
                    pass

    def _fetch(self, store: Store, name: str) -> None:
        entry = store.size(name)  # refuses names that lead out of the set
        path = os.path.join(self.path, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        download(store, entry, path)

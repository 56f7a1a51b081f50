"""The contents of a folder in a store that is no shard set: its objects, as one listing has found them."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Sequence
from typing import Any

from feeder.errors import NotFoundError, SourceError
from feeder.shard.cache.cached_file import Contents, entry_identity
from feeder.shard.cache.presence import IDENTITY_BYTES
from feeder.shard.store.store import Entry, Store

LISTING = "objects.json"  # in a mirror's folder: [[key, bytes, time of the last change in ns, identity], ...]
_LEAST_KEPT_S = 60.0  # in which the ranks of a job open the folder


class ListedContents:
    """The contents of a folder's objects; see :class:`feeder.shard.cache.set_contents.SetContents`.

    Args:
        store: The folder.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._objects: dict[str, tuple[Entry, bytes]] | None = None
        self._listing = Contents(0, b"")
        self._kept_until = 0.0

    def of(self, name: str) -> Contents:
        """Returns the contents of an object, or of the listing.

        Raises:
            SourceError: if the folder is empty, or there is no such bucket.
            StoreError: if the store can't be listed, or had no such object when it was.
        """
        with self._lock:
            if self._objects is None:
                self._objects = self._list()
            if name == LISTING:
                return self._listing
            found = self._objects.get(name)
        if found is None:
            raise NotFoundError(f"{self._store.url.object(name)}: there was no such object when the folder was listed")
        entry, identity = found
        return Contents(entry.size_bytes, identity, entry.etag)

    def signed(self, names: Sequence[str], most_bytes: int) -> dict[str, Any]:
        """Returns what is needed to ask the store itself for objects.

        Args:
            names: The objects.
            most_bytes: Most that the answer may take as JSON.

        Returns:
            "place": scheme and netloc of the store. "signed": path and query of a URL, size, ETag and identity of the
            first of them, one or more; none if the store is not asked so.

        Raises:
            StoreError: as :meth:`of` does.
        """
        place, rows, size_bytes = ("", ""), list[tuple[str, int, str, str]](), 0
        for name in names:
            contents, url = self.of(name), self._store.signed(name)
            if url is None:
                break
            scheme, _, rest = url.partition("://")
            netloc, slash, target = rest.partition("/")
            row = slash + target, contents.size_bytes, contents.etag, contents.identity.hex()
            size_bytes += len(json.dumps(row)) + 2
            if rows and size_bytes > most_bytes:
                break
            place = scheme, netloc
            rows.append(row)
        return {"place": place, "signed": rows}

    def forget(self) -> None:
        """Drops the listing, unless it is younger than a minute, or younger than the time that it took."""
        with self._lock:
            if time.monotonic() > self._kept_until:
                self._objects = None

    def replaced(self) -> list[str]:
        """See :meth:`SetContents.replaced`; objects are compared when they are needed."""
        return []

    def _list(self) -> dict[str, tuple[Entry, bytes]]:
        began = time.monotonic()
        try:
            entries = list(self._store.list())
        except NotFoundError as error:
            raise SourceError(str(error)) from None
        if not entries:
            raise SourceError(f"{self._store.url.object('')}: holds no object; check the bucket and the prefix")

        objects = {entry.key: (entry, entry_identity(entry)) for entry in entries}
        rows = [[key, one.size_bytes, one.modified_ns, name.hex()] for key, (one, name) in objects.items()]
        data = json.dumps(rows).encode()
        own = hashlib.sha256(data).digest()[:IDENTITY_BYTES]
        self._listing = Contents(len(data), own, fetch=lambda: data, is_kept=True)
        now = time.monotonic()
        self._kept_until = now + max(now - began, _LEAST_KEPT_S)
        return objects

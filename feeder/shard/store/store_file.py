"""An object of a store as a file."""

from __future__ import annotations

import io
import os
from typing import Any

from feeder.shard.store.store import Entry, Store

__all__ = ["open_object"]


def open_object(store: Store, entry: Entry, request_bytes: int) -> io.BufferedReader:
    """Opens an object for reading.

    Args:
        store: Its store.
        entry: Its entry.
        request_bytes: Bytes that are asked for at a time; what lies within the last ones costs no request.
    """
    return io.BufferedReader(_StoreFile(store, entry), request_bytes)


class _StoreFile(io.RawIOBase):
    def __init__(self, store: Store, entry: Entry) -> None:
        self._store = store
        self._entry = entry
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._entry.size_bytes}[whence]
        self._position = base + offset
        return self._position

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        end = min(self._position + len(view), self._entry.size_bytes)
        if end <= self._position:
            return 0
        entry = self._entry
        data = self._store.get(entry.key, self._position, end, entry.etag, size_bytes=entry.size_bytes)
        view[: len(data)] = data
        self._position = end
        return len(data)

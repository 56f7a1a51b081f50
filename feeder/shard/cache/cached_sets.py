"""The sets in a cache folder: their sizes, and evicting what was used longest ago."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from typing import NamedTuple

from feeder.errors import ArgumentError
from feeder.shard.cache.cache_folder import CacheFolder
from feeder.shard.cache.link import lock_mirror
from feeder.shard.cache.places import MARK
from feeder.shard.cache.presence import Record, record_path
from feeder.system.files import default_cache


class CachedSet(NamedTuple):
    """A set in a cache.

    Attributes:
        url: Its URL.
        folder: The folder that mirrors it.
        size_bytes: Bytes of it that are present.
        is_used: True while somebody reads it.
        used_ns: Time at which a job began or ended to read it last, ns since 1970.
    """

    url: str
    folder: str
    size_bytes: int
    is_used: bool
    used_ns: int


def cached_sets(cache_dir: str) -> list[CachedSet]:
    """Returns the sets in a cache, the one used longest ago first.

    Raises:
        ArgumentError: if there is no such folder, and it is not the one that a machine's first remote set makes.
    """
    if not os.path.isdir(cache_dir):
        if cache_dir == default_cache():
            return []
        raise ArgumentError(f"{cache_dir}: there is no such cache folder")
    found = []
    for entry in os.scandir(cache_dir):
        try:
            with open(os.path.join(entry.path, MARK), "rb") as file:
                url = str(json.load(file)["url"])
                used_ns = os.fstat(file.fileno()).st_mtime_ns
        except (OSError, ValueError, KeyError):
            continue
        lock = lock_mirror(entry.path)
        if lock is not None:
            os.close(lock)
        found.append(CachedSet(url, entry.path, _size(entry.path), lock is None, used_ns))
    return sorted(found, key=lambda each: each.used_ns)


def _size(folder: str) -> int:
    """Returns the bytes of a mirror that are present. A fetcher may be at work there, so nothing is changed."""
    size = 0
    for place, _, names in os.walk(record_path(folder, "")):
        for name in names:
            with contextlib.suppress(OSError, ValueError):  # one that is being made, or has just been evicted
                size += Record(os.path.join(place, name)).present_bytes()
    return size


def trim(cache_dir: str, size_bytes: int) -> int:
    """Evicts shards that were used longest ago until a cache has at most this size.

    Sets in use stay as they are. Sets that were used within the last minute stay, too, as their fetchers still run.

    Args:
        cache_dir: The cache.
        size_bytes: The size; 0 also evicts the indexes.

    Returns:
        The bytes that came free.
    """
    sets = cached_sets(cache_dir)
    over = sum(each.size_bytes for each in sets) - size_bytes
    freed = 0

    for each in sets:
        if freed >= over and size_bytes:
            continue

        lock = lock_mirror(each.folder)
        if lock is None:
            continue
        try:
            if not size_bytes:
                shutil.rmtree(each.folder)
                freed += each.size_bytes
            else:
                freed += CacheFolder(each.folder).evict(over - freed, pinned=True)
        finally:
            os.close(lock)
    return freed

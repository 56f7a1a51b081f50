"""The names of samples, one after another, for a search."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from feeder.shard.format.set_index import SetIndex

__all__ = ["names_of"]

_AT_ONCE = 4096  # a tenth of the time that one by one take


def names_of(reader: Any, first: int, end: int, lock: AbstractContextManager[Any]) -> Iterator[tuple[int, str, str]]:
    """Yields id, key and path of samples; a name that is not known is empty.

    Args:
        reader: Reads the set.
        first: Id of the first sample.
        end: That after the last one's.
        lock: Is held while the set is read.
    """
    index = getattr(reader, "index", None)
    if not isinstance(index, SetIndex):
        for i in range(first, end):
            with lock:
                key, path = reader.field(i, "key") or "", reader.field(i, "path") or ""
            yield i, key, path
        return
    while first < end:
        shard = int(index.shards_of(np.array([first]))[0])
        start, stop = index.header.sample_range(shard)
        here = range(first, min(first + _AT_ONCE, stop, end))
        rows = range(here.start - start, here.stop - start)
        with lock:
            own = index.shard_index(shard)
            keys, paths = own.texts("keys", rows), own.texts("paths", rows)
        for i, key, path in zip(here, keys, paths, strict=True):
            yield i, key.decode("utf-8", "surrogateescape"), os.fsdecode(path)
        first = here.stop

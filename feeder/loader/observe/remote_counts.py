"""Counts of what remote sets cost: bytes from the store, hits in the cache, waits, and faults that were survived."""

from __future__ import annotations

import collections
from typing import Any

from feeder.dataset.subset import readers_of

# Those that only grow, with a description of each.
REMOTE_COUNTS = {
    "bytes": "Bytes that came from the store",
    "requests": "Ranges that were asked of the store",
    "hits": "Ranges of bytes that were in the cache when they were needed",
    "waits": "Reads that waited for the store",
    "waited_ns": "Time of these waits, ns",
    "retries": "Requests that were repeated",
    "hedges": "Further requests for ranges that were slow",
    "hedged_bytes": "Bytes that came a second time by them",
    "wrong": "Blocks that came with wrong bytes, and were fetched again",
}


def remote_counts(dataset: Any) -> dict[str, int] | None:
    """Returns the counts of a dataset's remote sets since their fetchers were started, for all ranks and jobs on this
    machine together: :data:`REMOTE_COUNTS`, and the present ``cached_bytes`` and ``budget_bytes``. None for a dataset
    without a remote set."""
    found = [getattr(reader, "mirror", None) for reader in readers_of(dataset)]
    mirrors = {id(mirror): mirror for mirror in found if mirror is not None}
    if not mirrors:
        return None
    total = collections.Counter(dict.fromkeys((*REMOTE_COUNTS, "cached_bytes", "budget_bytes"), 0))
    for mirror in mirrors.values():
        total.update(mirror.counts())
    return dict(total)

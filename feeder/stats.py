"""What each stage took, and which one is the bottleneck."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["verdict"]

# Below this share of the time the caller hardly notices that it waits.
_NOTICEABLE = 0.05


def verdict(counts: Mapping[str, int], meters: Mapping[str, int], workers: int) -> dict[str, Any]:
    """Says what holds the training loop up.

    Args:
        counts: elapsed_ns (from asking for the first batch to getting the last one) and waited_ns (of that, how long
            the caller was kept waiting).
        meters: busy_ns, read_ns and decode_ns, summed over all workers.
        workers: How many worker processes there are; 0: the caller does their work itself.

    Returns:
        waited_share and busy_share (of the workers' time), 0-1; bottleneck: "trainer", "decode", "read" or "workers"
        (they are idle and the caller waits: too few batches are made ahead), or None before the first batch.
    """
    elapsed = counts.get("elapsed_ns", 0)
    if not elapsed:
        return {"waited_share": 0.0, "busy_share": 0.0, "bottleneck": None}
    busy_ns = meters.get("busy_ns", 0)
    waited_ns = counts.get("waited_ns", 0) if workers else busy_ns
    waited, busy = min(1.0, waited_ns / elapsed), min(1.0, busy_ns / (elapsed * max(1, workers)))
    if waited < _NOTICEABLE:
        bottleneck = "trainer"
    elif workers and busy < 0.5:
        bottleneck = "workers"
    else:
        bottleneck = "read" if meters.get("read_ns", 0) > meters.get("decode_ns", 0) else "decode"
    return {"waited_share": waited, "busy_share": busy, "bottleneck": bottleneck}

"""Memory that can be taken now."""

from __future__ import annotations

from feeder.system.cores import memory_limit

__all__ = ["available_bytes"]


def available_bytes() -> int:
    """Memory that can be taken now: the system's, or the container's limit if that is lower."""
    available = 1 << 62
    with open("/proc/meminfo") as file:
        for line in file:
            if line.startswith("MemAvailable:"):
                available = int(line.split()[1]) << 10
    limit = memory_limit()
    if limit is not None:
        available = min(available, limit.available_bytes)
    return available

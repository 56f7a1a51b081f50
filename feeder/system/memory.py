"""Memory that is available now."""

from __future__ import annotations

import contextlib
import mmap
import os

from feeder.system.cores import memory_limit

__all__ = ["available_bytes"]


def available_bytes() -> int:
    """Returns the memory available now: the system's, or what the container's limit leaves if that is less."""
    available = os.sysconf("SC_AVPHYS_PAGES") * mmap.PAGESIZE  # without the page cache, that /proc counts
    with contextlib.suppress(OSError), open("/proc/meminfo") as file:
        for line in file:
            if line.startswith("MemAvailable:"):
                available = int(line.split()[1]) << 10
    limit = memory_limit()
    if limit is not None:
        available = min(available, limit.available_bytes)
    return available

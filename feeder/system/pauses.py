"""The pauses between attempts at what may succeed later."""

from __future__ import annotations

from collections.abc import Iterator


def pauses(first_s: float, longest_s: float) -> Iterator[float]:
    """Yields pauses in seconds without an end, each twice as long as the one before, up to the longest."""
    while True:
        yield first_s
        first_s = min(longest_s, 2 * first_s)

"""Parts of a batch: the units of work that workers get."""

from __future__ import annotations

import itertools

__all__ = ["HELD_BATCHES", "part_rows"]

# Batches that a training loop holds at a time: the one in use, and the one before it until the name is bound anew.
HELD_BATCHES = 2
_LARGEST_PART = 64
_SMALLEST_PART = 4


def part_rows(rows: int, workers: int) -> list[tuple[int, int]]:
    """Splits a batch into parts as (first row, number of rows): one for each worker or more, none of them large.

    A part costs a worker about 0.2 ms besides decoding, and the trainer about 0.1 ms.
    """
    largest = min(_LARGEST_PART, max(_SMALLEST_PART, -(-rows // workers)))
    count = -(-rows // largest)
    edges = [rows * k // count for k in range(count + 1)]
    return [(a, b - a) for a, b in itertools.pairwise(edges)]

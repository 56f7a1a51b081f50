"""Sizes of the parts of batches, by the work in them, and the number of batches made ahead that they need.

Note [Parts by work]
    A part costs its worker about 0.1 ms beside its samples, and the trainer about 0.01 ms, so parts of cheap samples
    are larger than a worker's share of the batch: the batches made ahead have work for the others. They are never so
    large that workers wait for slots: there are two for each worker in the batches made ahead. The first batches are
    split evenly, one part for each worker or more; what a sample takes is known from them. The samples and pixels of a
    batch do not depend on its parts.
    Parts that are sent cost about as much again, so servers of an input service get large ones, but so many that there
    are two for each of their cores. None is larger than what servers have memory for.
"""

from __future__ import annotations

import itertools

from feeder.loader.slots.image_slots import Layout

_LARGEST_PART = 64
_SMALLEST_SENT = 16
_SENT_BYTES = 32 << 20  # the most of one part; see feeder.service.part_memory.PART_BYTES
_SMALLEST_PART = 4
_LEAST_NS = 2_000_000
_PARTS_AHEAD = 2  # for each worker
AHEAD_BYTES = 1 << 30


def part_rows(rows: int, workers: int) -> list[tuple[int, int]]:
    """Splits a batch into parts as (first row, number of rows): one for each worker or more, none of them large."""
    return _split(rows, _even(rows, workers))


def enough_ahead(layout: Layout, workers: int, parts: int, most: int) -> int:
    """Returns the number of batches made ahead that keep workers busy, or more while they take little memory.

    Args:
        layout: The layout of a batch's slot.
        workers: Number of workers.
        parts: Number of parts of a batch.
        most: Largest number of batches.
    """
    needed = -(-_PARTS_AHEAD * workers // parts) + 1
    return min(most, max(needed, AHEAD_BYTES // layout.slot_bytes))


def sent_part_rows(rows: int, workers: int, cores: int, ahead: int, row_bytes: int) -> list[tuple[int, int]]:
    """Splits a batch that servers make, too, as :func:`part_rows` does.

    Args:
        rows: Number of its rows.
        workers: Number of local workers.
        cores: Number of the servers' cores, as far as they are known.
        ahead: Number of batches made ahead.
        row_bytes: Bytes of a row.
    """
    in_flight = rows * max(1, ahead - 1) // (_PARTS_AHEAD * max(1, workers + cores))
    return _split(rows, min(max(_SMALLEST_SENT, in_flight), _largest_sent(rows, workers, row_bytes)))


def most_sent_parts(rows: int, workers: int, row_bytes: int) -> int:
    """Returns the largest number of parts that :func:`sent_part_rows` makes of a batch."""
    return len(_split(rows, min(_SMALLEST_SENT, _largest_sent(rows, workers, row_bytes))))


def _largest_sent(rows: int, workers: int, row_bytes: int) -> int:
    return min(_even(rows, max(1, workers)), max(1, _SENT_BYTES // max(1, row_bytes)))


class PartSizes:
    """The sizes of the parts of one loader's batches; see Note [Parts by work].

    Args:
        workers: Number of workers.
    """

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._batches = self._parts = self._rows = 0
        self._sample_ns = 0.0

    @property
    def is_due(self) -> bool:
        """True if it is time for :meth:`learn`: again and again, but ever more seldom."""
        return self._batches > 0 and self._batches & (self._batches - 1) == 0

    def learn(self, parts: int, busy_ns: int) -> None:
        """Learns what a sample takes.

        Args:
            parts: Number of parts that workers have made so far.
            busy_ns: Time that these took, nanoseconds.
        """
        if parts:
            self._sample_ns = max(1.0, busy_ns * self._parts / (parts * self._rows))

    def next(self, rows: int, ahead: int) -> list[tuple[int, int]]:
        """Returns (first row, number of rows) of the parts of the next batch.

        Args:
            rows: Number of its rows.
            ahead: Number of batches made ahead.
        """
        parts = _split(rows, self._size(rows, ahead))
        self._batches += 1
        self._parts += len(parts)
        self._rows += rows
        return parts

    def _size(self, rows: int, ahead: int) -> int:
        even = _even(rows, self._workers)
        if not self._sample_ns:
            return even
        in_flight = rows * (ahead - 1) // (_PARTS_AHEAD * self._workers)
        return min(_LARGEST_PART, max(even, min(in_flight, -int(-_LEAST_NS // self._sample_ns))))


def _even(rows: int, workers: int) -> int:
    return min(_LARGEST_PART, max(_SMALLEST_PART, -(-rows // workers)))


def _split(rows: int, largest: int) -> list[tuple[int, int]]:
    count = -(-rows // largest)
    edges = [rows * k // count for k in range(count + 1)]
    return [(a, b - a) for a, b in itertools.pairwise(edges)]

"""Claims of a relay on the task board, where local workers come first."""

from __future__ import annotations

import contextlib
import os
import time

from feeder.loader.fast.task_board import Board, Part

__all__ = ["Claims"]

_LOCAL_FIRST_S = 0.02  # that idle local workers get to take a part


class Claims:
    """Takes parts off the board that local workers do not take.

    Args:
        board: The task board.
        local_workers: Number of the workers that make parts here; 0 takes any part.
    """

    def __init__(self, board: Board, local_workers: int) -> None:
        self._board = board
        self._local_workers = local_workers
        self._seen = (-1, 0.0)  # the oldest part that waits, and since when

    def take(self, row: int) -> Part | None:
        """Claims a part by a row, and takes the count that would wake a local worker for it; None if there is none."""
        if self._are_left_to_local_workers():
            return None
        part = self._board.claim(row, fresh_only=self._local_workers > 0)
        with contextlib.suppress(BlockingIOError):
            if part is not None or not self._board.pending():
                os.eventfd_read(self._board.event)
                if part is None and self._board.pending():  # published meanwhile
                    os.eventfd_write(self._board.event, 1)
        return part

    def free_workers(self) -> int:
        """Returns the number of the local workers that would make another part now."""
        return self._board.idle(self._local_workers) - self._board.fresh()[1]

    def _are_left_to_local_workers(self) -> bool:
        """Returns True if idle local workers are about to take all parts that wait."""
        if not self._local_workers:
            return False
        first, waiting = self._board.fresh()
        if waiting > self._board.idle(self._local_workers):
            return False
        now = time.monotonic()
        if self._seen[0] != first:
            self._seen = first, now
        return waiting > 0 and now - self._seen[1] < _LOCAL_FIRST_S

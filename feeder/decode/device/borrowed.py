"""Memory that is not torch's and that kernels on a GPU still read: kept until they have."""

from __future__ import annotations

import weakref
from collections import deque
from typing import Any, NamedTuple, Protocol

__all__ = ["Borrowed", "Event"]


class Event(Protocol):
    """What is used of a CUDA event."""

    def query(self) -> bool:
        """Whether it has come."""
        ...

    def synchronize(self) -> None:
        """Waits for it."""


class _Held(NamedTuple):
    owner: Any
    size_bytes: int
    event: Event


class Borrowed:
    """What is held, each with the event after its last reader.

    It has to be held rather than forgotten: its owner takes no notice of torch's streams, and would use it again.
    """

    def __init__(self) -> None:
        self._held: deque[_Held] = deque()
        weakref.finalize(self, _wait_for_all, self._held)  # where nobody closes, and at the interpreter's end

    @property
    def size_bytes(self) -> int:
        """Of all that is held; what need not be is let go first. Waits for nothing."""
        self._let_go()
        return sum(held.size_bytes for held in self._held)

    def hold(self, owner: Any, size_bytes: int, event: Event) -> None:
        """Keeps an owner alive until an event has come; those whose events have are let go. Waits for nothing.

        Args:
            owner: Whose end gives the memory back.
            size_bytes: Of the memory.
            event: Recorded after the last reader.
        """
        self._let_go()
        self._held.append(_Held(owner, size_bytes, event))

    def wait(self, most_bytes: int) -> None:
        """Waits until no more than so many bytes are held."""
        while self.size_bytes > max(0, most_bytes):
            self._held[0].event.synchronize()

    def wait_for_all(self) -> None:
        """Waits until nothing is held."""
        _wait_for_all(self._held)

    def _let_go(self) -> None:
        while self._held and self._held[0].event.query():
            self._held.popleft()


def _wait_for_all(held: deque[_Held]) -> None:
    while held:
        held[0].event.synchronize()
        held.popleft()

"""Foreign memory that kernels on a GPU still read: kept until they have read it."""

from __future__ import annotations

import weakref
from collections import deque
from typing import Any, NamedTuple, Protocol

__all__ = ["Borrowed", "Event"]


class Event(Protocol):
    """The part of a CUDA event's interface used here."""

    def query(self) -> bool:
        """Returns whether the event has occurred."""
        ...

    def synchronize(self) -> None:
        """Waits for the event."""


class _Held(NamedTuple):
    owner: Any
    size_bytes: int
    event: Event


class Borrowed:
    """Owners of memory, each held until the event after its last reader.

    They must be held: they know nothing of torch's streams, and would use the memory again.
    """

    def __init__(self) -> None:
        self._held: deque[_Held] = deque()
        weakref.finalize(self, _wait_for_all, self._held)  # if nobody closes, and at the interpreter's end

    @property
    def size_bytes(self) -> int:
        """Size of the memory held, after releasing what is no longer in use. Does not wait."""
        self._release()
        return sum(held.size_bytes for held in self._held)

    def hold(self, owner: Any, size_bytes: int, event: Event) -> None:
        """Keeps an owner alive until an event has occurred, and releases the owners whose event has. Does not wait.

        Args:
            owner: The object whose end frees the memory.
            size_bytes: Size of the memory.
            event: Recorded after the last reader.
        """
        self._release()
        self._held.append(_Held(owner, size_bytes, event))

    def wait(self, most_bytes: int) -> None:
        """Waits until at most ``most_bytes`` are held."""
        while self.size_bytes > max(0, most_bytes):
            self._held[0].event.synchronize()

    def wait_for_all(self) -> None:
        """Waits until nothing is held."""
        _wait_for_all(self._held)

    def _release(self) -> None:
        while self._held and self._held[0].event.query():
            self._held.popleft()


def _wait_for_all(held: deque[_Held]) -> None:
    while held:
        held[0].event.synchronize()
        held.popleft()

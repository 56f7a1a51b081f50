"""Borrowed memory is kept until its readers are done, and no longer."""

from __future__ import annotations

import weakref

import pytest

from feeder.decoders.dali.queue import Borrowed


class Owner:
    pass


class Event:
    """An event that comes when it is told to, or when it is waited for; until then its memory is being read."""

    def __init__(self, alive: weakref.ref[Owner] | None = None) -> None:
        self.come = self.waited_for = False
        self._alive = alive

    def query(self) -> bool:
        return self.come

    def synchronize(self) -> None:
        assert self._alive is None or self._alive() is not None
        self.come = self.waited_for = True


def test_what_is_held_lives_until_its_event_has_come() -> None:
    borrowed, events = Borrowed(), [Event() for _ in range(3)]
    owners = [Owner() for _ in events]
    alive = [weakref.ref(owner) for owner in owners]
    for owner, event, size in zip(owners, events, (5, 7, 11), strict=True):
        borrowed.hold(owner, size, event)
    del owner, owners
    assert borrowed.size_bytes == 23
    events[0].come = True
    assert borrowed.size_bytes == 18
    assert [each() is not None for each in alive] == [False, True, True]
    events[1].come = True
    borrowed.hold(Owner(), 1, Event())  # nobody need ask for the size
    assert [each() is not None for each in alive] == [False, False, True]
    assert not any(event.waited_for for event in events)


def test_a_wait_is_for_as_many_as_are_needed() -> None:
    borrowed, events = Borrowed(), [Event() for _ in range(3)]
    for event in events:
        borrowed.hold(Owner(), 10, event)
    borrowed.wait(30)
    assert [event.waited_for for event in events] == [False, False, False]
    borrowed.wait(12)
    assert [event.waited_for for event in events] == [True, True, False]
    borrowed.wait(-1)  # more is wanted than may be held at all
    assert borrowed.size_bytes == 0
    borrowed.wait(0)


@pytest.mark.parametrize("size_bytes", [0, 10])
def test_owners_live_until_a_wait_is_over(size_bytes: int) -> None:
    borrowed = Borrowed()
    alive, events = [], []
    for _ in range(4):
        owner = Owner()
        alive.append(weakref.ref(owner))
        events.append(Event(alive[-1]))
        borrowed.hold(owner, size_bytes, events[-1])
    del owner
    borrowed.wait(25)
    assert [event.waited_for for event in events] == [size_bytes > 0] * 2 + [False] * 2
    borrowed.wait_for_all()
    assert [event.waited_for for event in events] == [True] * 4
    assert [each() for each in alive] == [None] * 4


def test_who_is_let_go_waits_too() -> None:
    """A loader that nobody closes must not give memory back that is still read."""
    borrowed, owner = Borrowed(), Owner()
    alive = weakref.ref(owner)
    event = Event(alive)
    borrowed.hold(owner, 10, event)
    del owner, borrowed
    assert event.waited_for
    assert alive() is None

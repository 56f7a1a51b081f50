"""A relay claims what local workers do not get to."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from feeder.loader.fast import relay
from feeder.loader.fast.relay import Claims
from feeder.loader.fast.task_board import Board, Part
from tests.support.clock import Clock

WORKERS, RELAY = 2, 2  # local workers, and the relay's row


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(relay, "time", made)
    return made


@pytest.fixture
def board() -> Iterator[Board]:
    """A board with two local workers, which have started."""
    made = Board(8, WORKERS + 1)
    for worker in range(WORKERS):
        made.heartbeat(worker)
    yield made
    made.close()


def parts(*numbers: int) -> list[Part]:
    return [Part(number, 0, 0, 4, 0) for number in numbers]


def taken(claims: Claims, board: Board) -> int | None:
    """The number of the part that the relay claims; its row is free again."""
    part = claims.take(RELAY)
    board.finish(RELAY)
    return None if part is None else part.number


def test_parts_that_idle_local_workers_can_take_are_left_to_them(board: Board, clock: Clock) -> None:
    claims = Claims(board, WORKERS)
    board.publish(parts(0, 1))
    assert taken(claims, board) is None
    assert board.claim(0) is not None
    assert taken(claims, board) is None  # the other worker is about to take it
    assert board.claim(1) is not None
    board.publish(parts(2))
    assert taken(claims, board) == 2


def test_parts_that_are_more_than_idle_local_workers_are_claimed(board: Board, clock: Clock) -> None:
    claims = Claims(board, WORKERS)
    board.publish(parts(0, 1, 2))
    assert taken(claims, board) == 0
    assert taken(claims, board) is None


def test_a_part_that_idle_local_workers_have_left_for_a_while_is_claimed(board: Board, clock: Clock) -> None:
    """They may be stopped, or have no core."""
    claims = Claims(board, WORKERS)
    board.publish(parts(0, 1))
    assert taken(claims, board) is None
    clock.now += 0.1
    assert taken(claims, board) == 0
    assert taken(claims, board) is None  # of the next part they have a while again
    clock.now += 0.1
    assert taken(claims, board) == 1


def test_local_workers_that_have_not_started_are_not_waited_for(board: Board, clock: Clock) -> None:
    board.forget(0)
    board.forget(1)
    claims = Claims(board, WORKERS)
    board.publish(parts(0))
    assert taken(claims, board) == 0


def test_without_local_workers_all_parts_are_claimed_and_those_that_were_handed_back_first(
    board: Board, clock: Clock
) -> None:
    claims = Claims(board, 0)
    board.publish(parts(0, 1))
    board.again(parts(2))
    assert [taken(claims, board) for _ in range(4)] == [2, 0, 1, None]


def test_a_part_that_was_handed_back_is_left_to_local_workers(board: Board, clock: Clock) -> None:
    claims = Claims(board, WORKERS)
    for worker in range(WORKERS):
        board.publish(parts(worker))
        assert board.claim(worker) is not None
    board.again(parts(2))
    board.publish(parts(3))
    assert [taken(claims, board) for _ in range(2)] == [3, None]
    board.finish(0)
    again = board.claim(0)
    assert again is not None
    assert again.number == 2


def test_workers_that_would_make_another_part_are_those_that_are_idle_less_the_parts_that_wait(board: Board) -> None:
    claims = Claims(board, WORKERS)
    assert claims.free_workers() == 2
    board.publish(parts(0))
    assert claims.free_workers() == 1
    assert board.claim(0) is not None
    assert claims.free_workers() == 1
    board.publish(parts(1))
    assert claims.free_workers() == 0

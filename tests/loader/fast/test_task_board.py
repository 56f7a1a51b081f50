from __future__ import annotations

import os
import select
import signal
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from feeder.loader.fast.fast_worker import make_part
from feeder.loader.fast.part_report import PartReport
from feeder.loader.fast.sample_maker import Work
from feeder.loader.fast.task_board import Board, Part
from feeder.loader.observe.meter import part_sums
from feeder.loader.slots.image_slots import Samples, SlotView
from feeder.loader.workers.channel import Channel, pair


def _parts(*numbers: int) -> list[Part]:
    return [Part(n, n % 3, 10 * n, n + 1, 5) for n in numbers]


@pytest.mark.parametrize("is_last", [0, 1])
def test_the_last_part_of_a_batch_wakes_the_trainer_and_no_other(is_last: int) -> None:
    board = Board(8, 1)
    board.publish([Part(0, 0, 0, 4, 0, is_last)])
    part = board.claim(0)
    assert part is not None
    view = SlotView(Samples.of(*np.zeros((2, 4), np.int64)), np.zeros(4, np.int64), (np.zeros((4, 1), np.uint8),))
    mine, theirs = pair()
    with mine, theirs:
        make_part(
            Channel(theirs),
            board,
            0,
            part,
            view,
            cast(Work, SimpleNamespace(run=lambda *_: PartReport(), meter=board.meter(0))),
        )
        assert mine.recv(100)
    poll = select.poll()
    poll.register(board.sent, select.POLLIN)
    assert len(poll.poll(0)) == is_last


def test_parts_are_claimed_in_order_and_once() -> None:
    board = Board(8, 2)
    board.publish(_parts(0, 1, 2))
    assert board.unclaimed()
    assert [board.claim(0), board.claim(1), board.claim(0), board.claim(1)] == [*_parts(0, 1, 2), None]
    assert not board.unclaimed()


def test_the_queue_wraps_around() -> None:
    board = Board(4, 1)
    for n in range(20):
        board.publish(_parts(n))
        assert board.claim(0) == _parts(n)[0]


def test_parts_done_again_go_first() -> None:
    board = Board(8, 1)
    board.publish(_parts(0, 1))
    assert board.claim(0) == _parts(0)[0]
    board.again(_parts(0))
    assert board.claim(0) == _parts(0)[0]
    assert board.claim(0) == _parts(1)[0]


def test_the_board_says_who_has_what_in_hand() -> None:
    board = Board(8, 2)
    board.publish(_parts(0, 1))
    board.claim(1)
    assert board.claimed(0) is None
    assert board.claimed(1) == 0
    for _ in range(2):
        meter = board.meter(1)
        meter.add("read", 1, 4)
        meter.add("draw", 2)
        meter.add_part(3)
    assert board.claimed(1) == 0
    board.finish(1)
    assert board.claimed(1) is None
    sums = {"parts": 2, "read_ns": 2, "decode_ns": 4, "busy_ns": 6, "encoded_bytes": 8}
    assert part_sums(board.stages) == sums


def test_killed_before_the_head_moved_the_part_is_still_on_the_board() -> None:
    board = Board(8, 2)
    board.publish(_parts(0))
    board._workers[0, 0] = 0  # what claim() writes first
    assert board.claimed(0) is None
    assert board.claim(1) == _parts(0)[0]


def test_cancelled_parts_are_gone() -> None:
    board = Board(8, 1)
    board.publish(_parts(0, 1, 2))
    board.claim(0)
    board.again(_parts(0))
    assert board.unclaimed() == 3
    board.cancel()
    assert board.unclaimed() == 0
    assert board.claim(0) is None
    board.publish(_parts(3))
    assert board.claim(0) == _parts(3)[0]


def test_a_process_killed_while_it_holds_the_lock_leaves_it_free() -> None:
    board = Board(8, 2)
    board.publish(_parts(0, 1))
    child = os.fork()
    if child == 0:
        lock = board._locked()
        lock.__enter__()
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    assert board.claim(1) == _parts(0)[0]


def test_many_processes_claim_each_part_once() -> None:
    board = Board(512, 4)
    board.publish(_parts(*range(500)))
    read, write = os.pipe()
    children = []
    for worker in range(4):
        child = os.fork()
        if child == 0:
            while (part := board.claim(worker)) is not None:
                os.write(write, part.number.to_bytes(4, "little"))
            os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)
    os.close(write)
    with os.fdopen(read, "rb") as file:
        data = file.read()
    numbers = [int.from_bytes(data[k : k + 4], "little") for k in range(0, len(data), 4)]
    assert sorted(numbers) == list(range(500))

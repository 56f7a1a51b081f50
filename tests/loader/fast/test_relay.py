"""A relay sends its heartbeats in time, and hands back parts that are unanswered for too long, by the test's clock."""

from __future__ import annotations

import json
import select
import socket
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import feeder
from feeder import transforms as T
from feeder.loader.fast import relay, server_link, servers
from feeder.loader.fast.relay import Relay, answer_limit_s
from feeder.loader.fast.sample_maker import Work
from feeder.loader.fast.task_board import Board, Part
from feeder.loader.service_options import ServiceOptions
from feeder.loader.workers.channel import Channel
from feeder.service.frames import CLIENT_LIMITS, Kind, Receiver, pack_frame
from tests.support.clock import Clock
from tests.support.fake_server import FakeServer
from tests.support.loader_data import write_shards
from tests.support.processes import wait_until

WORKER, ROWS = 0, (1, 2, 3)
HEARTBEAT_S = 0.25
END_S = 1100.0


@pytest.mark.parametrize(
    ("usual_s", "is_worker_free", "limit_s"),
    [
        (0.1, True, 0.3),
        (0.1, False, 0.3),
        (0.4, True, 1.0),
        (0.4, False, 1.2),
        (5.0, True, 1.0),
        (5.0, False, 6.0),
        (0.001, True, 0.05),
        (0.0, True, 1.0),
        (0.0, False, 1.0),
    ],
)
def test_a_part_is_late_after_three_times_the_usual_time_at_most_a_second(
    usual_s: float, is_worker_free: bool, limit_s: float
) -> None:
    assert answer_limit_s(usual_s, is_worker_free=is_worker_free) == pytest.approx(limit_s)


class Connected(socket.socket):
    """A socket of a pair, in place of one that connects by TCP."""

    def connect_ex(self, address: Any) -> int:
        return 0

    def setsockopt(self, *options: Any) -> None:
        pass


class Surroundings:
    """The clock of a relay, its trainer, and a server with one core that answers when it is told to.

    Args:
        folder: A folder for the set and the service's file.
        monkeypatch: Puts the clock in place.
        is_worker_idle: False gives the local worker a part for ever.

    Attributes:
        heartbeats: Times at which heartbeats came.
        asked: Number and time of each part that the server was asked for.
        returned: Time at which each part was handed back.
        has_answered: True once the server has answered a part.
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, *, is_worker_idle: bool = True) -> None:
        self.clock = Clock()
        self.heartbeats: list[float] = []
        self.asked: list[tuple[int, float]] = []
        self.returned: list[float] = []
        self.has_answered = False
        write_shards(folder / "set", 8, jpegs=True)
        dataset = feeder.ShardDataset(folder / "set", transform=T.Compose([T.RandomResizedCrop(16)]))
        self._work = Work(dataset.reader, dataset.recipe, "cpu")
        self._file = folder / "service.json"
        self._file.write_text(json.dumps({"token": "token", "servers": [["127.0.0.1", 1]]}))
        self._here, there = socket.socketpair()
        self._here.setblocking(False)
        self._receiver = Receiver(self._here, CLIENT_LIMITS)
        self._trainer, self._channel = socket.socketpair()
        self._trainer.setblocking(False)
        self._said_s = 0.0
        self._until: Callable[[], bool] = lambda: True
        self.board = Board(8, 1 + len(ROWS))
        self.board.heartbeat(WORKER)
        if not is_worker_idle:
            self.board.publish([Part(0, 0, 0, 4, 0)])
            assert self.board.claim(WORKER) is not None
        self._connection = Connected(fileno=there.detach())
        local = socket.AF_UNIX
        sockets = {**vars(socket), "socket": lambda *how: socket.socket(*how) if how[0] == local else self._connection}
        monkeypatch.setattr(server_link, "socket", SimpleNamespace(**sockets))
        monkeypatch.setattr(relay, "select", SimpleNamespace(**{**vars(select), "poll": lambda: self}))
        for module in (relay, server_link, servers):
            monkeypatch.setattr(module, "time", self.clock)
        poll = select.poll()
        self.register, self.unregister, self._ready = poll.register, poll.unregister, poll.poll

    def run(self, until: Callable[[], bool]) -> None:
        """Runs the relay until something has come about, at most 100 seconds of its clock."""
        self._until = until
        view = SimpleNamespace(samples=[np.arange(4)] * 3, image_size=None)
        options = ServiceOptions(f"file:{self._file}", local_workers=1)
        Relay(Channel(self._channel), self.board, ROWS, lambda part: view, self._work, options).run()  # type: ignore[arg-type,return-value]

    def close(self) -> None:
        for each in (self._here, self._connection, self._trainer, self._channel, self.board):
            each.close()

    def poll(self, timeout_ms: int) -> list[tuple[int, int]]:
        """Waits in the relay's place: the clock goes on at once where nothing has come."""
        self._act()
        found = self._ready(0)
        if not found:
            self.clock.now += timeout_ms / 1000
            self._act()
            found = self._ready(0)
        return found

    def fail(self) -> None:
        """Answers the first part: its process has died."""
        self.has_answered = True
        self._here.sendall(pack_frame(Kind.FAILED, {"number": self.asked[0][0], "error": "it has died"}))

    def _act(self) -> None:
        for frame in self._receiver.frames():
            if frame.kind == Kind.HELLO:
                self._here.sendall(pack_frame(Kind.WELCOME, {"cores": 1}))
            elif frame.kind == Kind.WORK:
                self._here.sendall(pack_frame(Kind.ACCEPTED, {"credit": 1}))
            elif frame.kind == Kind.PART:
                self.asked.append((frame.message["number"], self.clock.now))
            elif frame.kind == Kind.HEARTBEAT:
                self.heartbeats.append(self.clock.now)
        if self.clock.now - self._said_s >= HEARTBEAT_S and self.asked:
            self._here.sendall(pack_frame(Kind.HEARTBEAT, {"credit": 1}))
            self._said_s = self.clock.now
        try:
            if self._trainer.recv(1 << 16):
                self.returned.append(self.clock.now)
        except BlockingIOError:
            pass
        if self._until() or self.clock.now > END_S:
            self._trainer.shutdown(socket.SHUT_WR)


class Poll:
    """The relay's ``select.poll()``, before which a test moves the servers, and where time passes if nothing comes.

    Args:
        clock: The relay's clock.
        step: The test's function; returns the number of sockets that it has sent something to.
    """

    def __init__(self, clock: Clock, step: Callable[[], int]) -> None:
        self._clock, self._step = clock, step
        poll = select.poll()
        self.register, self.unregister, self._ready = poll.register, poll.unregister, poll.poll

    def poll(self, timeout_ms: int) -> list[tuple[int, int]]:
        sent = self._step()
        wait_until(lambda: len(self._ready(0)) >= sent)
        found = self._ready(0)
        if not found:
            self._clock.now += timeout_ms / 1000
        return found


def test_a_part_that_two_servers_answer_at_once_is_taken_once_and_the_relay_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_shards(tmp_path / "set", 8, jpegs=True)
    dataset = feeder.ShardDataset(tmp_path / "set", transform=T.Compose([T.RandomResizedCrop(16)]))
    fakes = [FakeServer(2), FakeServer(2)]
    file = tmp_path / "service.json"
    file.write_text(json.dumps({"token": "token", "servers": [each.address for each in fakes]}))
    trainer, channel = socket.socketpair()
    board, clock = Board(8, len(ROWS)), Clock()
    answers, said_s, ended_s = list[int](), [clock.now], list[float]()

    def answer(waiting: list[FakeServer]) -> int:
        answers.append(sum(each.answer(decode=["a bad sample", "0", None, None]) for each in waiting))
        return answers[-1]

    def step() -> int:
        if ended_s:
            if clock.now > ended_s[0]:  # the relay has seen that the servers are gone
                trainer.shutdown(socket.SHUT_WR)
            return 0
        for each in fakes:
            each.serve()
        waiting = [each for each in fakes if each.unanswered]
        if not answers and len(waiting) == 2:  # as the first one was late
            return answer(waiting)
        if len(answers) == 1 and waiting:
            return answer(waiting)
        if len(answers) == 1 and board.unfinished() == 0:
            board.publish([Part(1, 0, 0, 4, 0)])
        elif (len(answers) == 2 and board.unfinished() == 0) or clock.now > END_S:
            ended_s.append(clock.now)
            for each in fakes:
                each.close()
        elif clock.now - said_s[0] >= HEARTBEAT_S:
            said_s[0] = clock.now
            return sum(each.heartbeat() for each in fakes)
        return 0

    poll = Poll(clock, step)
    monkeypatch.setattr(relay, "select", SimpleNamespace(**{**vars(select), "poll": lambda: poll}))
    for module in (relay, server_link, servers):
        monkeypatch.setattr(module, "time", clock)
    board.publish([Part(0, 0, 0, 4, 0)])
    view = SimpleNamespace(samples=[np.arange(4)] * 3, image_size=None)
    work = Work(dataset.reader, dataset.recipe, "cpu")
    options = ServiceOptions(f"file:{file}", only=True)
    Relay(Channel(channel), board, (0, 1, 2), lambda part: view, work, options).run()  # type: ignore[arg-type,return-value]
    assert answers == [2, 1]
    assert board.unfinished() == 0
    for each in (trainer, channel, board):
        each.close()


def test_heartbeats_go_out_every_250_ms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    around = Surroundings(tmp_path, monkeypatch)
    around.board.publish([Part(0, 0, 0, 4, 0)])
    around.run(lambda: around.clock.now > 1010.0)
    pauses = np.diff(around.heartbeats)
    assert len(pauses) > 30
    assert pauses.max() <= HEARTBEAT_S + 0.002  # poll takes whole milliseconds
    around.close()


@pytest.mark.parametrize(("is_worker_idle", "limit_s"), [(True, 1.0), (False, 6.0)])
def test_an_unanswered_part_of_a_slow_service_is_handed_back_after_a_second_if_a_worker_is_idle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_worker_idle: bool, limit_s: float
) -> None:
    around = Surroundings(tmp_path, monkeypatch, is_worker_idle=is_worker_idle)

    def has_handed_back_two() -> bool:
        if not around.has_answered and around.asked and around.clock.now >= around.asked[0][1] + 5.0:
            around.fail()  # 5 s are usual then
            around.board.publish([Part(2, 0, 0, 4, 0)])
        for row in ROWS[: len(around.returned)]:
            around.board.finish(row)  # as the pool does
        return len(around.returned) == 2

    around.board.publish([Part(1, 0, 0, 4, 0)])
    around.run(has_handed_back_two)
    (_, first_s), (_, second_s) = around.asked
    assert around.returned[0] - first_s == pytest.approx(1.0, abs=HEARTBEAT_S)  # as nothing is known yet
    assert limit_s <= around.returned[1] - second_s <= limit_s + 2 * HEARTBEAT_S
    around.close()

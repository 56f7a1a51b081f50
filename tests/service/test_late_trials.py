"""Trials of a search that begin late share parts with those ahead: a simulation that counts the parts made."""

from __future__ import annotations

import json
import selectors
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from feeder.service import scheduler as scheduler_module
from feeder.service.connection import Client
from feeder.service.frames import Kind
from feeder.service.part_queue import Task
from feeder.service.scheduler import Scheduler
from feeder.service.server_options import ServerOptions

CORES, PART_BYTES = 4, 1 << 16
WINDOW, EPOCH = 16, 400  # parts
BEHIND = 3 * WINDOW  # that a trial begins behind the one ahead
STRETCH = 10  # ticks


class OneTick:
    """The processes of a server, in place of :class:`feeder.service.makers.Makers`: each makes a part in a tick.

    Attributes:
        made: Number of parts made, by the job in whose turn.
    """

    def __init__(self, count: int, here: Any, memory: Any, selector: Any, end: Any) -> None:
        self._end = end
        self._tasks: list[Task | None] = [None] * count
        self.made: Counter[str] = Counter()
        self.lost = 0

    def idle(self) -> list[int]:
        return [number for number, task in enumerate(self._tasks) if task is None]

    def give(self, number: int, task: Task, work: Any) -> None:
        self._tasks[number] = task

    def tick(self) -> None:
        """Ends all tasks."""
        tasks, self._tasks = self._tasks, [None] * len(self._tasks)
        for task in filter(None, tasks):
            if task.kind == Kind.WORK:
                self._end(task, Kind.ACCEPTED, {"size": [PART_BYTES, 0, 0]}, b"")
            else:
                self.made[task.turn_of] += 1
                self._end(task, Kind.RESULT, {"places": []}, b"")

    def end_all(self, grace_s: float) -> None:
        pass


class Trial:
    """A client that asks for the parts of an epoch in their order, as many at a time as it has credit for; in place of
    :class:`feeder.service.connection.Client`.

    Attributes:
        got: Number of the parts that it has got.
    """

    def __init__(self, job: str) -> None:
        self.job, self.digest, self.wanted = job, "", ""
        self.parts: dict[int, Task] = {}
        self.sender = SimpleNamespace(add=lambda *_: None)
        self.is_closed = self.is_refused = False
        self.held_bytes = self.got = self._next = 0

    @property
    def owed(self) -> int:
        return len(self.parts)

    def is_known(self, number: int) -> bool:
        return number in self.parts

    def answer(self, number: int, result: Any) -> None:
        self.parts.pop(number, None)
        self.got += 1

    def ask(self, scheduler: Scheduler) -> None:
        """Asks for the next parts."""
        client = cast(Client, self)
        credit = scheduler.credit(client)["credit"]
        while self._next < EPOCH and self.owed < credit:
            numbers = np.array([self._next, self._next, 0], np.int64).tobytes()
            scheduler.take_part(client, {"number": self._next, "epoch": 0}, numbers)
            self._next += 1


class Simulation:
    """A server, whose clock ticks when all parts in flight are made.

    Attributes:
        made: Number of parts made, by the job in whose turn.
        after_tick: Called after each tick.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(scheduler_module, "Makers", OneTick)
        options = ServerOptions(("/",), CORES, "token", window_bytes=WINDOW * PART_BYTES)
        self._scheduler = Scheduler(options, selectors.DefaultSelector())
        self._makers = cast(OneTick, self._scheduler.makers)
        self._trials: list[Trial] = []
        self.made = self._makers.made
        self.after_tick: Callable[[], object] = lambda: None

    def add(self, job: str, work: str = "the trials'") -> Trial:
        """Adds a trial."""
        trial = Trial(job)
        self._scheduler.add(cast(Client, trial))
        data = json.dumps({"of": work, "recipe": [], "sources": None, "extras": {"targets": []}}).encode()
        self._scheduler.take_work(cast(Client, trial), data)
        self._trials.append(trial)
        return trial

    def tick(self) -> None:
        for trial in self._trials:
            if trial.digest:
                trial.ask(self._scheduler)
        self._scheduler.give_out()
        self._makers.tick()
        self.after_tick()

    def close(self) -> None:
        self._scheduler.close()


def run_late_trials(one: Simulation) -> None:
    """Runs three trials, each of which begins when the one ahead is three windows into the epoch, to their ends."""
    trials = [one.add("0")]
    while any(trial.got < EPOCH for trial in trials) or len(trials) < 3:
        one.tick()
        if len(trials) < 3 and trials[-1].got >= BEHIND:
            trials.append(one.add(str(len(trials))))


def test_late_trials_cost_little_more_than_what_was_made_before_they_began(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two trials begin three windows late each. What they have missed is made again, 96 parts, and what the others go
    on to make until they have caught up is no more than half a window: 503 parts in all, where each trial has 400. If
    nobody waited for them, all 1,200 would be made."""
    with closing(Simulation(monkeypatch)) as one:
        run_late_trials(one)
        assert EPOCH + 2 * BEHIND <= sum(one.made.values()) <= EPOCH + 2 * BEHIND + WINDOW // 2


def test_late_trials_leave_a_job_of_other_work_its_share_of_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """The share is a quarter, as there are four jobs at most, of every 40 parts in a row."""
    with closing(Simulation(monkeypatch)) as one:
        other, shares = one.add("other", "other"), list[tuple[int, int]]()
        one.after_tick = lambda: shares.append((other.got, sum(one.made.values())))
        run_late_trials(one)
        assert other.got == EPOCH
        busy = np.array([each for each in shares if 0 < each[0] < EPOCH])
        got, made = (busy[STRETCH:] - busy[:-STRETCH]).T
        assert (4 * got >= made).all()

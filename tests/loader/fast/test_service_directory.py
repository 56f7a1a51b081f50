"""A relay learns of servers by a helper, which is started again and again where there is no cluster, but not often."""

from __future__ import annotations

import itertools
import subprocess
import sys
from typing import Any

import pytest

from feeder.loader.fast import service_directory
from feeder.loader.fast.service_directory import Directory
from feeder.loader.fast.service_options import ServiceOptions


class Clock:
    """A clock that a test moves."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now


def test_helpers_that_find_nothing_are_started_ever_more_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    starts: list[float] = []
    clock = Clock()

    class Helper(subprocess.Popen[bytes]):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            starts.append(clock.now)
            super().__init__(*arguments, **options)
            self.wait()

    monkeypatch.setattr(service_directory, "time", clock)
    monkeypatch.setattr(subprocess, "Popen", Helper)
    monkeypatch.setattr(sys, "executable", "/bin/true")
    directory = Directory(ServiceOptions("none"))
    for _ in range(600):
        directory.look()
        clock.now += 0.25
    directory.close()
    assert [round(later - earlier) for earlier, later in itertools.pairwise(starts)] == [
        2,
        4,
        8,
        16,
        30,
        30,
        30,
    ]

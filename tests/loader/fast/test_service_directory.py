"""A relay learns of servers by a helper, which all relays share, and starts one where there is none, but not often."""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from feeder.loader.fast import service_directory
from feeder.loader.fast.service_directory import Directory, socket_name
from feeder.loader.service_options import Service
from feeder.service import finder
from feeder.service.finder import Relays
from feeder.system.child_python import child_python
from tests.support.clock import Clock
from tests.support.processes import wait_until

OPTIONS = Service("service@10.0.0.1:1")


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
    directory = Directory(Service("none"))
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


@pytest.fixture
def relays(monkeypatch: pytest.MonkeyPatch) -> Iterator[Relays]:
    """A helper's side, in this process; nobody else is to start one."""
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("started a helper"))
    with contextlib.closing(Relays(socket_name(OPTIONS))) as made:
        yield made


def look_until_known(relays: Relays, directory: Directory, server: tuple[str, int]) -> None:
    def knows() -> bool:
        directory.look()
        relays.wait(0)
        return directory.servers == [server]

    wait_until(knows)
    assert directory.token == "secret"


def test_all_relays_of_a_service_are_told_by_one_helper(relays: Relays) -> None:
    first, second = Directory(OPTIONS), Directory(OPTIONS)
    first.look()
    relays.tell({"token": "secret", "servers": [["10.0.0.1", 1]]})
    look_until_known(relays, first, ("10.0.0.1", 1))
    look_until_known(relays, second, ("10.0.0.1", 1))
    relays.tell({"token": "secret", "servers": [["10.0.0.2", 2]]})
    first.close()
    look_until_known(relays, second, ("10.0.0.2", 2))
    second.close()


def test_a_helper_ends_when_all_relays_have_been_gone_for_a_while(
    relays: Relays, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = Directory(OPTIONS)
    directory.look()
    monkeypatch.setattr(finder, "ALONE_S", 0.0)
    assert relays.wait(0)
    directory.close()
    wait_until(lambda: not relays.wait(0))
    monkeypatch.setattr(finder, "ALONE_S", 600.0)
    assert relays.wait(0)


def test_the_name_of_a_helper_is_there_once(relays: Relays) -> None:
    code = "from feeder.service.finder import main; main(*sys.argv[1:])"
    command = child_python(code, "service", "10.0.0.1:1", socket_name(OPTIONS))
    assert os.spawnv(os.P_WAIT, sys.executable, command) == 0  # another helper ends at once
    assert socket_name(Service("other@10.0.0.1:1")) != socket_name(OPTIONS)


def test_helpers_that_were_slower_than_another_one_leave_no_zombies(monkeypatch: pytest.MonkeyPatch) -> None:
    options = Service("other@10.0.0.1:1")
    helpers: list[subprocess.Popen[bytes]] = []
    begin, clock = subprocess.Popen, Clock()

    def start(command: list[str], **settings: Any) -> subprocess.Popen[bytes]:
        """Starts a process that goes on until its input is closed, as a helper that has not asked for the name yet."""
        helpers.append(begin(["cat"], **(settings | {"stdin": subprocess.PIPE})))
        return helpers[-1]

    monkeypatch.setattr(subprocess, "Popen", start)
    monkeypatch.setattr(service_directory, "time", clock)
    directory = Directory(options)
    for _ in range(2):
        directory.look()
        clock.now += 600.0
    relays = Relays(socket_name(options))
    relays.tell({"token": "secret", "servers": [["10.0.0.1", 1]]})
    look_until_known(relays, directory, ("10.0.0.1", 1))
    assert len(helpers) == 2
    for each in helpers:
        assert each.stdin is not None
        each.stdin.close()

    def are_gone() -> bool:
        directory.look()
        return not any(Path(f"/proc/{each.pid}").exists() for each in helpers)

    wait_until(are_gone)
    directory.close()
    relays.close()


def test_a_helper_tells_nothing_to_another_user(relays: Relays, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finder, "peer_uid", lambda connection: os.getuid() + 1)
    relays.tell({"token": "secret", "servers": [["10.0.0.1", 1]]})
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.connect(f"\0{socket_name(OPTIONS)}")
        relays.wait(0)
        assert connection.recv(1) == b""


def test_a_relay_takes_nothing_from_another_user(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr(service_directory, "peer_uid", lambda connection: os.getuid() + 1)
    monkeypatch.setattr(subprocess, "Popen", lambda command, **_: started.append(command))
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(f"\0{socket_name(OPTIONS)}")
        listener.listen()
        directory = Directory(OPTIONS)
        directory.look()
    assert directory.descriptor is None
    assert started[0][3:5] == ["service", "10.0.0.1:1"]
    assert started[0][5] != socket_name(OPTIONS)

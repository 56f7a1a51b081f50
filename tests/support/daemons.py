"""Servers that tests start: processes that end with the one that started them, however it ends."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["Daemon", "answers", "free_port"]

_PORTS = range(20_000, 32_000)  # below those that the kernel gives to connections
_taken: list[socket.socket] = []  # one for each port that this process was given


def free_port(count: int = 1) -> int:
    """Returns the first of several TCP ports of 127.0.0.1 on which nothing listens, and which no other runner takes."""
    while True:
        first = random.SystemRandom().choice(_PORTS[:-count])
        if all(_takes(port) and not answers(port) for port in range(first, first + count)):
            return first


def _takes(port: int) -> bool:
    """Takes a port until this process ends; False if another process has it."""
    mark = socket.socket(socket.AF_UNIX)
    try:
        mark.bind(f"\0feeder-tests-port-{port}")
    except OSError:
        mark.close()
        return False
    _taken.append(mark)
    return True


def answers(port: int) -> bool:
    """True if something listens on a TCP port of 127.0.0.1."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


class Daemon:
    """A process in the foreground that the kernel kills when its starter ends.

    Args:
        command: The command and its arguments.
        log: File for what it prints.
        env: Its environment; None: this process's.
    """

    def __init__(self, command: Sequence[str], log: Path, env: Mapping[str, str] | None = None) -> None:
        self._log = log
        with open(log, "wb") as out, open(os.devnull, "rb") as nothing:
            self._process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *command],
                stdin=nothing,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=None if env is None else dict(env),
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._process.pid

    def wait_until(self, ready: Callable[[], Any], limit_s: float = 90) -> None:
        """Returns once the server is ready.

        Raises:
            RuntimeError: if it has ended, or is not ready in time; with what it printed.
        """
        end = time.monotonic() + limit_s
        while not ready():
            if self._process.poll() is not None or time.monotonic() > end:
                self.close()
                raise RuntimeError(f"{self._process.args!r} did not start: {self._log.read_text(errors='replace')}")
            time.sleep(0.05)

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal to the process."""
        self._process.send_signal(number)

    def close(self) -> None:
        """Kills the process."""
        self._process.kill()
        self._process.wait()

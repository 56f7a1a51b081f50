"""A worker process, started by the fork server or by a multiprocessing context, as the pool sees it."""

from __future__ import annotations

import signal
import socket
from typing import Any, Protocol

from feeder.errors import WorkerError
from feeder.forkserver import ForkServer
from feeder.worker import work_loop

__all__ = ["Forked", "InContext", "Process"]

_JOIN_S = 1.0


class Process(Protocol):
    """A worker process, however it was started."""

    def pid(self) -> int | None: ...

    def ended(self) -> int | None: ...

    def kill(self) -> None: ...

    def forget(self) -> None: ...


class Forked:
    """A worker of the fork server."""

    def __init__(self, channel: socket.socket) -> None:
        self._server = ForkServer.shared()
        try:
            self._number = self._server.start(channel)
        except WorkerError:  # it died just now
            self._server = ForkServer.shared()
            self._number = self._server.start(channel)

    def pid(self) -> int | None:
        return self._server.pid(self._number)

    def ended(self) -> int | None:
        return self._server.ended(self._number)

    def kill(self) -> None:
        self._server.kill(self._number)

    def forget(self) -> None:
        self._server.forget(self._number)


class InContext:
    """A worker of a multiprocessing context."""

    def __init__(self, context: Any, channel: socket.socket, job: tuple[Any, ...]) -> None:
        self._process = context.Process(target=_main, args=(channel, job), daemon=True)
        self._process.start()

    def pid(self) -> int | None:
        pid: int | None = self._process.pid
        return pid

    def ended(self) -> int | None:
        code: int | None = self._process.exitcode
        return code

    def kill(self) -> None:
        self._process.kill()

    def forget(self) -> None:
        self._process.join(_JOIN_S)


def _main(channel: socket.socket, job: tuple[Any, ...]) -> None:
    """A worker under a multiprocessing context."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    work_loop(channel, *job)

"""A worker process, started by the fork server or by a multiprocessing context, as the pool sees it."""

from __future__ import annotations

import pickle
import signal
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from feeder.errors import ArgumentError, WorkerError
from feeder.loader.workers.fork_server import ForkServer

__all__ = ["Forked", "InContext", "Process", "failed_start", "start_in", "wait_for"]

_JOIN_S = 1.0
_SERVER_GONE = 255  # multiprocessing's code for a process whose fork server has ended
_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S = 0.0005, 0.02


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

    def __init__(self, context: Any, target: Callable[..., None], channel: socket.socket, job: tuple[Any, ...]) -> None:
        self._process = start_in(context, _main, (target, channel, job))

    def pid(self) -> int | None:
        pid: int | None = self._process.pid
        return pid

    def ended(self) -> int | None:
        code: int | None = self._process.exitcode
        return code

    def kill(self) -> None:
        self._process.kill()

    def forget(self) -> None:
        wait_for([self._process], _JOIN_S)


def start_in(context: Any, target: Callable[..., None], arguments: tuple[Any, ...]) -> Any:
    """Starts a process of a multiprocessing context, which ends with this one.

    Raises:
        ArgumentError: if the arguments can't be sent to it.
    """
    process = context.Process(target=target, args=arguments, daemon=True)
    try:
        process.start()
    except (AttributeError, TypeError, pickle.PicklingError) as error:
        raise ArgumentError(
            f"workers started by {context.get_start_method()!r} can't be sent what they need: {error}; define the "
            "dataset and the functions that the loader is given at the top level of a module, or start workers with "
            "multiprocessing_context='fork'"
        ) from error
    return process


def failed_start(context: Any, code: int | None) -> str | None:
    """The likely cause and the way out, for a process of a multiprocessing context that ended before it said anything.

    Returns:
        None where another one may fare better.
    """
    method = context.get_start_method()
    if code is None or code <= 0 or method == "fork" or (method == "forkserver" and code == _SERVER_GONE):
        return None
    return (
        "what it printed says why. Where workers are started by 'spawn' or 'forkserver', they run the script's file "
        "first: what it does, and not only defines, belongs under `if __name__ == '__main__':`"
    )


def wait_for(processes: Sequence[Any], timeout_s: float) -> list[Any]:
    """Waits until processes of a multiprocessing context have ended, but not longer than that; those that have not.

    Their own wait is for the end of a pipe, which a process that another thread forked just then may hold open.
    """
    ends, pause_s = time.monotonic() + timeout_s, _SHORTEST_PAUSE_S
    while (running := [process for process in processes if process.exitcode is None]) and time.monotonic() < ends:
        time.sleep(pause_s)
        pause_s = min(_LONGEST_PAUSE_S, 2 * pause_s)
    for process in processes:
        if process not in running:
            process.join(0)  # of which multiprocessing keeps no count then
    return running


def _main(target: Callable[..., None], channel: socket.socket, job: tuple[Any, ...]) -> None:
    """A worker under a multiprocessing context."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    target(channel, *job)

"""Worker processes, however they are started, and those of a multiprocessing context."""

from __future__ import annotations

import contextlib
import errno
import gc
import multiprocessing.util
import os
import pickle
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

from feeder.errors import ArgumentError, WorkerError
from feeder.system.child_python import child_python
from feeder.system.limit_errors import limit_reached
from feeder.system.pauses import pauses

_SERVER_GONE = 255  # multiprocessing's code for a process whose fork server has ended
_LONGEST_FOLDER = 60  # bytes of its path: that of a socket in a folder there has at most 107
_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S = 0.0005, 0.02


class Process(Protocol):
    """A worker process, however it was started."""

    def pid(self) -> int | None:
        """Returns the process id; None if the process was never started."""

    def ended(self) -> int | None:
        """Returns the exit code, negative for a signal; None while the process runs."""

    def kill(self) -> None:
        """Kills the process, if it still runs."""

    def failed_start(self, code: int) -> str | None:
        """Returns the likely cause and remedy for a process that ended with this code before it said anything.

        Returns:
            None where another process may fare better.
        """


@contextlib.contextmanager
def _garbage_kept() -> Iterator[None]:
    """Keeps processes that are forked meanwhile from collecting garbage that they inherit.

    Its finalizers may wait for threads that the process does not have: those of DALI's pipelines do.
    """
    is_ours = gc.get_freeze_count() == 0
    gc.freeze()
    try:
        yield
    finally:
        if is_ours:
            gc.unfreeze()


_spawning = threading.Lock()


@contextlib.contextmanager
def _safe_imports() -> Iterator[None]:
    """Keeps processes that multiprocessing starts in the context from importing the current folder: see Note [The
    current folder]."""
    with _spawning:
        util: Any = multiprocessing.util
        start = util.spawnv_passfds  # by which workers, fork servers and trackers are started

        def started(path: Any, arguments: Any, descriptors: Any) -> Any:
            code = [*arguments].index("-c") + 1
            safe = child_python(arguments[code])[2]
            return start(path, [*arguments[:code], safe, *arguments[code + 1 :]], descriptors)

        util.spawnv_passfds = started
        try:
            yield
        finally:
            util.spawnv_passfds = start


def shorten_temporary_folder() -> None:
    """Gives multiprocessing, which has its sockets there, another temporary folder if the path of TMPDIR is a long one.
    Forked processes inherit it."""
    if len(os.fsencode(tempfile.gettempdir())) > _LONGEST_FOLDER:
        before, tempfile.tempdir = tempfile.tempdir, "/tmp"
        try:
            multiprocessing.util.get_temp_dir()
        finally:
            tempfile.tempdir = before


class InContext:
    """A worker of a multiprocessing context, which ends with this process.

    Args:
        context: The context.
        target: The worker's main function.
        arguments: Its arguments.

    Raises:
        ArgumentError: if the arguments can't be sent to the process.
        WorkerError: if the context's fork server has ended.
    """

    def __init__(self, context: Any, target: Callable[..., object], arguments: tuple[Any, ...]) -> None:
        shorten_temporary_folder()
        self._method = context.get_start_method()
        self.process = context.Process(target=target, args=arguments, daemon=True)
        try:
            with _garbage_kept() if self._method == "fork" else _safe_imports():
                self.process.start()
        except (AttributeError, TypeError, pickle.PicklingError) as error:
            raise ArgumentError(
                f"workers started by {self._method!r} can't be sent what they need: {error}; define the dataset and "
                "the functions that the loader is given at the top level of a module, or start workers with "
                "multiprocessing_context='fork'"
            ) from error
        except EOFError as error:  # the fork server has ended; it has the limits of this process
            limit = limit_reached(OSError(errno.EMFILE, ""))
            raise WorkerError(
                "multiprocessing's fork server has ended as it was to start a worker; what it printed says why. If it "
                f"had too many files open: {limit}"
            ) from error

    def pid(self) -> int | None:
        pid: int | None = self.process.pid
        return pid

    def ended(self) -> int | None:
        # Not join(): that waits for the end of a pipe, which a process that another thread forked may hold open.
        code: int | None = self.process.exitcode
        return code

    def kill(self) -> None:
        self.process.kill()

    def failed_start(self, code: int) -> str | None:
        if code <= 0 or self._method == "fork" or (self._method == "forkserver" and code == _SERVER_GONE):
            return None
        return (
            "what it printed says why. Where workers are started by 'spawn' or 'forkserver', they run the script's "
            "file first: what it does, and not only defines, belongs under `if __name__ == '__main__':`"
        )


def wait_for(processes: Iterable[Process], timeout_s: float) -> list[Process]:
    """Waits until processes have ended, at most that long; returns those that still run."""
    ends, waits = time.monotonic() + timeout_s, pauses(_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S)
    while (running := [p for p in processes if p.ended() is None]) and time.monotonic() < ends:
        time.sleep(next(waits))
    return running

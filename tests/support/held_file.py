"""A file that whoever opens it has to wait for: holds a process at a known place of its work."""

from __future__ import annotations

import fcntl
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.processes import wait_until

__all__ = ["HeldFile", "held"]


class HeldFile:
    """A file with a lease. The kernel gives it up after 45 seconds, if nobody else does.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDWR)
        wait_until(self._is_mine)

    def _is_mine(self) -> bool:
        """Takes the lease, unless somebody has the file open, such as a process that is just being killed."""
        try:
            fcntl.fcntl(self._descriptor, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        except BlockingIOError:
            return False
        return True

    def wait(self) -> None:
        """Returns once somebody waits for the file."""
        wait_until(lambda: fcntl.fcntl(self._descriptor, fcntl.F_GETLEASE) != fcntl.F_WRLCK)

    def release(self) -> None:
        """Lets those who wait go on."""
        os.close(self._descriptor)


@contextmanager
def held(path: Path) -> Iterator[HeldFile]:
    """Holds a file until it is released."""
    before = signal.signal(signal.SIGIO, signal.SIG_IGN)  # comes when somebody waits
    file = HeldFile(path)
    try:
        yield file
    finally:
        signal.signal(signal.SIGIO, before)

"""Waiting for processes and threads that a test has started, with a limit where a fault would let it wait for ever."""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable

__all__ = ["all_ended", "is_first", "returns_in_time", "wait_until"]


def all_ended(pids: list[int]) -> bool:
    """True if all of these processes end within a minute each; those that have ended already count."""
    for pid in pids:
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        with open(descriptor, "rb") as end:
            poll = select.poll()
            poll.register(end, select.POLLIN)
            if not poll.poll(60_000):
                return False
    return True


def returns_in_time(function: Callable[[], object]) -> bool:
    """True if a function, called in another thread, returns within a minute."""
    thread = threading.Thread(target=function, daemon=True)
    thread.start()
    thread.join(60)
    return not thread.is_alive()


def is_first(mark: str) -> bool:
    """True for the first process that asks with this path of a file, which is made; always without a path."""
    try:
        if mark:
            os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def wait_until(condition: Callable[[], object]) -> None:
    """Returns once a condition holds that another process or thread brings about; the test's limit ends the wait."""
    pause_s = 0.0005
    while not condition():
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, 0.02)

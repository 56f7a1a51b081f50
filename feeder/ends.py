"""The trainer's ends of its connections to workers, kept out of processes that are forked off it.

A worker learns that the trainer is gone when the other end of its connection closes. A copy of that end in a forked
process, of another loader say, would hold it open.
"""

from __future__ import annotations

import contextlib
import os
import socket
import weakref
from collections.abc import Iterator

from feeder.errors import WorkerError

__all__ = ["check_owner", "handing_over", "pair"]

_ends: weakref.WeakSet[socket.socket] = weakref.WeakSet()


def pair(kind: socket.SocketKind = socket.SOCK_STREAM) -> tuple[socket.socket, socket.socket]:
    """Two connected sockets: the trainer's, closed in every forked child, and the worker's."""
    mine, theirs = socket.socketpair(socket.AF_UNIX, kind)
    for end in (mine, theirs):
        end.settimeout(None)  # whatever the script's default for sockets is
    _ends.add(mine)
    return mine, theirs


@contextlib.contextmanager
def handing_over(kind: socket.SocketKind = socket.SOCK_STREAM) -> Iterator[tuple[socket.socket, socket.socket]]:
    """A pair whose other end a process gets inside: here it is closed then, and both are if none was started."""
    mine, theirs = pair(kind)
    try:
        with theirs:
            yield mine, theirs
    except BaseException:
        mine.close()
        raise


def check_owner(pid: int) -> None:
    """Refuses workers that another process started.

    Args:
        pid: The process that started them.

    Raises:
        WorkerError: if this is another one.
    """
    if pid != os.getpid():
        raise WorkerError(
            f"these workers are those of process {pid}, which this one was forked from, and so is the "
            "iterator; make one of its own here with iter(loader)"
        )


def _close_in_child() -> None:
    for end in list(_ends):
        end.close()


os.register_at_fork(after_in_child=_close_in_child)

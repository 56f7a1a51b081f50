"""Ends of connections between the trainer and its workers, kept out of processes that are forked off meanwhile.

Note [Ends in forked processes]
    Whoever has an end of a connection learns that the other one is gone when the other end closes. A copy of that in a
    forked process would hold it open: of the trainer's end, the worker would not see the trainer go; of the worker's,
    which the trainer has until the worker is started, the trainer would not see the worker go. Two threads that start
    workers at once fork while the other has both. So a child closes all ends but the one that it was forked for, and
    nobody forks between the making of a pair and its being noted.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import weakref
from collections.abc import Iterator

__all__ = ["handing_over", "pair"]

_ends: weakref.WeakSet[socket.socket] = weakref.WeakSet()
_making = threading.RLock()


class _Handed(threading.local):
    """What this thread hands over now."""

    def __init__(self) -> None:
        self.ends: tuple[socket.socket, ...] = ()


_handed = _Handed()


def pair(kind: socket.SocketKind = socket.SOCK_STREAM) -> tuple[socket.socket, socket.socket]:
    """Two connected sockets: the trainer's, closed in every forked child, and the worker's."""
    with _making:
        mine, theirs = socket.socketpair(socket.AF_UNIX, kind)
        _ends.update((mine, theirs))
    for end in (mine, theirs):
        end.settimeout(None)  # whatever the script's default for sockets is
    return mine, theirs


@contextlib.contextmanager
def handing_over(kind: socket.SocketKind = socket.SOCK_STREAM) -> Iterator[tuple[socket.socket, socket.socket]]:
    """A pair whose other end a process gets inside: here it is closed then, and both are if none was started."""
    mine, theirs = pair(kind)
    before = _handed.ends
    try:
        with theirs:
            _handed.ends = (*before, theirs)
            yield mine, theirs
    except BaseException:
        mine.close()
        raise
    finally:
        _handed.ends = before


def _close_in_child() -> None:
    _making.release()
    for end in list(_ends):
        if end not in _handed.ends:
            end.close()
    _handed.ends = ()  # this process's own children have no use for it


os.register_at_fork(before=_making.acquire, after_in_parent=_making.release, after_in_child=_close_in_child)

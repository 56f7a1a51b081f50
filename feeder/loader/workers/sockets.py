"""Sockets between the trainer and its workers, kept out of processes that are forked off meanwhile.

Note [Sockets in forked processes]
    A process learns that its peer is gone when the peer's socket closes. A copy of that socket in a forked process
    would hold it open: with a copy of the trainer's socket around, the worker would not see the trainer go; with one of
    the worker's, which the trainer has until the worker is started, the trainer would not see the worker go. Of two
    threads that start workers at once, one forks while the other has both sockets. So a forked child closes all sockets
    but the one that it was forked for, and nothing forks between the making of a pair and its registration.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import weakref
from collections.abc import Iterator

__all__ = ["close_in_children", "handing_over", "pair"]

_sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()
_making = threading.RLock()


class _HandedOver(threading.local):
    """The workers' sockets that this thread hands over now."""

    def __init__(self) -> None:
        self.sockets: tuple[socket.socket, ...] = ()


_handed_over = _HandedOver()


def pair(kind: socket.SocketKind = socket.SOCK_STREAM) -> tuple[socket.socket, socket.socket]:
    """Returns two connected sockets: the trainer's, closed in every forked child, and the worker's."""
    with _making:
        mine, theirs = socket.socketpair(socket.AF_UNIX, kind)
        _sockets.update((mine, theirs))
    for one in (mine, theirs):
        one.settimeout(None)  # whatever the script's default for sockets is
    return mine, theirs


def close_in_children(connection: socket.socket) -> None:
    """Has a worker's socket closed in the processes that the worker forks, which may outlive it."""
    _sockets.add(connection)


@contextlib.contextmanager
def handing_over(kind: socket.SocketKind = socket.SOCK_STREAM) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Gives a pair of sockets to a block that starts a process with the second one, which is closed here afterwards. If
    the block fails, both are."""
    mine, theirs = pair(kind)
    before = _handed_over.sockets
    try:
        with theirs:
            _handed_over.sockets = (*before, theirs)
            yield mine, theirs
    except BaseException:
        mine.close()
        raise
    finally:
        _handed_over.sockets = before


def _close_in_child() -> None:
    _making.release()
    for one in list(_sockets):
        if one not in _handed_over.sockets:
            one.close()
    _handed_over.sockets = ()  # this process's own children have no use for it


os.register_at_fork(before=_making.acquire, after_in_parent=_making.release, after_in_child=_close_in_child)

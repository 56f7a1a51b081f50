"""Sockets between the trainer and its workers, kept out of processes that are forked off meanwhile.

Note [Sockets in forked processes]
    A process learns that its peer is gone when the peer's socket closes. A copy of that socket in a forked process
    would hold it open: with a copy of the trainer's socket around, the worker would not see the trainer go; with one of
    the worker's, which the trainer has until the worker is started, the trainer would not see the worker go. Of two
    threads that start workers at once, one forks while the other has both sockets. So a forked child closes all sockets
    but the one that it was forked for, and nothing forks between the making of a pair and its registration.
"""

from __future__ import annotations

import _thread
import contextlib
import os
import select
import socket
import threading
import time
import weakref
from collections.abc import Iterator

from feeder.system.limit_errors import explained

_sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()
_making = threading.RLock()


class _HandedOver(threading.local):
    """The workers' sockets that this thread hands over now."""

    sockets: tuple[socket.socket, ...] = ()


_handed_over = _HandedOver()


def pair(kind: socket.SocketKind = socket.SOCK_STREAM) -> tuple[socket.socket, socket.socket]:
    """Returns two connected sockets: the trainer's, closed in every forked child, and the worker's."""
    with _making:
        mine, theirs = socket.socketpair(socket.AF_UNIX, kind)
        _sockets.update((mine, theirs))
    for one in (mine, theirs):
        one.settimeout(None)  # whatever the script's default for sockets is
    return mine, theirs


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


_WATCH_MS = 1000


def end_with_trainer(connection: socket.socket, grace_s: float = 0.0) -> None:
    """Starts a thread that ends this process once the trainer is gone, even in the middle of a batch.

    Args:
        connection: To the trainer.
        grace_s: Seconds that the main thread gets to end by itself.
    """
    _sockets.add(connection)  # to be closed in the processes that this one forks, which may outlive it
    # Not a threading.Thread: if the thread ends as it starts, for want of memory, Thread.start() waits for ever.
    with explained():
        _thread.start_new_thread(_watch, (connection.fileno(), os.getppid(), grace_s))


def _watch(descriptor: int, parent: int, grace_s: float) -> None:
    poll = select.poll()
    poll.register(descriptor, select.POLLRDHUP)
    while not poll.poll(_WATCH_MS) and os.getppid() == parent:
        pass
    time.sleep(grace_s)
    os._exit(0)

"""The trainer's ends of its connections to workers, kept out of processes that are forked off it.

A worker learns that the trainer is gone when the other end of its connection closes. A copy of that end in a forked
process, of another loader say, would hold it open.
"""

from __future__ import annotations

import os
import socket
import weakref

__all__ = ["pair"]

_ends: weakref.WeakSet[socket.socket] = weakref.WeakSet()


def pair(kind: socket.SocketKind = socket.SOCK_STREAM) -> tuple[socket.socket, socket.socket]:
    """Two connected sockets: the trainer's, closed in every forked child, and the worker's."""
    mine, theirs = socket.socketpair(socket.AF_UNIX, kind)
    for end in (mine, theirs):
        end.settimeout(None)  # whatever the script's default for sockets is
    _ends.add(mine)
    return mine, theirs


def _close_in_child() -> None:
    for end in list(_ends):
        end.close()


os.register_at_fork(after_in_child=_close_in_child)

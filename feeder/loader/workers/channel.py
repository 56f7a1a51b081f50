"""The connection between a worker and who has started it: its sockets, and the one kind of message over them.

Note [Messages of workers]
    A message is a head of two integers and its data. The first is the number of bytes of the data; the second says what
    the message is about, to those who exchange it: the number of a part or of a batch, or a kind. Descriptors may come
    with the head. A heartbeat is a head alone: it tells that the worker is at work, and is seen by nobody but its
    supervisor. Whoever waits for a message for ever finds the other side gone by the end of the stream.

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
import struct
import threading
import time
import weakref
from collections.abc import Callable, Iterator

from feeder.system.limit_errors import explained

HEAD = struct.Struct("<qq")
HEARTBEAT = -1  # what a message is about that says nothing
_HEARTBEAT_S = 0.5
_WATCH_MS = 1000
_MOST_DESCRIPTORS = 5


class Channel:
    """Messages over a stream socket; see Note [Messages of workers].

    Args:
        connection: The socket.

    Attributes:
        when_full: Called when a message has to wait until the other side reads.
    """

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(None)  # whatever the script's default for sockets is
        self.connection = connection
        self.when_full: Callable[[], object] = lambda: None
        self._writing = threading.Lock()
        self._next_heartbeat_s = 0.0

    def send(self, about: int, data: bytes = b"") -> None:
        """Sends a message; ends the process if the other side is gone."""
        with self._writing:
            self._send_whole(HEAD.pack(len(data), about) + data)

    def heartbeat(self) -> None:
        """Sends a sign of life, unless one was sent just now, or another message is on its way."""
        now = time.monotonic()
        if now >= self._next_heartbeat_s and self._writing.acquire(blocking=False):
            try:
                self._next_heartbeat_s = now + _HEARTBEAT_S
                self._send_whole(HEAD.pack(0, HEARTBEAT))
            finally:
                self._writing.release()

    def receive(self) -> tuple[int, bytes, list[int]] | None:
        """Returns what the next message is about, its data, and the descriptors that came with it; None when the other
        side is gone."""
        try:
            head, descriptors, _, _ = socket.recv_fds(self.connection, HEAD.size, _MOST_DESCRIPTORS)
            length, about = HEAD.unpack(head + self._exactly(HEAD.size - len(head)))
            return about, self._exactly(length), descriptors
        except (ConnectionError, EOFError):
            return None

    def _send_whole(self, data: bytes) -> None:
        sent = 0
        try:
            with contextlib.suppress(BlockingIOError):
                sent = self.connection.send(data, socket.MSG_DONTWAIT)
            if sent < len(data):
                self.when_full()
                self.connection.sendall(memoryview(data)[sent:])
        except (BrokenPipeError, ConnectionResetError):
            os._exit(0)

    def _exactly(self, count: int) -> bytes:
        data = bytearray(count)
        view = memoryview(data)
        while view:
            received = self.connection.recv_into(view)
            if not received:
                raise EOFError
            view = view[received:]
        return bytes(data)


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

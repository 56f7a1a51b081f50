"""A worker's end of its connection: the one kind of message between workers and who has started them.

Note [Messages of workers]
    A message is a head of two integers and its data. The first is the number of bytes of the data; the second says what
    the message is about, to those who exchange it: the number of a part or of a batch, or a kind. Descriptors may come
    with the head. A heartbeat is a head alone: it tells that the worker is at work, and is seen by nobody but its
    supervisor. Whoever waits for a message for ever finds the other side gone by the end of the stream.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
import time
from collections.abc import Callable

HEAD = struct.Struct("<qq")
HEARTBEAT = -1  # what a message is about that says nothing
_HEARTBEAT_S = 0.5
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

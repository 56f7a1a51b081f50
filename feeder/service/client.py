"""A server's connection to one client: what it may send, and when its time is over."""

from __future__ import annotations

import socket
import struct
import time
from typing import TYPE_CHECKING

from feeder.service.frames import CLIENT_LIMITS, Receiver, Sender

if TYPE_CHECKING:
    from feeder.service.part_queue import MemoryPiece, Task

__all__ = ["Client"]

_HELLO_S = 5.0  # for the token
_FRAME_S = 30.0  # for a frame that has begun
_SILENCE_S = 10.0  # 40 beats
_LINGER = struct.pack("ii", 1, 0)


class Client:
    """A connection.

    Args:
        connection: The socket.
        address: The peer, as a text.

    Attributes:
        job: Name of the client's job; empty until it has given the token.
        digest: Digest of its work; empty until that was accepted.
        parts: The parts that it waits for, by its numbers.
        unsent: The memory of results that are being sent.
    """

    def __init__(self, connection: socket.socket, address: str) -> None:
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.connection, self.address = connection, address
        self.receiver, self.sender = Receiver(connection, CLIENT_LIMITS), Sender(connection)
        self.job, self.digest, self.wanted = "", "", ""
        self.parts: dict[int, Task] = {}
        self.unsent: list[MemoryPiece] = []
        self.is_refused = self.is_closed = False
        self._began_s = self.heard_s = self._sent_s = time.monotonic()
        self._midway_s = 0.0

    def may_speak(self) -> bool:
        """Returns True unless the client was refused."""
        return not self.is_refused

    def flush(self) -> None:
        """Sends what fits; raises ConnectionError if the client is gone, or has been refused and knows it."""
        if self.sender.flush() or not self.sender.unsent_bytes:
            self._sent_s = time.monotonic()
        if self.is_refused and not self.sender.unsent_bytes:
            raise ConnectionError("it was refused")

    def is_late(self) -> bool:
        """Returns True for a client that takes too long for anything."""
        now = time.monotonic()
        if self.receiver.is_midway:
            self._midway_s = self._midway_s or now
        else:
            self._midway_s = 0.0
        return (
            (not self.job and now - self._began_s > _HELLO_S)
            or now - self.heard_s > _SILENCE_S
            or now - self._sent_s > _SILENCE_S
            or (self._midway_s > 0 and now - self._midway_s > _FRAME_S)
        )

    def close(self) -> None:
        """Ends the connection at once: what is unsent is lost, as it may change from now on."""
        self.is_closed = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER)
        self.connection.close()

"""A server's connection to one client: what it is owed and holds, and when its time is over."""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from typing import Any

from feeder.service.frames import UNAUTHENTICATED_LIMITS, Kind, Receiver, Sender
from feeder.service.part_memory import MemoryPiece, PartMemory, Result
from feeder.service.part_queue import Task

_HELLO_S = 5.0  # for the token
_FRAME_S = 30.0  # for a frame that has begun
_SILENCE_S = 10.0  # 40 heartbeats
_LEAST_BYTES_PER_S = 64 << 10  # a client that takes what is sent more slowly is dropped
_MOST_UNREAD_BYTES = 1 << 20  # of answers without parts; nothing is read from a client that leaves more unread
_LINGER = struct.pack("ii", 1, 0)


class Client:
    """A connection.

    Args:
        connection: The socket.
        address: The peer, as a text.
        memory: The memory of results.
        is_local: True for a Unix socket, see Note [Same host].

    Attributes:
        job: Name of the client's job; empty until it has given the token.
        digest: Digest of its work; empty until that was accepted.
        wanted: The same, while the work is being checked, too.
        parts: The parts that it waits for, by its numbers.
    """

    def __init__(self, connection: socket.socket, address: str, memory: PartMemory, *, is_local: bool) -> None:
        connection.setblocking(False)
        if not is_local:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.connection = connection
        self.address = address
        self.is_local = is_local
        self.receiver = Receiver(connection, UNAUTHENTICATED_LIMITS)
        self.sender = Sender(connection)
        self.job = ""
        self.digest = ""
        self.wanted = ""
        self.parts: dict[int, Task] = {}
        self.is_refused = self.is_closed = False
        self._memory = memory
        self._held: dict[int, tuple[MemoryPiece, float]] = {}  # by number of the part: results on the way
        self._began_s = self.heard_s = time.monotonic()
        self._midway_s = 0.0
        self._sent_bytes = 0
        self._mark = (0, self._began_s)

    @property
    def owed(self) -> int:
        """Number of parts that it waits for, or that are on the way to it."""
        return len(self.parts) + len(self._held)

    @property
    def held_bytes(self) -> int:
        """Bytes of the results on the way to it."""
        return sum(piece.size_bytes for piece, _ in self._held.values())

    def is_known(self, number: int) -> bool:
        """Returns True for the number of a part that it waits for, or that is on the way."""
        return number in self.parts or number in self._held

    def answer(self, number: int, result: Result) -> None:
        """Adds a finished part to what is sent, whose memory is in use until it has arrived."""
        self.parts.pop(number, None)
        result.memory.users += 1
        self._held[number] = result.memory, time.monotonic()
        report = memoryview(result.report)
        message: dict[str, Any] = {"number": number, "report": len(report)}
        if self.is_local:
            self.sender.add(Kind.RESULT, message | {"places": result.places}, [report])
            return
        whole = memoryview(self._memory.region.memory)
        arrays = [whole[offset : offset + size] for offset, size in result.places]
        message["sizes"] = [len(each) for each in arrays]
        self.sender.add(Kind.RESULT, message, [report, *arrays], lambda: self.taken(number))

    def taken(self, number: int) -> None:
        """Notes that a finished part has arrived.

        Raises:
            KeyError: if there is none of that number.
        """
        self._memory.release(self._held.pop(number)[0])

    def may_speak(self) -> bool:
        """Returns True unless the client was refused, or does not read what it is answered."""
        unread = self.sender.unsent_bytes - (0 if self.is_local else self.held_bytes)
        return not self.is_refused and unread < _MOST_UNREAD_BYTES

    def flush(self) -> None:
        """Sends what fits; raises ConnectionError if the client is gone, or has been refused and knows it."""
        self._sent_bytes += self.sender.flush()
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
            or (self._midway_s > 0 and now - self._midway_s > _FRAME_S)
            or (self.is_local and any(now - since_s > _SILENCE_S for _, since_s in self._held.values()))
            or not self._drains(now)
        )

    def _drains(self, now: float) -> bool:
        """Returns True while it reads what is sent, at a rate that is of use."""
        before, since_s = self._mark
        if not self.sender.unsent_bytes or now - since_s > _SILENCE_S:
            self._mark = self._sent_bytes, now
            is_slow = self._sent_bytes - before < _LEAST_BYTES_PER_S * (now - since_s)
            return not (self.sender.unsent_bytes and is_slow)
        return True

    def forgive(self) -> None:
        """Begins all its times anew: this process has not listened."""
        now = time.monotonic()
        self.heard_s = self._began_s = now
        self._midway_s = now if self._midway_s else 0.0
        self._mark = self._sent_bytes, now
        self._held = {number: (piece, now) for number, (piece, _) in self._held.items()}

    def close(self) -> None:
        """Ends the connection at once, and only then gives up the memory of what was on the way: it may change."""
        self.is_closed = True
        with contextlib.suppress(OSError):
            if self.is_local:
                self.connection.shutdown(socket.SHUT_RDWR)  # whoever else has the socket
            else:
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER)
        self.connection.close()
        for number in list(self._held):
            self.taken(number)

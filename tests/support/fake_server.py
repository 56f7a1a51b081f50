"""A server of the input service on the test's own thread, which the test moves."""

from __future__ import annotations

import socket
from typing import Any

from feeder.service.frames import CLIENT_LIMITS, Kind, Receiver, pack_frame

__all__ = ["FakeServer"]


class FakeServer:
    """A server on the test's thread, which accepts any work, and answers parts when it is told to.

    Args:
        credit: Number of parts that may be unanswered; 0: it has not opened the set yet.

    Attributes:
        address: Its host and port.
        unanswered: Numbers of the parts that it was asked for.
    """

    def __init__(self, credit: int) -> None:
        self._credit = credit
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.setblocking(False)
        self.address: tuple[str, int] = self._listener.getsockname()
        self._connection: socket.socket | None = None
        self.unanswered: list[int] = []
        self._has_work = False

    def serve(self) -> None:
        """Takes what has come."""
        if self._connection is None:
            try:
                self._connection, _ = self._listener.accept()
            except BlockingIOError:
                return
            self._connection.setblocking(False)
            self._receiver = Receiver(self._connection, CLIENT_LIMITS)
        for frame in self._receiver.frames():
            if frame.kind == Kind.HELLO:
                self.say(Kind.WELCOME, {"cores": 1})
            elif frame.kind == Kind.WORK:
                self._has_work = True
                if self._credit:
                    self.say(Kind.ACCEPTED, {"credit": self._credit})
            elif frame.kind == Kind.PART:
                self.unanswered.append(frame.message["number"])

    def say(self, kind: Kind, message: dict[str, Any]) -> None:
        """Sends a frame."""
        assert self._connection is not None
        self._connection.sendall(pack_frame(kind, message))

    def answer(self, **reason: Any) -> bool:
        """Answers the part that it was asked for first, which has failed; returns False if there is none.

        Args:
            reason: The message; by default a process has died.
        """
        if not self.unanswered:
            return False
        self.say(Kind.FAILED, {"error": "its process has died"} | reason | {"number": self.unanswered.pop(0)})
        return True

    def heartbeat(self) -> bool:
        """Sends a heartbeat; returns False before there is work."""
        if self._has_work:
            self.say(Kind.HEARTBEAT, {"credit": self._credit})
        return self._has_work

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._listener.close()

"""The end of connections whose answers drip."""

from __future__ import annotations

import contextlib
import os
import socket
import threading

__all__ = ["TimeLimit"]


class TimeLimit:
    """Ends a connection after a time.

    Args:
        connected: Its socket.
        seconds: The time.

    Attributes:
        is_over: True once it has ended it.
    """

    def __init__(self, connected: socket.socket, seconds: float) -> None:
        self.is_over = False
        # The other is replaced when the connection is encrypted, and has no dup() then.
        self._socket = socket.socket(fileno=os.dup(connected.fileno()))
        self._timer = threading.Timer(seconds, self._end)
        self._timer.daemon = True
        self._timer.start()

    def _end(self) -> None:
        self.is_over = True
        with contextlib.suppress(OSError):  # it has just ended
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Lets the connection be."""
        self._timer.cancel()
        self._timer.join()
        self._socket.close()

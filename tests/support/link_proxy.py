"""A TCP proxy in this process, whose links can be made half open: everything is taken, and nothing passed on."""

from __future__ import annotations

import contextlib
import socket
import threading

__all__ = ["LinkProxy"]


class LinkProxy:
    """A proxy before a server.

    Args:
        target: The server's host and port.

    Attributes:
        place: The proxy's host and port.
        swallowed: Bytes that were taken and not passed on.
    """

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self._is_half_open = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.place: tuple[str, int] = self._listener.getsockname()
        self.swallowed = 0
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def swallow(self) -> None:
        """Passes nothing on from now on; no connection is closed, and new ones are still taken."""
        self._is_half_open.set()

    def close(self) -> None:
        """Ends all connections."""
        for each in (self._listener, *self._sockets):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client = self._listener.accept()[0]
                server = socket.create_connection(self._target)
                self._sockets += [client, server]
                for one, other in ((client, server), (server, client)):
                    threading.Thread(target=self._pump, args=(one, other), daemon=True).start()

    def _pump(self, one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(1 << 16):
                if self._is_half_open.is_set():
                    self.swallowed += len(data)
                else:
                    other.sendall(data)
            if not self._is_half_open.is_set():
                other.shutdown(socket.SHUT_WR)

"""The HTTP server of a loader's meters, with a few short connections.

Note [Connections]
    Anyone who can reach the port can open connections that neither send nor read. Each takes a thread and a descriptor,
    so there are a few at most, and none lasts longer than a scrape can take. A further one takes the place of the
    oldest, so that scrapes, which take milliseconds, go on.
"""

from __future__ import annotations

import contextlib
import socket
import socketserver
import threading
import time
from typing import Any
from wsgiref import simple_server

from feeder.errors import ArgumentError

__all__ = ["HttpServer", "metrics_server"]

_MOST_CONNECTIONS = 8
CONNECTION_S = 10.0  # Prometheus' own limit for a scrape
_ENDING_S = 1.0  # the longest wait for the thread of a connection that was ended
_PAUSE_S = 0.1


class HttpServer(socketserver.ThreadingMixIn, simple_server.WSGIServer):
    """Answers requests, see Note [Connections].

    Args:
        address: The address to listen on.
        port: TCP port; 0 for a free one.

    Attributes:
        connections: Open connections, the oldest first, each with its time limit on the monotonic clock.

    Raises:
        OSError: if the address or port can't be had.
    """

    daemon_threads = True
    request_queue_size = 128  # a connection that the kernel turns away is tried again a second later

    def __init__(self, address: str, port: int) -> None:
        found = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        self.address_family, _, _, _, (host, *_) = found[0]
        self.connections: dict[socket.socket, float] = {}
        self._free = threading.BoundedSemaphore(_MOST_CONNECTIONS)
        super().__init__((str(host), port), _SilentHandler)

    def get_request(self) -> Any:
        try:
            return super().get_request()
        except OSError:  # no descriptor is left: the connection waits, and would be tried again at once
            time.sleep(_PAUSE_S)
            raise

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Makes room for a connection; returns False if there is none."""
        if not self._free.acquire(blocking=False):
            _end(next(iter(self.connections.copy()), None))
            if not self._free.acquire(timeout=_ENDING_S):
                return False
        self.connections[request] = time.monotonic() + CONNECTION_S
        return True

    def service_actions(self) -> None:
        """Ends the connections whose time is over; called again and again."""
        now = time.monotonic()
        for connection, until in self.connections.copy().items():
            if until < now:
                _end(connection)

    def shutdown_request(self, request: Any) -> None:
        super().shutdown_request(request)
        if self.connections.pop(request, None) is not None:
            self._free.release()

    def server_close(self) -> None:
        super().server_close()
        for connection in self.connections.copy():
            _end(connection)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Prints nothing: the client has gone, or its connection was ended."""


class _SilentHandler(simple_server.WSGIRequestHandler):
    def log_message(self, format: str, *arguments: Any) -> None:
        """Prints nothing."""


def _end(connection: socket.socket | None) -> None:
    """Ends a connection, which its thread then closes."""
    if connection is not None:
        with contextlib.suppress(OSError):  # closed already
            connection.shutdown(socket.SHUT_RDWR)


def metrics_server(collector: Any, address: str, port: int, option: str, another: str) -> HttpServer:
    """Returns a server of metrics, which serves once its owner lets it.

    Args:
        collector: Has a method ``collect`` as prometheus_client takes it.
        address: The address to listen on.
        port: TCP port; 0 for a free one.
        option: The option that asks for it.
        another: Another choice than the port, in words.

    Raises:
        ArgumentError: if ``prometheus_client`` is missing, or the address or port can't be had.
    """
    try:
        import prometheus_client
    except ImportError:
        raise ArgumentError(
            f"{option} needs the prometheus_client package: pip install 'feeder-data[metrics]', or leave it out"
        ) from None
    registry = prometheus_client.CollectorRegistry(auto_describe=False)
    registry.register(collector)
    try:
        server = HttpServer(address, port)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ArgumentError(f"can't serve metrics on {address} port {port}: {reason}; take another {another}") from None
    server.set_app(prometheus_client.make_wsgi_app(registry))
    return server

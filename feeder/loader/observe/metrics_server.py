"""The HTTP server of metrics: of a loader's meters, and of an input service."""

from __future__ import annotations

import socket
import socketserver
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from wsgiref import simple_server

from feeder.errors import ArgumentError


class HttpServer(socketserver.ThreadingMixIn, simple_server.WSGIServer):
    """Answers requests, each in a thread.

    Args:
        address: The address to listen on.
        port: TCP port; 0 for a free one.

    Raises:
        OSError: if the address or port can't be had.
    """

    daemon_threads = True

    def __init__(self, address: str, port: int) -> None:
        found = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        self.address_family, _, _, _, (host, *_) = found[0]
        super().__init__((str(host), port), Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Prints nothing: the client has gone."""


class Handler(simple_server.WSGIRequestHandler):
    """Answers one connection, which may be silent for no longer than Prometheus' own limit for a scrape."""

    timeout = 10.0

    def log_message(self, format: str, *arguments: Any) -> None:
        """Prints nothing."""


@dataclass(eq=False)
class _Collector:
    collect: Callable[[], Iterator[Any]]


def metrics_server(
    collect: Callable[[], Iterator[Any]], address: str, port: int, option: str, another: str
) -> HttpServer:
    """Returns a server of metrics, which serves once its owner lets it.

    Args:
        collect: Yields metrics as prometheus_client takes them.
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
    registry.register(_Collector(collect))

    try:
        server = HttpServer(address, port)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ArgumentError(f"can't serve metrics on {address} port {port}: {reason}; take another {another}") from None
    server.set_app(prometheus_client.make_wsgi_app(registry))
    return server

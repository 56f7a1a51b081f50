"""A server of one object that answers requests for ranges of it as a test says."""

from __future__ import annotations

import http.server
import os
import threading
import urllib.parse
from collections.abc import Callable
from typing import Any

from feeder.shard.store.store import PIECE_BYTES

__all__ = ["DATA", "ETAG", "Headers", "RangeServer"]

DATA = os.urandom(7 * PIECE_BYTES + 10)
ETAG = '"1"'
Headers = dict[str, str]


class RangeServer(http.server.ThreadingHTTPServer):
    """Answers as its ``spoil`` says.

    Attributes:
        spoil: Takes the number of a signed request and the status and headers of its right answer; returns those to
            send.
        signed: Number of requests with a signature in their URL.
        others: Number of others.
        targets: Paths of the signed ones, and the names in their queries.
        connections: Addresses that requests came from.
        closed: Set once it has closed a connection.
    """

    daemon_threads = True
    request_queue_size = 64

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.spoil: Callable[[int, int, Headers], tuple[int, Headers]] = lambda number, status, headers: (
            status,
            headers,
        )
        self.signed = self.others = 0
        self.lock = threading.Lock()  # held while a request gets its number
        self.targets = list[tuple[str, set[str]]]()
        self.connections = set[Any]()
        self.closed = threading.Event()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def shutdown_request(self, request: Any) -> None:
        super().shutdown_request(request)
        self.closed.set()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Says nothing where a client has gone."""


class _Handler(http.server.BaseHTTPRequestHandler):
    server: RangeServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.server.connections.add(self.client_address)
        start, end = map(int, self.headers["Range"].removeprefix("bytes=").split("-"))
        status, headers = 206, {
            "Content-Range": f"bytes {start}-{end}/{len(DATA)}",
            "Content-Length": str(end + 1 - start),
            "ETag": ETAG,
            "Last-Modified": "Fri, 27 Nov 2026 00:00:00 GMT",
        }  # fmt: skip
        if "X-Amz-Signature=" in self.path:
            path, _, query = self.path.partition("?")
            with self.server.lock:
                number = self.server.signed
                self.server.signed += 1
                self.server.targets.append((path, set(urllib.parse.parse_qs(query))))
            status, headers = self.server.spoil(number, status, headers)
        else:
            self.server.others += 1
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(DATA[start : start + int(headers["Content-Length"])])
        self.close_connection |= "X-Breaks" in headers

    def log_message(self, *arguments: object) -> None:
        pass

"""A stand-in for Google Cloud Storage, and for a web server: as much of its API as obstore uses for small objects."""

from __future__ import annotations

import contextlib
import hashlib
import http.server
import threading
import urllib.parse
from email.utils import formatdate
from typing import NamedTuple
from xml.sax.saxutils import escape

__all__ = ["GoogleStore"]

_PACE_S = 0.02
_DATE = "2026-01-01T00:00:00.000Z"


class _Object(NamedTuple):
    data: bytes
    generation: int

    @property
    def etag(self) -> str:
        return f'"{hashlib.md5(self.data).hexdigest()}"'


class GoogleStore(http.server.ThreadingHTTPServer):
    """The server, on 127.0.0.1, with any bucket.

    Attributes:
        objects: The objects, by "bucket/key".
        url: Its base URL.
        requests: Method and target of each request that came, in order.
        has_weak_tags: True to give weak ETags, which no If-Match matches.
        knows_conditions: False to answer as if there were no If-Match.
        pages: Number of requests from now on that a proxy answers by the page of a login.
        page_status: Status of such an answer; 206 comes with an ETag.
        drips: Part of answers that comes byte by byte until ``goes_on`` is set: "head" or "body".
        goes_on: Set to have answers come at once.
    """

    has_weak_tags, knows_conditions = False, True
    pages, page_status = 0, 200
    drips = ""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.objects: dict[str, _Object] = {}
        self.requests: list[tuple[str, str]] = []
        self.generation = 1
        self.lock = threading.Lock()
        self.goes_on = threading.Event()
        self.url = f"http://127.0.0.1:{self.server_port}"
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def put(self, name: str, data: bytes) -> None:
        """Writes an object."""
        with self.lock:
            self.generation += 1
            self.objects[name] = _Object(data, self.generation)

    def close(self) -> None:
        """Ends the server."""
        self.goes_on.set()
        self.shutdown()
        self.server_close()


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: GoogleStore

    def parse_request(self) -> bool:
        is_request = super().parse_request()
        if is_request:
            self.server.requests.append((self.command, self.path))
        return is_request

    def _name(self) -> tuple[str, dict[str, str]]:
        path, _, query = self.path.partition("?")
        return urllib.parse.unquote(path[1:]), dict(urllib.parse.parse_qsl(query))

    def _answer(
        self, status: int, body: bytes = b"", headers: dict[str, str] | None = None, size: int | None = None
    ) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body) if size is None else size))
        if not self.server.drips:
            self.end_headers()
            self.wfile.write(body)
            return
        is_head = self.server.drips == "head"
        if is_head:
            self.flush_headers()
            self.wfile.write(b"X-Drips: ")
        else:
            self.end_headers()
        at = 0
        with contextlib.suppress(OSError):  # the client has gone
            while not self.server.goes_on.wait(_PACE_S):
                self.wfile.write(b"." if is_head else body[at : at + 1])
                at += 1
            self.wfile.write(b"\r\n\r\n" + body if is_head else body[at:])

    def _refuse(self, status: int, code: str) -> None:
        body = (
            b"" if self.command == "HEAD" else f"<Error><Code>{code}</Code><Message>made up</Message></Error>".encode()
        )
        self._answer(status, body)

    def do_PUT(self) -> None:
        data = self.rfile.read(int(self.headers["Content-Length"]))
        name, _ = self._name()
        expected = self.headers.get("x-goog-if-generation-match")
        with self.server.lock:
            now = self.server.objects.get(name)
            if expected is not None and int(expected) != (now.generation if now else 0):
                self._refuse(412, "PreconditionFailed")
                return
            self.server.generation += 1
            made = self.server.objects[name] = _Object(data, self.server.generation)
        self._answer(200, b"", {"ETag": made.etag, "x-goog-generation": str(made.generation)})

    def do_GET(self) -> None:
        name, query = self._name()
        if self.server.pages:
            self.server.pages -= 1
            self._login()
            return
        if "list-type" in query:
            self._list(name, query)
            return
        found = self.server.objects.get(name)
        if found is None:
            self._refuse(404, "NoSuchKey")
            return
        is_weak = self.server.has_weak_tags
        is_conditional = "If-Match" in self.headers and self.server.knows_conditions
        if is_conditional and (is_weak or self.headers["If-Match"] != found.etag):
            self._refuse(412, "PreconditionFailed")
            return
        headers = {
            "ETag": f"W/{found.etag}" if is_weak else found.etag,
            "x-goog-generation": str(found.generation),
            "Last-Modified": formatdate(usegmt=True),
        }
        if self.command == "HEAD":
            self._answer(200, b"", headers, len(found.data))
        elif place := self.headers.get("Range"):
            start, _, last = place.removeprefix("bytes=").partition("-")
            data = found.data[int(start) : int(last) + 1]
            end = int(start) + len(data) - 1
            self._answer(206, data, headers | {"Content-Range": f"bytes {start}-{end}/{len(found.data)}"})
        else:
            self._answer(200, found.data, headers)

    do_HEAD = do_GET

    def _login(self) -> None:
        page, headers = b"<!DOCTYPE html><title>Log in</title>", {"Content-Type": "text/html"}
        if self.server.page_status == 206:
            headers |= {"Content-Range": f"bytes 0-{len(page) - 1}/{len(page)}", "ETag": '"page"'}
        self._answer(self.server.page_status, b"" if self.command == "HEAD" else page, headers, len(page))

    def do_DELETE(self) -> None:
        with self.server.lock:
            found = self.server.objects.pop(self._name()[0], None)
        self._answer(204) if found else self._refuse(404, "NoSuchKey")

    def _list(self, bucket: str, query: dict[str, str]) -> None:
        first = f"{bucket.strip('/')}/{query.get('prefix', '')}"
        rows = "".join(
            f"<Contents><Key>{escape(name.partition('/')[2])}</Key><LastModified>{_DATE}</LastModified>"
            f"<ETag>{escape(found.etag)}</ETag><Size>{len(found.data)}</Size></Contents>"
            for name, found in sorted(self.server.objects.items())
            if name.startswith(first)
        )
        self._answer(200, f"<ListBucketResult><IsTruncated>false</IsTruncated>{rows}</ListBucketResult>".encode())

    def log_message(self, *arguments: object) -> None:
        pass

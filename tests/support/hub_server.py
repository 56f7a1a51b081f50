"""A stand-in for the Hugging Face Hub: its listing of a dataset's files and its redirects to a CDN, both over TLS."""

from __future__ import annotations

import hashlib
import http.server
import json
import re
import ssl
import threading
import time
import urllib.parse
from pathlib import Path
from typing import Any

__all__ = ["TOKEN", "HubServer"]

TOKEN = "hf_tests_own"
_SMALL_BYTES = 100  # files below it come from the hub itself


class _Server(http.server.ThreadingHTTPServer):
    """Answers GET by a function of the path and the headers.

    Attributes:
        requests: Path and authorization of each request that came.
    """

    daemon_threads = True

    def __init__(self, host: str, certificate: Path | None, hub: HubServer, part: str) -> None:
        super().__init__((host, 0), _Handler)
        self.hub, self.part = hub, part
        self.requests: list[tuple[str, str | None]] = []
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            self.socket = context.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()


class _Handler(http.server.BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.server.requests.append((self.path, self.headers["Authorization"]))
        status, headers, body = getattr(self.server.hub, self.server.part)(self.path, self.headers)
        self.send_response(status)
        for name, value in (headers | {"Content-Length": str(len(body))}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    do_HEAD = do_GET

    def log_message(self, *arguments: object) -> None:
        pass


class HubServer:
    """One dataset's repository.

    Args:
        certificates: The folder with its certificate, good.pem.
        repository: Its name, as "org/name".

    Attributes:
        endpoint: The hub's URL.
        plain_endpoint: The same without encryption.
        files: The files of each commit, by path.
        refs: The commits of branches.
        refusal: The error's code of requests without the token, "GatedRepo" or "RepoNotFound"; empty for a public one.
        busy: Number of requests that are answered by 429 yet, with ``retry_after`` seconds.
        expired: Number of signed URLs, the first ones, that the CDN takes no more.
    """

    def __init__(self, certificates: Path, repository: str) -> None:
        self.repository = repository
        self.files: dict[str, dict[str, bytes]] = {}
        self.refs: dict[str, str] = {}
        self.refusal = ""
        self.busy = self.retry_after = self.expired = self._signed = 0
        self._hub = _Server("127.0.0.1", certificates / "good.pem", self, "_answer")
        self._cdn = _Server("127.0.0.1", certificates / "good.pem", self, "_bytes")
        self._plain = _Server("127.0.0.1", None, self, "_answer")
        self._plain.requests = self._hub.requests
        self.plain_endpoint = f"http://127.0.0.1:{self._plain.server_port}"
        self.endpoint = f"https://localhost:{self._hub.server_port}"

    @property
    def asked(self) -> list[tuple[str, str | None]]:
        """Path and authorization of each request to the hub."""
        return self._hub.requests

    @property
    def fetched(self) -> list[tuple[str, str | None]]:
        """Path and authorization of each request to the CDN."""
        return self._cdn.requests

    def push(self, files: dict[str, bytes], branch: str = "main") -> str:
        """Makes a commit of these files, and returns it."""
        commit = hashlib.sha1(repr(sorted(files.items())).encode()).hexdigest()
        self.files[commit] = files
        self.refs[branch] = commit
        return commit

    def close(self) -> None:
        for server in (self._hub, self._cdn, self._plain):
            server.shutdown()
            server.server_close()

    def _answer(self, path: str, headers: Any) -> tuple[int, dict[str, str], bytes]:
        if self.busy:
            self.busy -= 1
            return 429, {"Retry-After": str(self.retry_after)}, b""
        parts = urllib.parse.urlsplit(path)
        api = re.fullmatch(rf"/api/datasets/{self.repository}/revision/([^/]+)", parts.path)
        found = re.fullmatch(rf"/datasets/{self.repository}/resolve/([0-9a-f]+)/(.+)", parts.path)
        if self.refusal and headers["Authorization"] != f"Bearer {TOKEN}":
            return 401, {"X-Error-Code": self.refusal, "X-Error-Message": "Access is restricted"}, b""
        if api:
            revision = urllib.parse.unquote(api[1])
            commit = revision if revision in self.files else self.refs.get(revision)
            if commit is None:
                return 404, {"X-Error-Code": "RevisionNotFound"}, b""
            listed = [{"rfilename": name, "size": len(data)} for name, data in self.files[commit].items()]
            return 200, {"Content-Type": "application/json"}, json.dumps({"sha": commit, "siblings": listed}).encode()
        if not found:
            return 404, {"X-Error-Code": "RepoNotFound"}, b""
        name = urllib.parse.unquote(found[2])
        data = self.files[found[1]].get(name)
        if data is None:
            return 404, {"X-Error-Code": "EntryNotFound"}, b""
        if len(data) < _SMALL_BYTES:
            return _range(data, headers)
        self._signed += 1
        place = f"https://127.0.0.1:{self._cdn.server_port}/{found[1]}/{urllib.parse.quote(name)}"
        return 302, {"Location": f"{place}?Signature={self._signed}"}, b""

    def _bytes(self, path: str, headers: Any) -> tuple[int, dict[str, str], bytes]:
        parts = urllib.parse.urlsplit(path)
        if int(parts.query.removeprefix("Signature=")) <= self.expired:
            return 403, {}, b""
        commit, _, name = parts.path[1:].partition("/")
        return _range(self.files[commit][urllib.parse.unquote(name)], headers)


def _range(data: bytes, headers: Any) -> tuple[int, dict[str, str], bytes]:
    common = {
        "ETag": f'"{hashlib.sha1(data).hexdigest()}"',
        "Last-Modified": time.strftime("%a, %d %b %Y %H:%M:%S GMT"),
    }
    asked = re.fullmatch(r"bytes=(\d+)-(\d+)", headers["Range"] or "")
    if not asked:
        return 200, common, data
    first, end = int(asked[1]), min(int(asked[2]) + 1, len(data))
    return 206, common | {"Content-Range": f"bytes {first}-{end - 1}/{len(data)}"}, data[first:end]

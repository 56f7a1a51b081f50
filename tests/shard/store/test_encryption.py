from __future__ import annotations

import http.server
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from feeder.errors import StoreError
from feeder.shard.store.store import Store, open_store
from tests.support.remote import Bucket, Read
from tests.support.s3_server import ACCESS_KEY, SECRET_KEY
from tests.support.tls import TlsProxy


@pytest.fixture(autouse=True)
def _no_plain_http(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket.put("x", b"secret bytes")
    for name in ("AWS_ALLOW_HTTP", "AWS_CA_BUNDLE", "SSL_CERT_FILE"):
        monkeypatch.delenv(name, raising=False)


def _opened(bucket: Bucket, endpoint: str) -> Store:
    return open_store(f"{bucket.url}?endpoint={endpoint}")


@pytest.mark.parametrize("variable", ["AWS_CA_BUNDLE", "SSL_CERT_FILE"])
def test_a_private_authority_is_trusted_where_it_is_named(
    bucket: Bucket, tls_proxy: TlsProxy, monkeypatch: pytest.MonkeyPatch, variable: str, read: Read
) -> None:
    with pytest.raises(StoreError, match=r"certificate is refused .*AWS_CA_BUNDLE or SSL_CERT_FILE"):
        read(_opened(bucket, tls_proxy.good), "x", 0, 12)
    monkeypatch.setenv(variable, str(tls_proxy.authority))
    assert read(_opened(bucket, tls_proxy.good), "x", 0, 12) == b"secret bytes"


@pytest.mark.parametrize("kind", ["wrong_host", "expired"])
def test_a_wrong_certificate_is_refused_at_once_also_for_web_servers(
    bucket: Bucket, tls_proxy: TlsProxy, monkeypatch: pytest.MonkeyPatch, kind: str, read: Read
) -> None:
    monkeypatch.setenv("AWS_CA_BUNDLE", str(tls_proxy.authority))
    monkeypatch.setenv("AWS_ALLOW_INVALID_CERTIFICATES", "true")  # obstore's own way out is none
    endpoint = getattr(tls_proxy, kind)
    for store in (_opened(bucket, endpoint), open_store(f"{endpoint}/{bucket.name}")):
        with pytest.raises(StoreError, match="certificate is refused"):
            read(store, "x", 0, 1)
        assert store.retries == 0


def test_a_missing_file_of_authorities_is_named(bucket: Bucket, monkeypatch: pytest.MonkeyPatch, read: Read) -> None:
    monkeypatch.setenv("AWS_CA_BUNDLE", "/nowhere/ca.pem")
    with pytest.raises(StoreError, match=r"/nowhere/ca\.pem: can't be read"):
        read(open_store(bucket.url, allow_http=True), "x", 0, 1)


class _Server(http.server.ThreadingHTTPServer):
    """A web server that answers as its ``answer`` says, and keeps the headers of its requests."""

    location = ""

    def __init__(self, host: str = "127.0.0.1") -> None:
        super().__init__((host, 0), _Handler)
        self.headers: list[dict[str, str]] = []
        threading.Thread(target=self.serve_forever, daemon=True).start()


class _Handler(http.server.BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        self.server.headers.append({name.lower(): value for name, value in self.headers.items()})
        if self.server.location:
            self.send_response(307)
            self.send_header("Location", self.server.location)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send_response(206)
        for name, value in (("Content-Range", "bytes 0-0/1"), ("Content-Length", "1"), ("ETag", '"1"')):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(b"x")

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def servers() -> Iterator[tuple[_Server, _Server]]:
    """A server that redirects to the other one, which has another host name."""
    first, second = _Server(), _Server()
    first.location = f"http://localhost:{second.server_port}/stolen"
    yield first, second
    for server in (first, second):
        server.shutdown()
        server.server_close()


def _without_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)


def test_credentials_do_not_follow_a_redirect_to_another_host(
    servers: tuple[_Server, _Server], monkeypatch: pytest.MonkeyPatch, read: Read
) -> None:
    first, second = servers
    _without_proxies(monkeypatch)
    monkeypatch.setenv("AWS_SESSION_TOKEN", "TOKEN")
    store = open_store(f"s3://bucket/set?endpoint=http://127.0.0.1:{first.server_port}", allow_http=True)
    with pytest.raises(StoreError, match="redirects to another host, which must not get the credentials"):
        read(store, "x", 0, 1)
    assert first.headers[-1]["x-amz-security-token"] == "TOKEN"
    assert second.headers == []


def test_a_signature_of_azure_does_not_follow_a_redirect_to_another_host(
    servers: tuple[_Server, _Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is part of the URL that referred there."""
    first, second = servers
    _without_proxies(monkeypatch)
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    monkeypatch.setenv("AZURE_STORAGE_SAS_KEY", "sv=2023-01-03&sig=SIGNATURE")
    store = open_store(f"az://container/set?endpoint=http://127.0.0.1:{first.server_port}", allow_http=True)
    with pytest.raises(StoreError, match="redirects to another host, which must not get the credentials"):
        store.get("x", 0, 1)
    assert (len(first.headers), second.headers) == (1, [])


def test_a_web_server_may_redirect_and_gets_no_credentials(
    servers: tuple[_Server, _Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = servers
    monkeypatch.setenv("AWS_SESSION_TOKEN", "TOKEN")
    store = open_store(f"http://127.0.0.1:{first.server_port}/set", allow_http=True)
    assert store.get("x", 0, 1) == b"x"
    for headers in (*first.headers, *second.headers):
        assert not {"authorization", "x-amz-security-token"} & headers.keys()
    assert len(second.headers) == 1


def test_a_redirect_to_plain_http_is_refused(
    tls_proxy: TlsProxy, servers: tuple[_Server, _Server], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    before = TlsProxy(tmp_path, servers[0].server_port)
    monkeypatch.setenv("AWS_CA_BUNDLE", str(before.authority))
    try:
        with pytest.raises(StoreError, match=r"without encryption \(http\)"):
            open_store(f"{before.good}/set").get("x", 0, 1)
    finally:
        before.close()
    assert (len(servers[0].headers), servers[1].headers) == (1, [])


class _Metadata(http.server.BaseHTTPRequestHandler):
    """An instance's metadata, with credentials of its role."""

    def do_PUT(self) -> None:
        self._answer(b"token")

    def do_GET(self) -> None:
        found = {"AccessKeyId": ACCESS_KEY, "SecretAccessKey": SECRET_KEY, "Token": "", "Code": "Success"}
        dates = {"Expiration": "2099-01-01T00:00:00Z", "LastUpdated": "2020-01-01T00:00:00Z", "Type": "AWS-HMAC"}
        is_role = self.path.endswith("/security-credentials/role")
        self._answer(json.dumps(found | dates).encode() if is_role else b"role")

    def _answer(self, data: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *arguments: object) -> None:
        pass


def test_the_role_of_an_instance_gives_credentials(bucket: Bucket, monkeypatch: pytest.MonkeyPatch, read: Read) -> None:
    _without_proxies(monkeypatch)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
    # At another address than the store's, as it is on an instance.
    with http.server.ThreadingHTTPServer(("127.0.0.2", 0), _Metadata) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("AWS_METADATA_ENDPOINT", f"http://127.0.0.2:{server.server_port}")
        assert read(open_store(bucket.url, allow_http=True), "x", 0, 12) == b"secret bytes"
        server.shutdown()

from __future__ import annotations

import http.server
import json
import threading

import pytest

from feeder.errors import StoreError
from feeder.shard.store.open_store import open_store
from feeder.shard.store.store import Store
from tests.support.remote import Bucket, Read, without_proxies
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
    without_proxies(monkeypatch)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
    # At another address than the store's, as it is on an instance.
    with http.server.ThreadingHTTPServer(("127.0.0.2", 0), _Metadata) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("AWS_METADATA_ENDPOINT", f"http://127.0.0.2:{server.server_port}")
        assert read(open_store(bucket.url, allow_http=True), "x", 0, 12) == b"secret bytes"
        server.shutdown()

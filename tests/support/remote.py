"""Fixtures of tests that need an object store; ``tests/conftest.py`` has them for all.

A test takes ``bucket`` for a store, ``real_bucket`` where moto's server would not do, and ``fault_proxy`` or
``tls_proxy`` for what lies before it. The servers start when a test first asks, which takes two seconds, and end with
the session.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from feeder.shard.store.store import Store
from tests.support.fault_proxy import FaultProxy, Faults
from tests.support.google_store import GoogleStore
from tests.support.s3_server import S3Server, SharedS3Server
from tests.support.tls import TlsProxy, haproxy_is_installed

__all__ = [
    "Bucket",
    "bucket",
    "fault_proxy",
    "google",
    "read",
    "real_bucket",
    "s3_server",
    "tls_proxy",
    "without_proxies",
]

Read = Callable[..., bytes]


class Bucket(NamedTuple):
    """An empty bucket.

    Attributes:
        name: Its name.
        server: The server that has it; the environment variables of clients lead there.
        client: A client of boto3.
    """

    name: str
    server: S3Server
    client: Any

    @property
    def url(self) -> str:
        """ "s3://NAME"."""
        return f"s3://{self.name}"

    def put(self, key: str, data: bytes) -> None:
        """Writes an object."""
        self.client.put_object(Bucket=self.name, Key=key, Body=data)

    def upload(self, folder: Path, prefix: str) -> int:
        """Writes the files of a folder below a prefix, and returns their size, in bytes."""
        return self.server.upload(folder, self.name, prefix)

    def get(self, key: str) -> bytes:
        """Returns the bytes of an object."""
        data: bytes = self.client.get_object(Bucket=self.name, Key=key)["Body"].read()
        return data

    def keys(self) -> list[str]:
        """Returns the keys of all objects, sorted."""
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=self.name)
        return sorted(found["Key"] for page in pages for found in page.get("Contents", ()))

    def open_to_all(self) -> str:
        """Has anyone read its objects, and returns its URL for plain GET requests."""
        policy = (
            '{"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Principal": "*", "Action": "s3:GetObject", '
            f'"Resource": "arn:aws:s3:::{self.name}/*"}}]}}'
        )
        self.client.put_bucket_policy(Bucket=self.name, Policy=policy)
        return f"{self.server.endpoint}/{self.name}"


def _get(store: Store, key: str, start: int, end: int, etag: str | None = None) -> bytes:
    return bytes(store.get(key, start, end, etag))


def _pieces(store: Store, key: str, start: int, end: int, etag: str | None = None) -> bytes:
    return b"".join(store.pieces(key, start, end, etag))


@pytest.fixture(params=[_get, _pieces], ids=["get", "pieces"])
def read(request: pytest.FixtureRequest) -> Read:
    """Each way to read a range, as a function of the store, the key, the first byte, the end and the ETag."""
    found: Read = request.param
    return found


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """The object store of all runners: Ceph's gateway or, where Ceph is not installed, moto's server."""
    folder = tmp_path_factory.getbasetemp()
    server = SharedS3Server(folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder)
    yield server
    server.close()


@pytest.fixture
def bucket(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    """An empty bucket of the test's own, with the environment variables that clients take."""
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)
    for name, value in s3_server.environment().items():
        monkeypatch.setenv(name, value)
    name, client = f"test-{uuid.uuid4()}", s3_server.client
    client.create_bucket(Bucket=name)
    made = Bucket(name, s3_server, client)
    yield made
    for each in made.keys():  # noqa: SIM118
        client.delete_object(Bucket=name, Key=each)
    client.delete_bucket(Bucket=name)


@pytest.fixture
def real_bucket(bucket: Bucket) -> Bucket:
    """An empty bucket of Ceph's gateway."""
    if not bucket.server.is_real:
        pytest.skip("needs Ceph's gateway: apt-get install ceph-mon ceph-osd radosgw ceph-common")
    return bucket


@pytest.fixture
def fault_proxy(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultProxy]:
    """A proxy before the test's bucket, to which the environment variables of clients lead; without faults yet."""
    proxy = FaultProxy(bucket.server.port)
    monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
    yield proxy
    proxy.set(Faults())  # fails if the proxy has ended
    proxy.close()


@pytest.fixture
def google(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[GoogleStore]:
    """A stand-in for Google Cloud Storage, to which the environment variables of clients lead; a web server, too."""
    server = GoogleStore()
    account = {"gcs_base_url": server.url, "disable_oauth": True, "client_email": "", "private_key": ""}
    (tmp_path / "account.json").write_text(json.dumps(account | {"private_key_id": ""}))
    monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT", str(tmp_path / "account.json"))
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    yield server
    server.close()


@pytest.fixture
def tls_proxy(bucket: Bucket, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsProxy]:
    """HAProxy with TLS before the test's bucket. Clients take an endpoint of it and trust its authority themselves."""
    if not haproxy_is_installed():
        pytest.skip("needs HAProxy: apt-get install haproxy")
    proxy = TlsProxy(tmp_path_factory.mktemp("tls"), bucket.server.port)
    yield proxy
    proxy.close()


def without_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hides the proxies that the environment names."""
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)

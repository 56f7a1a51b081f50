"""Redirects of stores to other hosts, which may be those that only this machine can reach.

Servers listen on the loopback addresses 127.0.0.1, which is private, and 127.0.0.2 and 127.0.0.3, which stand for two
of the internet.
"""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from obstore.exceptions import GenericError

from feeder.errors import NotFoundError, StoreError
from feeder.shard.store.fault import FaultKind, fault_of
from feeder.shard.store.http_answers import private_one, redirect_of
from feeder.shard.store.open_store import open_store
from feeder.shard.store.store import Store
from tests.support.remote import Read, without_proxies
from tests.support.tls import TlsProxy, haproxy_is_installed


class _Server(http.server.ThreadingHTTPServer):
    """A server of objects of one byte.

    Attributes:
        url: Its base URL.
        answers: Where it redirects to, or the status that it answers, by target.
        headers: The headers of the requests that came.
        targets: What they asked for.
    """

    def __init__(self, host: str) -> None:
        super().__init__((host, 0), _Handler)
        self.url = f"http://{host}:{self.server_port}"
        self.answers: dict[str, str | int] = {}
        self.headers: list[dict[str, str]] = []
        self.targets: list[str] = []
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()


class _Handler(http.server.BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        self.server.targets.append(self.path)
        self.server.headers.append({name.lower(): value for name, value in self.headers.items()})
        answer = self.server.answers.get(self.path, self.server.answers.get("*", 206))
        self.send_response(307 if isinstance(answer, str) else answer)
        body = b"x" if answer == 206 else b""
        headers = {"Content-Length": str(len(body))}
        if isinstance(answer, str):
            headers["Location"] = answer
        elif body:
            headers |= {"Content-Range": "bytes 0-0/1", "ETag": '"1"', "Last-Modified": "Wed, 21 Oct 2015 07:28:00 GMT"}
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    do_HEAD = do_GET

    def log_message(self, *arguments: object) -> None:
        pass


class _Servers(NamedTuple):
    """A server of a private network and two of the internet."""

    private: _Server
    public: _Server
    other: _Server


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> Iterator[_Servers]:
    without_proxies(monkeypatch)
    monkeypatch.setattr(
        "feeder.shard.store.http_answers.private_one",
        lambda found: private_one([each for each in found if each not in ("127.0.0.2", "127.0.0.3")]),
    )
    made = _Servers(*(_Server(f"127.0.0.{k}") for k in (1, 2, 3)))
    yield made
    for server in made:
        server.shutdown()
        server.server_close()


def _set_of(server: _Server, *, allow_private: bool = False) -> Store:
    return open_store(f"{server.url}/set", allow_http=True, allow_private=allow_private)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_redirect_from_the_internet_into_a_private_network_is_refused_before_anything_is_asked_there(
    servers: _Servers, read: Read, host: str
) -> None:
    servers.public.answers["*"] = f"http://{host}:{servers.private.server_port}/inside"
    store = _set_of(servers.public)
    message = r"/set/x: redirects to \S+, which is this machine or a private network; .* allow_private=True"
    with pytest.raises(StoreError, match=message):
        read(store, "x", 0, 1)
    with pytest.raises(StoreError, match=message):
        store.size("x")
    assert servers.private.targets == []
    assert read(_set_of(servers.public, allow_private=True), "x", 0, 1) == b"x"
    assert servers.private.targets == ["/inside"]


def test_a_later_redirect_into_a_private_network_is_refused_too(servers: _Servers, read: Read) -> None:
    servers.public.answers["/set/x"] = f"{servers.other.url}/mirror/x"
    store = _set_of(servers.public)
    assert read(store, "x", 0, 1) + read(store, "y", 0, 1) == b"xx"
    servers.other.answers["/mirror/x"] = servers.public.answers["/set/y"] = f"{servers.private.url}/inside"
    for key in ("x", "y"):
        with pytest.raises(StoreError, match=r"redirects to 127\.0\.0\.1"):
            read(store, key, 0, 1)
    assert servers.private.targets == []


@pytest.mark.parametrize("target", ["/mirror/x", "/f%20g?sig=a%2Bb&path=/x"])
def test_an_object_that_is_redirected_is_asked_for_where_it_lies(servers: _Servers, read: Read, target: str) -> None:
    servers.public.answers["/set/x"] = servers.other.url + target
    store = _set_of(servers.public)
    entry = store.size("x")
    for _ in range(3):
        assert read(store, "x", 0, 1, entry.etag) == b"x"
    assert servers.public.targets == ["/set/x"] * 2  # by obstore, and to be told where it redirects to
    assert servers.other.targets == [target] * 4
    assert store.retries == 0


@pytest.mark.parametrize("fault", [403, 404, 503])
def test_a_place_that_an_object_has_left_is_asked_for_again(servers: _Servers, read: Read, fault: int) -> None:
    servers.public.answers["/set/x"] = f"{servers.other.url}/old?sig=1"
    store = _set_of(servers.public)
    entry = store.size("x")
    servers.other.answers["/old?sig=1"] = fault
    servers.public.answers["/set/x"] = f"{servers.other.url}/new?sig=2"
    assert read(store, "x", 0, 1, entry.etag) == b"x"
    servers.other.answers["*"] = 404
    with pytest.raises(NotFoundError, match="/set/x: there is no such object") as caught:
        read(store, "x", 0, 1)
    assert "sig" not in str(caught.value)


def test_a_new_object_is_found_where_its_place_is_another_one_than_the_old_ones(servers: _Servers) -> None:
    store = _set_of(servers.public)
    for ask, place in ((store.size, "/old"), (store.get, "/new"), (store.size, "/newest")):
        servers.public.answers["/set/x"] = servers.other.url + place
        ask("x")
        assert servers.other.targets[-1] == place


def test_redirects_are_followed_from_host_to_host_and_come_to_an_end(servers: _Servers, read: Read) -> None:
    servers.public.answers |= {"/set/x": "/here", "/here": f"{servers.other.url}/there", "/set/loop": "loop"}
    servers.other.answers["/there"] = f"{servers.public.url}/end"
    servers.public.answers["/set/far"] = f"{servers.other.url}/far"
    servers.other.answers["/far"] = f"{servers.public.url}/set/far"
    store = _set_of(servers.public)
    assert read(store, "x", 0, 1) == b"x"
    for key in ("loop", "far"):
        with pytest.raises(StoreError, match=f"/set/{key}: the store redirects without end"):
            read(store, key, 0, 1)


@pytest.mark.parametrize("location", ["file:///etc/passwd", "ftp://127.0.0.3/x", "http://127.0.0.3:x/", "http://[/"])
def test_a_redirect_to_what_is_no_url_of_a_web_server_is_refused(servers: _Servers, location: str) -> None:
    servers.public.answers["/x"] = location
    with pytest.raises(StoreError, match=r"^SHOWN: redirects to what is .*not? .*URL"):
        redirect_of(f"{servers.public.url}/x", "SHOWN", allow_http=True, allow_private=False, request_s=5, headers={})


def test_a_server_of_a_private_network_redirects_within_it_unless_the_internet_lies_between(
    servers: _Servers, read: Read
) -> None:
    servers.private.answers["/set/x"] = f"http://localhost:{servers.private.server_port}/y"
    servers.private.answers["/set/out"] = f"{servers.public.url}/back"
    servers.public.answers["/back"] = f"{servers.private.url}/inside"
    store = _set_of(servers.private)
    assert read(store, "x", 0, 1) == b"x"
    with pytest.raises(StoreError, match=r"/set/out: redirects to 127\.0\.0\.1"):
        read(store, "out", 0, 1)
    assert "/inside" not in servers.private.targets


def test_a_web_server_gets_no_credentials_where_it_redirects(
    servers: _Servers, monkeypatch: pytest.MonkeyPatch, read: Read
) -> None:
    monkeypatch.setenv("AWS_SESSION_TOKEN", "TOKEN")
    servers.public.answers["/set/x"] = f"{servers.other.url}/y"
    assert read(_set_of(servers.public), "x", 0, 1) == b"x"
    for headers in (*servers.public.headers, *servers.other.headers):
        assert not {"authorization", "x-amz-security-token"} & headers.keys()


def test_redirects_are_followed_by_tls(
    servers: _Servers, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, read: Read
) -> None:
    if not haproxy_is_installed():
        pytest.skip("needs HAProxy: apt-get install haproxy")
    proxy = TlsProxy(tmp_path, servers.private.server_port)
    monkeypatch.setenv("AWS_CA_BUNDLE", str(proxy.authority))
    servers.private.answers["/set/x"] = f"{proxy.good.replace('127.0.0.1', 'localhost')}/y"
    servers.private.answers["/set/plain"] = f"http://localhost:{servers.private.server_port}/stolen"
    try:
        store = open_store(f"{proxy.good}/set")
        assert read(store, "x", 0, 1) == b"x"
        with pytest.raises(StoreError, match=r"without encryption \(http\)"):
            read(store, "plain", 0, 1)
    finally:
        proxy.close()
    assert "/stolen" not in servers.private.targets


@pytest.mark.parametrize("store", ["s3", "gs", "az"])
def test_a_store_with_credentials_is_followed_to_no_other_host(
    servers: _Servers, monkeypatch: pytest.MonkeyPatch, read: Read, store: str
) -> None:
    """A signature of Azure is part of the URL that referred there."""
    variables = {
        "AWS_ACCESS_KEY_ID": "KEY",
        "AWS_SECRET_ACCESS_KEY": "SECRET",
        "AWS_SESSION_TOKEN": "TOKEN",
        "GOOGLE_SKIP_SIGNATURE": "true",
        "AZURE_STORAGE_ACCOUNT_NAME": "account",
        "AZURE_STORAGE_SAS_KEY": "sv=2023-01-03&sig=SIGNATURE",
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    servers.public.answers["*"] = f"http://localhost:{servers.private.server_port}/stolen"
    with pytest.raises(StoreError, match="redirects to another host, which must not get the credentials"):
        read(open_store(f"{store}://bucket/set?endpoint={servers.public.url}", allow_http=True), "x", 0, 1)
    assert servers.private.targets == []
    if store == "s3":
        assert servers.public.headers[-1]["x-amz-security-token"] == "TOKEN"


@pytest.mark.parametrize("store", ["http", "s3"])
def test_a_redirect_does_not_pass_by_the_proxy_of_the_store(
    servers: _Servers, monkeypatch: pytest.MonkeyPatch, read: Read, store: str
) -> None:
    """Not even to a host that other requests reach without it: its rules say what may be reached."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("http_proxy", servers.other.url)
    monkeypatch.setenv("no_proxy", "127.0.0.1,localhost")
    inside = f"{servers.private.url}/inside"
    servers.other.answers = {"*": inside, inside: 206}
    place = f"{servers.public.url}/set" if store == "http" else f"s3://bucket/set?endpoint={servers.public.url}"
    assert read(open_store(place, allow_http=True), "x", 0, 1) == b"x"
    assert servers.other.targets[-1] == inside
    assert servers.private.targets == servers.public.targets == []


@pytest.mark.parametrize("variable", ["http_proxy", "all_proxy", "https_proxy"])
def test_a_store_in_a_network_without_a_proxy_is_guarded(
    servers: _Servers, monkeypatch: pytest.MonkeyPatch, read: Read, variable: str
) -> None:
    monkeypatch.setenv(variable, servers.other.url)
    monkeypatch.setenv("no_proxy", "example.com, 127.0.0.0/30" if variable != "https_proxy" else "")
    servers.public.answers["/set/x"] = f"{servers.private.url}/inside"
    with pytest.raises(StoreError, match=r"redirects to 127\.0\.0\.1"):
        read(_set_of(servers.public), "x", 0, 1)
    assert servers.private.targets == servers.other.targets == []


def test_a_store_on_this_machine_that_is_gone_is_not_taken_for_a_redirect() -> None:
    error = GenericError("Generic S3 error: HTTP error\n\nDebug source:\nConnectError(127.0.0.1:18080)")
    assert fault_of(error, "s3").kind is FaultKind.TRANSIENT

"""URLs in manifests: what may be reached by them, and what is stored and shown of them."""

from __future__ import annotations

import collections
import contextlib
import functools
import http.server
import json
import re
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from feeder.errors import SourceError, StoreError
from feeder.shard.source.sample_table import StoredField
from feeder.shard.source.spool import Spool
from feeder.shard.source.table_file import ManifestColumns
from feeder.shard.source.web import WebReader, shown_url
from feeder.shard.source.web_servers import asked_pause_s
from feeder.shard.write.sharding import shard
from tests.support.images import encode, pixels
from tests.support.processes import wait_until
from tests.support.shard_sets import kept, member, rejected, samples_of
from tests.support.tls import TlsProxy, haproxy_is_installed


class _Server(http.server.ThreadingHTTPServer):
    """A web server: its ``pages`` are bytes, a location to redirect to, or a status, by path."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.pages: dict[str, bytes | str | int] = {}
        self.seen: collections.Counter[str] = collections.Counter()
        self.headers: list[dict[str, str]] = []
        self.outage, self.fault = range(0), 503  # the requests, by number, that are answered so
        self.retry_after = ""
        self.url = f"http://127.0.0.1:{self.server_port}"
        threading.Thread(target=self.serve_forever, daemon=True).start()


class _Handler(http.server.BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        self.server.seen[self.path] += 1
        self.server.headers.append({name.lower(): value for name, value in self.headers.items()})
        page = self.server.pages.get(self.path, 404)
        if self.server.seen.total() in self.server.outage:
            page = self.server.fault
        self.send_response(page if isinstance(page, int) else 302 if isinstance(page, str) else 200)
        if isinstance(page, str):
            self.send_header("Location", page)
        elif page == 503 and self.server.retry_after:
            self.send_header("Retry-After", self.server.retry_after)
        body = page if isinstance(page, bytes) else b""
        self.send_header("Content-Length", str(len(body) + self.path.startswith("/cut")))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[_Server]:
    server = _Server()
    yield server
    server.shutdown()
    server.server_close()


def _manifest(folder: Path, rows: list[str]) -> str:
    path = folder / "list.jsonl"
    path.write_text("\n".join(json.dumps({"url": row, "n": k}) for k, row in enumerate(rows)))
    return str(path)


def _columns(**options: Any) -> ManifestColumns:
    return ManifestColumns(path="url", **options)


def test_images_behind_urls_become_samples_and_their_queries_are_not_stored(server: _Server, tmp_path: Path) -> None:
    images = [encode(pixels(k)) for k in range(40)]
    server.pages = {f"/image?id={k}&X-Amz-Signature=HIDDEN": image for k, image in enumerate(images)}
    server.pages["/plain%20name.jpg"] = images[0]
    rows = [*(server.url + path for path in server.pages), f"{server.url}/gone.jpg?X-Amz-Signature=HIDDEN"]
    out = tmp_path / "out"
    summary = shard(_manifest(tmp_path, rows), str(out), kept(columns=_columns(allow_private=True), max_bad=1))
    assert (summary.samples, summary.rejected) == (41, 1)
    assert sorted(data for _, data, _ in samples_of(out)) == sorted([*images, images[0]])
    assert list(rejected(out)) == [f"{server.url}/gone.jpg"]
    assert "not found (404" in rejected(out)[f"{server.url}/gone.jpg"]
    assert not any(b"HIDDEN" in path.read_bytes() for path in out.iterdir())
    assert set(server.seen.values()) == {1}
    assert not any("HIDDEN" in str(note) for note in summary.notes)


@pytest.mark.parametrize("ended", ["while images are read", "while shards are written"])
def test_a_run_that_is_started_again_reads_each_image_once(
    server: _Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ended: str
) -> None:
    server.pages = {f"/{k}.jpg?X-Amz-Signature=HIDDEN": encode(pixels(k)) for k in range(50)}
    manifest = _manifest(tmp_path, [server.url + path for path in server.pages])
    options = kept(samples_per_shard=10, columns=_columns(allow_private=True), workers=1)
    kept_file = tmp_path / "out" / ".work" / "images"
    with monkeypatch.context() as patched:
        if ended == "while images are read":
            spool_add, added = Spool.add, list[bytes]()

            def add(spool: Spool, field: str, data: bytes) -> StoredField:
                added.append(data)
                if len(added) == 30:
                    raise KeyboardInterrupt
                return spool_add(spool, field, data)

            patched.setattr(Spool, "add", add)
        else:
            patched.setattr("feeder.shard.write.run.write_set", interrupt)
        with pytest.raises(KeyboardInterrupt):
            shard(manifest, str(tmp_path / "out"), options)
    data = kept_file.read_bytes()
    assert b"HIDDEN" not in data
    if ended == "while images are read":
        kept_file.write_bytes(data[:-1] + bytes(1))  # what came last is cut off, and after it
        with kept_file.open("ab") as file:
            file.write(b"half of a record")
    else:
        server.pages = dict.fromkeys(server.pages, 404)  # nobody asks any more
    before = server.seen.copy()
    assert shard(manifest, str(tmp_path / "out"), options).samples == 50
    if ended == "while shards are written":
        assert server.seen == before
    else:
        assert 20 < sum(server.seen[path] == 1 for path in server.pages) < 50
    assert not kept_file.exists()
    server.pages = {path: encode(pixels(k)) for k, path in enumerate(server.pages)}
    shard(manifest, str(tmp_path / "whole"), options)
    for path in (tmp_path / "whole").glob("[!.]*"):
        assert (tmp_path / "out" / path.name).read_bytes() == path.read_bytes()


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def test_rows_of_the_same_url_are_joined_and_those_with_queries_rejected(server: _Server, tmp_path: Path) -> None:
    server.pages = {"/a.jpg": encode(pixels(1)), "/b.jpg?id=1": encode(pixels(2))}
    manifest = _manifest(tmp_path, [server.url + path for path in ("/a.jpg", "/b.jpg?id=1", "/a.jpg")])
    columns = _columns(allow_private=True, lists=("n",))
    shard(manifest, str(tmp_path / "out"), kept(columns=columns, max_bad=1))
    assert [data for _, data, _ in samples_of(tmp_path / "out")] == [encode(pixels(1))]
    assert member(tmp_path / "out", f"{server.url}/a.jpg", "json") == b'{"n":[0,2]}'
    assert rejected(tmp_path / "out") == {
        f"{server.url}/b.jpg": "URLs with a query can't be joined: leave --list-column out"
    }


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost", "[::1]", "169.254.169.254", "10.1.2.3", "[::ffff:127.0.0.1]"]
)
def test_this_machine_and_private_networks_are_refused(server: _Server, tmp_path: Path, host: str) -> None:
    server.pages = {"/x": encode(pixels(1))}
    with pytest.raises(StoreError, match=r"this machine or a private network.*--allow-private"):
        WebReader().get(f"http://{host}:{server.server_port}/x")
    assert not server.seen


@pytest.mark.parametrize("drips", ["head", "body"])
def test_an_answer_that_drips_for_ever_is_an_error(monkeypatch: pytest.MonkeyPatch, drips: str) -> None:
    monkeypatch.setattr("feeder.shard.source.web.ANSWER_S", 0.3)
    given_up = threading.Event()

    def drip() -> None:
        channel, _ = listener.accept()
        with channel, contextlib.suppress(OSError):
            channel.recv(1 << 16)
            channel.sendall(b"HTTP/1.1 200 OK\r\n" + (b"X: " if drips == "head" else b"Content-Length: 999\r\n\r\n"))
            while not given_up.wait(0.01):
                channel.sendall(b"x")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=drip)
        thread.start()
        with pytest.raises(StoreError, match=r"/x: its answer takes more than 0\.3 s"):
            WebReader(allow_private=True).get(f"http://127.0.0.1:{listener.getsockname()[1]}/x")
        given_up.set()
        thread.join()


def test_the_connection_goes_to_the_address_that_was_checked(server: _Server, monkeypatch: pytest.MonkeyPatch) -> None:
    server.pages = {"/x": b"the bytes"}
    asked = []

    def resolve(host: str, *_: Any, **__: Any) -> list[Any]:
        asked.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", server.server_port))]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    assert WebReader(allow_private=True).get("http://images.example/x") == b"the bytes"
    assert asked == ["images.example", "127.0.0.1"]
    assert server.headers[0]["host"] == "images.example"


def test_a_redirect_is_checked_like_the_url(server: _Server, monkeypatch: pytest.MonkeyPatch) -> None:
    found, address = socket.getaddrinfo, "8.8.8.8"  # stands for a server of the internet's, which is this one

    class Socket(socket.socket):
        def connect(self, place: Any) -> None:
            super().connect(("127.0.0.1", server.server_port) if place[0] == address else place)

    def resolve(host: str, *arguments: Any, **options: Any) -> list[Any]:
        return found(address if host == "public.example" else host, *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    monkeypatch.setattr(socket, "socket", Socket)
    server.pages = {"/a?token=HIDDEN": f"{server.url}/inside", "/b": "file:///etc/passwd", "/inside": b"private"}
    with pytest.raises(StoreError, match=r"public\.example/a: leads to 127\.0\.0\.1"):
        WebReader().get("http://public.example/a?token=HIDDEN")
    with pytest.raises(StoreError, match=r"public\.example/b: a manifest may hold paths and http\(s\) URLs"):
        WebReader().get("http://public.example/b")
    assert set(server.seen) == {"/a?token=HIDDEN", "/b"}


def test_redirects_are_followed_and_come_to_an_end(server: _Server) -> None:
    server.pages = {"/a": "/b?x=1", "/b?x=1": f"{server.url}/c", "/c": b"the bytes", "/loop": "/loop"}
    reader = WebReader(allow_private=True)
    assert reader.get(f"{server.url}/a") == b"the bytes"
    with pytest.raises(StoreError, match="redirects more than 5 times"):
        reader.get(f"{server.url}/loop")


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("s3://bucket/x.jpg", "--image-root s3://bucket"),
        ("ftp://host/x.jpg", r"paths and http\(s\) URLs"),
        ("http://HIDDEN:HIDDEN@127.0.0.1/x.jpg", "must not hold a name or a password"),
        ("https:///x.jpg", "has no host"),
        ("http://[/x.jpg", "is not a URL"),
        ("file:///etc/passwd?HIDDEN", "file: URLs are refused"),
    ],
)
def test_other_urls_in_a_manifest_are_refused(tmp_path: Path, url: str, reason: str) -> None:
    (tmp_path / "good.jpg").write_bytes(encode(pixels(1)))
    out = tmp_path / "out"
    shard(_manifest(tmp_path, ["good.jpg", url]), str(out), kept(columns=_columns(), max_bad=1))
    ((path, why),) = rejected(out).items()
    assert "HIDDEN" not in path + why
    assert re.search(reason, why)


def test_file_urls_are_read_where_private_places_are_allowed(tmp_path: Path) -> None:
    (tmp_path / "a b.jpg").write_bytes(encode(pixels(1)))
    rows = [f"file://{tmp_path}/a%20b.jpg", f"file://{tmp_path}/none.jpg"]
    out = tmp_path / "out"
    shard(_manifest(tmp_path, rows), str(out), kept(columns=_columns(allow_private=True), max_bad=1))
    assert [data for _, data, _ in samples_of(out)] == [encode(pixels(1))]
    assert len(rejected(out)) == 1


def test_what_is_too_large_is_not_read(server: _Server) -> None:
    server.pages = {"/x": bytes(1001)}
    with pytest.raises(StoreError, match="more than 1,000 bytes"):
        WebReader(allow_private=True, max_bytes=1000).get(f"{server.url}/x")


@pytest.fixture
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("feeder.shard.source.web_servers.FIRST_PAUSE_S", 0.01)


def _reader(**options: Any) -> WebReader:
    return WebReader(allow_private=True, **{"timeout_s": 0.2, "patience_s": 0.05} | options)


def _dead_url() -> str:
    """A URL of a server that is gone."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"http://127.0.0.1:{listener.getsockname()[1]}/x.jpg"


@pytest.mark.parametrize("page", [429, 500, 503, b"the byt"])
@pytest.mark.usefixtures("_short_pauses")
def test_a_url_that_fails_is_rejected_only_while_its_server_answers_others(server: _Server, page: int | bytes) -> None:
    server.pages = {"/no": 403, "/cut?token=HIDDEN": page}
    reader, url = _reader(), f"{server.url}/cut?token=HIDDEN"
    with pytest.raises(SourceError, match=r"/cut: .*; for \d+ s no other URL is answered, too: check the network"):
        reader.get(url)
    with pytest.raises(StoreError, match="/no: 403 Forbidden"):
        reader.get(f"{server.url}/no")
    assert server.seen["/no"] == 1
    with pytest.raises(StoreError, match=r"/cut: .*, in \d+ attempts, while others are answered") as caught:
        reader.get(url)
    assert "HIDDEN" not in str(caught.value)
    server.pages["/no"] = 503
    with pytest.raises(SourceError, match="check the network"):
        reader.get(url)


@pytest.mark.usefixtures("_short_pauses")
def test_a_server_that_is_gone_is_one_of_many_while_others_answer_and_else_the_network(server: _Server) -> None:
    server.pages = {"/x": b"the bytes"}
    reader, url = _reader(), _dead_url()
    for dead in (url, "http://none.invalid/x.jpg"):
        with pytest.raises(SourceError, match="check the network"):
            reader.get(dead)
    assert reader.get(f"{server.url}/x") == b"the bytes"
    for dead in (url, "http://none.invalid/x.jpg"):
        with pytest.raises(StoreError, match="while others are answered"):
            reader.get(dead)
    server.server_close()
    server.shutdown()
    for dead in (url, f"{server.url}/x"):
        with pytest.raises(SourceError, match="check the network"):
            reader.get(dead)


@pytest.mark.usefixtures("_short_pauses")
@pytest.mark.parametrize(("fault", "end"), [(500, 300), (503, 100)])
def test_an_outage_of_a_server_costs_no_row(
    server: _Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: int, end: int
) -> None:
    server.pages = dict.fromkeys((f"/{k}.jpg" for k in range(40)), encode(pixels(1)))
    server.outage, server.fault = range(8, end), fault
    reader = functools.partial(WebReader, patience_s=0.0)
    monkeypatch.setattr("feeder.shard.source.row_images.WebReader", reader)
    rows = [server.url + path for path in server.pages]
    summary = shard(_manifest(tmp_path, rows), str(tmp_path / "out"), kept(columns=_columns(allow_private=True)))
    assert (summary.samples, summary.rejected) == (40, 0)
    assert server.seen.total() > end


@pytest.mark.usefixtures("_short_pauses")
def test_a_server_that_stays_silent_ends_the_run(
    server: _Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.pages = dict.fromkeys((f"/{k}.jpg" for k in range(60)), encode(pixels(1)))
    server.outage = range(20, 1 << 40)
    monkeypatch.setattr("feeder.shard.source.row_images.WebReader", functools.partial(WebReader, timeout_s=0.2))
    rows = [server.url + path for path in server.pages]
    with pytest.raises(SourceError, match=r"\.jpg: 503 .* run the same command again"):
        shard(_manifest(tmp_path, rows), str(tmp_path / "out"), kept(columns=_columns(allow_private=True), max_bad=1))


def test_a_server_is_left_alone_for_as_long_as_it_asks(server: _Server, monkeypatch: pytest.MonkeyPatch) -> None:
    server.pages, server.outage, server.retry_after = {"/x": b"the bytes", "/y": b"others"}, range(1, 2), "77"
    slept = list[float]()
    monkeypatch.setattr("feeder.shard.source.web_servers.Servers.pause", lambda _, seconds: slept.append(seconds))
    reader = WebReader(allow_private=True)
    assert reader.get(f"{server.url}/x") == b"the bytes"
    assert slept[1] >= 77  # the one that failed
    assert reader.get(f"{server.url}/y") == b"others"
    assert 70 < slept[-1] <= 77  # and all others


@pytest.mark.parametrize(("text", "seconds"), [("12", 12), ("Wed, 21 Oct 2015 07:28:00 GMT", 0), ("soon", 0), ("", 0)])
def test_a_time_to_ask_again_is_read(text: str, seconds: float) -> None:
    assert asked_pause_s(text) == seconds


def test_who_waits_for_a_server_ends_with_the_run(server: _Server) -> None:
    server.pages, server.outage, server.retry_after = {"/x": b"the bytes"}, range(1, 2), "600"
    reader = WebReader(allow_private=True)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(reader.get, f"{server.url}/x")
        wait_until(lambda: server.seen)
        reader.close()
        with pytest.raises(SourceError, match="not read any more"):
            waiting.result(60)


def test_certificates_are_checked(server: _Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not haproxy_is_installed():
        pytest.skip("needs HAProxy: apt-get install haproxy")
    server.pages = {"/x": b"the bytes"}
    proxy = TlsProxy(tmp_path, server.server_port)
    try:
        monkeypatch.setenv("AWS_CA_BUNDLE", str(proxy.authority))
        reader = WebReader(allow_private=True)
        assert reader.get(f"{proxy.good}/x") == b"the bytes"
        for url in (proxy.wrong_host, proxy.expired):
            with pytest.raises(StoreError, match="certificate is refused"):
                reader.get(f"{url}/x")
    finally:
        proxy.close()


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://user:HIDDEN@host:1/a/b.jpg?sig=HIDDEN#HIDDEN", "https://host:1/a/b.jpg"),
        ("https://user:HID/DEN@host/a.jpg", "https://...@host/a.jpg"),
        ("https://user:HID?DEN@host/a.jpg", "https://..."),
        ("https://user:HIDDEN", "https://..."),
        ("https://user:12/HIDDEN@host/a.jpg", "https://...@host/a.jpg"),
        ("s3:/KEY:HIDDEN@bucket/a.jpg", "s3:..."),
        ("https://[::1]:80/@user/a@2x.jpg", "https://[::1]:80/@user/a@2x.jpg"),
        ("https://bücher.example/a:b@c.jpg", "https://bücher.example/a:b@c.jpg"),
        ("file:/data/a.jpg", "file:/data/a.jpg"),
    ],
)
def test_a_shown_url_has_no_secret(url: str, shown: str) -> None:
    assert shown_url(url) == shown


def test_a_password_with_a_slash_in_a_manifest_is_refused_and_not_shown() -> None:
    with pytest.raises(StoreError, match=r"https://\.\.\.@host/x") as caught:
        WebReader().get("https://user:HID/DEN@host/x")
    assert "HID" not in str(caught.value)

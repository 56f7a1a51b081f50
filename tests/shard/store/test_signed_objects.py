"""Many objects at a time by signed URLs, from a server that answers as a test says."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from feeder.shard.store.signed_objects import Signed, SignedObjects
from tests.support.range_server import DATA, ETAG, Headers, RangeServer
from tests.support.remote import without_proxies
from tests.support.tls import TlsProxy

AT_ONCE = 32


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[RangeServer]:
    without_proxies(monkeypatch)
    server = RangeServer()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def objects() -> Iterator[SignedObjects]:
    made = SignedObjects()
    yield made
    made.close()


def _got(objects: SignedObjects, server: RangeServer, lengths: list[int], timeout_s: float = 60) -> list[bytes | None]:
    """Asks for starts of the server's object, and checks the bytes of those that come."""
    wants = [Signed("/bucket/x?X-Amz-Signature=1", length, len(DATA), ETAG) for length in lengths]
    found = objects.get("http", f"127.0.0.1:{server.server_port}", wants, timeout_s)
    assert len(found) == len(lengths)
    assert all(data is None or data == DATA[:length] for data, length in zip(found, lengths, strict=True))
    return found


def test_many_objects_are_asked_for_at_once_by_connections_that_are_left_to_the_next(
    server: RangeServer, objects: SignedObjects
) -> None:
    together = threading.Barrier(AT_ONCE)

    def spoil(number: int, status: int, headers: Headers) -> tuple[int, Headers]:
        if number < AT_ONCE:
            together.wait(60)  # raises unless so many are under way
        return status, headers

    server.spoil = spoil
    assert None not in _got(objects, server, [1, 10, *range(100_000, 2_000_000, 30_000), len(DATA)])
    assert (server.signed, len(server.connections)) == (67, AT_ONCE)
    assert None not in _got(objects, server, [5] * 40)
    assert (server.signed, len(server.connections)) == (107, AT_ONCE)


WRONG: dict[str, tuple[int, Headers]] = {
    "a busy server": (503, {}),
    "a refusal": (403, {}),
    "an address": (307, {"Location": "http://localhost:1/x"}),
    "all of it": (200, {}),
    "another range": (206, {"Content-Range": f"bytes 1-1000/{len(DATA)}"}),
    "another size": (206, {"Content-Range": f"bytes 0-999/{len(DATA) + 1}"}),
    "a shorter one": (206, {"Content-Length": "999"}),
    "a longer one": (206, {"Content-Length": "1001"}),
    "of no length": (206, {"Transfer-Encoding": "chunked"}),
    "another object": (206, {"ETag": '"2"'}),
    "no place": (206, {"Content-Range": ""}),
    "a long head": (206, {"X-Long": "x" * 20_000}),
}


@pytest.mark.parametrize("answer", WRONG.values(), ids=WRONG)
def test_what_is_not_answered_as_asked_is_left_out(
    server: RangeServer, objects: SignedObjects, answer: tuple[int, Headers]
) -> None:
    server.spoil = lambda number, status, headers: (
        (answer[0], headers | answer[1]) if number == 2 else (status, headers)
    )
    assert _got(objects, server, [1000] * 5).count(None) == 1
    assert None not in _got(objects, server, [1000] * 5)
    assert len(server.connections) == 6


def test_a_connection_that_the_server_has_closed_meanwhile_is_no_fault(
    server: RangeServer, objects: SignedObjects
) -> None:
    server.spoil = lambda number, status, headers: (status, headers | {"X-Breaks": "1"} if number == 0 else headers)
    assert None not in _got(objects, server, [1000])
    assert server.closed.wait(60)
    assert None not in _got(objects, server, [1000])
    assert len(server.connections) == 2


def test_the_last_answer_of_a_connection_is_as_good_as_others(server: RangeServer, objects: SignedObjects) -> None:
    server.spoil = lambda number, status, headers: (status, headers | {"Connection": "close"})
    for _ in range(3):
        assert None not in _got(objects, server, [1000] * 2)
    assert (server.signed, len(server.connections)) == (6, 6)


def test_a_connection_that_was_not_used_for_long_is_closed(
    server: RangeServer, objects: SignedObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("feeder.shard.store.signed_objects.IDLE_S", -1.0)
    for _ in range(2):
        assert None not in _got(objects, server, [1000])
    assert server.closed.wait(60)
    assert len(server.connections) == 2


@pytest.mark.parametrize(("stall_s", "timeout_s"), [(-1.0, 60.0), (60.0, 0.0)], ids=["silent", "slow"])
def test_an_answer_that_does_not_come_in_time_is_left_out(
    server: RangeServer, monkeypatch: pytest.MonkeyPatch, stall_s: float, timeout_s: float
) -> None:
    monkeypatch.setattr("feeder.shard.store.signed_objects.STALL_S", stall_s)
    monkeypatch.setattr("feeder.shard.store.signed_objects.LOOK_S", 0.001)
    is_over = threading.Event()
    server.spoil = lambda number, status, headers: (status, headers | {"X": str(is_over.wait(60))})
    beats: list[int] = []
    objects = SignedObjects(lambda: beats.append(1))
    assert _got(objects, server, [1000] * 3, timeout_s) == [None] * 3
    is_over.set()
    assert beats
    objects.close()


def test_what_is_encrypted_comes_too(
    server: RangeServer, objects: SignedObjects, tls_proxy: TlsProxy, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    before = TlsProxy(tmp_path, server.server_port)
    try:
        monkeypatch.setenv("AWS_CA_BUNDLE", str(before.authority))
        wants = [Signed("/bucket/x?X-Amz-Signature=1", 1_000_000 + k, len(DATA), ETAG) for k in range(40)]
        netloc = before.good.removeprefix("https://")
        for _ in range(2):
            assert objects.get("https", netloc, wants, 60) == [DATA[: 1_000_000 + k] for k in range(40)]
        monkeypatch.delenv("AWS_CA_BUNDLE")
        assert SignedObjects().get("https", netloc, wants[:2], 60) == [None, None]
    finally:
        before.close()
    assert server.signed == 80


def test_nothing_comes_from_where_nobody_listens(objects: SignedObjects) -> None:
    with socket.socket() as unheard:
        unheard.bind(("127.0.0.1", 0))
        wants = [Signed("/x", 1000, len(DATA), ETAG)] * 3
        assert objects.get("http", f"127.0.0.1:{unheard.getsockname()[1]}", wants, 60) == [None] * 3

"""Ranges that come by a signed URL, from servers that answer in ways that Ceph's gateway does not."""

from __future__ import annotations

import time
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import obstore
import obstore.exceptions
import pytest

from feeder.shard.store import signed_ranges
from feeder.shard.store.open_store import open_store
from feeder.shard.store.store import PIECE_BYTES, Store
from tests.support.range_server import DATA, ETAG, Headers, RangeServer
from tests.support.remote import without_proxies
from tests.support.tls import TlsProxy


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[RangeServer]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "KEY")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "SECRET")
    without_proxies(monkeypatch)
    server = RangeServer()
    yield server
    server.shutdown()
    server.server_close()


def _opened(server: RangeServer) -> Store:
    return open_store(f"s3://bucket/set?endpoint=http://127.0.0.1:{server.server_port}", allow_http=True)


def _read(store: Store, start: int = 0, end: int = len(DATA)) -> bytes:
    return b"".join(store.pieces("x", start, end, ETAG))


def test_a_range_takes_one_request_and_leaves_its_connection_to_the_next(server: RangeServer) -> None:
    store = _opened(server)
    pieces = list(store.pieces("x", 0, len(DATA), ETAG))
    assert b"".join(pieces) == DATA
    assert len(pieces[0]) == PIECE_BYTES
    for start, end in ((0, 1), (5, PIECE_BYTES + 5), (len(DATA) - 1, len(DATA))):
        assert _read(store, start, end) == DATA[start:end]
    assert (server.signed, server.others, len(server.connections), store.retries) == (4, 0, 1, 0)


@pytest.mark.parametrize(
    ("first_s", "later_s", "sizes"),
    [
        (0.0, 0.0, [PIECE_BYTES, 4 * PIECE_BYTES, 2 * PIECE_BYTES + 10]),
        (0.1, 0.1, [PIECE_BYTES] * 7 + [10]),
        (0.0, 0.1, [PIECE_BYTES, 4 * PIECE_BYTES, PIECE_BYTES, PIECE_BYTES, 10]),
    ],
    ids=["fast", "slow", "slow later"],
)
def test_pieces_that_come_fast_are_larger(
    server: RangeServer, monkeypatch: pytest.MonkeyPatch, first_s: float, later_s: float, sizes: list[int]
) -> None:
    """By a clock that goes on by so much at each look: at those for the first piece, and for later ones."""
    now, pace_s = 0.0, first_s

    def monotonic() -> float:
        nonlocal now
        now += pace_s
        return now

    monkeypatch.setattr(signed_ranges, "time", SimpleNamespace(monotonic=monotonic))
    pieces = _opened(server).pieces("x", 0, len(DATA), ETAG)
    first = len(next(pieces))
    pace_s = later_s
    assert [first, *map(len, pieces)] == sizes


def test_a_range_that_is_left_in_the_middle_leaves_nothing_to_the_next(server: RangeServer) -> None:
    store = _opened(server)
    first = store.pieces("x", 0, len(DATA), ETAG)
    assert next(first) == DATA[:PIECE_BYTES]
    del first
    assert _read(store) == DATA
    assert len(server.connections) == 2


def test_a_connection_that_the_server_has_closed_meanwhile_is_no_fault(server: RangeServer) -> None:
    store = _opened(server)
    server.spoil = lambda number, status, headers: (status, headers | {"X-Breaks": "1"} if number == 0 else headers)
    assert _read(store) == DATA
    assert server.closed.wait(60)
    assert _read(store) == DATA
    assert (server.others, len(server.connections), store.retries) == (0, 2, 0)


WRONG: dict[str, tuple[int, Headers]] = {
    "another range": (206, {"Content-Range": f"bytes 1-{len(DATA)}/{len(DATA) + 1}"}),
    "a shorter one": (206, {"Content-Length": str(len(DATA) - 1)}),
    "all of it": (200, {}),
    "a refusal": (403, {}),
    "an address": (307, {"Location": "http://localhost:1/x"}),
    "another object": (206, {"ETag": '"2"'}),
    "no place": (206, {"Content-Range": ""}),
}


@pytest.mark.parametrize("answer", WRONG.values(), ids=WRONG)
def test_what_is_not_answered_as_asked_comes_without_a_signed_url(
    server: RangeServer, answer: tuple[int, Headers]
) -> None:
    store = _opened(server)
    server.spoil = lambda number, status, headers: (answer[0], headers | answer[1])
    assert _read(store) == DATA
    assert (server.signed, server.others, store.retries) == (1, 1, 0)
    server.spoil = lambda number, status, headers: (status, headers)
    assert _read(store) == DATA
    assert (server.signed, server.others, store.retries) == (2, 1, 0)


@pytest.mark.parametrize("status", [403, 503])
def test_where_signed_urls_fail_again_and_again_there_are_none_for_a_minute(
    server: RangeServer, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    later_s = 0.0
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + later_s)
    monkeypatch.setattr(signed_ranges, "time", clock)
    store = _opened(server)
    server.spoil = lambda number, right, headers: (right if number in (7, 17) else status, headers)
    for _ in range(20):
        assert _read(store) == DATA
    assert (server.signed, server.others) == (16, 19)  # eight in a row, from the ninth on
    later_s = 61.0
    for _ in range(3):
        assert _read(store) == DATA
    assert (server.signed, server.others) == (17, 22)
    later_s = 122.0
    for _ in range(11):
        assert _read(store) == DATA
    assert (server.signed, server.others) == (26, 32)  # one that comes, and eight


def test_the_last_answer_of_a_connection_is_as_good_as_others(server: RangeServer) -> None:
    store = _opened(server)
    server.spoil = lambda number, status, headers: (status, headers | {"Connection": "close"})
    for _ in range(10):
        assert _read(store) == DATA
    assert (server.signed, server.others, len(server.connections), store.retries) == (10, 0, 10, 0)


def test_a_connection_that_was_not_used_for_long_is_closed(
    server: RangeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("feeder.shard.store.signed_ranges.IDLE_S", -1.0)
    store = _opened(server)
    assert _read(store) == _read(store) == DATA
    assert server.closed.wait(60)
    assert (server.signed, server.others, len(server.connections)) == (2, 0, 2)


def test_nothing_is_signed_where_the_environment_says_so(server: RangeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
    assert _read(_opened(server)) == DATA
    assert (server.signed, server.others) == (0, 1)


def test_credentials_that_can_not_be_had_once_are_asked_for_again(
    server: RangeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, sign = _opened(server), obstore.sign
    with monkeypatch.context() as once:
        once.setattr(obstore, "sign", _raise)
        assert _read(store) == DATA
    assert (server.signed, server.others, obstore.sign) == (0, 1, sign)
    assert _read(store) == DATA
    assert (server.signed, server.others, store.retries) == (1, 1, 0)


def _raise(*arguments: object) -> str:
    raise obstore.exceptions.GenericError("no answer of what gives credentials")


@pytest.mark.parametrize("key", ["a b+c%20", "ü/=&'(1)", "#?x"])
def test_any_key_is_asked_for_as_it_is(server: RangeServer, monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    monkeypatch.setenv("AWS_SESSION_TOKEN", "TOKEN+/=")
    store = _opened(server)
    assert b"".join(store.pieces(key, 0, len(DATA))) == DATA
    (path, names), *others = server.targets
    assert (urllib.parse.unquote(path), others) == (f"/bucket/set/{key}", [])
    assert {"X-Amz-Signature", "X-Amz-Security-Token", "X-Amz-Expires"} <= names


@pytest.mark.parametrize("status", [408, 429, 500, 503])
def test_a_busy_store_is_asked_again(server: RangeServer, status: int) -> None:
    store = _opened(server)
    server.spoil = lambda number, right, headers: (status if number == 0 else right, headers)
    assert _read(store) == _read(store) == DATA
    assert (server.signed, server.others, store.retries) == (2, 1, 1)


def test_an_answer_that_drips_for_longer_than_a_request_may_take_is_asked_for_anew(
    server: RangeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("feeder.shard.store.signed_ranges.REQUEST_S", 0)
    store = _opened(server)
    assert _read(store) == DATA
    assert (server.signed, server.others, store.retries) == (1, 1, 1)


def test_what_is_encrypted_comes_by_signed_urls_too(
    server: RangeServer, tls_proxy: TlsProxy, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    before = TlsProxy(tmp_path, server.server_port)
    try:
        for variable in ("AWS_CA_BUNDLE", "SSL_CERT_FILE"):
            with monkeypatch.context() as named:
                named.setenv(variable, str(before.authority))
                store = open_store(f"s3://bucket/set?endpoint={before.good}")
                assert _read(store) == _read(store) == DATA
    finally:
        before.close()
    assert (server.signed, server.others) == (4, 0)


def test_behind_a_proxy_nothing_is_signed(server: RangeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{server.server_port}")
    store = open_store("s3://bucket/set?endpoint=http://store.invalid", allow_http=True)
    assert _read(store) == DATA
    assert (server.signed, server.others, store.retries) == (0, 1, 0)

"""Google Cloud Storage, before a stand-in."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import feeder
from feeder.errors import ChangedError, ConflictError, FormatError, NotFoundError, StoreError
from feeder.shard.store.open_store import open_store
from feeder.shard.write.sharding import shard
from tests.support.google_store import GoogleStore
from tests.support.images import make_tree
from tests.support.remote_sets import end_fetchers
from tests.support.shard_sets import contents, kept


def test_objects_of_google_are_read_and_written_on_conditions(google: GoogleStore) -> None:
    store = open_store("gs://bucket/set")
    first = store.put("a b.tar", b"first", if_absent=True)
    assert google.objects.keys() == {"bucket/set/a b.tar"}
    with pytest.raises(ConflictError):
        store.put("a b.tar", b"second", if_absent=True)
    second = store.put("a b.tar", b"second", if_match=first)
    store.put("a b.tar", b"first", if_match=second)  # the bytes of the first again, but not the same object
    with pytest.raises(ConflictError):
        store.put("a b.tar", b"third", if_match=first)
    with pytest.raises(ChangedError):
        store.get("a b.tar", 0, 2, second.etag)
    assert store.get("a b.tar", 1, 3) == b"ir"
    assert [entry.key for entry in store.list()] == ["a b.tar"]
    store.delete("a b.tar")
    store.delete("a b.tar")
    with pytest.raises(NotFoundError, match=r"gs://bucket/set/a b\.tar"):
        store.get("a b.tar")


def test_a_replaced_object_is_not_read_from_a_server_that_ignores_conditions(google: GoogleStore) -> None:
    google.knows_conditions = False
    google.put("bucket/set/x", b"first")
    store = open_store(f"{google.url}/bucket/set")
    first = store.size("x")
    assert store.get("x", 0, 2, first.etag) == b"fi"
    google.put("bucket/set/x", b"other")
    with pytest.raises(ChangedError):
        store.get("x", 0, 2, first.etag)
    with pytest.raises(ChangedError):
        list(store.pieces("x", 0, 2, first.etag))


@pytest.mark.parametrize("by_url", [True, False])
def test_another_endpoint_of_google_is_asked_where_it_is_named(
    google: GoogleStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_url: bool
) -> None:
    account = tmp_path / "account.json"
    account.write_text(json.dumps(json.loads(account.read_text()) | {"gcs_base_url": "http://127.0.0.1:1"}))
    google.put("bucket/set/x", b"the bytes")
    if not by_url:
        monkeypatch.setenv("GOOGLE_BASE_URL", google.url)
    store = open_store("gs://bucket/set" + (f"?endpoint={google.url}" if by_url else ""))
    assert store.get("x") == b"the bytes"
    assert store.url.object("x") == f"gs://bucket/set/x (at 127.0.0.1:{google.server_port})"


def test_a_set_is_written_to_google_and_read_from_there(google: GoogleStore, tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "images", classes=2, per_class=4)
    shard(str(tree), str(tmp_path / "local"), kept(samples_per_shard=4))
    shard(str(tree), "gs://bucket/set", kept(samples_per_shard=4))
    (tmp_path / "local" / ".lock").unlink()
    assert {name.removeprefix("bucket/set/") for name in google.objects} == contents(tmp_path / "local").keys()
    for name in contents(tmp_path / "local"):
        assert google.objects[f"bucket/set/{name}"].data == (tmp_path / "local" / name).read_bytes()
    again = shard("gs://bucket/set", str(tmp_path / "again"), kept())
    assert (again.samples, again.classes) == (8, 2)


@pytest.mark.parametrize("place", ["{}/bucket/set", "gs://bucket/set", "s3://bucket/set?endpoint={}"])
@pytest.mark.parametrize("status", [200, 206])
def test_a_page_of_a_proxy_is_asked_past_a_few_times_before_ranges_have_come_and_then_as_faults_are(
    google: GoogleStore, monkeypatch: pytest.MonkeyPatch, place: str, status: int
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")
    data = b"0123456789" * 20
    google.put("bucket/set/x", data)
    store = open_store(place.format(google.url))
    google.pages = 1000
    if status == 200:  # the other might be what the server has
        with pytest.raises(
            StoreError, match=r"bucket/set/x.*: a whole page came.* in place of .*: serve it by another"
        ):
            store.get("x", 0, 5)
        assert store.retries == 2
    google.pages = 1
    assert open_store(place.format(google.url)).get("x", 0, 5) == b"01234"
    google.pages, google.page_status = 0, status
    etag = store.size("x").etag
    assert store.get("x", 0, 5, etag) == b"01234"
    google.pages = 1
    assert store.get("x", 1, 150, etag) == data[1:150]
    google.pages = 1
    assert b"".join(store.pieces("x", 2, 150, etag)) == data[2:150]
    google.pages = 1000
    what = "came" if place.startswith("gs") else r"came \(text/html\), which starts with b'<!DOCTYPE"
    with pytest.raises(StoreError, match=rf"bucket/set/x.*: a whole page {what}.*; nobody needs it any more"):
        store.get("x", 0, 150, etag, is_wanted=lambda: False)


@pytest.mark.parametrize("place", ["{}/bucket/set", "gs://bucket/set", "s3://bucket/set?endpoint={}"])
@pytest.mark.parametrize("part", ["head", "body"])
def test_an_answer_that_drips_is_not_waited_for_any_longer_than_none(
    google: GoogleStore, monkeypatch: pytest.MonkeyPatch, place: str, part: str
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")
    google.put("bucket/set/x", bytes(2 << 20))
    store = open_store(place.format(google.url), timeout=0.5)
    google.drips = part
    for read in (store.get, lambda key, *ends: list(store.pieces(key, *ends))):
        with pytest.raises(StoreError, match=r"bucket/set/x.*: no answer for \d+ s, in \d+ attempts; the last: "):
            read("x", 0, 2 << 20)
    google.goes_on.set()
    assert open_store(place.format(google.url)).get("x", 0, 2 << 20) == bytes(2 << 20)


def test_the_size_of_an_object_is_not_that_of_a_page(google: GoogleStore) -> None:
    google.put("bucket/set/x", b"0123456789")
    store = open_store(f"{google.url}/bucket/set")
    assert store.get("x", 0, 5) == b"01234"
    google.pages = 1
    assert store.size("x").size_bytes == 10


def test_a_page_in_place_of_an_index_is_called_one(google: GoogleStore, tmp_path: Path) -> None:
    google.put("sets/it/index.bin", b"\xef\xbb\xbf\n<html>" + b" " * 100)
    url = f"{google.url}/sets/it"
    with end_fetchers(tmp_path), pytest.raises(FormatError, match=rf"^{url}/index\.bin: a page came, which .*<html>"):
        feeder.ShardDataset(url, cache_dir=tmp_path / "cache")

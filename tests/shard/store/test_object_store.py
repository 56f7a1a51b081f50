from __future__ import annotations

import functools
import itertools
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from feeder.errors import ChangedError, ConflictError, ListingError, NotFoundError, StoreError
from feeder.shard.store.open_store import open_store
from feeder.shard.store.store import RANGE_BYTES
from tests.support import ROOT
from tests.support.fault_proxy import FaultProxy, Faults
from tests.support.processes import wait_until
from tests.support.remote import Bucket, Read


def test_bytes_come_back_as_they_were_written(bucket: Bucket) -> None:
    store = open_store(f"{bucket.url}/set")
    data = os.urandom(100_000)
    written = store.put("folder/a b~ü%20.tar", data)
    entry = store.size("folder/a b~ü%20.tar")
    assert (entry.size_bytes, entry.etag, entry.key) == (len(data), written.etag, "folder/a b~ü%20.tar")
    assert store.get("folder/a b~ü%20.tar") == data
    assert store.get("folder/a b~ü%20.tar", 5, 10, entry.etag) == data[5:10]
    assert store.get("folder/a b~ü%20.tar", 7, 7) == b""
    assert bucket.keys() == ["set/folder/a b~ü%20.tar"]


def test_a_large_file_is_sent_in_parts_and_read_in_ranges(real_bucket: Bucket, tmp_path: Path) -> None:
    data = os.urandom(2 * RANGE_BYTES + 12_345)
    (tmp_path / "large").write_bytes(data)
    store = open_store(real_bucket.url)
    entry = store.put("large", tmp_path / "large")
    assert (entry.size_bytes, store.get("large") == data) == (len(data), True)
    assert store.get("large", 5, len(data) - 1, entry.etag) == data[5:-1]


def test_listing_names_all_objects_below_a_folder_and_no_others(bucket: Bucket, fault_proxy: FaultProxy) -> None:
    with ThreadPoolExecutor(32) as pool:  # more than a page of the store's
        list(pool.map(lambda k: bucket.put(f"set/folder/{k:04d}", b"x" * (k % 3)), range(1005)))
    bucket.put("set/folder2/x", b"")
    bucket.put("other/x", b"")
    store = open_store(f"{bucket.url}/set")
    listing = store.list("folder")
    entries = [next(listing)]
    fault_proxy.set(Faults({"503": 1}))  # after the first page
    with ThreadPoolExecutor(1) as pool:
        rest = pool.submit(list, listing)
        wait_until(lambda: rest.done() or fault_proxy.counts())
        assert fault_proxy.counts()
        fault_proxy.set(Faults())
        entries += rest.result()
    assert [entry.key for entry in entries] == [f"folder/{k:04d}" for k in range(1005)]
    assert (entries[2].size_bytes, entries[2].etag) == (2, store.size("folder/0002").etag)
    assert len(list(store.list())) == 1006
    assert list(store.list("fold")) == []


def test_an_object_is_created_once_and_replaced_only_as_it_was(real_bucket: Bucket) -> None:
    store = open_store(real_bucket.url)
    first = store.put("header", b"1", if_absent=True)
    with pytest.raises(ConflictError, match=r"s3://.*/header"):
        store.put("header", b"2", if_absent=True)
    second = store.put("header", b"2", if_match=first)
    with pytest.raises(ConflictError, match=r"s3://.*/header"):
        store.put("header", b"3", if_match=first)
    assert store.get("header") == b"2"
    assert store.size("header").etag == second.etag


def test_of_many_who_create_an_object_one_succeeds(real_bucket: Bucket) -> None:
    store = open_store(real_bucket.url)

    def create(k: int) -> bool:
        try:
            store.put("lock", b"%d" % k, if_absent=True)
        except ConflictError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(create, range(8))) == 1


def test_a_deleted_object_is_gone_and_may_be_deleted_again(bucket: Bucket) -> None:
    store = open_store(bucket.url)
    store.put("x", b"1")
    store.delete("x")
    store.delete("x")
    with pytest.raises(NotFoundError, match=rf"{bucket.url}/x \(at 127.0.0.1:\d+\): there is no such object"):
        store.get("x")
    with pytest.raises(NotFoundError):
        store.size("x")


def test_a_replaced_object_is_not_read(bucket: Bucket, read: Read) -> None:
    store = open_store(bucket.url)
    etag = store.put("shard", b"1" * 100).etag
    store.put("shard", b"2" * 100)
    with pytest.raises(ChangedError, match=r"/shard .*: was replaced"):
        read(store, "shard", 0, 10, etag)
    with pytest.raises(ChangedError):
        store.get("shard", etag=etag)


def test_a_replaced_object_is_refused_by_the_store_before_a_byte_is_sent(
    bucket: Bucket, fault_proxy: FaultProxy, read: Read
) -> None:
    store = open_store(bucket.url)
    etag = store.put("shard", b"1" * 100_000).etag
    assert read(store, "shard", 0, 100_000, etag) == b"1" * 100_000
    store.put("shard", b"2" * 100_000)
    with pytest.raises(ChangedError):
        read(store, "shard", 0, 100_000, etag)
    whole, *refused = (request.size_bytes for request in fault_proxy.requests() if request.method == "GET")
    assert whole == 100_000
    assert 1 <= len(refused) <= 2
    assert sum(refused) < 10_000


def test_a_shorter_object_is_an_error_and_no_short_answer(bucket: Bucket, read: Read) -> None:
    store = open_store(bucket.url)
    store.put("shard", b"1" * 100)
    for start, end in ((50, 101), (200, 300)):
        with pytest.raises(StoreError, match=r"/shard .*(has 100 bytes, expected at least 101|shorter)"):
            read(store, "shard", start, end)


@pytest.mark.parametrize("key", ["../other/x", "/x", "a/../../x", ""])
def test_a_key_never_leads_out_of_the_store(bucket: Bucket, key: str) -> None:
    bucket.put("other/x", b"1")
    store = open_store(f"{bucket.url}/set")
    for call in (store.get, store.size, store.delete, lambda key: store.put(key, b"")):
        with pytest.raises(StoreError, match="is not the name of an object"):
            call(key)


def test_errors_give_the_stores_own_reason_at_once(real_bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StoreError, match="there is no such bucket"):
        open_store("s3://no-such-bucket/set").size("x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "WRONG-SECRET")
    store = open_store(f"{real_bucket.url}/set")
    for call in (lambda: store.size("x"), lambda: store.get("x", 0, 1), lambda: list(store.list())):
        with pytest.raises(
            StoreError, match=r"403 Forbidden: SignatureDoesNotMatch.*; check the credentials"
        ) as caught:
            call()
        assert "SECRET" not in str(caught.value)
        assert "TESTKEY" not in str(caught.value)
    assert store.retries == 0


def test_no_credentials_is_an_error_that_says_so(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", "http://127.0.0.1:2")
    with pytest.raises(StoreError, match=r"no credentials are found.*AWS_PROFILE.*AWS_SKIP_SIGNATURE"):
        open_store(bucket.url).size("x")


def test_a_public_bucket_needs_no_credentials(real_bucket: Bucket, monkeypatch: pytest.MonkeyPatch, read: Read) -> None:
    real_bucket.put("x", b"public")
    web = open_store(real_bucket.open_to_all(), allow_http=True)
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
    assert read(open_store(real_bucket.url), "x", 0, 6) == b"public"
    entry = web.size("x")
    assert web.get("x", 1, 3, entry.etag) == b"ub"
    with pytest.raises(ListingError, match="can't list"):
        list(web.list())
    with pytest.raises(StoreError, match="only read"):
        web.put("y", b"")
    with pytest.raises(ChangedError):
        web.get("x", 1, 3, '"other"')


def test_profiles_are_read_by_boto3(bucket: Bucket, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bucket.put("x", b"1")
    keys = {name: os.environ[name] for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")}
    for name in keys:
        monkeypatch.delenv(name)
    lines = [f"{name.lower()} = {value}" for name, value in keys.items()]
    (tmp_path / "credentials").write_text("\n".join(["[training]", *lines]))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_PROFILE", "training")
    assert open_store(bucket.url).get("x") == b"1"
    monkeypatch.setenv("AWS_PROFILE", "other")
    with pytest.raises(StoreError, match=r"profile 'other' \(AWS_PROFILE\) can't be used"):
        open_store(bucket.url).get("x")
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(StoreError, match=r"pip install 'feeder-data\[remote-aws\]'"):
        open_store(bucket.url).get("x")


def test_without_obstore_the_error_names_the_extra() -> None:
    code = (
        "import sys; sys.modules['obstore'] = None\n"
        "from feeder.errors import StoreError\n"
        "from feeder.shard.store.open_store import open_store\n"
        "try: open_store('s3://bucket/set')\n"
        "except StoreError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert "s3://bucket/set" in done.stdout
    assert "pip install 'feeder-data[remote]'" in done.stdout


def test_urls_and_the_contract_come_without_obstore() -> None:
    code = "import sys, feeder.shard.store.store, feeder.shard.store.url; print('obstore' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.strip() == "False"


def test_plain_http_must_be_allowed(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket.put("x", b"1")
    monkeypatch.delenv("AWS_ALLOW_HTTP")
    with pytest.raises(StoreError, match=r"without encryption.*allow_http=True or AWS_ALLOW_HTTP=true"):
        open_store(bucket.url)
    assert open_store(bucket.url, allow_http=True).get("x") == b"1"
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    with pytest.raises(StoreError, match="without encryption"):
        open_store(bucket.url, allow_http=False)


FAULTS: dict[str, dict[str, float]] = {
    "errors": {"500": 0.1, "503": 0.2, "429": 0.1, "408": 0.1},
    "connections": {"reset": 0.3, "cut": 0.3},
}


@pytest.mark.parametrize("rates", FAULTS.values(), ids=FAULTS)
def test_requests_are_repeated_until_the_bytes_are_right(
    bucket: Bucket, fault_proxy: FaultProxy, rates: dict[str, float], read: Read
) -> None:
    data = os.urandom(500_000)
    bucket.put("x", data)
    store = open_store(bucket.url)
    etag = store.size("x").etag
    fault_proxy.set(Faults(rates))
    with ThreadPoolExecutor(8) as pool:
        parts = pool.map(lambda start: read(store, "x", start, start + 25_000, etag), range(0, len(data), 25_000))
        assert b"".join(parts) == data
    faults = sum(fault_proxy.counts().values())
    assert store.retries >= faults >= 8  # a reset may also take the connection of another request


def test_bytes_that_come_in_pieces_go_on_after_a_cut_where_they_were(bucket: Bucket, fault_proxy: FaultProxy) -> None:
    data = os.urandom(RANGE_BYTES)
    bucket.put("x", data)
    store = open_store(bucket.url)
    etag = store.size("x").etag
    fault_proxy.set(Faults({"cut": 1}))

    def is_wanted() -> bool:  # asked after each cut; the rest, where it is less than a piece, must come uncut
        if fault_proxy.counts().get("cut", 0) >= 3:
            fault_proxy.set(Faults())
        return True

    found = b"".join(store.pieces("x", 5, len(data) - 1, etag, is_wanted=is_wanted))
    assert found == data[5:-1]
    assert store.retries >= 3
    assert len({request.range for request in fault_proxy.requests() if request.method == "GET"}) > 1
    assert list(store.pieces("x", 7, 7)) == []
    with pytest.raises(ChangedError, match="was replaced while it was being read"):
        next(store.pieces("x", 0, 1, '"other"'))


def test_a_small_object_takes_one_request(bucket: Bucket, fault_proxy: FaultProxy) -> None:
    bucket.put("x", b"12345")
    assert open_store(bucket.url).get("x") == b"12345"
    assert [request.method for request in fault_proxy.requests()] == ["GET"]


def test_uploads_survive_faults_whole(real_bucket: Bucket, fault_proxy: FaultProxy, tmp_path: Path) -> None:
    data = os.urandom(RANGE_BYTES * 2)
    (tmp_path / "shard").write_bytes(data)
    store = open_store(real_bucket.url)
    fault_proxy.set(Faults({"503": 0.5, "reset": 0.5}))
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(store.put, "shard", tmp_path / "shard")
        wait_until(lambda: done.done() or sum(fault_proxy.counts().values()) >= 3)
        assert sum(fault_proxy.counts().values()) >= 3
        fault_proxy.set(Faults())
        assert done.result().size_bytes == len(data)
    assert store.get("shard") == data


def test_a_conditional_write_whose_answer_was_lost_is_not_taken_for_another_writers(
    real_bucket: Bucket, fault_proxy: FaultProxy
) -> None:
    store = open_store(real_bucket.url)
    real_bucket.put("lock", b"mine")  # as if the first attempt had come through
    seed = next(seed for seed in itertools.count() if _first_is_refused(fault_proxy, store, seed))
    assert seed >= 0
    with pytest.raises(ConflictError):
        store.put("lock", b"other", if_absent=True)


def _first_is_refused(proxy: FaultProxy, store: Any, seed: int) -> bool:
    """Creates "lock" with the contents that it has, and returns True if that was repeated."""
    proxy.set(Faults({"503": 0.5}, seed=seed))
    before = store.retries
    try:
        store.put("lock", b"mine", if_absent=True)
    except ConflictError:
        assert store.retries == before
        return False
    finally:
        proxy.set(Faults())
    assert store.retries > before
    return True


def test_other_client_errors_are_raised_at_once(bucket: Bucket, fault_proxy: FaultProxy) -> None:
    bucket.put("x", b"1")
    store = open_store(bucket.url)
    fault_proxy.set(Faults({"404": 1}))
    with pytest.raises(NotFoundError):
        store.get("x", 0, 1)
    assert (store.retries, fault_proxy.counts()) == (0, {"404": 1})
    with pytest.raises(NotFoundError):
        next(store.pieces("x", 0, 1))
    assert (store.retries, fault_proxy.counts()) == (0, {"404": 3})


def test_expired_credentials_are_read_again_once(
    real_bucket: Bucket, fault_proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch, read: Read
) -> None:
    real_bucket.put("x", b"1")
    store = open_store(real_bucket.url)
    fault_proxy.set(Faults({"403": 1}))
    with pytest.raises(StoreError, match=r"403.*ExpiredToken: made up; get new credentials"):
        read(store, "x", 0, 1)
    assert store.retries == 1
    # By pieces, what a presigned URL did not give is asked for once more at first.
    assert fault_proxy.counts() == {"403": {"_get": 2, "_pieces": 3}[read.__name__]}
    # The environment has new ones by now: what is sent after the refusal is signed with them.
    fault_proxy.set(Faults())
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "WRONG")
    assert read(store, "x", 0, 1) == b"1"
    fault_proxy.set(Faults({"403": 1}))
    with pytest.raises(StoreError, match="403"):
        read(store, "x", 0, 1)
    fault_proxy.set(Faults())
    with pytest.raises(StoreError, match="SignatureDoesNotMatch"):
        read(store, "x", 0, 1)


def test_without_network_a_call_goes_on_for_its_time_and_then_says_so(
    bucket: Bucket, fault_proxy: FaultProxy, read: Read
) -> None:
    bucket.put("x", b"1")
    store = open_store(bucket.url, timeout=0.3)
    assert read(store, "x", 0, 1) == b"1"
    fault_proxy.set(Faults(offline=True))
    with pytest.raises(StoreError, match=r"/x .*: no answer for \d+ s, in \d+ attempts; the last: .*[a-z]"):
        read(store, "x", 0, 1)
    assert store.retries >= 2


@pytest.mark.parametrize("method", ["size", "get", "get of all", "pieces"])
def test_without_network_what_nobody_needs_any_more_is_given_up(
    bucket: Bucket, fault_proxy: FaultProxy, method: str
) -> None:
    bucket.put("x", b"1")
    store = open_store(bucket.url)
    assert store.get("x") == b"1"
    calls: dict[str, Callable[..., object]] = {
        "size": store.size,
        "get": functools.partial(store.get, start=0, end=1),
        "get of all": store.get,
        "pieces": lambda key, is_wanted: list(store.pieces(key, 0, 1, is_wanted=is_wanted)),
    }
    assert calls[method]("x", is_wanted=lambda: False)  # that is asked after a fault
    fault_proxy.set(Faults(offline=True))
    wanted = iter([True, True, False])
    with pytest.raises(StoreError, match=r"/x .*; nobody needs it any more"):
        calls[method]("x", is_wanted=lambda: next(wanted))
    assert store.retries == 2


def test_what_comes_back_is_used_again(bucket: Bucket, fault_proxy: FaultProxy, read: Read) -> None:
    bucket.put("x", b"1")
    store = open_store(bucket.url)
    assert read(store, "x", 0, 1) == b"1"
    fault_proxy.set(Faults(offline=True))
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(read, store, "x", 0, 1)
        while store.retries < 3:
            assert not answer.done()
        fault_proxy.set(Faults())
        assert answer.result() == b"1"


@pytest.mark.slow
def test_a_silent_connection_is_given_up_after_five_seconds(
    bucket: Bucket, fault_proxy: FaultProxy, read: Read
) -> None:
    data = os.urandom(200_000)
    bucket.put("x", data)
    store = open_store(bucket.url)
    etag = store.size("x").etag
    fault_proxy.set(Faults({"stall": 0.2, "drop": 0.2}, seed=3))
    starts = range(0, len(data), 4_000)
    with ThreadPoolExecutor(len(starts)) as pool:
        parts = list(pool.map(lambda start: read(store, "x", start, start + 4_000, etag), starts))
    assert b"".join(parts) == data
    assert fault_proxy.counts().keys() == {"stall", "drop"}

"""Sets that ``feeder shard`` writes into a store."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from feeder.dataset.dataset_shards import write_shards
from feeder.errors import LockedError, ShardError, StoreError
from feeder.shard.store.open_store import open_store
from feeder.shard.write import store_lock
from feeder.shard.write.sharding import shard
from feeder.shard.write.store_lock import LOCK_NAME, StoreLock
from tests.support import ROOT
from tests.support.fault_proxy import FaultProxy, Faults
from tests.support.images import encode, pixels
from tests.support.interrupted_runs import StopAfter, killed_at
from tests.support.remote import Bucket
from tests.support.shard_sets import kept

OPTIONS = kept(samples_per_shard=15, workers=2)


@pytest.fixture
def expected(tree: Path, tmp_path: Path) -> dict[str, bytes]:
    """The files of the local set."""
    shard(str(tree), str(tmp_path / "local"), OPTIONS)
    files = [path for path in (tmp_path / "local").iterdir() if path.name != ".lock"]
    return {path.name: path.read_bytes() for path in files}


def _contents(bucket: Bucket, prefix: str = "set/") -> dict[str, bytes]:
    found = bucket.keys()
    return {key.removeprefix(prefix): bucket.get(key) for key in found if key.startswith(prefix)}


def test_a_set_in_a_store_has_the_bytes_of_a_local_one(
    tree: Path, bucket: Bucket, expected: dict[str, bytes], capsys: Any
) -> None:
    summary = shard(str(tree), f"{bucket.url}/set", OPTIONS)
    assert _contents(bucket) == expected
    assert (summary.out, summary.written_shards) == (f"{bucket.url}/set", 4)
    assert shard(str(tree), f"{bucket.url}/set", OPTIONS).written_shards == 0
    assert _contents(bucket) == expected


def test_an_iterable_is_sharded_into_a_store(bucket: Bucket) -> None:
    samples = [{"__key__": f"{k}", "jpg": encode(pixels(k)), "cls": k % 2} for k in range(6)]
    summary = write_shards(samples, f"{bucket.url}/set")
    assert (summary.samples, "manifest.json" in _contents(bucket)) == (6, True)
    assert not [key for key in bucket.keys() if ".work" in key]  # noqa: SIM118


def test_an_interrupted_run_goes_on_with_the_shards_in_the_store(
    tree: Path, bucket: Bucket, expected: dict[str, bytes]
) -> None:
    with pytest.raises(KeyboardInterrupt):
        shard(str(tree), f"{bucket.url}/set", OPTIONS, progress=StopAfter(40))
    half = _contents(bucket)
    finished = [name for name in half if name.endswith(".tar")]
    assert finished
    assert "manifest.json" not in half
    assert LOCK_NAME not in half
    assert all(half[name] == expected[name] for name in finished)
    assert shard(str(tree), f"{bucket.url}/set", OPTIONS).written_shards == 4 - len(finished)
    assert _contents(bucket) == expected


@pytest.mark.parametrize("kind", ["manifest", "compressed tar"])
def test_an_interrupted_run_over_what_is_unpacked_to_disk_goes_on(
    kind: str, tree: Path, tmp_path: Path, bucket: Bucket
) -> None:
    images = sorted(tree.rglob("*.jpg"))
    if kind == "manifest":
        source = tmp_path / "rows.csv"
        source.write_text("path,note\n" + "".join(f"{path},{k}\n" for k, path in enumerate(images)))
    else:
        source = tmp_path / "images.tar.gz"
        with tarfile.open(source, "w:gz") as tar:
            for k, path in enumerate(images):
                tar.add(path, f"{k}.jpg")
    with pytest.raises(KeyboardInterrupt):
        shard(str(source), f"{bucket.url}/set", OPTIONS, progress=StopAfter(40))
    finished = [name for name in _contents(bucket) if name.endswith(".tar")]
    assert finished
    summary = shard(str(source), f"{bucket.url}/set", OPTIONS)
    assert (summary.samples, summary.written_shards) == (60, 4 - len(finished))


@pytest.mark.slow
@pytest.mark.parametrize("replaces", [False, True], ids=["new", "replacing"])
def test_killed_at_any_write_the_next_run_ends_as_an_unbroken_one(
    tree: Path, bucket: Bucket, tmp_path: Path, replaces: bool
) -> None:
    options = kept(samples_per_shard=30, workers=1)
    shard(str(tree), str(tmp_path / "local"), options)
    expected = {path.name: path.read_bytes() for path in (tmp_path / "local").iterdir() if path.name != ".lock"}
    for step in range(100):
        out = f"{bucket.url}/{step}"
        if replaces:
            shard(str(tree), out, kept(samples_per_shard=60))
        if not killed_at(step, tree, out, options, force=replaces):
            break
        shard(str(tree), out, options, force=replaces)
        assert _contents(bucket, f"{step}/") == expected, f"killed at step {step}"
    else:
        raise AssertionError("it never came to its end")
    assert step > 12


def test_a_shard_that_can_not_be_put_is_not_there_and_comes_with_the_next_run(
    tree: Path, bucket: Bucket, fault_proxy: FaultProxy, expected: dict[str, bytes]
) -> None:
    fault_proxy.set(Faults({"404": 1}, only="/shard-000002.tar"))
    with pytest.raises(StoreError, match=r"set/.*shard-000002\.tar"):
        shard(str(tree), f"{bucket.url}/set", OPTIONS)
    fault_proxy.set(Faults())
    assert {"shard-000002.tar", "manifest.json", "index.bin"}.isdisjoint(_contents(bucket))
    shard(str(tree), f"{bucket.url}/set", OPTIONS)
    assert _contents(bucket) == expected


def test_foreign_objects_are_never_overwritten(tree: Path, bucket: Bucket) -> None:
    bucket.put("set/notes/mine.txt", b"mine")
    for force in (False, True):
        with pytest.raises(ShardError, match=rf"{bucket.url}/set: holds 'notes'.*choose another --out"):
            shard(str(tree), f"{bucket.url}/set", OPTIONS, force=force)
    assert _contents(bucket) == {"notes/mine.txt": b"mine"}


def test_another_run_is_refused_unless_it_is_to_replace_the_set(
    tree: Path, bucket: Bucket, expected: dict[str, bytes]
) -> None:
    shard(str(tree), f"{bucket.url}/set", kept(samples_per_shard=7))
    with pytest.raises(ShardError, match=rf"{bucket.url}/set: holds a shard set made with samples_per_shard=7"):
        shard(str(tree), f"{bucket.url}/set", OPTIONS)
    shard(str(tree), f"{bucket.url}/set", OPTIONS, force=True)
    assert _contents(bucket) == expected


def test_a_dry_run_writes_nothing(tree: Path, bucket: Bucket) -> None:
    assert shard(str(tree), f"{bucket.url}/set", OPTIONS, dry_run=True).shards == 4
    assert _contents(bucket) == {}
    bucket.put("set/x", b"")
    with pytest.raises(ShardError, match="holds 'x'"):
        shard(str(tree), f"{bucket.url}/set", OPTIONS, dry_run=True)


def test_a_web_server_is_no_output(tree: Path) -> None:
    with pytest.raises(StoreError, match="web server"):
        shard(str(tree), "https://127.0.0.1:1/set", OPTIONS)


def test_a_second_writer_of_this_machine_is_refused_at_once(tree: Path, bucket: Bucket) -> None:
    with StoreLock.held(open_store(f"{bucket.url}/set")):
        with pytest.raises(LockedError, match=rf"pid {os.getpid()}"):
            shard(str(tree), f"{bucket.url}/set", OPTIONS)
        assert list(_contents(bucket)) == [LOCK_NAME]
    assert _contents(bucket) == {}


def test_the_lock_of_a_process_that_is_gone_is_taken_over(tree: Path, real_bucket: Bucket) -> None:
    url = f"{real_bucket.url}/set"
    code = (
        "import os, sys\n"
        "from feeder.shard.store.open_store import open_store\n"
        "from feeder.shard.write.store_lock import StoreLock\n"
        "with StoreLock.held(open_store(sys.argv[1])): os.kill(os.getpid(), 9)\n"
    )
    subprocess.run([sys.executable, "-c", code, url], check=False, cwd=ROOT)
    assert list(_contents(real_bucket)) == [LOCK_NAME]
    assert shard(str(tree), url, OPTIONS).written_shards == 4


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorter times of the lock."""
    for name, seconds in (("STALE_S", 0.5), ("RENEW_S", 0.02), ("POLL_S", 0.05)):
        monkeypatch.setattr(store_lock, name, seconds)


@pytest.fixture
def foreign(real_bucket: Bucket) -> dict[str, object]:
    """The lock of another machine's writer."""
    text: dict[str, object] = {"machine": "another", "pid": 1, "started": "1", "id": "x", "renewals": 0}
    real_bucket.put(f"set/{LOCK_NAME}", json.dumps(text).encode())
    return text


@pytest.mark.usefixtures("quick", "foreign")
def test_another_machines_lock_that_is_not_renewed_is_taken_over(real_bucket: Bucket) -> None:
    with StoreLock.held(open_store(f"{real_bucket.url}/set")) as lock:
        lock.check()
        assert json.loads(real_bucket.get(f"set/{LOCK_NAME}"))["machine"] != "another"


@pytest.fixture
def renewing(real_bucket: Bucket, foreign: dict[str, object]) -> Iterator[None]:
    """Renews another machine's lock."""
    ended = threading.Event()

    def renew() -> None:
        number = 0
        while not ended.wait(0.01):
            number += 1
            real_bucket.put(f"set/{LOCK_NAME}", json.dumps(foreign | {"renewals": number}).encode())

    thread = threading.Thread(target=renew)
    thread.start()
    yield
    ended.set()
    thread.join()


@pytest.mark.usefixtures("renewing", "quick")
def test_another_machines_writer_at_work_is_left_alone(real_bucket: Bucket) -> None:
    with (
        pytest.raises(LockedError, match=r"another feeder process is writing there"),
        StoreLock.held(open_store(f"{real_bucket.url}/set")),
    ):
        pass


@pytest.mark.usefixtures("quick")
def test_a_writer_whose_lock_was_taken_over_stops(real_bucket: Bucket) -> None:
    with StoreLock.held(open_store(f"{real_bucket.url}/set")) as lock:
        lock.check()
        real_bucket.put(f"set/{LOCK_NAME}", b'{"machine": "another"}')
        with pytest.raises(LockedError, match="has taken it over"):
            _check_for_ever(lock)
    assert real_bucket.get(f"set/{LOCK_NAME}") == b'{"machine": "another"}'


def _check_for_ever(lock: StoreLock) -> None:
    while True:
        lock.check()


@pytest.mark.usefixtures("quick")
def test_a_writer_that_was_cut_off_writes_nothing_before_it_knows_that_it_still_has_the_lock(
    real_bucket: Bucket, fault_proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(f"{real_bucket.url}/set")
    with StoreLock.held(store) as lock:
        lock.check()
        fault_proxy.set(Faults(offline=True))
        before = store.retries
        while store.retries < before + 2:  # a renewal has begun, and does not come through
            pass
        real_bucket.put(f"set/{LOCK_NAME}", b'{"machine": "another"}')
        monkeypatch.setattr(store_lock, "STALE_S", 0.0)
        with ThreadPoolExecutor(1) as pool:
            checked = pool.submit(lock.check)
            fault_proxy.set(Faults())
            with pytest.raises(LockedError, match="has taken it over"):
                checked.result()

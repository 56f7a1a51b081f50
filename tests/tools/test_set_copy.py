"""``feeder inspect`` on sets in stores."""

from __future__ import annotations

import collections
import contextlib
import gc
import json
import os
from pathlib import Path
from typing import Any

import pytest

from feeder.shard.store.object_store import ObjectStore
from feeder.shard.write.sharding import shard
from feeder.tools.cli import main
from tests.support.fault_proxy import FaultProxy
from tests.support.images import make_tree
from tests.support.remote import Bucket
from tests.support.shard_sets import kept

pytestmark = pytest.mark.usefixtures("few_objects")


@pytest.fixture
def stored(bucket: Bucket, tmp_path: Path) -> tuple[str, Path]:
    """The URL of a set in a store, and the same set in a folder."""
    tree = make_tree(tmp_path / "images", classes=3, per_class=8)
    shard(str(tree), str(tmp_path / "set"), kept(samples_per_shard=6))
    for path in (tmp_path / "set").iterdir():
        bucket.put(f"sets/one/{path.name}", path.read_bytes())
    return f"{bucket.url}/sets/one", tmp_path / "set"


def _report(capsys: Any, *arguments: str) -> tuple[int, dict[str, Any]]:
    code = main(["inspect", *arguments, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_a_set_in_a_store_is_reported_as_a_local_one(stored: tuple[str, Path], capsys: Any) -> None:
    url, folder = stored
    code, report = _report(capsys, url)
    assert (code, report) == (0, _report(capsys, str(folder))[1] | {"path": url})
    assert _report(capsys, folder.as_uri())[1]["samples"] == 24


def test_indexes_come_in_ranges(
    stored: tuple[str, Path], fault_proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    url, folder = stored
    monkeypatch.setattr("feeder.shard.write.set_copy.RANGE_BYTES", 100)
    assert _report(capsys, url)[1] == _report(capsys, str(folder))[1] | {"path": url}
    sizes = [request.size_bytes for request in fault_proxy.requests() if ".fidx" in request.target]
    assert max(sizes) == 100


def _open_copies() -> set[str]:
    """Paths of the copies that this process has open or mapped, also of earlier tests."""
    links = []
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # another thread has closed it
            links.append(os.readlink(f"/proc/self/fd/{number}"))
    mapped = Path("/proc/self/maps").read_text().splitlines()
    return {line.partition("/")[2] for line in [*links, *mapped] if "feeder-set-" in line}


def test_of_many_indexes_few_are_here_at_a_time(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any
) -> None:
    tree = make_tree(tmp_path / "images", classes=2, per_class=12)
    shard(str(tree), str(tmp_path / "set"), kept(samples_per_shard=1))
    bucket.upload(tmp_path / "set", "one")
    monkeypatch.setattr("feeder.shard.format.set_index.ASKED_INDEXES", 3)
    monkeypatch.setattr("feeder.shard.write.set_copy.ASKED_INDEXES", 3)
    gc.collect()
    get, here, asked, before = ObjectStore.get, list[int](), list[str](), _open_copies()

    def counting_get(self: ObjectStore, key: str, *arguments: Any, **options: Any) -> Any:
        gc.collect()  # without a GIL what another thread has let go of is freed later
        here.append(len(_open_copies() - before))
        asked.append(key.rpartition("/")[2])
        return get(self, key, *arguments, **options)

    monkeypatch.setattr(ObjectStore, "get", counting_get)
    for options in ((), ("--verify", "--workers", "1")):
        code, found = _report(capsys, f"{bucket.url}/one", *options)
        assert (code, found["samples"], found["shards"]) == (0, 24, 24)
    counts = collections.Counter(name for name in asked if name.endswith(".fidx"))
    assert (len(counts), set(counts.values())) == (24, {3})  # the second time for --verify, and for the report
    assert 0 < max(here) <= 3 + 3 + 2  # those that were asked for, and before; the header, and a shard


def test_damage_in_a_store_is_found(stored: tuple[str, Path], bucket: Bucket, capsys: Any) -> None:
    url, _ = stored
    assert _report(capsys, url, "--verify") == (0, _report(capsys, url)[1] | {"damages": []})
    data = bytearray(bucket.get("sets/one/shard-000001.tar"))
    data[600] ^= 1
    bucket.put("sets/one/shard-000001.tar", bytes(data))
    bucket.client.delete_object(Bucket=bucket.name, Key="sets/one/shard-000003.tar")
    code, report = _report(capsys, url, "--verify")
    assert code == 1
    assert {damage["shard"] for damage in report["damages"]} == {"shard-000001.tar", "shard-000003.tar"}


def test_a_damaged_index_in_a_store_is_named_by_its_url(stored: tuple[str, Path], bucket: Bucket, capsys: Any) -> None:
    url, _ = stored
    bucket.put("sets/one/index.bin", bucket.get("sets/one/index.bin")[:100])
    assert main(["inspect", url]) == 1
    assert f"{url}/index.bin: " in capsys.readouterr().err


def test_a_url_without_a_set_is_an_error_that_says_so(bucket: Bucket, capsys: Any) -> None:
    assert main(["inspect", f"{bucket.url}/none"]) == 1
    assert f"{bucket.url}/none/index.bin" in (text := capsys.readouterr().err)
    assert "there is no index" in text

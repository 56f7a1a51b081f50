"""``feeder cache``: shows the sets of a cache, and trims it without touching those in use."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import numpy as np
import pytest

from feeder.shard.cache.link import lock_mirror
from feeder.shard.cache.places import MARK, mirror_folder
from feeder.shard.cache.presence import BLOCK_BYTES, IDENTITY_BYTES, Record, record_path
from feeder.shard.store.url import Url
from feeder.tools.cli import main
from tests.support.folder_store import fetcher_pid, folder_mirror
from tests.support.processes import all_ended

SHARD = 2 * BLOCK_BYTES


def fill(cache: Path, url: str, shards: int, first_time: int) -> Path:
    """Makes a mirror with whole shards, each got a second after the one before, and used then for the last time."""
    folder = Path(mirror_folder(Url.parse(url), "index.bin", cache))
    for number in range(shards):
        path = folder / f"{number}.tar"
        path.write_bytes(np.random.default_rng(number).bytes(SHARD))
        Record.create(record_path(str(folder), path.name), SHARD, bytes(IDENTITY_BYTES)).mark(0, 2)
        os.utime(path, (first_time + number, first_time + number))
    os.utime(folder / MARK, (first_time, first_time))
    return folder


def shown(capsys: pytest.CaptureFixture[str]) -> dict:
    found: dict = json.loads(capsys.readouterr().out)
    return found


def test_a_cache_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill(tmp_path, "s3://bucket/new", 1, 2000)
    fill(tmp_path, "s3://bucket/old", 3, 1000)
    assert main(["cache", str(tmp_path), "--json"]) == 0
    found = shown(capsys)
    assert found["size_bytes"] == 4 * SHARD
    assert [(each["url"], each["size_bytes"]) for each in found["sets"]] == [
        ("s3://bucket/old", 3 * SHARD),
        ("s3://bucket/new", SHARD),
    ]


def test_shards_used_longest_ago_are_dropped_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill(tmp_path, "s3://bucket/new", 1, 2000)
    old = fill(tmp_path, "s3://bucket/old", 3, 1000)
    assert main(["cache", str(tmp_path), "--trim", str(3 * SHARD), "--json"]) == 0
    assert shown(capsys)["freed_bytes"] == SHARD
    assert sorted(path.name for path in old.glob("*.tar")) == ["1.tar", "2.tar"]


def test_a_set_that_is_read_again_is_not_the_one_used_longest_ago(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(tmp_path, "s3://bucket/new", 1, 2000)
    old = fill(tmp_path, "s3://bucket/old", 1, 1000)
    folder_mirror(old, tmp_path).ask({"stats": True})
    pid = fetcher_pid(old)
    os.kill(pid, signal.SIGKILL)
    assert all_ended([pid])
    assert main(["cache", str(tmp_path), "--json"]) == 0
    assert [each["url"] for each in shown(capsys)["sets"]] == ["s3://bucket/new", "s3://bucket/old"]


def test_a_set_in_use_is_not_trimmed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    used = fill(tmp_path, "s3://bucket/old", 2, 1000)
    fill(tmp_path, "s3://bucket/new", 1, 2000)
    lock = lock_mirror(str(used))
    assert lock is not None
    try:
        assert main(["cache", str(tmp_path), "--trim", "0", "--json"]) == 1
    finally:
        os.close(lock)
    found = shown(capsys)
    assert [(each["url"], each["is_used"]) for each in found["sets"]] == [("s3://bucket/old", True)]
    assert found["freed_bytes"] == SHARD


def test_a_machine_that_has_cached_nothing_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert main(["cache"]) == 0
    assert capsys.readouterr().out == f"{tmp_path}/feeder: nothing cached\n"
    assert main(["cache", "--trim", "0", "--json"]) == 0
    found = shown(capsys)
    assert (found["sets"], found["freed_bytes"]) == ([], 0)
    assert not (tmp_path / "feeder").exists()


def test_a_cache_that_is_not_there_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cache", str(tmp_path / "none")]) == 2
    assert "there is no such cache folder" in capsys.readouterr().err


def test_a_set_is_trimmed_once_its_fetcher_has_ended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = fill(tmp_path / "cache", "s3://bucket/set", 2, 1000)
    source = tmp_path / "set"
    source.mkdir()
    (source / "a.tar").write_bytes(bytes(SHARD))
    mirror = folder_mirror(folder, source)
    mirror.need([("a.tar", 0, SHARD)])
    pid = fetcher_pid(folder)
    assert main(["cache", str(tmp_path / "cache"), "--trim", "0", "--json"]) == 1  # the mirror is open
    assert shown(capsys)["sets"][0]["is_used"]
    mirror.close()
    os.kill(pid, signal.SIGKILL)
    assert all_ended([pid])
    assert main(["cache", str(tmp_path / "cache"), "--trim", "0", "--json"]) == 0
    assert shown(capsys)["sets"] == []


def test_a_set_that_is_being_fetched_stays_as_it_is_when_it_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = fill(tmp_path, "s3://bucket/set", 1, 1000)
    half_made = Path(record_path(str(folder), "half.tar"))
    half_made.write_bytes(b"FDR")
    (folder / ".have" / "0.tar").chmod(0o400)
    assert main(["cache", str(tmp_path), "--json"]) == 0
    assert shown(capsys)["size_bytes"] == SHARD
    assert half_made.exists()

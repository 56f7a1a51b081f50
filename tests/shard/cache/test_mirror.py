"""Clients of the cache and its fetcher: right bytes, whichever process dies."""

from __future__ import annotations

import contextlib
import gc
import json
import multiprocessing
import os
import pickle
import shutil
import signal
import socket
import threading
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from feeder.errors import NotFoundError, StoreError
from feeder.shard.cache.cache_mirror import CacheMirror, FetchOptions, open_mirror
from feeder.shard.cache.fetcher import main as fetcher_main
from feeder.shard.cache.link import Link, lock_mirror, socket_address
from feeder.shard.cache.presence import BLOCK_BYTES, RECORDS, Record, record_path
from tests.support.folder_store import fault, fetcher_pid, folder_mirror
from tests.support.processes import all_ended, wait_until

KIB, MIB = 1 << 10, 1 << 20


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder with two shards, the index of one, and a file without checksums."""
    rng = np.random.default_rng(0)
    path = tmp_path / "set"
    path.mkdir()
    (path / "a.tar").write_bytes(rng.bytes(3_000_000))
    (path / "b.tar").write_bytes(rng.bytes(700_000))
    (path / "a.fidx").write_bytes(rng.bytes(400_000))
    (path / "index.bin").write_bytes(rng.bytes(1000))
    yield path
    for lock in tmp_path.rglob("fetcher.lock"):
        kill(int(lock.read_text()))


def kill(pid: int) -> None:
    """Kills a fetcher that a test has started, and waits for its end."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    assert all_ended([pid])


def has_no_wrong_block(cache: Path, name: str, whole: bytes) -> bool:
    """Returns True if all blocks of a cached file that are marked as present are right."""
    record, data = Record(record_path(str(cache), name)), (cache / name).read_bytes()
    present = set(range(record.blocks)) - set(record.missing(0, record.blocks))
    ranges = [slice(block * BLOCK_BYTES, min(len(whole), (block + 1) * BLOCK_BYTES)) for block in present]
    return all(data[each] == whole[each] for each in ranges)


def read(mirror: CacheMirror, name: str, start: int, end: int) -> bytes:
    mirror.need([(name, start, end)])
    with open(mirror.open(name), "rb") as file:
        return os.pread(file.fileno(), end - start, start)


def asked(folder: Path) -> list[tuple[str, int, int]]:
    """Ranges that were asked of the store so far."""
    lines = (folder / ".asked").read_text().splitlines()
    return [(name, int(start), int(end)) for name, start, end in (line.split() for line in lines)]


def test_needed_bytes_are_the_stores(folder: Path, tmp_path: Path) -> None:
    mirror = folder_mirror(tmp_path / "cache", folder)
    for name, start, end in (("a.tar", 5, 17), ("a.tar", 250 * KIB, 260 * KIB), ("a.tar", 2 * MIB, 3_000_000)):
        assert read(mirror, name, start, end) == (folder / name).read_bytes()[start:end]
    assert asked(folder) == [("a.tar", 0, 256 * KIB), ("a.tar", 256 * KIB, 512 * KIB), ("a.tar", 2 * MIB, 3_000_000)]
    assert read(mirror, "index.bin", 0, 1 << 30)[:1000] == (folder / "index.bin").read_bytes()


def test_present_bytes_are_read_without_the_fetcher(folder: Path, tmp_path: Path) -> None:
    whole = folder_mirror(tmp_path / "cache", folder)
    whole.need([("a.tar", 0, MIB)])
    kill(fetcher_pid(tmp_path / "cache"))
    (tmp_path / "cache" / "fetcher.lock").chmod(0o000)
    mirror = pickle.loads(pickle.dumps(whole))
    assert read(mirror, "a.tar", 1000, MIB) == (folder / "a.tar").read_bytes()[1000:MIB]


def test_a_spoilt_block_is_fetched_again(folder: Path, tmp_path: Path) -> None:
    fault(folder, "a.tar", "flip", 2)
    mirror = folder_mirror(tmp_path / "cache", folder)
    assert read(mirror, "a.tar", 0, MIB) == (folder / "a.tar").read_bytes()[:MIB]
    assert asked(folder) == [("a.tar", 0, MIB), *[("a.tar", 512 * KIB, 768 * KIB)] * 2]
    assert mirror.ask({"stats": True})["wrong"] == 2


def test_bytes_that_stay_wrong_are_an_error_and_never_present(folder: Path, tmp_path: Path) -> None:
    name = "a.tar"
    fault(folder, name, "flip", 1000)
    mirror = folder_mirror(tmp_path / "cache", folder)
    for _ in range(2):
        with pytest.raises(StoreError, match=rf"s3://bucket/set/{name}.*: bytes .* don't match their checksum"):
            mirror.need([(name, 0, 1000)])
    fault(folder, name, "flip", 0)
    assert read(mirror, name, 0, 1000) == (folder / name).read_bytes()[:1000]


def test_a_missing_object_is_an_error(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"c\.tar: there is no such object"):
        folder_mirror(tmp_path / "cache", folder).need([("c.tar", 0, 1)])


def test_bytes_that_are_wrong_by_another_checksum_are_fetched_anew(folder: Path, tmp_path: Path) -> None:
    fault(folder, "index.bin", "flip")
    mirror, data = folder_mirror(tmp_path / "cache", folder), (folder / "index.bin").read_bytes()
    assert read(mirror, "index.bin", 0, 1000) != data
    mirror.need([("index.bin", 0, 1000)], again=True)
    assert read(mirror, "index.bin", 0, 1000) == data


def test_two_clients_that_need_the_same_get_one_copy(folder: Path, tmp_path: Path) -> None:
    hold = fault(folder, "a.tar", "hold")
    with ThreadPoolExecutor(8) as threads:
        mirrors = [folder_mirror(tmp_path / "cache", folder) for _ in range(8)]
        reads = [threads.submit(read, mirror, "a.tar", 0, 3_000_000) for mirror in mirrors]
        hold.unlink()
        assert {each.result() for each in reads} == {(folder / "a.tar").read_bytes()}
    assert asked(folder) == [("a.tar", 0, 3_000_000)]


def test_clients_in_forked_processes_have_their_own_connections(folder: Path, tmp_path: Path) -> None:
    mirror = folder_mirror(tmp_path / "cache", folder)
    mirror.need([("b.tar", 0, 1)])
    with multiprocessing.get_context("fork").Pool(2) as processes:
        starts = range(0, 2 * MIB, MIB // 8)
        parts = processes.starmap(read, [(mirror, "a.tar", start, start + MIB // 8) for start in starts])
    assert b"".join(parts) == (folder / "a.tar").read_bytes()[: 2 * MIB]
    assert read(mirror, "b.tar", 0, 700_000) == (folder / "b.tar").read_bytes()


def test_a_fetcher_that_is_killed_while_a_client_waits_is_replaced(folder: Path, tmp_path: Path) -> None:
    hold = fault(folder, "a.tar", "hold")
    mirror = folder_mirror(tmp_path / "cache", folder)
    mirror.need([("b.tar", 0, 1)])
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(read, mirror, "a.tar", 0, MIB)
        kill(fetcher_pid(tmp_path / "cache"))
        hold.unlink()
        assert waiting.result() == (folder / "a.tar").read_bytes()[:MIB]


def test_a_fetcher_that_is_killed_at_any_moment_leaves_no_wrong_block(folder: Path, tmp_path: Path) -> None:
    data, cache = (folder / "a.tar").read_bytes(), tmp_path / "cache"
    mirror = folder_mirror(cache, folder)
    done, deaths = threading.Event(), list[int]()

    def kill_again_and_again() -> None:
        rng, before = np.random.default_rng(2), 1
        while not done.is_set():
            if len(asked(folder)) > before:  # the next one is at work
                done.wait(rng.uniform(0, 0.01))
                kill(fetcher_pid(cache))
                before = len(asked(folder))
                deaths.append(before)

    killer = threading.Thread(target=kill_again_and_again)
    mirror.need([("b.tar", 0, 1)])
    killer.start()
    try:
        rng = np.random.default_rng(1)
        for start in rng.integers(0, len(data) - 1, 8).tolist():
            with contextlib.suppress(StoreError):  # it was killed too often in a row
                assert read(mirror, "a.tar", start, start + 300_000) == data[start : start + 300_000]
    finally:
        done.set()
        killer.join()
    assert deaths
    assert has_no_wrong_block(cache, "a.tar", data)
    assert read(mirror, "a.tar", 0, len(data)) == data


@pytest.mark.slow
def test_a_fetcher_killed_at_any_change_of_its_files_leaves_no_wrong_block(folder: Path, tmp_path: Path) -> None:
    """Of changes that fill a cache, drop shards of it and fill it again."""
    names = ("index.bin", "a.tar", "a.fidx", "b.tar", "a.tar")
    whole = {name: (folder / name).read_bytes() for name in names}
    for step in range(1, 300):
        fault(folder, "fetcher", "kill", step)
        cache = tmp_path / f"cache {step}"
        mirror = folder_mirror(cache, folder, cache_bytes=3_500_000)
        for name in names:
            assert read(mirror, name, 0, len(whole[name])) == whole[name], f"killed at change {step}"
        for path in (cache / RECORDS).iterdir():
            assert has_no_wrong_block(cache, path.name, whole[path.name]), f"killed at change {step}"
        kill(fetcher_pid(cache))
        shutil.rmtree(cache)
        if (folder / ".faults" / "fetcher.alive").exists():
            break
    assert 40 < step < 299


def test_files_that_are_needed_together_do_not_evict_each_other(folder: Path, tmp_path: Path) -> None:
    sizes = {name: (folder / name).stat().st_size for name in ("a.tar", "b.tar")}
    mirror = folder_mirror(tmp_path / "cache", folder, cache_bytes=600_000)  # less than either
    mirror.need([("a.tar", 0, sizes["a.tar"])])
    mirror.need([(name, 0, size_bytes) for name, size_bytes in sizes.items()])
    for name, size_bytes in sizes.items():
        assert read(mirror, name, 0, size_bytes) == (folder / name).read_bytes()


def test_a_client_that_dies_while_it_waits_does_no_harm(folder: Path, tmp_path: Path) -> None:
    hold = fault(folder, "a.tar", "hold")
    mirror = folder_mirror(tmp_path / "cache", folder)
    mirror.need([("b.tar", 0, 1)])
    process = multiprocessing.get_context("fork").Process(target=mirror.need, args=([("a.tar", 0, MIB)],))
    process.start()
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    hold.unlink()
    assert read(mirror, "a.tar", 0, MIB) == (folder / "a.tar").read_bytes()[:MIB]


def test_a_socket_and_a_lock_that_were_left_behind_do_no_harm(folder: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    folder_mirror(cache, folder).need([("b.tar", 0, 1)])
    kill(fetcher_pid(cache))
    assert (cache / "fetcher.socket").exists()
    assert read(folder_mirror(cache, folder), "a.tar", 0, 10) == (folder / "a.tar").read_bytes()[:10]


def test_a_folder_may_have_a_longer_path_than_sockets(folder: Path, tmp_path: Path) -> None:
    cache = tmp_path / ("x" * 100) / ("y" * 100) / "cache"
    assert read(folder_mirror(cache, folder), "a.tar", 0, 10) == (folder / "a.tar").read_bytes()[:10]


def test_an_object_that_was_replaced_is_an_error_that_names_it(folder: Path, tmp_path: Path) -> None:
    mirror = folder_mirror(tmp_path / "cache", folder)
    before = (folder / "a.tar").read_bytes()
    mirror.need([("a.tar", 0, MIB)])
    (folder / "a.tar").write_bytes(np.random.default_rng(5).bytes(len(before)))
    assert read(mirror, "a.tar", 0, MIB) == before[:MIB]
    with pytest.raises(StoreError, match=r"s3://bucket/set/a\.tar.*the object was replaced or is damaged"):
        mirror.need([("a.tar", 2 * MIB, 2 * MIB + 1)])


def test_contents_that_are_others_replace_those_in_the_cache(folder: Path, tmp_path: Path) -> None:
    mirror = folder_mirror(tmp_path / "cache", folder)
    mirror.need([("a.tar", 0, MIB)])
    (folder / "a.tar").write_bytes(np.random.default_rng(5).bytes(2 * MIB))
    mirror.ask({"refresh": "a.tar"})
    assert read(mirror, "a.tar", MIB, 2 * MIB) == (folder / "a.tar").read_bytes()[MIB:]
    assert read(mirror, "a.tar", 0, MIB) == (folder / "a.tar").read_bytes()[:MIB]


def test_files_that_were_deleted_or_cut_come_again(folder: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    folder_mirror(cache, folder).need([("a.tar", 0, MIB), ("b.tar", 0, MIB)])
    (cache / "a.tar").unlink()
    os.truncate(cache / "b.tar", 1000)
    mirror = folder_mirror(cache, folder)
    assert read(mirror, "a.tar", 0, MIB) == (folder / "a.tar").read_bytes()[:MIB]
    kill(fetcher_pid(cache))
    assert read(folder_mirror(cache, folder), "b.tar", 0, 700_000) == (folder / "b.tar").read_bytes()


def test_blocks_of_an_earlier_boot_are_checked_before_use(folder: Path, tmp_path: Path) -> None:
    cache, data = tmp_path / "cache", (folder / "a.tar").read_bytes()
    folder_mirror(cache, folder).need([("a.tar", 0, len(data))])
    kill(fetcher_pid(cache))
    # A power failure kept the record and lost a block.
    with open(cache / "a.tar", "r+b") as file:
        file.seek(MIB)
        file.write(bytes(BLOCK_BYTES))
    record = Path(record_path(str(cache), "a.tar"))
    head = bytearray(record.read_bytes())
    head[40:56] = bytes(16)
    record.write_bytes(head)
    assert read(folder_mirror(cache, folder), "a.tar", 0, len(data)) == data
    assert asked(folder)[1:] == [("a.tar", MIB, MIB + BLOCK_BYTES)]


def test_a_damaged_cache_is_named_once_and_mended(folder: Path, tmp_path: Path) -> None:
    cache, data = tmp_path / "cache", (folder / "a.tar").read_bytes()
    mirror = folder_mirror(cache, folder)
    mirror.need([("a.tar", 0, len(data))])
    for at in (MIB, 2 * MIB):
        with open(cache / "a.tar", "r+b") as file:
            file.seek(at)
            file.write(bytes(BLOCK_BYTES))
    mirror.ask({"refresh": "index.bin"})
    with pytest.warns(UserWarning, match=rf"^{cache}/a\.tar: this cached file was damaged on the disk") as caught:
        found = read(mirror, "a.tar", 0, len(data))
    mirror.counts()
    assert (found == data, len(caught)) == (True, 1)
    assert asked(folder)[1:] == [("a.tar", at, at + BLOCK_BYTES) for at in (MIB, 2 * MIB)]


def test_a_cache_that_is_emptied_while_it_is_read_fills_again(folder: Path, tmp_path: Path) -> None:
    cache, data = tmp_path / "cache", (folder / "a.tar").read_bytes()
    mirror = folder_mirror(cache, folder)
    mirror.need([("a.tar", 0, 10)])
    for path in [*cache.rglob("*.tar")]:
        path.unlink()
    assert read(mirror, "a.tar", 0, len(data)) == data


def test_what_is_found_in_the_cache_is_counted(folder: Path, tmp_path: Path) -> None:
    mirror = folder_mirror(tmp_path / "cache", folder)
    mirror.need([("b.tar", 0, 10)])
    for _ in range(300):
        mirror.need([("b.tar", 0, 10)])
    assert mirror.counts()["hits"] >= 256
    assert mirror.counts()["waits"] == 1


@pytest.mark.parametrize("url", ["http://localhost:1/set", "s3://bucket/set?endpoint=http://localhost:1"])
def test_plain_http_is_refused_whatever_a_fetcher_that_runs_may_do(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ALLOW_HTTP", raising=False)
    with pytest.raises(StoreError, match="without encryption"):
        open_mirror(FetchOptions(url, timeout_s=5), tmp_path)
    assert not any(tmp_path.iterdir())  # no fetcher was asked


def test_a_fetcher_opens_its_store_as_the_options_of_its_mirror_say(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}
    monkeypatch.setattr("feeder.shard.cache.fetcher.open_store", lambda url, **options: asked.update(options, url=url))
    monkeypatch.setattr("feeder.shard.cache.fetcher.become_fetcher", lambda folder, lock, options, opened: opened())
    fetcher_main("", -1, asdict(FetchOptions("http://host/set", allow_http=True, allow_private=True, timeout_s=5)))
    assert asked == {"url": "http://host/set", "allow_http": True, "allow_private": True, "timeout": 5}


def test_what_a_killed_client_waits_for_keeps_no_fetcher_busy(folder: Path, tmp_path: Path) -> None:
    hold = fault(folder, "a.tar", "hold")
    mirror = folder_mirror(tmp_path / "cache", folder)
    mirror.need([("b.tar", 0, 1)])
    pid = fetcher_pid(tmp_path / "cache")
    process = multiprocessing.get_context("fork").Process(target=mirror.need, args=([("a.tar", 0, MIB)],))
    process.start()
    wait_until(lambda: mirror.ask({"stats": True})["waits"] == 1)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    mirror.close()
    wait_until(lambda: ended_if_idle(tmp_path / "cache"))
    assert all_ended([pid])
    assert hold.exists()


def ended_if_idle(cache: Path) -> bool:
    """True if the fetcher of a cache has ended, as it had no client."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as channel, contextlib.suppress(OSError):
        channel.connect(str(cache / "fetcher.socket"))
        channel.send(json.dumps({"hello": {"cache_bytes": None, "timeout_s": 9.0, "identity": "another"}}).encode())
        channel.recv(1 << 17)
    lock = lock_mirror(str(cache))
    if lock is not None:
        os.close(lock)
    return lock is not None


@pytest.mark.parametrize("option", ["identity", "timeout_s"])
def test_clients_with_other_options_share_a_fetcher_unless_they_have_other_credentials(
    folder: Path, tmp_path: Path, option: str
) -> None:
    first = folder_mirror(tmp_path / "cache", folder, identity="one", timeout_s=5)
    first.need([("b.tar", 0, 1)])
    pid = fetcher_pid(tmp_path / "cache")
    others: dict[str, Any] = {"identity": "one", "timeout_s": 5} | {option: {"identity": "two"}.get(option, 9)}
    second = folder_mirror(tmp_path / "cache", folder, **others)
    if option == "identity":
        with pytest.raises(StoreError, match="another job on this machine reads this set by other credentials"):
            second.need([("a.tar", 0, 1)])
        first.close()
    second.need([("a.tar", 0, 1)])
    assert (fetcher_pid(tmp_path / "cache") == pid) == (option == "timeout_s")


def test_a_connection_in_a_cycle_is_closed_before_the_collector_takes_its_socket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gc.collect()  # what other tests have left
    made = [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)]  # before its owner, so that it is collected before
    folder = os.open(tmp_path, os.O_RDONLY)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(socket_address(folder))
        listener.listen()
        patched = SimpleNamespace(**{**vars(socket), "socket": lambda *_: made.pop()})
        monkeypatch.setattr("feeder.shard.cache.link.socket", patched)
        monkeypatch.setattr(Link, "ask", lambda *_: {})
        options = {"cache_bytes": None, "identity": "", "timeout_s": 1.0}
        link: Any = Link(str(tmp_path), options, 1.0, "", lambda: None)
        theirs, _ = listener.accept()
    os.close(folder)
    link.itself = link
    del link
    with theirs, warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        gc.collect()
        assert theirs.recv(1) == b""
    assert [each for each in found if each.category is ResourceWarning] == []

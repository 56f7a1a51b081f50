"""The cache within its budget: what stays, what leaves, and what slow or full disks and stores do to it."""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import resource
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from feeder.errors import StoreError
from feeder.shard.cache import downloads
from feeder.shard.cache.cached_file import CachedFile
from feeder.shard.cache.fetcher import Fetcher
from feeder.shard.cache.presence import BLOCK_BYTES, Presence, record_path
from tests.support.folder_store import FolderContents, FolderStore, fault
from tests.support.processes import wait_until

SHARD = 4 * BLOCK_BYTES


class Places:
    """A set of eight shards of 1 MiB, and fetchers of it in this process."""

    def __init__(self, folder: Path) -> None:
        self.set, self.cache = folder / "set", folder / "cache"
        self.set.mkdir()
        self.cache.mkdir()
        self.names = [f"{k}.tar" for k in range(8)]
        rng = np.random.default_rng(0)
        for name in self.names:
            (self.set / name).write_bytes(rng.bytes(SHARD))
        self.store = FolderStore(str(self.set))
        self._fetchers: list[Fetcher] = []
        self._channels: list[socket.socket] = []

    def fetcher(self, budget_bytes: int | None) -> Fetcher:
        self.store = FolderStore(str(self.set))
        contents: Any = FolderContents(str(self.set))
        self._fetchers.append(Fetcher(str(self.cache), cast(Any, self.store), lambda _: contents, budget_bytes))
        return self._fetchers[-1]

    def client(self, fetcher: Fetcher) -> Callable[[dict], dict]:
        """Speaks to a fetcher as a client does."""
        mine, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._channels.append(mine)
        fetcher.attend(its)

        def ask(message: dict) -> dict:
            mine.send(json.dumps(message).encode())
            answer: dict = json.loads(mine.recv(1 << 17))
            return answer

        return ask

    def read_all(self, fetcher: Fetcher) -> int:
        """Reads all shards one after the other; returns the bytes that came from the store."""
        before = sum(end - start for _, start, end in self.store.asked)
        for name in self.names:
            fetcher.need([(name, 0, SHARD)])
            assert (self.cache / name).read_bytes() == (self.set / name).read_bytes()
        return sum(end - start for _, start, end in self.store.asked) - before

    def cached(self) -> list[str]:
        found = []
        for path in sorted(self.cache.glob("*.tar")):
            with contextlib.suppress(FileNotFoundError):  # it has just left
                found += [path.name] if path.stat().st_blocks else []
        return found

    def close(self) -> None:
        for channel in self._channels:
            channel.close()
        for fetcher in self._fetchers:
            fetcher.downloads.close()


@pytest.fixture
def places(tmp_path: Path) -> Iterator[Places]:
    places = Places(tmp_path)
    yield places
    places.close()


def test_shards_stay_until_the_cache_is_full_and_the_others_come_and_go(places: Places) -> None:
    fetcher = places.fetcher(5 * SHARD)
    with fetcher.cache.lock:
        fetcher.cache.ring_bytes = SHARD
    assert places.read_all(fetcher) == 8 * SHARD
    assert fetcher.stats()["cached_bytes"] <= 5 * SHARD
    for _ in range(3):  # each time half of them, where the one used longest ago would always have just left
        assert places.read_all(fetcher) == 4 * SHARD
    assert {"0.tar", "1.tar", "2.tar", "3.tar"} < set(places.cached())


def test_what_stays_still_stays_with_the_next_fetcher(places: Places) -> None:
    places.read_all(places.fetcher(5 * SHARD))
    assert places.read_all(places.fetcher(5 * SHARD)) <= 4 * SHARD


def test_what_a_killed_fetcher_was_writing_goes_with_the_next_one(places: Places) -> None:
    places.read_all(places.fetcher(20 * SHARD))
    record = places.cache / ".have" / "1.tar"
    left = [places.cache / ".checked.0011aabb.tmp", record.with_name("1.tar.0011aabb.tmp"), record.with_name("cut.tmp")]
    for path, data in zip(left, (b"an index", record.read_bytes(), b""), strict=True):
        path.write_bytes(data)
    fetcher = places.fetcher(20 * SHARD)
    assert not any(path.exists() for path in left)
    assert fetcher.stats()["cached_bytes"] == len(places.names) * SHARD
    assert places.read_all(fetcher) == 0


def test_a_cache_that_holds_the_set_keeps_all_of_it(places: Places) -> None:
    fetcher = places.fetcher(8 * SHARD)
    places.read_all(fetcher)
    assert places.read_all(fetcher) == 0


def test_a_smaller_budget_drops_files_when_room_is_needed(places: Places) -> None:
    places.read_all(places.fetcher(8 * SHARD))
    fetcher = places.fetcher(3 * SHARD)
    (places.set / "new.tar").write_bytes(bytes(SHARD))
    fetcher.need([("new.tar", 0, SHARD)])
    assert fetcher.stats()["cached_bytes"] <= 3 * SHARD
    assert (places.cache / "new.tar").read_bytes() == bytes(SHARD)


def open_files() -> int:
    """Number of the files that this process has open."""
    return len(os.listdir("/proc/self/fd"))


@contextlib.contextmanager
def few_files(count: int) -> Iterator[None]:
    """Lets this process open only so many files more."""
    limits, taken = resource.getrlimit(resource.RLIMIT_NOFILE), list[int]()
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + count, limits[1]))
    try:
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        for descriptor in taken[:count]:
            os.close(descriptor)
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for descriptor in taken[count:]:
            os.close(descriptor)


def test_a_cache_may_have_more_files_than_its_process_may_open(places: Places) -> None:
    names = [f"small-{k}.tar" for k in range(300)]
    for name in names:
        (places.set / name).write_bytes(name.encode())
    fetcher = places.fetcher(100 * SHARD)
    before = open_files()
    with few_files(100):
        for name in names:
            fetcher.need([(name, 0, 1)])
    assert open_files() == before
    with few_files(40):
        fetcher = places.fetcher(100 * SHARD)
        fetcher.need([(name, 0, 1) for name in names])
    assert places.store.asked == []
    assert [(places.cache / name).read_bytes() for name in names] == [name.encode() for name in names]


def test_a_cache_that_cant_be_read_keeps_all_that_is_in_it(places: Places) -> None:
    places.read_all(places.fetcher(100 * SHARD))
    record = places.cache / ".have" / "3.tar"
    record.rename(places.cache / "kept")
    record.symlink_to(record)
    with pytest.raises(StoreError, match=r"3\.tar: the cache can't be read: Too many levels of symbolic links; name"):
        places.fetcher(100 * SHARD)
    (places.cache / "kept").rename(record)
    with few_files(0), pytest.raises(StoreError, match=r"can't be read: Too many open files; .*NOFILE"):
        places.fetcher(100 * SHARD)
    assert places.read_all(places.fetcher(100 * SHARD)) == 0


def test_nothing_is_kept_of_files_that_have_left(places: Places) -> None:
    fetcher = places.fetcher(3 * SHARD)
    with fetcher.cache.lock:
        fetcher.cache.ring_bytes = fetcher.cache.budget_bytes  # none of them stays
    places.read_all(fetcher)
    left = places.names[-3:]
    assert list(fetcher.cache.files) == left
    assert sorted(path.name for path in (places.cache / ".have").iterdir()) == left


def full_disk(monkeypatch: pytest.MonkeyPatch, places: Places, size_bytes: int) -> None:
    """Lets a disk be full once so many bytes of shards are on it."""
    pwritev = os.pwritev

    def write(descriptor: int, data: Sequence[memoryview], offset: int) -> int:
        blocks = sum(path.stat().st_blocks * 512 for path in places.cache.glob("*.tar"))
        if blocks + sum(map(len, data)) > size_bytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return pwritev(descriptor, data, offset)

    monkeypatch.setattr(os, "pwritev", write)


def test_a_full_disk_is_gone_on_with(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    full_disk(monkeypatch, places, 3 * SHARD + SHARD // 2)
    fetcher = places.fetcher(100 * SHARD)
    assert places.read_all(fetcher) == 8 * SHARD
    assert places.read_all(fetcher) <= 8 * SHARD
    assert fetcher.stats()["budget_bytes"] < 5 * SHARD


def test_two_caches_leave_a_tenth_of_their_disk_free(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("feeder.shard.cache.cache_folder.LOOK_S", 0.0)
    own, disk = places.cache, 10 * SHARD

    def status(folder: str) -> os.statvfs_result:
        blocks = sum(path.stat().st_blocks for path in own.parent.rglob("cache*/*.tar"))
        return os.statvfs_result((512, 512, disk // 512, 0, disk // 512 - blocks, 0, 0, 0, 0, 255))

    monkeypatch.setattr(os, "statvfs", status)
    first = places.fetcher(None)
    places.cache = own.parent / "cache-of-another"
    places.cache.mkdir()
    second = places.fetcher(None)
    places.read_all(second)
    places.cache = own

    def leave_a_tenth() -> bool:
        places.read_all(first)
        return sum(each.stats()["cached_bytes"] for each in (first, second)) <= 9 * SHARD

    wait_until(leave_a_tenth)  # a file is taken beyond the budget while a thread still holds the one before it


def test_of_a_large_disk_10_gib_stay_free(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    mib = 1 << 20
    disk = os.statvfs_result((mib, mib, 4 * mib, 0, 11 << 10, *[0] * 4, 255))
    monkeypatch.setattr(os, "statvfs", lambda folder: disk)
    assert places.fetcher(None).stats()["budget_bytes"] == 1 << 30


def test_a_disk_that_is_full_of_what_is_needed_is_an_error(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    full_disk(monkeypatch, places, SHARD // 2)
    with pytest.raises(StoreError, match=r"the disk of the cache is full.*cache_dir="):
        places.fetcher(100 * SHARD).need([("0.tar", 0, SHARD)])


def test_a_disk_that_takes_nothing_is_an_error(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(descriptor: int, data: Sequence[memoryview], offset: int) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "pwritev", write)
    with pytest.raises(StoreError, match=r"0\.tar: can't be written: Input/output error"):
        places.fetcher(100 * SHARD).need([("0.tar", 0, SHARD)])


def test_a_plan_gets_its_ranges_ahead_of_need(places: Places) -> None:
    fetcher = places.fetcher(100 * SHARD)
    ask = places.client(fetcher)
    assert ask({"begin": 2 * SHARD}) == {}
    ranges = [("1.tar", 0, SHARD), ("0.tar", 0, SHARD)]
    ask({"plan": {"step": 0, "last_steps": [["0.tar", 9], ["1.tar", 9]], "ranges": ranges}})
    wait_until(lambda: fetcher.stats()["cached_bytes"] == 2 * SHARD)
    fetcher.need(ranges)
    assert sorted(set(places.store.asked)) == [("0.tar", 0, SHARD), ("1.tar", 0, SHARD)]


def hold(places: Places, monkeypatch: pytest.MonkeyPatch, name: str, *, after: int) -> threading.Event:
    """Has the bytes of a shard stop after the first ones, until the event is set."""
    goes_on, pieces = threading.Event(), places.store.pieces

    def held(key: str, start: int, end: int, etag: str | None = None, **options: Any) -> Iterator[bytes]:
        for piece in pieces(key, start, end, etag, **options):
            if key == name and start >= after:
                goes_on.wait()
            start += len(piece)
            yield piece

    monkeypatch.setattr(places.store, "pieces", held)
    return goes_on


def test_blocks_are_there_before_the_end_of_their_range(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    fetcher = places.fetcher(100 * SHARD)
    goes_on = hold(places, monkeypatch, "0.tar", after=2 * BLOCK_BYTES)
    ask = places.client(fetcher)
    ask({"begin": SHARD})
    ask({"plan": {"step": 0, "last_steps": [["0.tar", 9]], "ranges": [("0.tar", 0, SHARD)]}})
    wait_until(lambda: places.store.asked)
    fetcher.need([("0.tar", 0, 2 * BLOCK_BYTES)])
    assert fetcher.stats()["cached_bytes"] < SHARD
    goes_on.set()
    fetcher.need([("0.tar", 0, SHARD)])
    assert places.store.asked == [("0.tar", 0, SHARD)]
    assert (places.cache / "0.tar").read_bytes() == (places.set / "0.tar").read_bytes()


def test_what_drips_is_waited_for_as_long_as_a_client_says(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("feeder.shard.cache.downloads.GRACE_S", 0.0)
    fetcher = places.fetcher(100 * SHARD)
    goes_on = hold(places, monkeypatch, "0.tar", after=BLOCK_BYTES)
    ask, other = places.client(fetcher), places.client(fetcher)
    ask({"hello": {"cache_bytes": None, "timeout_s": 0.1, "identity": ""}})
    other({"hello": {"cache_bytes": None, "timeout_s": 600.0, "identity": ""}})
    answer = ask({"need": [("0.tar", 0, SHARD)], "again": False})
    assert answer["error"] == "StoreError"
    assert "0.tar: what is needed of it did not come in whole for 0.1 s" in answer["text"]
    goes_on.set()
    assert other({"need": [("0.tar", 0, SHARD)], "again": False}) == {}


def test_the_first_batch_comes_before_what_follows_it(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    fetcher = places.fetcher(100 * SHARD)
    goes_on = hold(places, monkeypatch, "0.tar", after=0)
    ask = places.client(fetcher)
    ask({"begin": 2 * SHARD})
    first, later = [("0.tar", 0, 10), ("0.tar", SHARD - 10, SHARD)], [("0.tar", 0, SHARD), ("1.tar", 0, SHARD)]
    ask({"plan": {"step": 0, "last_steps": [["0.tar", 9]], "ranges": first, "is_first": True}})
    ask({"plan": {"step": 0, "last_steps": [["1.tar", 9]], "ranges": later}})
    fetcher.need([("2.tar", 0, SHARD)])  # what somebody waits for comes meanwhile
    assert "1.tar" not in {name for name, _, _ in places.store.asked}
    goes_on.set()
    wait_until(lambda: fetcher.stats()["bytes"] == 3 * SHARD)
    begins = [
        ("0.tar", 0, BLOCK_BYTES),
        ("0.tar", SHARD - BLOCK_BYTES, SHARD),
        ("0.tar", BLOCK_BYTES, SHARD - BLOCK_BYTES),
    ]
    assert sorted(places.store.asked) == sorted([*begins, ("1.tar", 0, SHARD), ("2.tar", 0, SHARD)])


@pytest.mark.parametrize("error", [OSError(errno.EROFS, os.strerror(errno.EROFS)), RuntimeError("a mistake")])
def test_what_goes_wrong_while_ranges_are_planned_leaves_somebody_to_fetch(
    places: Places, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    fetcher = places.fetcher(100 * SHARD)
    make_room, failed = fetcher.cache.make_room, list[str]()

    def fails(file: CachedFile, size_bytes: int, *, is_urgent: bool) -> bool:
        if not is_urgent:  # it is only planned
            failed.append(file.name)
            raise error
        return make_room(file, size_bytes, is_urgent=is_urgent)

    monkeypatch.setattr(fetcher.cache, "make_room", fails)
    ask = places.client(fetcher)
    ask({"begin": SHARD})

    def plan(number: int) -> None:
        ask({"plan": {"step": 0, "last_steps": [], "ranges": [(places.names[number % 8], 0, SHARD)]}})
        wait_until(lambda: len(failed) > number)

    for number in range(40):  # more than there are threads
        plan(number)
    with ThreadPoolExecutor(1) as threads:
        threads.submit(fetcher.need, [(name, 0, SHARD) for name in places.names]).result(60)
    assert (places.cache / "7.tar").read_bytes() == (places.set / "7.tar").read_bytes()


def test_a_budget_below_what_a_plan_reads_from_is_refused(places: Places) -> None:
    answer = places.client(places.fetcher(3 * SHARD))({"begin": 4 * SHARD})
    assert answer["error"] == "StoreError"
    assert f"cache_bytes={4 * SHARD:,}" in answer["text"]


def test_files_that_a_plan_needs_stay_until_their_last_step(places: Places) -> None:
    fetcher = places.fetcher(3 * SHARD)
    ask = places.client(fetcher)
    ask({"begin": 3 * SHARD})
    names = places.names[:3]
    ask({"plan": {"step": 0, "last_steps": [[name, 9] for name in names], "ranges": []}})
    fetcher.need([(name, 0, SHARD) for name in names])
    fetcher.need([("5.tar", 0, SHARD)])  # somebody waits for it, so it comes all the same
    assert places.cached() == [*names, "5.tar"]
    ask({"plan": {"step": 9, "last_steps": [["6.tar", 20]], "ranges": []}})
    assert places.cached() == names  # no more than the budget, as soon as some may leave
    ask({"plan": {"step": 20, "last_steps": [], "ranges": []}})
    fetcher.need([("6.tar", 0, SHARD)])
    assert len(places.cached()) == 3


def test_what_is_waited_for_takes_no_more_room_than_it_has_bytes(places: Places) -> None:
    (places.set / "small.tar").write_bytes(bytes(1000))
    fetcher = places.fetcher(2 * SHARD + BLOCK_BYTES // 2)
    with fetcher.cache.lock:
        fetcher.cache.ring_bytes = fetcher.cache.budget_bytes  # none of them stays
    fetcher.need([(name, 0, SHARD) for name in places.names[:2]])
    fetcher.need([("small.tar", 0, 1000)])
    assert places.cached() == [*places.names[:2], "small.tar"]


def test_what_stays_stays_where_later_epochs_read_from_a_little_more_or_less_at_a_time(places: Places) -> None:
    fetcher = places.fetcher(6 * SHARD)
    ask = places.client(fetcher)
    for working in (3, 2):
        ask({"begin": working * SHARD})
        places.read_all(fetcher)
        ask({"end": True})
    ask({"begin": 3 * SHARD})
    ask({"plan": {"step": 0, "last_steps": [[name, 9] for name in places.names[5:]], "ranges": []}})
    fetcher.need([(name, 0, SHARD) for name in places.names[5:]])
    assert places.cached() == [*places.names[:3], *places.names[5:]]


def test_what_a_client_has_read_may_leave_once_it_says_something_else(places: Places) -> None:
    fetcher = places.fetcher(3 * SHARD)
    with fetcher.cache.lock:
        fetcher.cache.ring_bytes = fetcher.cache.budget_bytes
    ask = places.client(fetcher)
    ask({"need": [(name, 0, SHARD) for name in places.names[:3]], "again": False})
    fetcher.need([("5.tar", 0, SHARD)])
    assert places.cached() == [*places.names[:3], "5.tar"]
    assert ask({"stats": True})["cached_bytes"] == 4 * SHARD
    fetcher.need([("6.tar", 0, SHARD)])
    assert len(places.cached()) == 3


def test_ranges_wait_until_there_is_room_for_them(places: Places) -> None:
    fetcher = places.fetcher(3 * SHARD)
    ask = places.client(fetcher)
    ask({"begin": 3 * SHARD})
    ranges = [(name, 0, SHARD) for name in places.names]
    ask({"plan": {"step": 0, "last_steps": [[name, k] for k, name in enumerate(places.names)], "ranges": ranges}})
    wait_until(lambda: fetcher.stats()["cached_bytes"] == 2 * SHARD)  # there is room left for what somebody waits for
    ask({"plan": {"step": 1, "last_steps": [], "ranges": []}})
    wait_until(lambda: places.cached() == ["1.tar", "2.tar"])


@pytest.mark.parametrize("keeps", ["lease", "plan"])
def test_ranges_come_when_what_took_their_room_is_let_go_by_somebody_else(
    places: Places, monkeypatch: pytest.MonkeyPatch, keeps: str
) -> None:
    fetcher, has_looked = places.fetcher(3 * SHARD), threading.Event()
    make_room = fetcher.cache.make_room

    def noted(*arguments: Any, **options: Any) -> bool:
        has_room = make_room(*arguments, **options)
        has_looked.set()
        return has_room

    ask, other = places.client(fetcher), places.client(fetcher)
    ask({"begin": 3 * SHARD})
    other({"begin": 0})
    ranges = [(name, 0, SHARD) for name in places.names]
    ask({"plan": {"step": 0, "last_steps": [[name, k] for k, name in enumerate(places.names)], "ranges": ranges}})
    if keeps == "lease":
        other({"need": [("0.tar", 0, SHARD)], "again": False})
    else:
        other({"plan": {"step": 0, "last_steps": [["0.tar", 9]], "ranges": []}})
    wait_until(lambda: places.cached() == ["0.tar", "1.tar"])
    monkeypatch.setattr(fetcher.cache, "make_room", noted)
    ask({"plan": {"step": 1, "last_steps": [], "ranges": []}})
    assert has_looked.wait(30)
    assert places.cached() == ["0.tar", "1.tar"]
    other({"stats": True} if keeps == "lease" else {"end": True})
    wait_until(lambda: places.cached() == ["1.tar", "2.tar"])


def test_blocks_of_a_file_that_closes_with_an_error_do_not_count(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetcher, close, wrong = places.fetcher(100 * SHARD), os.close, str(places.cache / "1.tar")

    def failing(descriptor: int) -> None:
        is_wrong = os.readlink(f"/proc/self/fd/{descriptor}") == wrong
        close(descriptor)
        if is_wrong:  # as of a network's file system, which writes then
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patched:
        patched.setattr(os, "close", failing)
        with pytest.raises(StoreError, match=r"1\.tar: can't be written"):
            fetcher.need([("1.tar", 0, SHARD)])
    assert not any(
        Presence(record_path(str(places.cache), "1.tar")).has(k, k + 1) for k in range(0, SHARD, BLOCK_BYTES)
    )
    fetcher.need([("1.tar", 0, SHARD)])
    assert (places.cache / "1.tar").read_bytes() == (places.set / "1.tar").read_bytes()


@pytest.mark.parametrize("silent", [1, 2])
def test_a_range_that_is_slow_is_asked_for_again(places: Places, silent: int) -> None:
    fetcher = places.fetcher(100 * SHARD)
    for name in places.names[:4]:
        fetcher.need([(name, 0, SHARD)])
    asked, goes_on, get = itertools.count(), threading.Event(), places.store.get

    def silent_first(key: str, *arguments: Any, **options: Any) -> bytes:
        if next(asked) < silent:
            goes_on.wait(30)
        return get(key, *arguments, **options)

    places.store.get = silent_first  # type: ignore[method-assign]
    fetcher.need([("5.tar", 0, SHARD)])
    assert (places.cache / "5.tar").read_bytes() == (places.set / "5.tar").read_bytes()
    assert fetcher.stats()["hedges"] == silent
    goes_on.set()


def test_slow_ranges_are_asked_for_twice_within_a_hundredth_of_all_bytes(places: Places) -> None:
    fetcher = places.fetcher(100 * SHARD)
    fetcher.need([("0.tar", 0, SHARD)])
    fetcher.downloads.counts.bytes = 1000 << 20
    slow = [f"{k}.tar" for k in range(100, 124)]
    held = []
    for name in slow:
        (places.set / name).write_bytes(name.encode() * (SHARD // len(name)))
        held.append(fault(places.set, name, "hold"))
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(fetcher.need, [(name, 0, SHARD) for name in slow])
        try:
            wait_until(lambda: fetcher.stats()["hedges"] >= 10 and set(places.store.held) == set(slow))
            assert fetcher.stats()["hedges"] == 10
            assert fetcher.stats()["hedged_bytes"] == 0  # they are only on their way
        finally:
            for hold in held:
                hold.unlink()
        waiting.result()
    assert fetcher.stats()["hedged_bytes"] > 0


def test_requests_that_bring_nothing_leave_the_bytes_of_further_second_ones(places: Places) -> None:
    fetcher = places.fetcher(100 * SHARD)
    fetcher.need([("0.tar", 0, SHARD)])
    counts, goes_on, silent = fetcher.downloads.counts, threading.Event(), set[str]()
    get = places.store.get

    def silent_once(key: str, *arguments: Any, **options: Any) -> bytes:
        if key not in silent:
            silent.add(key)
            goes_on.wait(30)
        return get(key, *arguments, **options)

    places.store.get = silent_once  # type: ignore[method-assign]
    size = 2 * SHARD
    names = [f"{k}.tar" for k in range(100, 101 + counts.most_hedged_bytes // size)]
    for name in names:
        (places.set / name).write_bytes(name.encode() * (size // len(name)))
        fetcher.need([(name, 0, size)])
    assert counts.hedges == len(names)
    assert counts.hedged_bytes == 0
    goes_on.set()


def test_a_fetcher_ends_with_its_last_client_after_an_error(places: Places) -> None:
    fetcher = places.fetcher(8 * SHARD)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind("")  # any name
        listener.listen()
        serving = threading.Thread(target=fetcher.serve, args=(listener,), daemon=True)
        serving.start()
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
            client.connect(listener.getsockname())
            client.send(json.dumps({"need": [["missing.tar", 0, 1]], "again": False}).encode())
            assert "error" in json.loads(client.recv(1 << 17))
            assert serving.is_alive()
        serving.join(10)
        assert not serving.is_alive()


class Clients:
    """Clients of a fetcher, whose sockets it looks after.

    Attributes:
        dropped: Set once the fetcher has dropped one that waited.
        asked: Number of times that one began to wait.
    """

    def __init__(self, fetcher: Fetcher, monkeypatch: pytest.MonkeyPatch) -> None:
        self.dropped, self.asked = threading.Event(), 0
        give_up, get = fetcher.downloads.give_up, fetcher.downloads.get

        def counted(*arguments: Any) -> None:
            self.asked += 1
            get(*arguments)

        def noted(waits: Any) -> None:
            had_waits = bool(waits)
            give_up(waits)
            if had_waits:
                self.dropped.set()

        monkeypatch.setattr(fetcher.downloads, "give_up", noted)
        monkeypatch.setattr(fetcher.downloads, "get", counted)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind("")  # any name
        self._listener.listen()
        self._serving = threading.Thread(target=fetcher.serve, args=(self._listener,), daemon=True)
        self._serving.start()

    def asking(self, name: str) -> socket.socket:
        """A client that has asked for a shard."""
        return self._sending({"need": [[name, 0, SHARD]], "again": False})

    def _sending(self, message: dict[str, Any]) -> socket.socket:
        client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        client.connect(self._listener.getsockname())
        client.send(json.dumps(message).encode())
        return client

    def close(self) -> None:
        with self._sending({"hello": {"cache_bytes": None, "timeout_s": 9.0, "identity": "another"}}) as last:
            assert json.loads(last.recv(1 << 17)) == {"ended": True}
        self._serving.join(10)
        self._listener.close()


def test_a_file_stays_while_blocks_of_it_are_on_their_way(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when nobody waits for them any more."""
    fetcher = places.fetcher(100 * SHARD)
    fetcher.need([("1.tar", 0, SHARD)])
    goes_on = hold(places, monkeypatch, "0.tar", after=BLOCK_BYTES)
    clients = Clients(fetcher, monkeypatch)
    with clients.asking("0.tar"):
        wait_until(lambda: ("0.tar", 0, SHARD) in places.store.asked)
    assert clients.dropped.wait(10)
    assert fetcher.cache.evict(100 * SHARD, pinned=True) == SHARD
    assert places.cached() == ["0.tar"]
    goes_on.set()
    with clients.asking("0.tar") as later:
        assert json.loads(later.recv(1 << 17)) == {}
    assert (places.cache / "0.tar").read_bytes() == (places.set / "0.tar").read_bytes()
    clients.close()


def test_what_only_a_dead_client_waited_for_is_given_up(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(downloads, "MOST_HEDGES", 0)  # which would bring the other half of what is held
    fetcher = places.fetcher(100 * SHARD)
    goes_on = hold(places, monkeypatch, "0.tar", after=BLOCK_BYTES)
    clients = Clients(fetcher, monkeypatch)
    dead, alive = clients.asking("0.tar"), clients.asking("1.tar")
    assert json.loads(alive.recv(1 << 17)) == {}
    wait_until(lambda: ("0.tar", 0, SHARD) in places.store.asked)
    dead.close()
    assert clients.dropped.wait(10)
    goes_on.set()
    wait_until(lambda: fetcher.cache.files["0.tar"].busy == 0)
    assert fetcher.stats()["bytes"] < 2 * SHARD
    with clients.asking("0.tar") as later:  # gets the rest
        assert json.loads(later.recv(1 << 17)) == {}
    assert (places.cache / "0.tar").read_bytes() == (places.set / "0.tar").read_bytes()
    alive.close()
    clients.close()


def test_what_a_dead_client_waited_for_comes_if_another_one_asks_for_it(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetcher = places.fetcher(100 * SHARD)
    goes_on = hold(places, monkeypatch, "0.tar", after=BLOCK_BYTES)
    clients = Clients(fetcher, monkeypatch)
    dead, other = clients.asking("0.tar"), clients.asking("0.tar")
    wait_until(lambda: clients.asked == 2)
    dead.close()
    assert clients.dropped.wait(10)
    with clients.asking("0.tar") as later:
        goes_on.set()
        assert [json.loads(client.recv(1 << 17)) for client in (other, later)] == [{}, {}]
    stats = fetcher.stats()
    assert stats["requests"] <= 1 + stats["hedges"]  # some of which are taken back before they begin
    assert (places.cache / "0.tar").read_bytes() == (places.set / "0.tar").read_bytes()
    other.close()
    clients.close()


def test_a_store_that_a_fetcher_before_has_read_is_known_to_answer(places: Places) -> None:
    places.fetcher(8 * SHARD)
    assert not places.store.has_answered
    places.read_all(places.fetcher(8 * SHARD))
    places.fetcher(8 * SHARD)
    assert places.store.has_answered  # so that its network may be gone for long

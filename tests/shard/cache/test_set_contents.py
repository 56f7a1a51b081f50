"""The contents of a set's files by its header: what comes spoilt is fetched again, and never used."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import socket
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from feeder.dataset.shard_reader import ShardReader
from feeder.errors import FormatError, StoreError
from feeder.shard.cache.fetcher import Fetcher
from feeder.shard.cache.set_contents import SetContents
from feeder.shard.format.open_index import open_index
from feeder.shard.format.set_header import SetHeader, write_header
from feeder.shard.format.set_index import SetIndex
from feeder.system.mapping import map_file
from tests.support.folder_store import FolderStore, fault
from tests.support.processes import wait_until
from tests.support.remote_sets import make_set


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_set(tmp_path_factory.mktemp("set"), shards=2)


@pytest.fixture
def folder(source: Path, tmp_path: Path) -> Path:
    """A set that a test may change."""
    folder = tmp_path / "set"
    folder.mkdir()
    for path in source.iterdir():
        if path.is_file():
            (folder / path.name).write_bytes(path.read_bytes())
    return folder


@pytest.fixture
def fetcher(folder: Path, tmp_path: Path) -> Iterator[Fetcher]:
    (tmp_path / "cache").mkdir()
    store = cast(Any, FolderStore(str(folder)))
    made = Fetcher(
        str(tmp_path / "cache"), store, lambda each: SetContents(store, each.cache, "index.bin", each.is_wanted)
    )
    yield made
    made.downloads.close()


@pytest.mark.parametrize("name", ["index.bin", "shard-000001.fidx", "shard-000001.tar"])
def test_files_that_come_spoilt_are_fetched_again(fetcher: Fetcher, folder: Path, name: str) -> None:
    fault(folder, name, "flip", 2)
    fetcher.need([(name, 0, 100)])
    size = (folder / name).stat().st_size
    fetcher.need([(name, 0, size)])
    found, whole = ((place / name).read_bytes() for place in (Path(fetcher.folder), folder))
    assert found == (whole[: core_bytes(folder, 1)] if name.endswith(".fidx") else whole)
    assert (folder / ".faults" / f"{name}.flip").read_text() == "0"


@pytest.mark.parametrize("name", ["index.bin", "shard-000001.fidx"])
def test_indexes_that_stay_spoilt_are_errors_that_name_them(fetcher: Fetcher, folder: Path, name: str) -> None:
    fault(folder, name, "flip", 1000)
    with pytest.raises(FormatError, match=rf"s3://bucket/set/{name}.*: damaged"):
        fetcher.need([("shard-000001.tar", 0, 100)])
    fault(folder, name, "flip", 0)
    fetcher.need([("shard-000001.tar", 0, 100)])


def test_no_more_of_an_index_is_read_than_the_header_says(fetcher: Fetcher, folder: Path) -> None:
    with open(folder / "shard-000001.fidx", "r+b") as file:
        file.truncate(1 << 36)
    fetcher.need([("shard-000001.tar", 0, 100)])
    assert asked(fetcher, "shard-000001.fidx") == core_bytes(folder, 1)


class Direct:
    """A mirror of a fetcher in this process."""

    reads_crops = False

    def __init__(self, fetcher: Fetcher) -> None:
        self._fetcher = fetcher
        self.place = str(fetcher.store.url)
        self.budget_bytes = fetcher.cache.budget_bytes

    def need(self, wants: Sequence[tuple[str, int, int]], *, again: bool = False) -> None:
        self._fetcher.need(wants, again=again)

    def open(self, name: str, expected: bytes = b"") -> int:
        return os.open(os.path.join(self._fetcher.folder, name), os.O_RDONLY)


CACHED = ["index.bin", "shard-000001.fidx", "shard-000001.tar"]


def damage(path: Path, at: int = -1) -> None:
    """Inverts a byte of a cached file."""
    data = bytearray(path.read_bytes())
    data[at] ^= 0xFF
    path.write_bytes(data)


@pytest.mark.parametrize("name", CACHED)
def test_a_cached_file_that_the_disk_has_damaged_is_mended_for_the_next_job(
    fetcher: Fetcher, folder: Path, name: str
) -> None:
    path, wants = Path(fetcher.folder) / name, [(each, 0, 1 << 40) for each in CACHED]
    fetcher.need(wants)
    data, before = path.read_bytes(), len(cast(FolderStore, fetcher.store).asked)
    for _ in range(2):
        damage(path)
        assert ask(fetcher, {"refresh": "index.bin"}, {"need": wants, "again": False}) == [
            f"{path}: this cached file was damaged on the disk; its bytes are fetched again from the store. If it "
            "comes again, check the disk, or name another cache_dir"
        ]
        assert path.read_bytes() == data
    asked = cast(FolderStore, fetcher.store).asked[before:]
    assert [each for each, _, _ in asked] == [name.partition(":")[0]] * 2
    assert fetcher.stats()["cached_bytes"] == sum((Path(fetcher.folder) / each).stat().st_size for each in CACHED)
    assert ask(fetcher, {"refresh": "index.bin"}, {"need": wants, "again": False}) == []
    assert len(cast(FolderStore, fetcher.store).asked) == before + 2


def ask(fetcher: Fetcher, *messages: dict[str, Any]) -> list[str]:
    """Sends a fetcher messages as a client does; returns the notes that come with the answers."""
    mine, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    fetcher.attend(its)
    answers = list[dict[str, Any]]()
    with mine:
        for message in messages:
            mine.send(json.dumps(message).encode())
            answers.append(json.loads(mine.recv(1 << 17)))
    assert not [answer for answer in answers if answer.keys() - {"note"}]
    return [answer["note"] for answer in answers if answer]


@pytest.mark.parametrize("name", CACHED)
def test_where_the_store_is_damaged_as_the_cache_is_both_are_named(fetcher: Fetcher, folder: Path, name: str) -> None:
    wants = [(each, 0, 1 << 40) for each in CACHED]
    fetcher.need(wants)
    fault(folder, name.partition(":")[0], "flip", 1000)
    damage(Path(fetcher.folder) / name)
    fetcher.cache.begin_job()
    both = rf"^s3://bucket/set/{name.partition(':')[0]}: .*, as were those in {fetcher.folder}/{name}"
    with pytest.raises((FormatError, StoreError), match=both):
        fetcher.need(wants)


@pytest.mark.parametrize("by_fetcher", [False, True])
def test_an_index_that_the_disk_damages_while_a_job_runs_is_fetched_again(
    fetcher: Fetcher, folder: Path, by_fetcher: bool
) -> None:
    path = Path(fetcher.folder) / "shard-000001.fidx"
    fetcher.need([(path.name, 0, 1 << 40)])
    data = path.read_bytes()
    damage(path, 100)  # in its head
    if by_fetcher:
        fetcher.need([("shard-000001.tar", 0, 1)])
    else:
        reader = ShardReader(os.path.join(fetcher.folder, "index.bin"), mirror=Direct(fetcher))
        assert reader.index.header.locate(np.arange(8))[0].tolist() == [0] * 4 + [1] * 4
        reader.index.rows(np.arange(8))
    assert path.read_bytes() == data
    assert f"{path}: this cached file was damaged" in "".join(fetcher.cache.notes)


def asked(fetcher: Fetcher, *names: str) -> int:
    """Bytes of objects that the store was asked for."""
    return sum(end - start for name, start, end in cast(FolderStore, fetcher.store).asked if name in names)


def core_bytes(folder: Path, number: int) -> int:
    """Size of a shard's index up to the optional groups."""
    index = open_index(folder / "index.bin")
    assert isinstance(index, SetIndex)
    return index.header.shard(number).index_bytes


def test_indexes_leave_a_full_cache_unless_somebody_reads_them_and_come_again(tmp_path: Path) -> None:
    folder, cache = make_set(tmp_path / "local", shards=12, samples=1), tmp_path / "cache"
    cache.mkdir()
    store = cast(Any, FolderStore(str(folder)))
    names, sizes = [f"shard-{k:06d}.fidx" for k in range(12)], [core_bytes(folder, k) for k in range(12)]
    budget = (folder / "index.bin").stat().st_size + 4 * max(sizes)
    made = Fetcher(str(cache), store, lambda each: SetContents(store, each.cache, "index.bin"), budget)
    mine, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with contextlib.closing(made.downloads), mine:
        made.attend(its)
        mine.send(json.dumps({"need": [(names[0], 0, sizes[0])], "again": False, "hits": 0}).encode())
        assert json.loads(mine.recv(1 << 17)) == {}
        for name, size in [*zip(names, sizes, strict=True)] * 2:
            made.need([(name, 0, size)])
            assert (cache / name).read_bytes() == (folder / name).read_bytes()[:size]
            assert made.stats()["cached_bytes"] <= budget
            assert (cache / names[0]).exists()
            assert (cache / "index.bin").exists()
        assert asked(made, names[0]) == sizes[0]
        assert asked(made, *names) > sum(sizes) + 4 * max(sizes)


@pytest.mark.parametrize("name", ["index.bin", "shard-000001.fidx"])
def test_what_a_dead_client_needs_of_the_index_is_given_up(fetcher: Fetcher, folder: Path, name: str) -> None:
    hold = fault(folder, name, "hold")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind("")  # any name
    listener.listen()
    serving = threading.Thread(target=fetcher.serve, args=(listener,), daemon=True)
    serving.start()
    before = threading.active_count()
    with listener, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
        client.connect(listener.getsockname())
        client.send(json.dumps({"need": [["shard-000001.tar", 0, 1]], "again": False}).encode())
        wait_until(lambda: name in cast(FolderStore, fetcher.store).held)
        client.close()
        wait_until(lambda: threading.active_count() <= before)  # the thread that served it is done
        assert hold.exists()
        assert asked(fetcher, name) == 0
        hold.unlink()
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as later:
            later.connect(listener.getsockname())
            later.send(json.dumps({"need": [["shard-000001.tar", 0, 1]], "again": False}).encode())
            assert json.loads(later.recv(1 << 17)) == {}
            later.send(json.dumps({"hello": {"cache_bytes": None, "timeout_s": 9.0, "identity": "another"}}).encode())
            assert json.loads(later.recv(1 << 17)) == {"ended": True}
        serving.join(10)


def test_a_header_of_more_bytes_than_any_set_has_takes_no_room(fetcher: Fetcher, folder: Path) -> None:
    with open(folder / "index.bin", "r+b") as file:
        file.truncate(1 << 42)
    with pytest.raises(FormatError, match=r"index\.bin.*: has 4,398,046,511,104 bytes"):
        fetcher.need([("index.bin", 0, 100)])


def test_a_shard_that_is_not_its_indexs_is_an_error(fetcher: Fetcher, folder: Path) -> None:
    path = folder / "shard-000001.tar"
    path.write_bytes(bytes(path.stat().st_size))
    with pytest.raises(StoreError, match=r"shard-000001\.tar.*the object was replaced or is damaged"):
        fetcher.need([("shard-000001.tar", 0, 100)])


def name_shards(folder: Path, names: list[str]) -> None:
    """Gives the two shards of a set other names."""
    header = SetHeader(str(folder / "index.bin"))
    for number, name in enumerate(names):
        for old in (header.shard_name(number), header.index_name(number)):
            (folder / old).rename(folder / (os.path.splitext(name)[0] + os.path.splitext(old)[1]))
    write_header(str(folder / "index.bin"), header.info, header.rows, names)


@pytest.mark.parametrize("names", [["cat-9.tar", "cat.tar"], ["a/x-77.tar", "b/x-3.tar"], ["one.tar", "two.tar"]])
def test_shards_of_any_names_are_checked(fetcher: Fetcher, folder: Path, names: list[str]) -> None:
    for name in names:
        (folder / name).parent.mkdir(exist_ok=True)
    name_shards(folder, names)
    for name in names:
        fetcher.need([(f"{name.removesuffix('.tar')}.fidx", 0, 100), (name, 0, 100)])
    path = folder / names[1]
    path.write_bytes(bytes(path.stat().st_size))
    os.unlink(Path(fetcher.folder) / names[1])
    with pytest.raises(StoreError, match=r"the object was replaced or is damaged"):
        fetcher.need([(names[1], 0, 100)])


def test_a_shard_that_the_header_does_not_name_is_refused(fetcher: Fetcher, folder: Path) -> None:
    for name in ("other.tar", "shard-000007.fidx"):
        (folder / name).write_bytes(b"unchecked")
        with pytest.raises(
            FormatError, match=rf"{name}.*none of the 2 shards .*can't be checked; the set was replaced"
        ):
            fetcher.need([(name, 0, 4)])
        assert not (Path(fetcher.folder) / name).exists()


def test_an_index_that_is_larger_than_the_cache_is_not_asked_for(fetcher: Fetcher, folder: Path) -> None:
    fetcher.cache.set_budget(core_bytes(folder, 1) - 1)
    with pytest.raises(StoreError, match=r"shard-000001\.fidx.* bytes of it are needed at once.*cache_bytes="):
        fetcher.need([("shard-000001.fidx", 0, 1)])
    assert asked(fetcher, "shard-000001.fidx") == 0


def test_a_header_that_names_a_shard_of_more_bytes_than_any_has_takes_no_room(fetcher: Fetcher, folder: Path) -> None:
    header = SetHeader(str(folder / "index.bin"))
    rows = header.rows.copy()
    rows["size_bytes"][1] = 1 << 60
    write_header(str(folder / "index.bin"), header.info, rows, [header.shard_name(number) for number in range(2)])
    with pytest.raises(FormatError, match=r"shard-000001\.tar.*: has 1,152,921,504,606,846,976 bytes: too many"):
        fetcher.need([("shard-000001.tar", 0, 1)])


def test_an_index_for_which_the_disk_has_no_room_takes_that_of_others(
    fetcher: Fetcher, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "shard-000001.fidx"
    fetcher.need([("shard-000000.tar", 0, 100)])

    def mapped(descriptor: int, size_bytes: int) -> memoryview:
        if (Path(fetcher.folder) / "shard-000000.tar").exists():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return map_file(descriptor, size_bytes)

    monkeypatch.setattr("feeder.shard.cache.set_contents.map_file", mapped)
    fetcher.need([(name, 0, 1)])
    assert not (Path(fetcher.folder) / "shard-000000.tar").exists()
    assert (Path(fetcher.folder) / name).stat().st_size > 0


@pytest.mark.parametrize(
    "name", ["mirror.json", "fetcher.lock", "fetcher.socket", "fetcher.log", ".have/x.tar", ".checked.0"]
)
def test_a_shard_with_the_name_of_a_file_of_the_caches_own_is_refused(
    fetcher: Fetcher, folder: Path, name: str
) -> None:
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_bytes(b"x")
    with pytest.raises(FormatError, match=rf"{re.escape(name)}: has the name of a file that the cache keeps itself"):
        fetcher.need([(name, 0, 1)])
    assert not (Path(fetcher.folder) / name).exists()


def test_a_file_that_the_header_does_not_name_comes_as_it_is(fetcher: Fetcher, folder: Path) -> None:
    (folder / "notes.txt").write_text("text")
    fetcher.need([("notes.txt", 0, 4)])
    assert (Path(fetcher.folder) / "notes.txt").read_text() == "text"

"""The contents of a set's files by its header: what comes spoilt is fetched again, and never used."""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import re
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pytest

from feeder.dataset.shard_reader import ShardReader
from feeder.errors import ChangedError, FormatError, NotFoundError, StoreError
from feeder.shard.cache.fetcher import Fetcher
from feeder.shard.cache.set_files import SetFiles
from feeder.shard.format.manifest import Manifest
from feeder.shard.format.open_index import open_index
from feeder.shard.format.sealed_head import read_head, sealed, short_hash
from feeder.shard.format.set_header import ROW, SetHeader, SetInfo, write_header
from feeder.shard.format.set_index import SetIndex
from feeder.shard.write.set_writer import write_set
from feeder.system.mapping import map_file
from tests.support.folder_store import FolderStore, fault, fetcher_pid, folder_mirror
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
        str(tmp_path / "cache"), store, lambda each: SetFiles(store, each.files, "index.bin", each, each.is_wanted)
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


CACHED = ["index.bin", "shard-000001.fidx", "shard-000001.fidx:steps", "shard-000001.tar"]


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
    fetcher.files.begin_job()
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
        reader = ShardReader(os.path.join(fetcher.folder, "index.bin"), mirror=fetcher)
        assert reader.index.shards_of(np.arange(8)).tolist() == [0] * 4 + [1] * 4
        reader.index.rows(np.arange(8))
    assert path.read_bytes() == data
    assert f"{path}: this cached file was damaged" in "".join(fetcher.files.notes)


def asked(fetcher: Fetcher, *names: str) -> int:
    """Bytes of objects that the store was asked for."""
    return sum(end - start for name, start, end in cast(FolderStore, fetcher.store).asked if name in names)


def core_bytes(folder: Path, number: int) -> int:
    """Size of a shard's index up to the optional groups."""
    index = open_index(folder / "index.bin")
    assert isinstance(index, SetIndex)
    return index.header.shard(number).index_bytes


def test_optional_groups_are_asked_for_only_when_crops_are_read(fetcher: Fetcher, folder: Path) -> None:
    indexes = ["shard-000000.fidx", "shard-000001.fidx"]
    core = core_bytes(folder, 0) + core_bytes(folder, 1)
    steps = sum((folder / name).stat().st_size for name in indexes) - core
    assert steps > 0
    reader = ShardReader(os.path.join(fetcher.folder, "index.bin"), mirror=fetcher)
    reader.index.labels()
    for i in range(len(reader)):
        reader.index.key(i), reader.index.members(i)
    assert asked(fetcher, *indexes) == core
    ids = np.arange(4)  # of the first shard
    assert reader.read(ids).errors == [None] * 4
    assert asked(fetcher, *indexes) == core
    local = ShardReader(str(folder / "index.bin"))
    mine, whole = (each.read(ids, some_rows) for each in (reader, local))
    assert [bytes(data) for data in mine.buffers] == [bytes(data) for data in whole.buffers]
    assert asked(fetcher, *indexes) == core + (folder / indexes[0]).stat().st_size - core_bytes(folder, 0)
    for _ in range(2):
        reader.index.hold([0, 1])
        assert asked(fetcher, *indexes) == core + steps
    assert fetcher.stats()["bytes"] == asked(fetcher, *{name for name, _, _ in cast(FolderStore, fetcher.store).asked})


def test_indexes_leave_a_full_cache_unless_somebody_reads_them_and_come_again(tmp_path: Path) -> None:
    folder, cache = make_set(tmp_path / "local", shards=12, samples=1), tmp_path / "cache"
    cache.mkdir()
    store = cast(Any, FolderStore(str(folder)))
    names, sizes = [f"shard-{k:06d}.fidx" for k in range(12)], [core_bytes(folder, k) for k in range(12)]
    budget = (folder / "index.bin").stat().st_size + 4 * max(sizes)
    made = Fetcher(str(cache), store, lambda each: SetFiles(store, each.files, "index.bin", each), budget)
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


def write_groups(folder: Path, name: str, order: list[str], **more: bytes) -> None:
    """Writes the index of a shard with its groups in another order and further ones, and the set's header."""
    path = folder / name
    data = path.read_bytes()
    head, _, end = read_head(str(path), data[:8], memoryview(data))
    groups = {name: data[end + at : end + at + size] for name, (at, size, _) in head["groups"].items()} | more
    groups = {name: groups[name] for name in [*order, *(name for name in groups if name not in order)]}
    places = itertools.accumulate(map(len, groups.values()), initial=0)
    found = zip(places, groups.items(), strict=False)
    head["groups"] = {name: [at, len(group), short_hash(group).hex()] for at, (name, group) in found}
    path.write_bytes(sealed(data[:8], head) + b"".join(groups.values()))
    manifest = Manifest.read(str(folder))
    assert manifest is not None
    write_set(str(folder / "index.bin"), manifest.shards, manifest.classes)


def test_an_index_of_an_earlier_version_which_has_the_places_of_rows_second_comes_as_a_whole(
    fetcher: Fetcher, folder: Path
) -> None:
    expected = ShardReader(str(folder / "index.bin")).read(np.arange(8), some_rows)
    for name in ("shard-000000.fidx", "shard-000001.fidx"):
        write_groups(folder, name, ["records", "steps"])
    for mirror, place in ((None, folder), (fetcher, Path(fetcher.folder))):
        found = ShardReader(str(place / "index.bin"), mirror=mirror).read(np.arange(8), some_rows)
        assert [bytes(data) for data in found.buffers] == [bytes(data) for data in expected.buffers]
    assert core_bytes(folder, 1) == asked(fetcher, name) == (folder / name).stat().st_size


def test_a_group_of_another_name_is_fetched_only_by_who_knows_it(fetcher: Fetcher, folder: Path) -> None:
    path, markers = folder / "shard-000000.fidx", b"offsets of markers"
    write_groups(folder, path.name, [], markers=markers)
    reader = ShardReader(os.path.join(fetcher.folder, "index.bin"), mirror=fetcher)
    reader.index.hold([0])
    assert asked(fetcher, path.name) == path.stat().st_size - len(markers)
    index = reader.index
    assert isinstance(index, SetIndex)
    assert bytes(index.shard_index(0).group("markers")) == markers
    assert asked(fetcher, path.name) == path.stat().st_size


def some_rows(orientations: npt.NDArray[np.uint8], sizes: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    return np.array([[150, 200]] * len(sizes), np.int32)


def test_an_optional_group_that_comes_spoilt_is_fetched_again(fetcher: Fetcher, folder: Path) -> None:
    reader = ShardReader(os.path.join(fetcher.folder, "index.bin"), mirror=fetcher)
    reader.index.labels()
    fault(folder, "shard-000001.fidx", "flip", 2)
    reader.index.hold([1])
    assert (folder / ".faults" / "shard-000001.fidx.flip").read_text() == "0"
    fault(folder, "shard-000000.fidx", "flip", 1000)
    with pytest.raises(FormatError, match=r"s3://bucket/set/shard-000000\.fidx: damaged: the bytes of 'steps'"):
        reader.index.hold([0])


def test_an_optional_group_that_no_index_has_is_an_error(fetcher: Fetcher, folder: Path) -> None:
    with pytest.raises(FormatError, match="it has no group 'other'"):
        fetcher.need([("shard-000001.fidx:other", 0, 1)])
    with pytest.raises(NotFoundError):
        fetcher.need([("shard-000007.fidx:steps", 0, 1)])


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
            later.send(json.dumps({"leave": True}).encode())
            assert json.loads(later.recv(1 << 17)) == {"ended": True}
        serving.join(10)


def write_long_header(path: Path, shards: int, version: int) -> None:
    """Writes the header of a set of so many shards, whose pages do not lie in one block."""
    rows = np.zeros(shards, ROW)
    rows["samples"], rows["size_bytes"] = 10, np.arange(shards)
    info = SetInfo((), None, (), 0, -1, False, "0" * 32, version=version, versions=((0, 0),) * (version - 1))
    write_header(str(path), info, rows, [f"shard-{number:06d}.tar" for number in range(shards)])


@pytest.mark.parametrize("is_known", [False, True])
def test_a_run_goes_on_with_its_version_when_the_store_has_a_newer_one(
    fetcher: Fetcher, folder: Path, monkeypatch: pytest.MonkeyPatch, is_known: bool
) -> None:
    """Of a header that is too long to be fetched as a whole."""
    monkeypatch.setattr("feeder.shard.cache.set_files.WHOLE_HEADER_BYTES", 0)
    write_long_header(folder / "index.bin", 20_000, 1)
    header = SetHeader(os.path.join(fetcher.folder, "index.bin"), fetcher)
    assert header.shard(0).size_bytes == 0
    os.rename(folder / "index.bin", folder / "index-000001.bin")
    write_long_header(folder / "index.bin", 20_001, 2)
    if is_known:  # to the fetcher, from a run that was started since
        fetcher.contents.forget()
        assert SetHeader(os.path.join(fetcher.folder, "index.bin"), fetcher).shard(20_000).size_bytes == 20_000
    assert [header.shard(number).size_bytes for number in (10_000, 19_999)] == [10_000, 19_999]


def test_a_long_header_that_was_replaced_by_another_set_is_an_error(
    fetcher: Fetcher, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("feeder.shard.cache.set_files.WHOLE_HEADER_BYTES", 0)
    write_long_header(folder / "index.bin", 20_000, 1)
    header = SetHeader(os.path.join(fetcher.folder, "index.bin"), fetcher)
    write_long_header(folder / "index.bin", 20_001, 2)
    write_long_header(folder / "index-000001.bin", 20_002, 1)
    with pytest.raises(ChangedError):
        header.shard(10_000)


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


def test_shards_of_a_large_set_that_are_numbered_from_one_are_checked(
    fetcher: Fetcher, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("feeder.shard.cache.set_files.MOST_NAMED", 1)
    header = SetHeader(str(folder / "index.bin"))
    for number in (1, 0):
        for name in (header.shard_name(number), header.index_name(number)):
            (folder / name).rename(folder / name.replace("shard-00000", "v2-").replace(f"{number}.", f"{number + 1}."))
    write_header(str(folder / "index.bin"), header.info, header.rows(), ["v2-1.tar", "v2-2.tar"])
    fetcher.need([("v2-1.tar", 0, 100)])
    path = folder / "v2-2.tar"
    path.write_bytes(bytes(path.stat().st_size))
    with pytest.raises(StoreError, match=r"v2-2\.tar.*the object was replaced or is damaged"):
        fetcher.need([("v2-2.tar", 0, 100)])


def name_shards(folder: Path, names: list[str]) -> None:
    """Gives the two shards of a set other names."""
    header = SetHeader(str(folder / "index.bin"))
    for number, name in enumerate(names):
        for old in (header.shard_name(number), header.index_name(number)):
            (folder / old).rename(folder / (os.path.splitext(name)[0] + os.path.splitext(old)[1]))
    write_header(str(folder / "index.bin"), header.info, header.rows(), names)


@pytest.mark.parametrize("names", [["cat-9.tar", "cat.tar"], ["a/x-77.tar", "b/x-3.tar"], ["one.tar", "two.tar"]])
def test_shards_of_a_large_set_whose_names_are_sorted_are_checked(
    fetcher: Fetcher, folder: Path, monkeypatch: pytest.MonkeyPatch, names: list[str]
) -> None:
    monkeypatch.setattr("feeder.shard.cache.set_files.MOST_NAMED", 1)
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


def test_shards_of_a_large_set_that_cant_be_found_by_their_names_are_refused(
    fetcher: Fetcher, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name_shards(folder, ["two.tar", "one.tar"])
    fetcher.need([("one.tar", 0, 100), ("two.fidx", 0, 100)])
    fetcher.contents.forget()
    monkeypatch.setattr("feeder.shard.cache.set_files.MOST_NAMED", 1)
    for name in ("one.tar", "two.fidx"):
        with pytest.raises(
            FormatError, match=rf"{name}.*none of the 2 shards .* in order.*can't be checked.*feeder index"
        ):
            fetcher.need([(name, 0, 100)])


def test_a_shard_that_the_header_does_not_name_is_refused(fetcher: Fetcher, folder: Path) -> None:
    for name in ("other.tar", "shard-000007.fidx"):
        (folder / name).write_bytes(b"unchecked")
        with pytest.raises(
            FormatError, match=rf"{name}.*none of the 2 shards .*can't be checked; the set was replaced"
        ):
            fetcher.need([(name, 0, 4)])
        assert not (Path(fetcher.folder) / name).exists()


def test_an_index_that_is_larger_than_the_cache_is_not_asked_for(fetcher: Fetcher, folder: Path) -> None:
    fetcher.files.set_budget(core_bytes(folder, 1) - 1)
    with pytest.raises(StoreError, match=r"shard-000001\.fidx.* bytes of it are needed at once.*cache_bytes="):
        fetcher.need([("shard-000001.fidx", 0, 1)])
    assert asked(fetcher, "shard-000001.fidx") == 0


def test_a_header_that_names_a_shard_of_more_bytes_than_any_has_takes_no_room(fetcher: Fetcher, folder: Path) -> None:
    header = SetHeader(str(folder / "index.bin"))
    rows = header.rows().copy()
    rows["size_bytes"][1] = 1 << 60
    write_header(str(folder / "index.bin"), header.info, rows, [header.shard_name(number) for number in range(2)])
    with pytest.raises(FormatError, match=r"shard-000001\.tar.*: has 1,152,921,504,606,846,976 bytes: too many"):
        fetcher.need([("shard-000001.tar", 0, 1)])


@pytest.mark.parametrize("name", ["shard-000001.fidx", "shard-000001.fidx:steps"])
def test_an_index_for_which_the_disk_has_no_room_takes_that_of_others(
    fetcher: Fetcher, folder: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    fetcher.need([("shard-000000.tar", 0, 100), *([("shard-000001.fidx", 0, 1)] if name.endswith("steps") else [])])

    def mapped(descriptor: int, size_bytes: int) -> memoryview:
        if (Path(fetcher.folder) / "shard-000000.tar").exists():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return map_file(descriptor, size_bytes)

    monkeypatch.setattr("feeder.shard.cache.set_files.map_file", mapped)
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


@pytest.fixture
def long_header(tmp_path: Path) -> Path:
    """The header of a set of so many shards that it comes in ranges."""
    rows = np.zeros(360_000, ROW)
    rows["samples"], rows["size_bytes"] = 2, 5000
    path = tmp_path / "long" / "index.bin"
    path.parent.mkdir()
    names = [f"shard-{number:06d}.tar" for number in range(len(rows))]
    write_header(str(path), SetInfo(("jpg",), None, (), 0, -1, False, "0" * 32), rows, names)
    return path


def test_pieces_of_a_long_header_that_come_spoilt_are_fetched_again(long_header: Path, tmp_path: Path) -> None:
    folder = long_header.parent
    with contextlib.closing(folder_mirror(tmp_path / "cache", folder)) as mirror:
        fault(folder, "index.bin", "flip", 2)
        header = SetHeader(str(tmp_path / "cache" / "index.bin"), mirror)
        assert header.samples == 720_000
        fault(folder, "index.bin", "flip", 2)
        assert header.rows()["samples"].sum() == 720_000
        assert (folder / ".faults" / "index.bin.flip").read_text() == "0"
    os.kill(fetcher_pid(tmp_path / "cache"), signal.SIGKILL)


def test_a_long_header_that_stays_spoilt_is_an_error(long_header: Path, tmp_path: Path) -> None:
    folder = long_header.parent
    with contextlib.closing(folder_mirror(tmp_path / "cache", folder)) as mirror:
        header = SetHeader(str(tmp_path / "cache" / "index.bin"), mirror)
        fault(folder, "index.bin", "flip", 1000)
        with pytest.raises(FormatError, match=r"page \d+ of its shards does not match its hash"):
            header.rows()
        fault(folder, "index.bin", "flip", 0)
        assert header.rows()["samples"].sum() == 720_000
    os.kill(fetcher_pid(tmp_path / "cache"), signal.SIGKILL)

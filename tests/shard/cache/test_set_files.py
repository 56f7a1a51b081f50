"""The contents of a set's files by its header: what comes spoilt is fetched again, and never used."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from feeder.errors import ChangedError, FormatError, StoreError
from feeder.shard.cache.fetcher import Fetcher
from feeder.shard.cache.set_files import SetFiles
from feeder.shard.format.set_header import ROW, SetHeader, SetInfo, write_header
from tests.support.folder_store import FolderStore, fault, fetcher_pid, folder_mirror
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
    made = Fetcher(str(tmp_path / "cache"), store, lambda each: SetFiles(store, each.files, "index.bin", each))
    yield made
    made.downloads.close()


@pytest.mark.parametrize("name", ["index.bin", "shard-000001.fidx", "shard-000001.tar"])
def test_files_that_come_spoilt_are_fetched_again(fetcher: Fetcher, folder: Path, name: str) -> None:
    fault(folder, name, "flip", 2)
    fetcher.need([(name, 0, 100)])
    size = (folder / name).stat().st_size
    fetcher.need([(name, 0, size)])
    assert (Path(fetcher.folder) / name).read_bytes() == (folder / name).read_bytes()
    assert (folder / ".faults" / f"{name}.flip").read_text() == "0"


@pytest.mark.parametrize("name", ["index.bin", "shard-000001.fidx"])
def test_indexes_that_stay_spoilt_are_errors_that_name_them(fetcher: Fetcher, folder: Path, name: str) -> None:
    fault(folder, name, "flip", 1000)
    with pytest.raises(FormatError, match=rf"s3://bucket/set/{name}.*: damaged"):
        fetcher.need([("shard-000001.tar", 0, 100)])
    fault(folder, name, "flip", 0)
    fetcher.need([("shard-000001.tar", 0, 100)])


def test_an_index_of_more_bytes_than_its_shard_can_have_is_not_read(fetcher: Fetcher, folder: Path) -> None:
    with open(folder / "shard-000001.fidx", "r+b") as file:
        file.truncate(1 << 36)
    with pytest.raises(FormatError, match=r"shard-000001\.fidx: has 68,719,476,736 bytes, expected .* at most"):
        fetcher.need([("shard-000001.tar", 0, 100)])
    assert "shard-000001.fidx" not in (folder / ".asked").read_text()


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

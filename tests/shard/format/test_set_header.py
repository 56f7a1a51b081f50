"""The header of a set: its size, its damage, and sets of ten billion samples."""

from __future__ import annotations

import dataclasses
import os
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from bench.remote_runs.opening import ShardNames
from feeder.errors import FormatError
from feeder.order.lanes import Lanes
from feeder.order.sample_order import Order
from feeder.order.shard_sizes import EqualSizes, compact_sizes
from feeder.shard.format.index_builder import IndexBuilder
from feeder.shard.format.open_index import open_index
from feeder.shard.format.sealed_head import read_head, sealed
from feeder.shard.format.set_header import HEADER_MAGIC, ROW, SetHeader, SetInfo, write_header
from feeder.shard.format.shard_index import ShardIndex
from tests.support.mirrors import StrictMirror
from tests.support.shard_sets import change_rows

INFO = SetInfo(("jpg", "cls"), ("cat", "dog"), (), 1, False, "0" * 32)
SIZES = (5, 3, 4, 4, 9, 2, 1)


def header(path: Path, sizes: tuple[int, ...] = SIZES, names: list[str] | None = None) -> str:
    rows = np.zeros(len(sizes), ROW)
    rows["samples"], rows["size_bytes"], rows["index_bytes"] = sizes, 10_240, 700
    for number in range(len(sizes)):
        rows["shard_hash"][number] = np.void(bytes([number] * 15) + b"\0")
    write_header(str(path), INFO, rows, names or [f"s-{n:04d}.tar" for n in range(len(sizes))])
    return str(path)


def test_samples_are_found_in_shards_of_any_sizes(tmp_path: Path) -> None:
    found = SetHeader(header(tmp_path / "index.bin"))
    ids = np.random.default_rng(0).permutation(sum(SIZES))
    shards, rows = found.locate(ids)
    starts = np.cumsum([0, *SIZES])
    np.testing.assert_array_equal(starts[shards] + rows, ids)
    assert (rows < np.array(SIZES)[shards]).all()
    assert found.shard(3).name == "s-0003.tar"
    assert found.shard(3).shard_hash == b"\3" * 15 + b"\0"
    assert found.index_name(3) == "s-0003.fidx"
    assert [found.sample_range(n) for n in (0, 6)] == [(0, 5), (27, 28)]
    assert np.asarray(found.shard_sizes).tolist() == list(SIZES)
    for wrong in (-1, sum(SIZES)):
        with pytest.raises(IndexError, match="has samples 0 to 27"):
            found.locate(np.array([wrong]))
    with pytest.raises(FormatError, match="has no shard 7"):
        found.shard(7)


def test_names_of_any_kind_are_kept(tmp_path: Path) -> None:
    names = [f"{'ab'[n % 2]}/\udcff {n * n}.tar" for n in range(len(SIZES))]
    found = SetHeader(header(tmp_path / "index.bin", names=names))
    assert [found.shard(n).name for n in range(len(SIZES))] == names
    assert found.index_name(2) == "a/\udcff 4.fidx"


def test_every_byte_is_under_a_hash(tmp_path: Path) -> None:
    path = Path(header(tmp_path / "index.bin", names=[f"{n * n}.tar" for n in range(len(SIZES))]))
    data = path.read_bytes()
    for position in range(len(data)):
        path.write_bytes(data[:position] + bytes([data[position] ^ 4]) + data[position + 1 :])
        with pytest.raises(FormatError, match=r"index\.bin"):
            read(str(path))
    for length in range(0, len(data), 11):
        path.write_bytes(data[:length])
        with pytest.raises(FormatError, match=r"index\.bin.*feeder (index|shard)"):
            read(str(path))


def read(path: str) -> None:
    """Reads all of a header."""
    found = SetHeader(path)
    assert len(found.rows)
    for number in range(len(SIZES)):
        found.shard(number)
        found.index_name(number)
    found.locate(np.arange(sum(SIZES)))


def changed(path: str, **change: Any) -> None:
    """Changes the head, as someone would who knows its hash."""
    data = Path(path).read_bytes()
    head, _, end = read_head(path, HEADER_MAGIC, memoryview(data))
    Path(path).write_bytes(sealed(HEADER_MAGIC, head | change) + data[end:])


@pytest.mark.parametrize(
    "change",
    [
        {"format": 2},
        {"samples": 27},
        {"samples": -1},
        {"samples": float("inf")},
        {"shards": -1},
        {"shards": 1 << 50},
        {"shards": 6},
        {"equal": 4},
        {"equal": -1},
        {"pattern": ["../x", 4, ".tar"]},
        {"pattern": ["/x", 4, ".tar"]},
        {"pattern": ["x\0", 4, ".tar"]},
        {"pattern": ["\ud800", 4, ".tar"]},
        {"pattern": ["x", 10**9, ".tar"]},
        {"pattern": None},
        {"index_suffix": "/../../x"},
        {"index_suffix": "\0"},
        {"body": "00"},
        {"body": 3},
        {"fields": 3},
        {"versions": [3]},
        {"classes": 5},
    ],
)
def test_a_hostile_head_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    path = header(tmp_path / "index.bin")
    changed(path, **change)
    tracemalloc.start()
    try:
        with pytest.raises(FormatError, match=r"index\.bin"):
            read(path)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("is_equal", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_ten_billion_samples_open_at_once_in_little_memory(tmp_path: Path, is_equal: bool) -> None:
    size, shards = 2400, 4_166_667
    builder = IndexBuilder()
    for i in range(size):
        row = {"width": 4, "height": 4, "orientation": 1, "source_bytes": 9, "crc32": 0}
        builder.add(key=b"%d" % i, path=b"p", field="jpg", offset=512 * i, length=9, label=i, members=[], **row)  # type: ignore[arg-type]
    whole = str(tmp_path / "shard-0000000.fidx")
    builder.write(whole, np.zeros(5, np.uint32), 5 << 18)
    index = ShardIndex(whole)
    rows = np.zeros(shards, ROW)
    rows["samples"], rows["size_bytes"], rows["index_bytes"] = size, 5 << 18, index.size_bytes
    rows["samples"][-1 if is_equal else shards // 2] = 1600
    samples = (shards - 1) * size + 1600
    rows["index_hash"] = np.void(index.hash)
    names = ShardNames(shards)
    write_header(str(tmp_path / "index.bin"), dataclasses.replace(INFO, fields=("jpg",)), rows, names)  # type: ignore[arg-type]
    del rows
    ids = np.random.default_rng(0).integers(0, samples // 2 - size, 20)  # before the one that is shorter
    for number in (ids // size).tolist():
        os.link(whole, tmp_path / names[number].replace(".tar", ".fidx"))
    mirror = StrictMirror(tmp_path, tmp_path / "mirror")
    tracemalloc.start()
    try:
        found = open_index(mirror.index, mirror=mirror)
        assert len(found) == samples
        assert [name for call in mirror.calls for name, _, _ in call] == ["index.bin"]
        assert found.rows(ids).labels.tolist() == (ids % size).tolist()
        assert [found.key(i) for i in ids.tolist()] == [str(i % size) for i in ids.tolist()]
        assert found.header.sample_range(shards - 1)[1] == samples
        mirror.calls.clear()
        before = tracemalloc.get_traced_memory()[0]
        counts = compact_sizes(found.header.shard_sizes)
        assert isinstance(counts, EqualSizes) == is_equal
        assert counts.samples == samples
        assert mirror.calls == []
        order = Order(samples, 0, Lanes(block=256), counts)
        assert len(np.unique(order.ids(1, np.arange(1 << 17)))) == 1 << 17  # of all lanes
        assert tracemalloc.get_traced_memory()[0] - before < (1 if is_equal else 14) << 20
    finally:
        tracemalloc.stop()
    (tmp_path / "index.bin").unlink()


@pytest.mark.parametrize("equal", [True, False])
def test_sizes_of_files_are_those_that_were_written(tmp_path: Path, equal: bool) -> None:
    rows = np.zeros(3000, ROW)
    rows["samples"] = 5 if equal else np.arange(3000) % 7
    rows["size_bytes"], rows["index_bytes"] = np.arange(3000), np.arange(3000) + 7
    write_header(str(tmp_path / "index.bin"), INFO, rows, ShardNames(3000))  # type: ignore[arg-type]
    found = SetHeader(str(tmp_path / "index.bin"))
    sizes, indexes = found.file_sizes(np.array([2999, 0, 2999, 17]))
    assert (sizes.tolist(), indexes.tolist()) == ([2999, 0, 2999, 17], [3006, 7, 3006, 24])
    assert found.extent() == (int(rows["index_bytes"].sum()), 2999)
    assert np.asarray(found.shard_sizes).tolist() == rows["samples"].tolist()
    assert found.locate(np.array([0, found.samples - 1]))[0].tolist() == [0 if equal else 1, 2999]


@pytest.mark.parametrize("names", [None, ["b.tar", "a.tar", "sub/c.tar"]])
def test_files_are_found_by_their_names(tmp_path: Path, names: list[str] | None) -> None:
    found = SetHeader(header(tmp_path / "index.bin", (1, 2, 3), names))
    for number in range(3):
        assert found.number_of(found.shard_name(number)) == found.number_of(found.index_name(number)) == number
    for other in ("", "s-", "s-0003.tar", "s-00001.tar", "s-0001", "b", f"s-{'9' * 5000}.tar"):
        assert found.number_of(other) is None


@pytest.mark.parametrize(
    ("name", "magic", "claimed"), [("index.bin", HEADER_MAGIC, 65 << 20), ("a.fidx", b"FEEDERFX", 5 << 20)]
)
def test_a_head_that_claims_more_than_it_can_need_is_not_read(
    tmp_path: Path, name: str, magic: bytes, claimed: int
) -> None:
    path = tmp_path / name
    with open(path, "wb") as file:
        file.write(magic + claimed.to_bytes(8, "little") + bytes(16))
        file.truncate(1 << 28)
    mirror = StrictMirror(tmp_path, tmp_path / "mirror")
    tracemalloc.start()
    try:
        with pytest.raises(FormatError, match=rf"{name}: damaged: its head would have {claimed:,} bytes"):
            SetHeader(mirror.index, mirror) if name == "index.bin" else ShardIndex(str(path))
        assert tracemalloc.get_traced_memory()[1] < 2 << 20  # a piece of the mirror's
    finally:
        tracemalloc.stop()


def test_a_head_that_no_reader_would_take_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"4,.* bytes of names, expected at most 4,194,304: use fewer or shorter"):
        sealed(b"FEEDERFX", {"fields": ["x" * 61] * (1 << 16)})
    classes = dataclasses.replace(INFO, classes=tuple(f"class {k}" for k in range(300_000)))
    write_header(str(tmp_path / "index.bin"), classes, np.zeros(1, ROW), ["a.tar"])
    assert SetHeader(str(tmp_path / "index.bin")).info.classes == classes.classes


def test_an_index_larger_than_its_samples_can_need_is_refused(tmp_path: Path) -> None:
    def claim(rows: npt.NDArray[Any]) -> None:
        rows["index_bytes"][1] = 20 << 20

    rows = np.zeros(3, ROW)
    rows["samples"], rows["size_bytes"], rows["index_bytes"] = 5, 1 << 20, 4000
    path = str(tmp_path / "index.bin")
    write_header(path, INFO, rows, ["a.tar", "b.tar", "c.tar"])
    assert SetHeader(path).shard(1).index_bytes == 4000
    claim(rows)
    with pytest.raises(FormatError, match=r"b\.tar: its index has 20,971,520 bytes for 5 samples"):
        write_header(path, INFO, rows, ["a.tar", "b.tar", "c.tar"])
    change_rows(path, claim)
    found = SetHeader(path)
    for read_it in (lambda: found.shard(0), lambda: found.rows, found.extent, lambda: found.file_sizes(np.array([2]))):
        with pytest.raises(FormatError, match=r"index\.bin: damaged: shard 1 would have an index of 20,971,520 bytes"):
            read_it()

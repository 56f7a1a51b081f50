"""The header of a set: its size, its damage, and sets of ten billion samples."""

from __future__ import annotations

import dataclasses
import os
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from feeder.errors import FormatError
from feeder.shard.format.header_file import HEADER_MAGIC
from feeder.shard.format.index_builder import IndexBuilder
from feeder.shard.format.open_index import open_index
from feeder.shard.format.sealed_head import read_head, sealed
from feeder.shard.format.set_header import ROW, SetHeader, SetInfo, write_header
from feeder.shard.format.shard_index import ShardIndex
from tests.support.mirrors import StrictMirror

INFO = SetInfo(("jpg", "cls"), ("cat", "dog"), (), 10, 1, False, "0" * 32)
SIZES = (5, 3, 4, 4, 9, 2, 1)


def header(path: Path, sizes: tuple[int, ...] = SIZES, names: list[str] | None = None, page_shards: int = 2) -> str:
    rows = np.zeros(len(sizes), ROW)
    rows["samples"], rows["size_bytes"], rows["index_bytes"] = sizes, 10_240, 700
    for number in range(len(sizes)):
        rows["shard_hash"][number] = np.void(bytes([number] * 15) + b"\0")
    write_header(str(path), INFO, rows, names or [f"s-{n:04d}.tar" for n in range(len(sizes))], page_shards=page_shards)
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
    assert np.asarray(found.shard_sizes()).tolist() == list(SIZES)
    for wrong in (-1, sum(SIZES)):
        with pytest.raises(IndexError, match="has samples 0 to 27"):
            found.locate(np.array([wrong]))
    with pytest.raises(FormatError, match="has no shard 7"):
        found.shard(7)


def test_names_of_any_kind_are_kept_in_pages(tmp_path: Path) -> None:
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
    found.rows()
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
        {"format": 3},
        {"samples": 27},
        {"samples": -1},
        {"samples": float("inf")},
        {"shards": 1 << 50},
        {"shards": 6},
        {"page": 0},
        {"page": 1 << 40},
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
        {"table": [0, 1 << 40, "00"]},
        {"table": [-64, 96, "00"]},
        {"pages": [1 << 60, 0, None]},
        {"pages": [-10_000, 0, None]},
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


def test_ten_billion_samples_open_at_once_in_little_memory(tmp_path: Path) -> None:
    samples, size = 10**10, 2400
    shards = -(-samples // size)
    builder = IndexBuilder()
    for i in range(size):
        row = {"width": 4, "height": 4, "orientation": 1, "source_bytes": 9, "crc32": 0}
        builder.add(key=b"%d" % i, path=b"p", field="jpg", offset=512 * i, length=9, label=i, members=[], **row)  # type: ignore[arg-type]
    whole = str(tmp_path / "shard-0000000.fidx")
    builder.write(whole, np.zeros(5, np.uint32), 5 << 18)
    index = ShardIndex(whole)
    rows = np.zeros(shards, ROW)
    rows["samples"], rows["size_bytes"], rows["index_bytes"] = size, 5 << 18, index.size_bytes
    rows["samples"][-1] = samples - (shards - 1) * size
    rows["index_hash"] = np.void(index.hash)
    names = Names(shards)
    write_header(str(tmp_path / "index.bin"), dataclasses.replace(INFO, fields=("jpg",)), rows, names)  # type: ignore[arg-type]
    del rows
    ids = np.random.default_rng(0).integers(0, samples - size, 20)
    for number in (ids // size).tolist():
        os.link(whole, tmp_path / names[number].replace(".tar", ".fidx"))
    mirror = StrictMirror(tmp_path, tmp_path / "mirror")
    tracemalloc.start()
    try:
        found = open_index(mirror.index, mirror=mirror)
        assert len(found) == samples
        assert found.shard_counts() == open_index(tmp_path / "index.bin").shard_counts()
        assert sum(end - start for call in mirror.calls for _, start, end in call) < 1 << 20
        assert found.rows(ids).labels.tolist() == (ids % size).tolist()
        assert [found.key(i) for i in ids.tolist()] == [str(i % size) for i in ids.tolist()]
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()
    (tmp_path / "index.bin").unlink()


class Names:
    """Names of shards, made when they are asked for."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> str:
        if not 0 <= number < self._count:
            raise IndexError(number)
        return f"shard-{number:07d}.tar"

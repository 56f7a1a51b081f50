"""The index of a set, local and in a store."""

from __future__ import annotations

import pickle
import tarfile
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from feeder.dataset.shard_reader import ShardReader
from feeder.errors import ArgumentError
from feeder.shard.format.open_index import open_index
from feeder.shard.write.shard_options import ShardOptions
from feeder.shard.write.sharding import shard
from tests.support.images import encode
from tests.support.jpegs import photo
from tests.support.mirrors import StrictMirror

COUNT = 17


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A set of four shards."""
    folder = tmp_path_factory.mktemp("sets")
    for i in range(COUNT):
        kind = "png" if i % 5 == 4 else "jpg"
        path = folder / "images" / f"class {i % 3}" / f"{i}.{kind}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode(photo(i, 500 + i, 400 - i), {"jpg": "JPEG", "png": "PNG"}[kind]))
    shard(str(folder / "images"), str(folder / "set"), ShardOptions(samples_per_shard=5))
    return folder / "set"


def test_samples_are_those_of_the_shards(folder: Path) -> None:
    index = open_index(folder / "index.bin")
    assert len(index) == COUNT
    assert np.asarray(index.header.shard_sizes).tolist() == [5, 5, 5, 2]
    found: dict[str, dict[str, tuple[int, int, int]]] = {}
    for number in range(index.header.shards):
        with tarfile.open(index.shard_path(number)) as tar:
            for member in tar:
                key, _, field = member.name.partition(".")
                found.setdefault(key, {})[field] = number, member.offset_data, member.size
    assert [index.key(i) for i in range(COUNT)] == list(found)
    for i in range(COUNT):
        own = found[index.key(i)]
        image = index.image_field(i)
        assert index.place(i) == index.member_place(i, image) == own[image]
        assert {(field, offset, length) for field, (_, offset, length) in own.items()} == set(index.stored_fields(i))
    places = {i: tuple(place) for i, *place in index.field_places("cls")}
    assert places == {i: found[index.key(i)]["cls"] for i in range(COUNT)}


def test_rows_are_those_of_the_columns(folder: Path) -> None:
    index = open_index(folder / "index.bin")
    ids = np.random.default_rng(0).permutation(COUNT)
    rows = index.rows(ids)
    np.testing.assert_array_equal(rows.labels, index.column("label")[ids])
    for name in ("shard", "offset", "length", "width", "height", "orientation", "field", "crc32"):
        np.testing.assert_array_equal(getattr(rows, name), index.column(name)[ids])


def some_rows(orientations: npt.NDArray[np.uint8], sizes: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    return np.array([[150 + 8 * k, 200 + 8 * k] for k in range(len(sizes))], np.int32)


def test_columns_of_all_samples_of_a_set_in_a_store_ask_for_the_index_of_each_shard(
    folder: Path, tmp_path: Path
) -> None:
    mirror = StrictMirror(folder, tmp_path)
    index, local = open_index(mirror.index, mirror=mirror), open_index(str(folder / "index.bin"))
    for name in ("label", "width", "source_bytes"):
        np.testing.assert_array_equal(index.column(name), local.column(name))
    asked = [{name for name, _, _ in call if name.endswith(".fidx")} for call in mirror.calls]
    assert {local.header.index_name(n) for n in range(local.header.shards)} in asked  # many at once


def test_the_mirror_is_asked_for_what_is_read_and_in_one_go(folder: Path, tmp_path: Path) -> None:
    mirror = StrictMirror(folder, tmp_path)
    reader, local = ShardReader(mirror.index, mirror=mirror), ShardReader(str(folder / "index.bin"))
    assert {name for call in mirror.calls for name, _, _ in call} == {"index.bin"}
    del mirror.calls[:]
    ids = np.array([1, 6, 12, 16, 7])
    mine, theirs = reader.read(ids, some_rows), local.read(ids, some_rows)
    assert [bytes(b) for b in mine.buffers] == [bytes(b) for b in theirs.buffers]
    indexes, ranges = mirror.calls
    assert [name for name, _, _ in indexes] == [f"shard-00000{n}.fidx" for n in range(4)]
    assert len(ranges) >= len(ids)
    assert sum(end - start for _, start, end in ranges) == sum(map(len, mine.buffers))
    assert len(opened_shards(mirror)) == 4
    assert reader.field(3, "cls") == local.field(3, "cls")
    assert reader.read(ids[:2]).errors == [None, None]
    assert len(opened_shards(mirror)) == 4 + 1 + 2  # a shard may have been made anew since it was read


def test_indexes_from_a_store_stay_open_within_a_hundredth_of_its_cache(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("feeder.shard.format.set_index.MIRRORED_BYTES", 1)
    local = open_index(str(folder / "index.bin"))
    firsts = [local.header.sample_range(shard)[0] for shard in range(local.header.shards)]
    for budget_bytes, times in ((1 << 40, 1), (100, 3)):
        mirror = StrictMirror(folder, tmp_path / str(times))
        mirror.budget_bytes = budget_bytes
        index = open_index(mirror.index, mirror=mirror)
        for i in 3 * firsts:
            assert int(index.row(i).crc32[0]) == int(local.row(i).crc32[0])
        asked = [name for call in mirror.calls for name, _, _ in call if name.endswith(".fidx")]
        assert {asked.count(name) for name in asked} == {times}
    maps = Path("/proc/self/maps").read_text()
    assert maps.count(f"{tmp_path}/3/shard-") == 1


def opened_shards(mirror: StrictMirror) -> list[str]:
    return [name for name in mirror.opened if name.endswith(".tar")]


def test_a_copy_of_a_reader_opens_the_same_version(folder: Path) -> None:
    reader = ShardReader(str(folder / "index.bin"))
    assert pickle.loads(pickle.dumps(reader)).index.header.hash == reader.index.header.hash
    assert len(ShardReader(str(folder / "index.bin"), version=1)) == COUNT
    with pytest.raises(ArgumentError, match="asked for version 2"):
        ShardReader(str(folder / "index.bin"), version=2)

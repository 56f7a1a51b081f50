"""Version 2 of the index beside version 1 of the same set."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from feeder.dataset.shard_reader import ShardReader
from feeder.dataset.shards import ShardDataset
from feeder.errors import ArgumentError, FormatError
from feeder.shard.format.column_index import ColumnIndex
from feeder.shard.format.index_file import COLUMNS
from feeder.shard.format.open_index import open_index
from feeder.shard.format.set_index import SetIndex
from feeder.shard.write.options import ShardOptions
from feeder.shard.write.sharding import shard
from feeder.shard.write.upgrade import upgrade_index
from feeder.tools.verify import verify
from tests.support.images import encode
from tests.support.jpegs import photo
from tests.support.mirrors import StrictMirror
from tests.support.shard_sets import to_version_1

COUNT = 17


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A set with an index of version 1, and one of version 2."""
    folder = tmp_path_factory.mktemp("sets")
    for i in range(COUNT):
        kind = "png" if i % 5 == 4 else "jpg"
        path = folder / "images" / f"class {i % 3}" / f"{i}.{kind}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode(photo(i, 500 + i, 400 - i), {"jpg": "JPEG", "png": "PNG"}[kind]))
    shard(str(folder / "images"), str(folder / "old"), ShardOptions(samples_per_shard=5))
    to_version_1(folder / "old" / "index.bin")
    shutil.copytree(folder / "old", folder / "new")
    assert upgrade_index(str(folder / "new"))
    return folder / "old", folder / "new"


@pytest.fixture
def indexes(sets: tuple[Path, Path]) -> tuple[ColumnIndex, SetIndex]:
    old, new = (open_index(folder / "index.bin") for folder in sets)
    assert isinstance(old, ColumnIndex)
    assert isinstance(new, SetIndex)
    return old, new


@pytest.mark.parametrize("name", COLUMNS)
def test_whole_columns_are_those_of_version_1(indexes: tuple[ColumnIndex, SetIndex], name: str) -> None:
    old, new = indexes
    np.testing.assert_array_equal(new.column(name), old.column(name))
    assert new.column(name).dtype == old.column(name).dtype


def test_samples_are_those_of_version_1(indexes: tuple[ColumnIndex, SetIndex]) -> None:
    old, new = indexes
    assert len(new) == len(old) == COUNT
    ids = np.random.default_rng(0).permutation(COUNT)
    for name in ("shard", "offset", "length", "width", "height", "orientation", "field", "crc32", "labels"):
        np.testing.assert_array_equal(getattr(new.rows(ids), name), getattr(old.rows(ids), name))
    for i in range(COUNT):
        for method in ("key", "source_path", "row_data", "members", "parts", "image_field", "place"):
            assert getattr(new, method)(i) == getattr(old, method)(i)
    assert [new.shard_entry(n) for n in range(new.shard_count)] == list(old.shards)
    assert np.asarray(new.shard_counts()).tolist() == np.asarray(old.shard_counts()).tolist()
    assert (new.fields, new.targets, new.max_label, new.size_bytes) == (
        old.fields,
        old.targets,
        old.max_label,
        old.size_bytes,
    )
    for place, other in zip(new.field_places("cls"), old.field_places("cls"), strict=True):
        np.testing.assert_array_equal(place, other)


def some_rows(orientations: npt.NDArray[np.uint8], sizes: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    return np.array([[150 + 8 * k, 200 + 8 * k] for k in range(len(sizes))], np.int32)


def test_crops_read_the_same_bytes(sets: tuple[Path, Path]) -> None:
    old, new = (ShardReader(str(folder / "index.bin")) for folder in sets)
    ids = np.array([11, 3, 16, 0, 4, 9])
    for wanted in (None, some_rows):
        mine, theirs = new.read(ids, wanted), old.read(ids, wanted)
        assert [bytes(b) for b in mine.buffers] == [bytes(b) for b in theirs.buffers]
        assert mine.errors == theirs.errors == [None] * len(ids)
        for name in ("labels", "orientations", "sizes"):
            np.testing.assert_array_equal(getattr(mine, name), getattr(theirs, name))
        assert (mine.first_rows is None) == (theirs.first_rows is None) == (wanted is None)
        if wanted is not None:
            np.testing.assert_array_equal(mine.first_rows, theirs.first_rows)


def test_a_converted_set_keeps_its_fingerprint(sets: tuple[Path, Path]) -> None:
    old, new = (ShardDataset(folder) for folder in sets)
    assert new.reader.fingerprint() == old.reader.fingerprint()
    for each in (old, new):
        each.reader.relabel(np.arange(COUNT), None)  # type: ignore[attr-defined]
    assert new.reader.fingerprint() == old.reader.fingerprint()
    old, new = (ShardDataset(folder) for folder in sets)
    assert new.classes == old.classes == ["class 0", "class 1", "class 2"]
    assert new.targets == old.targets
    assert verify(str(sets[1])) == []
    assert not upgrade_index(str(sets[1]))


def test_columns_of_all_samples_of_a_set_in_a_store_ask_for_the_index_of_each_shard(
    sets: tuple[Path, Path], tmp_path: Path
) -> None:
    mirror = StrictMirror(sets[1], tmp_path)
    index, local = open_index(mirror.index, mirror=mirror), open_index(str(sets[1] / "index.bin"))
    assert isinstance(local, SetIndex)
    for name in ("label", "width", "source_bytes"):
        np.testing.assert_array_equal(index.column(name), local.column(name))
    asked = [{name for name, _, _ in call if name.endswith(".fidx")} for call in mirror.calls]
    assert {local.header.index_name(n) for n in range(local.shard_count)} in asked  # many at once


def test_the_mirror_is_asked_for_what_is_read_and_in_one_go(sets: tuple[Path, Path], tmp_path: Path) -> None:
    mirror = StrictMirror(sets[1], tmp_path)
    reader, local = ShardReader(mirror.index, mirror=mirror), ShardReader(str(sets[1] / "index.bin"))
    assert {name for call in mirror.calls for name, _, _ in call} == {"index.bin"}
    del mirror.calls[:]
    ids = np.array([1, 6, 12, 16, 7])
    mine, theirs = reader.read(ids, some_rows), local.read(ids, some_rows)
    assert [bytes(b) for b in mine.buffers] == [bytes(b) for b in theirs.buffers]
    pages, indexes, steps, *each_of_them, ranges = mirror.calls
    assert [name for name, _, _ in pages] == ["index.bin"]
    assert [name for name, _, _ in indexes] == [f"shard-00000{n}.fidx" for n in range(4)]
    assert [name for name, _, _ in steps] == [f"shard-00000{n}.fidx:steps" for n in range(4)]
    assert each_of_them == [[want] for want in steps]  # when it is opened
    assert len(ranges) >= len(ids)
    assert sum(end - start for _, start, end in ranges) == sum(map(len, mine.buffers))
    assert len(opened_shards(mirror)) == 4
    assert reader.field(3, "cls") == local.field(3, "cls")
    assert reader.read(ids[:2]).errors == [None, None]
    assert len(opened_shards(mirror)) == 4 + 1 + 2  # a shard may have been made anew since it was read


def test_indexes_from_a_store_stay_open_within_a_hundredth_of_its_cache(
    sets: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("feeder.shard.format.set_index.MIRRORED_BYTES", 1)
    local = open_index(str(sets[1] / "index.bin"))
    assert isinstance(local, SetIndex)
    firsts = [local.header.sample_range(shard)[0] for shard in range(local.shard_count)]
    for budget_bytes, times in ((1 << 40, 1), (100, 3)):
        mirror = StrictMirror(sets[1], tmp_path / str(times))
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


def test_a_store_has_sets_of_version_2_only(sets: tuple[Path, Path], tmp_path: Path) -> None:
    mirror = StrictMirror(sets[0], tmp_path)
    with pytest.raises(FormatError, match=r"index\.bin: an index of format 1.*feeder index --upgrade"):
        ShardReader(mirror.index, mirror=mirror)


def test_a_copy_of_a_reader_opens_the_same_version(sets: tuple[Path, Path]) -> None:
    reader = ShardReader(str(sets[1] / "index.bin"))
    assert pickle.loads(pickle.dumps(reader)).index.identity == reader.index.identity
    for folder in sets:
        assert len(ShardReader(str(folder / "index.bin"), version=1)) == COUNT
        with pytest.raises(ArgumentError, match="asked for version 2"):
            ShardReader(str(folder / "index.bin"), version=2)

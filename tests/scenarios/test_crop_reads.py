"""Of a seekable image only the rows that its crop needs are read, and nobody can tell by the pixels."""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bench.loader import index_without_rows
from feeder import DataLoader, ShardDataset, _native
from feeder.shard.format.index_file import INDEX_NAME
from feeder.shard.format.open_index import open_index
from feeder.shard.format.shard_index import SampleRow
from feeder.shard.write.index_tars import index_tars
from feeder.shard.write.shard_options import ShardOptions
from feeder.shard.write.sharding import shard
from feeder.tools.verify import verify
from feeder.transforms import Normalize, RandomHorizontalFlip, RandomResizedCrop, ToDtype
from tests.support import jpegs
from tests.support.images import encode
from tests.support.shard_sets import change_samples

KINDS = ("4:2:0", "4:2:2", "4:4:4", "gray", "4:4:0", "progressive")
CROP = (
    RandomResizedCrop(32, scale=(0.05, 0.5)),
    RandomHorizontalFlip(),
    ToDtype("float32"),
    Normalize((0.5,) * 3, (0.5,) * 3),
)


def without_rows(folder: Path, to: Path) -> Path:
    """The same set with an index that says nothing of rows."""
    shutil.copytree(folder, to)
    index_without_rows(to / INDEX_NAME)
    return to


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A seekable set, and the same without rows in its index."""
    root = tmp_path_factory.mktemp("rows")
    for i in range(24):
        kind = KINDS[i % len(KINDS)]
        path = root / "images" / f"{i % 3}" / f"{i}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        size = (301 + 16 * i, 640 - 13 * i)
        if i >= 12:
            data = encode(jpegs.photo(i, *size), orientation=1 + i % 8, quality=95)
        else:
            data = jpegs.jpeg(kind, size, i)
        path.write_bytes(data)
    shard(str(root / "images"), str(root / "set"), ShardOptions(shard_size_bytes=1 << 20))
    return root / "set", without_rows(root / "set", root / "old")


def batches(path: Path, transform: Any = CROP, **options: Any) -> tuple[list[torch.Tensor], int]:
    """Images of three epochs, and how many bytes were read for them."""
    loader = DataLoader(ShardDataset(path, transform), **{"batch_size": 8, "seed": 1, "num_workers": 0, **options})
    images = [images.clone() for _ in range(3) for images, _ in loader]
    return images, int(loader.stats()["encoded_bytes"])


def assert_same(found: list[torch.Tensor], wanted: list[torch.Tensor]) -> None:
    assert len(found) == len(wanted) > 0
    for a, b in zip(found, wanted, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize(
    "options",
    [{}, {"fidelity": "exact"}, {"num_workers": 2}, {"backend": "dali"}, {"device": "cpu"}],
    ids=["fast", "exact", "workers", "dali", "device"],
)
def test_batches_are_the_same_for_fewer_bytes(sets: tuple[Path, Path], options: dict[str, Any]) -> None:
    if options.get("backend") == "dali":
        pytest.importorskip("nvidia.dali")
    with_rows, whole = sets
    found, found_bytes = batches(with_rows, **options)
    wanted, wanted_bytes = batches(whole, **options)
    assert_same(found, wanted)
    assert found_bytes < 0.7 * wanted_bytes


def test_ops_after_the_crop_get_the_same_pixels(sets: tuple[Path, Path]) -> None:
    from feeder.transforms import RandAugment

    transform = (RandomResizedCrop(48, scale=(0.05, 0.3)), RandAugment())
    found, found_bytes = batches(sets[0], transform)
    wanted, wanted_bytes = batches(sets[1], transform)
    assert_same(found, wanted)
    assert found_bytes < wanted_bytes


def test_a_backend_that_wants_whole_files_gets_them(sets: tuple[Path, Path]) -> None:
    found, found_bytes = batches(sets[0], backend="pillow")
    wanted, wanted_bytes = batches(sets[1], backend="pillow")
    assert_same(found, wanted)
    assert found_bytes == wanted_bytes


def test_rows_of_tars_that_others_wrote_are_indexed(sets: tuple[Path, Path], tmp_path: Path) -> None:
    for tar in sets[0].glob("*.tar"):
        shutil.copy(tar, tmp_path)
    index_tars(str(tmp_path))
    found, ours = open_index(tmp_path / INDEX_NAME), open_index(sets[0] / INDEX_NAME)
    places = [ours.row_data(i) for i in range(len(ours))]
    assert min(map(len, places)) > 4 * 3
    assert [found.row_data(i) for i in range(len(found))] == places


@pytest.mark.parametrize(("kind", "moved"), [("in front", -1), ("behind", 1), ("inside", 700), ("far", 1 << 31)])
def test_an_index_whose_offsets_are_off_changes_no_pixel_and_is_told_of(
    sets: tuple[Path, Path], tmp_path: Path, kind: str, moved: int
) -> None:
    def move(_: int, samples: list[SampleRow]) -> list[SampleRow]:
        found = []
        for sample in samples:
            places = np.frombuffer(sample.row_data, "<u4").astype(np.int64)
            places[1:] += moved  # but for the height of a band
            found.append(sample._replace(row_data=(places % (1 << 32)).astype("<u4").tobytes()))
        return found

    shutil.copytree(sets[0], tmp_path / "set")
    change_samples(tmp_path / "set" / INDEX_NAME, move)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert_same(batches(tmp_path / "set")[0], batches(sets[1])[0])
    is_seen = kind != "far"  # which makes no sense from the start
    assert [str(each.message)[:9] for each in told[:1]] == ["the index"] * is_seen


def test_damage_beyond_the_rows_is_found_by_the_crops_that_need_it(sets: tuple[Path, Path], tmp_path: Path) -> None:
    shutil.copytree(sets[0], tmp_path / "set")
    index = open_index(tmp_path / "set" / INDEX_NAME)
    offset, length = int(index.column("offset")[5]), int(index.column("length")[5])
    with open(index.shard_path(int(index.column("shard")[5])), "r+b") as file:
        file.seek(offset + length // 2)
        file.write(bytes(length - length // 2))
    found = batches(tmp_path / "set", on_error="skip")[0]
    wanted = batches(sets[0])[0]
    same = sum(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))
    assert len(wanted) - 3 <= same < len(wanted)
    assert verify(str(tmp_path / "set"))


@pytest.mark.parametrize("skip", [False, True])
def test_damage_in_the_rows_is_dealt_with_as_in_the_whole_file(
    sets: tuple[Path, Path], tmp_path: Path, skip: bool
) -> None:
    outcomes = []
    for number, source in enumerate(sets):
        folder = tmp_path / str(number)
        shutil.copytree(source, folder)
        index = open_index(folder / INDEX_NAME)
        with open(folder / index.header.shard_name(int(index.column("shard")[5])), "r+b") as file:
            places = np.frombuffer(open_index(sets[0] / INDEX_NAME).row_data(5), "<u4")
            for band in range(1, 9):  # every crop meets one
                file.seek(int(index.column("offset")[5]) + int(places[band]) + 40)
                file.write(b"\xff\xd1" * 20)
        loader = DataLoader(
            ShardDataset(folder, CROP), batch_size=8, seed=1, on_error="skip" if skip else "raise", shuffle=False
        )
        try:
            outcomes.append(([images for images, _ in loader], str(loader.stats()["substitutions"])))
        except Exception as error:
            outcomes.append(([], str(error).replace(str(folder), "")))
    (found, told), (wanted, said) = outcomes
    assert told == said
    assert "00000005" in told
    assert [torch.equal(a, b) for a, b in zip(found, wanted, strict=True)] == [True] * (3 if skip else 0)


def seekable(kind: str = "4:2:0", size: tuple[int, int] = (200, 300)) -> bytes:
    return _native.transcode(jpegs.jpeg(kind, size), keep_metadata=False)


@pytest.mark.parametrize("kind", KINDS)
def test_bands_lie_where_the_index_says(kind: str) -> None:
    data = seekable(kind)
    told = _native.row_places(data)
    assert told is not None
    height, *places = np.frombuffer(told, np.uint32).tolist()
    assert height >= 32
    assert len(places) == -(-300 // height) + 1
    assert places[0] == jpegs.entropy_offset(data)
    assert places[-1] == len(data)
    for place in places[1:-1]:
        assert data[place - 2] == 0xFF
        assert 0xD0 <= data[place - 1] <= 0xD7


def test_only_complete_seekable_files_have_rows() -> None:
    data = seekable()
    assert _native.row_places(jpegs.jpeg("4:2:0", (200, 300))) is None
    assert _native.row_places(data[:-2]) is None
    assert _native.row_places(data[: len(data) // 2]) is None
    assert _native.row_places(b"") is None
    assert _native.row_places(b"\x89PNG") is None
    marker = np.frombuffer(_native.row_places(data) or b"", np.uint32)[2] - 1
    assert _native.row_places(data[:marker] + b"\xd6" + data[marker + 1 :]) is None

"""Shards and indexes that are written anew, or replaced, while they are in use."""

from __future__ import annotations

import os
import pickle
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from feeder.dataset.shard_reader import ShardReader
from feeder.dataset.shards import ShardDataset
from feeder.errors import ChangedError, FormatError, WorkerError
from feeder.loader.dataloader import DataLoader
from feeder.shard.format.index_file import INDEX_NAME
from feeder.shard.write.index_tars import index_tars
from feeder.shard.write.shard_options import ShardOptions
from feeder.shard.write.sharding import shard
from feeder.transforms import RandomResizedCrop
from tests.support import jpegs
from tests.support.batches import copied_epoch
from tests.support.loader_data import write_shards
from tests.support.processes import all_ended
from tests.support.remote import Bucket
from tests.support.remote_sets import end_fetchers, make_set, upload
from tests.support.shard_sets import write_tar

CROP = RandomResizedCrop(16)
REPLACED = r"shard-00000\d.tar: it was changed or replaced while it was in use"


def _later() -> None:
    """Waits until a change would show in a file's times."""
    now = time.time_ns()
    while time.clock_gettime_ns(5) <= now:  # CLOCK_REALTIME_COARSE, from which they are
        os.sched_yield()


def _by_rename(new: Path, old: Path) -> None:
    _later()
    for path in sorted(new.glob("*.tar")):
        os.replace(path, old / path.name)


def _in_place(new: Path, old: Path) -> None:
    _later()
    for path in sorted(new.glob("*.tar")):
        (old / path.name).write_bytes(path.read_bytes())


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    return write_shards(tmp_path / "shards", 64)


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """Shards of the same names with other samples, and images in the same places, as far as they are of one length."""
    folder = write_shards(tmp_path / "other", 64)
    names = sorted(path.name for path in folder.glob("*.tar"))
    for name in names:
        (folder / name).rename(folder / f"{name}.moved")
    for name, later in zip(names, names[1:] + names[:1], strict=True):
        (folder / f"{name}.moved").rename(folder / later)
    return folder


@pytest.mark.parametrize("replace", [_by_rename, _in_place])
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_shards_replaced_in_an_epoch_are_an_error_that_names_them(
    shards: Path, other: Path, workers: int, replace: Callable[[Path, Path], None], on_error: str
) -> None:
    options: dict[str, Any] = {"batch_size": 4, "num_workers": workers, "on_error": on_error}
    if workers:
        options["prefetch_factor"] = 1
    expected = copied_epoch(DataLoader(ShardDataset(shards, CROP), batch_size=4))
    loader: Any = DataLoader(ShardDataset(shards, CROP), **options)
    iterator = iter(loader)
    found = [next(iterator)[0].clone()]
    replace(other, shards)
    with pytest.raises(FormatError, match=REPLACED):
        found.extend(images.clone() for images, _ in iterator)
    # Batches from before, and from files that were open, are right; none is wrong.
    for batch, right in zip(found, expected, strict=False):
        assert torch.equal(batch, right[0])


def test_a_shard_that_was_opened_before_it_was_replaced_is_read_to_its_end(shards: Path, other: Path) -> None:
    reader = ShardReader(str(shards / INDEX_NAME))
    ids = np.arange(16)
    before = [bytes(buffer) for buffer in reader.read(ids).buffers]
    _later()
    os.replace(other / "shard-000000.tar", shards / "shard-000000.tar")
    assert [bytes(buffer) for buffer in reader.read(ids).buffers] == before
    assert reader.field(3, "json") == {"i": 3}
    with pytest.raises(FormatError, match=REPLACED):
        pickle.loads(pickle.dumps(reader)).read(ids)
    with pytest.raises(FormatError, match=REPLACED):
        pickle.loads(pickle.dumps(reader)).field(3, "json")


def test_shards_that_are_only_touched_linked_or_copied_back_are_used_on(shards: Path, tmp_path: Path) -> None:
    dataset = ShardDataset(shards, CROP)
    expected = copied_epoch(DataLoader(dataset, batch_size=4, num_workers=2))
    loader = DataLoader(dataset, batch_size=4, num_workers=2)
    iterator = iter(loader)
    found = [tuple(x.clone() for x in next(iterator))]
    for number, path in enumerate([*sorted(shards.glob("*.tar")), shards / INDEX_NAME]):
        os.utime(path)
        os.link(path, tmp_path / f"link{number}")
    shutil.copy(shards / "shard-000003.tar", tmp_path / "copy")
    os.replace(tmp_path / "copy", shards / "shard-000003.tar")
    found += copied_epoch(iterator)
    assert [batch[1].tolist() for batch in found] == [batch[1].tolist() for batch in expected]


def test_rows_of_a_seekable_image_are_not_taken_from_another_one(tmp_path: Path) -> None:
    for name in ("first", "second"):
        for i in range(4):
            path = tmp_path / name / "images" / "class" / f"{i}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(jpegs.jpeg("4:2:0", (320, 320), i + 4 * (name == "second")))
        shard(str(tmp_path / name / "images"), str(tmp_path / name / "set"), ShardOptions())
    loader = DataLoader(ShardDataset(tmp_path / "first" / "set", CROP), batch_size=2)
    iterator = iter(loader)
    next(iterator)
    _in_place(tmp_path / "second" / "set", tmp_path / "first" / "set")
    with pytest.raises(FormatError, match=REPLACED):
        next(iterator)


def test_workers_refuse_another_index_than_the_datasets(shards: Path, tmp_path: Path) -> None:
    loader: Any = DataLoader(ShardDataset(shards, CROP), batch_size=4, num_workers=1)
    assert sum(1 for _ in loader) == 16
    os.replace(write_shards(tmp_path / "fewer", 48) / INDEX_NAME, shards / INDEX_NAME)
    with pytest.raises(WorkerError, match=r"index.bin: it was replaced by another index while it was in use"):
        list(loader)


def _open_again(url: str, cache: Path) -> None:
    """Opens the set once more, which has the fetcher look for a new header."""
    ShardDataset(url, CROP, cache_dir=cache)


def _kill_the_fetcher(url: str, cache: Path) -> None:
    """Ends the fetcher, and evicts shards: the next one reads the new header."""
    pid = int(next(cache.rglob("fetcher.lock")).read_text())
    os.kill(pid, signal.SIGKILL)
    assert all_ended([pid])
    for path in cache.rglob("*.tar"):
        path.unlink()


@pytest.mark.parametrize("learn", [_open_again, _kill_the_fetcher])
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_a_set_replaced_in_its_bucket_in_an_epoch_is_an_error_that_names_it(
    bucket: Bucket, tmp_path: Path, learn: Callable[[str, Path], None], workers: int, on_error: str
) -> None:
    local = make_set(tmp_path / "local")
    options: dict[str, Any] = {"batch_size": 4, "num_workers": workers, "on_error": on_error}
    if workers:
        options["prefetch_factor"] = 1
    expected = copied_epoch(DataLoader(ShardDataset(local, CROP), batch_size=4))
    with end_fetchers(tmp_path):
        url = upload(bucket, local)
        loader: Any = DataLoader(ShardDataset(url, CROP, cache_dir=tmp_path / "cache"), **options)
        iterator = iter(loader)
        found = [next(iterator)[0].clone()]
        upload(bucket, make_set(tmp_path / "other", first=64))
        learn(url, tmp_path / "cache")
        with pytest.raises(ChangedError, match=rf"^{url}/shard-0000\d\d.*: it was replaced while it was in use"):
            found.extend(images.clone() for images, _ in iterator)
    for batch, right in zip(found, expected, strict=False):
        assert torch.equal(batch, right[0])


@pytest.mark.parametrize("has_indexes", [False, True])
def test_a_reader_of_a_bucket_refuses_what_another_set_has_under_the_same_names(
    bucket: Bucket, tmp_path: Path, has_indexes: bool
) -> None:
    for name, first in (("one", 0), ("two", 8)):
        (tmp_path / name).mkdir()
        for number in range(2):
            samples = range(4 * number, 4 * number + 4)
            members = [
                (f"{i}.{field}", jpegs.jpeg("4:2:0", (32, 32), first + i))
                for i in samples
                for field in ("a.jpg", "b.jpg")
            ]
            write_tar(tmp_path / name / f"{number}.tar", members)
        index_tars(str(tmp_path / name), image_field="a.jpg")
    with end_fetchers(tmp_path):
        url = upload(bucket, tmp_path / "one")
        reader = ShardDataset(url, CROP, cache_dir=tmp_path / "cache").reader
        if has_indexes:
            reader.read(np.arange(8))
        upload(bucket, tmp_path / "two")
        _open_again(url, tmp_path / "cache")
        for ids in (np.arange(4), np.arange(4, 8)):
            with pytest.raises(ChangedError, match=rf"^{url}/.*: it was replaced while it was in use"):
                reader.read(ids)

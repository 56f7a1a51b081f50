"""A table of buckets that all ranks of a machine map."""

from __future__ import annotations

import multiprocessing
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from feeder import transforms as T
from feeder.dataset.shards import ShardDataset
from feeder.errors import FormatError
from feeder.loader.dataloader import DataLoader
from feeder.loader.fast import bucket_table_file
from feeder.loader.fast.bucket_table_file import TableFile, shared_table
from feeder.order.bucket_order import BucketTable
from feeder.order.buckets import Buckets
from tests.support.batches import copied_epoch, same_batches
from tests.support.loader_data import write_shards

BUCKETS = Buckets(sizes=[(8, 8), (8, 16)])


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of tables; all of them are large."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(bucket_table_file, "LEAST_BYTES", 1)
    return tmp_path / "cache/feeder/buckets"


def table_of(samples: int = 1000) -> BucketTable:
    sizes = np.random.default_rng(0).integers(1, 9, (samples, 2)).astype(np.int32)
    return BucketTable.of(BUCKETS, samples, lambda ids: sizes[ids])


def is_same(found: BucketTable, expected: BucketTable) -> bool:
    return np.array_equal(found.members, expected.members) and np.array_equal(found.starts, expected.starts)


def test_ranks_map_one_file_and_their_workers_too(cache: Path) -> None:
    plain = table_of()
    first, second = shared_table(table_of()), shared_table(table_of())
    (file,) = cache.iterdir()
    assert file.stat().st_size == 4 * len(plain)
    for table in (first, second, pickle.loads(pickle.dumps(first))):
        assert isinstance(table, TableFile)
        assert table.path == str(file)
        assert is_same(table, plain)
        assert not table.members.flags.writeable
    assert len(pickle.dumps(first)) < 1000
    assert str(file) in Path("/proc/self/maps").read_text()


def _share(barrier: Any, paths: Any) -> None:
    barrier.wait()
    table = shared_table(table_of())
    assert isinstance(table, TableFile)
    status = os.stat(table.path)
    paths.put((table.path, status.st_ino, is_same(table, table_of())))


def test_ranks_that_begin_at_once_write_one_file(cache: Path) -> None:
    context = multiprocessing.get_context("fork")
    barrier, paths = context.Barrier(4), context.Queue()
    ranks = [context.Process(target=_share, args=(barrier, paths)) for _ in range(4)]
    for rank in ranks:
        rank.start()
    found = [paths.get() for _ in ranks]
    for rank in ranks:
        rank.join()
    assert len(set(found)) == 1
    assert found[0][2]
    assert len(list(cache.iterdir())) == 1


def test_a_file_that_is_damaged_is_written_again(cache: Path) -> None:
    table = table_of(70_000)
    path = Path(shared_table(table).path)  # type: ignore[attr-defined]
    for damaged in (bytes(path.stat().st_size), path.read_bytes()[:-1] + b"\x80", b"short"):
        path.unlink()
        path.write_bytes(damaged)
        if damaged == b"short":
            with pytest.raises(FormatError, match="expected 280,000 bytes, got 5"):
                TableFile(str(path), table.starts)
        assert is_same(shared_table(table), table)
        assert path.stat().st_size == 280_000


def test_small_tables_and_those_that_cant_be_written_stay_in_memory(
    cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cache.parent.mkdir(parents=True)
    cache.write_text("a file is in the way")
    table = table_of()
    assert shared_table(table) is table
    assert "each rank keeps a table" in caplog.text
    monkeypatch.setattr(bucket_table_file, "LEAST_BYTES", 4001)
    caplog.clear()
    assert shared_table(table) is table
    assert not caplog.text


def test_tables_that_were_not_used_for_a_month_are_removed(cache: Path) -> None:
    shared_table(table_of(10))
    (old,) = cache.iterdir()
    os.utime(old, (0, 0))
    shared_table(table_of(10))  # used again
    shared_table(table_of(11))
    assert len(list(cache.iterdir())) == 2
    os.utime(old, (0, 0))
    shared_table(table_of(12))
    assert old not in list(cache.iterdir())


def test_batches_are_those_without_a_file(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shards = write_shards(tmp_path / "shards", 40, sizes=[(20, 20), (10, 22)], bad=(3,))
    options: dict[str, Any] = {
        "sizes": BUCKETS,
        "shuffle": True,
        "rank": 0,
        "world_size": 2,
        "seed": 0,
        "on_error": "skip",
    }

    def epoch() -> Any:
        dataset = ShardDataset(shards, T.RandomResizedCrop(T.BUCKET))
        return copied_epoch(DataLoader(dataset, 4, num_workers=1, **options))

    shared = epoch()
    assert len(list(cache.iterdir())) == 1
    monkeypatch.setattr(bucket_table_file, "LEAST_BYTES", 1 << 30)
    assert same_batches(shared, epoch())

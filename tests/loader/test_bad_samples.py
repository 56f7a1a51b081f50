"""Bad samples: raised by name, or replaced and counted."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import pytest

from feeder.dataset.folders import FolderDataset
from feeder.dataset.shards import ShardDataset
from feeder.errors import DecodeError
from feeder.loader.dataloader import DataLoader
from tests.support.batches import copied_epoch, same_batches, sample_ids
from tests.support.loader_data import CROP_AND_FLIP, encode, write_shards


@pytest.mark.parametrize("workers", [0, 2])
def test_bad_sample_raises_by_name_and_the_next_batch_follows(tmp_path: Path, workers: int) -> None:
    dataset = ShardDataset(write_shards(tmp_path, 24, bad=(9,)), CROP_AND_FLIP, fields=("index",))
    iterator = iter(DataLoader(dataset, batch_size=8, num_workers=workers))
    assert next(iterator)[2].tolist() == list(range(8))
    with pytest.raises(DecodeError, match="00000009") as caught:
        next(iterator)
    assert caught.value.shard == "shard-000000.tar"
    assert caught.value.offset_bytes is not None
    assert next(iterator)[2].tolist() == list(range(16, 24))
    assert next(iterator, None) is None


def test_skipped_samples_have_the_same_substitutes_whatever_the_workers(tmp_path: Path) -> None:
    dataset = ShardDataset(write_shards(tmp_path, 40, bad=(3, 9, 10, 11)), CROP_AND_FLIP, fields=("index", "key"))
    runs = []
    for options in ({}, {"num_workers": 2}, {"num_workers": 3, "prefetch_factor": 1}):
        loader = DataLoader(dataset, batch_size=8, on_error="skip", seed=3, **options)  # type: ignore[arg-type]
        runs.append((copied_epoch(loader), loader.stats()))
    for batches, stats in runs:
        assert same_batches(batches, runs[0][0])
        assert stats["substitutions"] == runs[0][1]["substitutions"]
    ids = sample_ids(runs[0][0])
    assert [i for i in range(40) if ids[i] != i] == [3, 9, 10, 11]
    assert not {3, 9, 10, 11} & set(ids)
    ledger = runs[0][1]["substitutions"]
    assert [entry["position"] for entry in ledger] == [3, 9, 10, 11]
    assert [entry["key"] for entry in ledger] == [f"{i:08d}" for i in (3, 9, 10, 11)]
    assert all(entry["shard"] == "shard-000000.tar" and entry["offset_bytes"] and entry["reason"] for entry in ledger)
    assert [entry["substitute"] for entry in ledger] == [ids[i] for i in (3, 9, 10, 11)]


@pytest.mark.parametrize("workers", [0, 2])
def test_the_end_of_an_epoch_tells_of_skipped_samples(tmp_path: Path, workers: int) -> None:
    folder = write_shards(tmp_path, 40, bad=(3, 9, 10, 11, 17, 29, 31, 39))
    loader = DataLoader(ShardDataset(folder, CROP_AND_FLIP), batch_size=8, on_error="skip", num_workers=workers)
    told = r"^8 of 40 samples of epoch 0 \(20.00%\) were bad, .*; the first: 00000003: .*stats\(\)\['substitutions'\]"
    with pytest.warns(UserWarning, match=told) as caught:
        for _ in loader:
            pass
    assert [warning.filename for warning in caught] == [__file__]
    with pytest.warns(UserWarning, match="^8 of 40 samples of epoch 1 ") as caught:
        copied_epoch(loader)
    assert len(caught) == 1


def test_an_epoch_without_bad_samples_tells_of_none(tmp_path: Path) -> None:
    loader = DataLoader(ShardDataset(write_shards(tmp_path, 8), CROP_AND_FLIP), batch_size=8, on_error="skip")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        copied_epoch(loader)


def test_nothing_but_bad_samples_is_an_error_even_when_skipping(tmp_path: Path) -> None:
    dataset = ShardDataset(write_shards(tmp_path, 4, bad=(0, 1, 2, 3)), CROP_AND_FLIP)
    with pytest.raises(DecodeError, match="substitutes"):
        next(iter(DataLoader(dataset, batch_size=2, on_error="skip")))


def test_unreadable_files_of_a_folder_are_skipped_too(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for i in range(6):
        (tmp_path / f"a/{i}.png").write_bytes(encode(i))
    dataset = FolderDataset(tmp_path, CROP_AND_FLIP, fields=("key",))
    os.unlink(tmp_path / "a/2.png")
    (tmp_path / "a/4.png").write_bytes(b"")
    loader = DataLoader(dataset, batch_size=6, on_error="skip", num_workers=1)
    (batch,) = copied_epoch(loader)
    assert [k for k, name in enumerate(batch[2]) if name != f"a/{k}.png"] == [2, 4]
    assert [s["key"] for s in loader.stats()["substitutions"]] == ["a/2.png", "a/4.png"]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_bad_sample_that_a_sampler_repeats_is_named_each_time(tmp_path: Path, workers: int) -> None:
    dataset = ShardDataset(write_shards(tmp_path, 20, bad=(3,)), CROP_AND_FLIP, fields=("index",))
    iterator = iter(DataLoader(dataset, sampler=[3, 3], num_workers=workers))
    for _ in range(2):
        with pytest.raises(DecodeError, match="sample '00000003'"):
            next(iterator)
    loader = DataLoader(dataset, sampler=[3, 3], num_workers=workers, on_error="skip")
    made = sample_ids(copied_epoch(loader))
    assert made == [s["substitute"] for s in loader.stats()["substitutions"]]
    assert 3 not in made

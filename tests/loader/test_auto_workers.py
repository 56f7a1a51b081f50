from __future__ import annotations

import logging
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, IterableDataset

import feeder
from feeder import transforms as T
from feeder.errors import ArgumentError
from feeder.loader import auto_workers as auto
from feeder.system.cores import Cores
from tests.support.generators import generator_states
from tests.support.loader_data import write_shards
from tests.support.ranks import run_two_ranks


@pytest.fixture
def four_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto, "cores", lambda: Cores(4, 4))
    for name in ("LOCAL_WORLD_SIZE", "WORLD_SIZE", "RANK", "SLURM_JOB_ID"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_shards(tmp_path_factory.mktemp("auto") / "shards", 40)


def test_a_feeder_dataset_gets_a_worker_for_each_core_and_the_choice_is_recorded(
    four_cores: None, shards: Path, caplog: pytest.LogCaptureFixture
) -> None:
    dataset = feeder.ShardDataset(shards, T.Compose([T.RandomResizedCrop(8)]), fields=("index",))
    with caplog.at_level(logging.INFO, "feeder"):
        loader = feeder.DataLoader(dataset, batch_size=8, shuffle=True, seed=3, num_workers="auto")
    assert loader.num_workers == 4
    assert "num_workers is 4, of 1 thread each: 4 cores" in caplog.text
    assert loader.stats()["auto"] == {"num_workers": 4, "worker_threads": 1, "reason": "4 cores"}
    # Not a batch differs from those of any other number.
    fixed = feeder.DataLoader(dataset, batch_size=8, shuffle=True, seed=3, num_workers=0)
    for (ours, _, ids), (theirs, _, wanted) in zip(loader, fixed, strict=True):
        assert torch.equal(ids, wanted)
        assert torch.equal(ours, theirs)
    assert "auto" not in fixed.stats()
    assert pickle.loads(pickle.dumps(loader)).num_workers == loader.num_workers
    loader.close()


class Items(Dataset[int]):
    """Counts what is asked of it in this process."""

    def __init__(self) -> None:
        self.asked = 0

    def __len__(self) -> int:
        return 32

    def __getitem__(self, i: int) -> int:
        self.asked += 1
        return i


class Stream(IterableDataset[int]):
    def __iter__(self) -> Any:
        raise AssertionError("it was read")


@pytest.mark.parametrize("dataset", [Items(), Stream()])
def test_any_dataset_gets_a_worker_for_each_core_and_is_not_touched(four_cores: None, dataset: Any) -> None:
    states = generator_states()
    loader = feeder.DataLoader(dataset, batch_size=8, generator=torch.Generator(), num_workers="auto")
    assert loader.stats()["auto"] == {"num_workers": 4, "worker_threads": 1, "reason": "4 cores"}
    assert generator_states() == states
    assert getattr(dataset, "asked", 0) == 0


def test_one_core_has_one_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto, "cores", lambda: Cores(8, 1))
    loader = feeder.DataLoader(Items(), num_workers="auto")
    assert (loader.num_workers, loader.stats()["auto"]["reason"]) == (1, "1 of 8 cores (affinity)")


def test_ranks_of_a_host_divide_its_cores(four_cores: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setenv("WORLD_SIZE", "4")
    loader = feeder.DataLoader(Items(), num_workers="auto")
    assert (loader.num_workers, loader.stats()["auto"]["reason"]) == (2, "4 cores for 2 ranks")


def auto_on(shards: Path, monkeypatch: pytest.MonkeyPatch, cores: int, **options: Any) -> tuple[int, int]:
    """Returns (num_workers, worker_threads) on a host of so many cores."""
    monkeypatch.setattr(auto, "cores", lambda: Cores(cores, cores))
    dataset = feeder.ShardDataset(shards, T.RandomResizedCrop(8))
    loader: Any = feeder.DataLoader(dataset, batch_size=4, num_workers="auto", **options)
    assert loader.stats()["auto"]["worker_threads"] == loader.worker_options.threads
    return loader.num_workers, loader.worker_options.threads


@pytest.mark.parametrize(
    ("cores", "found"), [(1, (1, 1)), (8, (8, 1)), (16, (8, 2)), (24, (6, 4)), (64, (8, 8)), (128, (16, 8))]
)
def test_many_cores_get_few_processes_of_up_to_eight_threads(
    four_cores: None, shards: Path, monkeypatch: pytest.MonkeyPatch, cores: int, found: tuple[int, int]
) -> None:
    assert auto_on(shards, monkeypatch, cores) == found


@pytest.mark.parametrize(("cores", "found"), [(64, (16, 4)), (2, (1, 4))])
def test_a_given_number_of_threads_is_kept(
    four_cores: None, shards: Path, monkeypatch: pytest.MonkeyPatch, cores: int, found: tuple[int, int]
) -> None:
    assert auto_on(shards, monkeypatch, cores, worker_options=feeder.WorkerOptions(threads=4)) == found


def test_a_collate_fn_gets_processes_alone(four_cores: None, shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert auto_on(shards, monkeypatch, 32, collate_fn=list) == (32, 1)


def test_threads_for_a_given_number_of_workers_keep_the_cores_busy(
    shards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auto, "cores", lambda: Cores(64, 64))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    dataset = feeder.ShardDataset(shards, T.RandomResizedCrop(8))
    threads_auto = feeder.WorkerOptions(threads="auto")
    for workers, threads in ((0, 8), (2, 8), (8, 4), (20, 1), (100, 1)):
        loader: Any = feeder.DataLoader(dataset, batch_size=4, num_workers=workers, worker_options=threads_auto)
        assert (loader.num_workers, loader.worker_options.threads) == (workers, threads)
    assert feeder.DataLoader(dataset, num_workers=2).worker_options is None
    others: Any = feeder.DataLoader(Items(), num_workers=2, worker_options=threads_auto)
    assert others.worker_options.threads == 1


def test_another_word_is_refused() -> None:
    with pytest.raises(ArgumentError, match="num_workers must be 'auto', or 0 or more, got 'all'"):
        feeder.DataLoader(Items(), num_workers="all")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=r"WorkerOptions\(threads=...\) must be 'auto', or 1 or more, got 'all'"):
        feeder.WorkerOptions(threads="all")  # type: ignore[arg-type]


_RANK = """
import json, sys
from torch import distributed
import feeder
from feeder import transforms as T
from feeder.system.cores import Cores
from feeder.loader import auto_workers as auto

auto.cores = lambda: Cores(8, 8)
rank, store, shards = json.loads(sys.argv[1])
distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
dataset = feeder.ShardDataset(shards, T.Compose([T.RandomResizedCrop(8)]), fields=("index",))
loader = feeder.DataLoader(dataset, batch_size=5, shuffle=True, num_workers="auto")
seen = [batch[2].tolist() for batch in loader]
loader.close()
print(json.dumps({"choice": loader.stats()["auto"], "seen": seen}))
distributed.destroy_process_group()
"""


@pytest.mark.slow
def test_two_ranks_divide_the_cores_and_see_every_sample_once(shards: Path, tmp_path: Path) -> None:
    found = run_two_ranks(_RANK, tmp_path / "store", shards)
    assert all("8 cores for 2 ranks" in result["choice"]["reason"] for result in found)
    assert sorted(i for result in found for batch in result["seen"] for i in batch) == list(range(40))

from __future__ import annotations

import logging
import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, SequentialSampler

import feeder
from feeder import transforms as T
from feeder.errors import ArgumentError, DecodeError
from feeder.loader import auto_workers as auto
from feeder.loader.auto_workers import WorkersChoice, measured
from feeder.system.cores import Cores
from feeder.system.process_usage import process_tree
from tests.support.generators import generator_states
from tests.support.loader_data import write_shards
from tests.support.ranks import run_two_ranks


@pytest.fixture
def four_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto, "cores", lambda: Cores(4, 4))
    monkeypatch.setattr(auto, "SECONDS", 60.0)  # what is measured must not depend on how busy the machine is
    for name in ("LOCAL_WORLD_SIZE", "WORLD_SIZE", "RANK", "SLURM_JOB_ID"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_shards(tmp_path_factory.mktemp("auto") / "shards", 40)


def rule(why: str) -> WorkersChoice:
    return WorkersChoice(4, f"rule: {why}")


class Time:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def measure_by(rate: Callable[[int], float], most: int, cost_s: float = 0.1) -> tuple[WorkersChoice, list[int]]:
    clock, asked = Time(), []

    def probe(workers: int, left_s: float) -> float:
        assert left_s > 0
        clock.now += cost_s
        asked.append(workers)
        return rate(workers)

    return measured(probe, most, "cores", rule, clock=clock), asked


def test_the_fewest_workers_that_are_about_as_fast_are_taken() -> None:
    choice, asked = measure_by(lambda n: min(n, 10) * 100.0, 64)
    assert choice.num_workers in (9, 10, 11, 12)
    assert asked[0] == 64
    assert choice.images_per_s == {n: min(n, 10) * 100.0 for n in asked}
    assert measure_by(lambda n: n * 100.0, 8)[0].num_workers == 8
    assert measure_by(lambda n: 100.0, 8)[0].num_workers == 1


def test_measuring_ends_in_time() -> None:
    choice, asked = measure_by(lambda n: 100.0, 1024, cost_s=1.0)
    assert len(asked) <= 4
    assert choice.num_workers < 1024
    choice, asked = measure_by(lambda n: 100.0, 64, cost_s=100.0)
    assert (choice.num_workers, asked) == (64, [64])


def test_what_fails_falls_back_on_the_rule() -> None:
    def fails(workers: int) -> float:
        raise OSError("no such disk\nat all")

    choice, _ = measure_by(fails, 8)
    assert (choice.num_workers, choice.reason) == (4, "rule: OSError: no such disk")


def test_a_feeder_dataset_is_measured_and_the_choice_recorded(
    four_cores: None, shards: Path, caplog: pytest.LogCaptureFixture
) -> None:
    dataset = feeder.ShardDataset(shards, T.Compose([T.RandomResizedCrop(8)]), fields=("index",))
    with caplog.at_level(logging.INFO, "feeder"):
        loader = feeder.DataLoader(dataset, batch_size=8, shuffle=True, seed=3, num_workers="auto")
    assert isinstance(loader.num_workers, int)
    assert 1 <= loader.num_workers <= 4
    assert f"num_workers is {loader.num_workers}: 4 cores; images/s:" in caplog.text
    record = loader.stats()["auto"]
    assert record["num_workers"] == loader.num_workers
    assert set(record["images_per_s"]) >= {4, loader.num_workers}
    # Not a batch differs from those of any other number, and the first epoch is still the first.
    fixed = feeder.DataLoader(dataset, batch_size=8, shuffle=True, seed=3, num_workers=0)
    for (ours, _, ids), (theirs, _, wanted) in zip(loader, fixed, strict=True):
        assert torch.equal(ids, wanted)
        assert torch.equal(ours, theirs)
    assert "auto" not in fixed.stats()
    assert pickle.loads(pickle.dumps(loader)).num_workers == loader.num_workers
    loader.close()


def test_a_broken_image_is_left_to_the_loop(four_cores: None, tmp_path: Path) -> None:
    shards = write_shards(tmp_path / "shards", 16, bad=(3,))
    dataset = feeder.ShardDataset(shards, T.Compose([T.CenterCrop(8)]))
    loader = feeder.DataLoader(dataset, batch_size=16, num_workers="auto")
    assert loader.stats()["auto"]["images_per_s"]
    with pytest.raises(DecodeError, match="00000003"):
        next(iter(loader))
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


class Once(SequentialSampler):
    def __init__(self, dataset: Items) -> None:
        super().__init__(dataset)
        self.iterations = 0

    def __iter__(self) -> Any:
        self.iterations += 1
        return super().__iter__()


def test_any_dataset_is_measured_without_touching_what_is_the_callers(four_cores: None) -> None:
    before = process_tree()
    states = generator_states()
    dataset = Items()
    sampler, generator = Once(dataset), torch.Generator()
    drawn = generator.get_state()
    loader = feeder.DataLoader(dataset, batch_size=8, sampler=sampler, generator=generator, num_workers="auto")
    assert loader.stats()["auto"]["images_per_s"]
    assert (dataset.asked, sampler.iterations) == (0, 0)
    assert torch.equal(generator.get_state(), drawn)
    assert generator_states() == states
    assert set(process_tree()) <= set(before)
    assert torch.cat(list(loader)).tolist() == list(range(32))


class Stream(IterableDataset[int]):
    def __iter__(self) -> Any:
        raise AssertionError("it was read")


class Stateful(Items):
    def state_dict(self) -> dict[str, Any]:
        return {}


class Broken(Items):
    def __getitem__(self, i: int) -> int:
        raise RuntimeError("not here")


class Lengthless(Items):
    def __len__(self) -> int:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("dataset", "why"),
    [
        (Stream(), "reading ahead in an iterable dataset"),
        (Stateful(), "a dataset with a state"),
        (Broken(), "RuntimeError: "),
        (Lengthless(), "the dataset has no length"),
    ],
)
def test_what_cannot_be_measured_takes_a_worker_for_each_core(four_cores: None, dataset: Any, why: str) -> None:
    sampler = None if isinstance(dataset, IterableDataset) else [0, 1]
    loader = feeder.DataLoader(dataset, batch_size=4, sampler=sampler, num_workers="auto")
    assert loader.num_workers == 4
    assert loader.stats()["auto"]["reason"].startswith(f"4 cores; not measured: {why}")


def test_a_dataset_that_hangs_does_not_hold_up_the_start(four_cores: None, monkeypatch: pytest.MonkeyPatch) -> None:
    class Hangs(Items):
        def __getitem__(self, i: int) -> int:
            threading.Event().wait()
            return i

    monkeypatch.setattr(auto, "SECONDS", 0.3)
    loader = feeder.DataLoader(Hangs(), batch_size=4, num_workers="auto")
    assert loader.num_workers == 4
    assert "timed out" in loader.stats()["auto"]["reason"]


def test_one_core_needs_no_measuring(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto, "cores", lambda: Cores(8, 1))
    loader = feeder.DataLoader(Items(), num_workers="auto")
    assert (loader.num_workers, loader.stats()["auto"]["reason"]) == (1, "1 of 8 cores (affinity)")


def test_ranks_of_a_host_divide_its_cores(four_cores: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setenv("WORLD_SIZE", "4")
    loader = feeder.DataLoader(Items(), num_workers="auto")
    assert 1 <= loader.num_workers <= 2
    assert loader.stats()["auto"]["reason"].startswith("4 cores for 2 ranks; images/s: ")


def test_threads_of_a_worker_count_as_cores(four_cores: None, shards: Path) -> None:
    dataset = feeder.ShardDataset(shards, T.RandomResizedCrop(8))
    loader = feeder.DataLoader(
        dataset, batch_size=4, num_workers="auto", worker_options=feeder.WorkerOptions(threads=4)
    )
    assert loader.num_workers == 1
    assert loader.stats()["auto"]["reason"] == "4 cores, 4 threads a worker"


def auto_on(
    shards: Path, monkeypatch: pytest.MonkeyPatch, cores: int, rate: Callable[[int, int], float], **options: Any
) -> tuple[int, int]:
    """Returns (num_workers, worker_threads) on a host of so many cores, where workers of so many threads have that
    rate."""
    monkeypatch.setattr(auto, "cores", lambda: Cores(cores, cores))

    def run(loader: Any, seconds: float) -> Any:
        return SimpleNamespace(images_per_s=rate(loader.num_workers, loader.worker_options.threads))

    monkeypatch.setattr(auto, "run", run)
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
    assert auto_on(shards, monkeypatch, cores, lambda workers, threads: 100.0 * workers * threads) == found


def test_threads_that_wait_for_each_other_are_not_taken(
    four_cores: None, shards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert auto_on(shards, monkeypatch, 64, lambda workers, threads: 100.0 * workers) == (64, 1)


def test_a_given_number_of_threads_is_kept(four_cores: None, shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert auto_on(
        shards,
        monkeypatch,
        64,
        lambda workers, threads: 100.0 * workers,
        worker_options=feeder.WorkerOptions(threads=4),
    ) == (16, 4)


def test_a_collate_fn_gets_processes_alone(four_cores: None, shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert auto_on(shards, monkeypatch, 32, lambda workers, _: 100.0 * workers, collate_fn=list) == (32, 1)


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
auto.SECONDS = 60.0
rank, store, shards = json.loads(sys.argv[1])
distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
dataset = feeder.ShardDataset(shards, T.Compose([T.RandomResizedCrop(8)]), fields=("index",))
if rank == 1:  # one that the other rank never makes
    feeder.DataLoader(list(range(9)), num_workers="auto")
loader = feeder.DataLoader(dataset, batch_size=5, shuffle=True, num_workers="auto")
seen = [batch[2].tolist() for batch in loader]
loader.close()
print(json.dumps({"choice": loader.stats()["auto"], "seen": seen}))
distributed.destroy_process_group()
"""


@pytest.mark.slow
def test_two_ranks_choose_for_themselves_and_see_every_sample_once(shards: Path, tmp_path: Path) -> None:
    found = run_two_ranks(_RANK, tmp_path / "store", shards)
    choices = [result["choice"] for result in found]
    assert all(choice["images_per_s"] for choice in choices)
    assert all("8 cores for 2 ranks" in choice["reason"] for choice in choices)
    assert sorted(i for result in found for batch in result["seen"] for i in batch) == list(range(40))

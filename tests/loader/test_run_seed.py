"""Loaders without a seed: each draws its own, the same on all ranks, and goes on by that of a state."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed

from feeder.dataset.shards import ShardDataset
from feeder.errors import ArgumentError
from feeder.loader import random_state, run_seed
from feeder.loader.dataloader import DataLoader
from feeder.loader.rank_agreement import Connection
from tests.support.loader_data import CROP_AND_FLIP


@pytest.fixture(autouse=True)
def _drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loaders draw their seeds, as outside of tests."""
    monkeypatch.setattr(run_seed, "draw_seed", random_state.draw_seed)
    torch.manual_seed(0)


@pytest.fixture
def dataset(shards: Path) -> ShardDataset:
    return ShardDataset(shards, CROP_AND_FLIP, fields=("index",))


def _loader(dataset: ShardDataset, **options: Any) -> DataLoader[Any]:
    return DataLoader(dataset, **{"batch_size": 20, "shuffle": True} | options)


def _ids(batches: Iterable[Any]) -> list[int]:
    return [i for batch in batches for i in batch[-1].tolist()]


def _same(a: list[Any], b: list[Any]) -> bool:
    return _ids(a) == _ids(b) and all(torch.equal(x[0], y[0]) for x, y in zip(a, b, strict=True))


def test_loaders_made_alike_differ_and_torchs_generator_decides(dataset: ShardDataset) -> None:
    made = []
    for _ in range(2):
        torch.manual_seed(5)
        loaders = [_loader(dataset) for _ in range(2)]
        made.append([[*loader] for loader in loaders])
        assert _ids(made[-1][0]) == [*loaders[0].sampler][: len(dataset)]
    (one, other), again = made
    assert _ids(one) != _ids(other)
    assert sorted(_ids(one)) == sorted(_ids(other)) == list(range(len(dataset)))
    assert _same(one, again[0])
    assert _same(other, again[1])
    before = torch.get_rng_state()
    assert _loader(dataset, seed=3).seed == 3
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_run_goes_on_by_the_seed_of_its_state(dataset: ShardDataset, workers: int) -> None:
    first = _loader(dataset)
    iterator = iter(first)
    next(iterator)
    state = json.loads(json.dumps(first.state_dict())) if first.path == "fast" else first.state_dict()
    rest = [*iterator]
    other = _loader(dataset, num_workers=workers, persistent_workers=workers > 0)
    assert other.seed != first.seed
    for _ in other:  # whose workers have its own seed by then
        pass
    other.load_state_dict(state)
    assert _same([*other], rest)
    assert other.seed == first.seed
    assert _same([*other], [*first])
    with pytest.raises(ArgumentError, match="its seed is"):
        _loader(dataset, seed=3).load_state_dict(state)
    other.close()


def test_batches_of_a_resumed_run_come_again(shards: Path) -> None:
    first, other = (_loader(ShardDataset(shards, CROP_AND_FLIP)) for _ in range(2))
    images = next(iter(first))[0]
    other.load_state_dict(first.state_dict())
    assert torch.equal(other.replay(0, 0).batch[0], images)
    assert other.samples_of(1, 0).ids.tolist() == first.samples_of(1, 0).ids.tolist()


class _Group:
    """Two ranks in one process, on one store."""

    store: Any

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rank, self.store = 0, distributed.HashStore()
        monkeypatch.setattr(run_seed, "current_ranks", lambda given: given or (self.rank, 2))
        monkeypatch.setattr(run_seed, "is_in_group", lambda given: given is None)
        monkeypatch.setattr(run_seed, "connect", lambda rank: self.store and Connection(self.store, 1))
        monkeypatch.setattr(run_seed, "WAIT_S", 0.0)


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> _Group:
    return _Group(monkeypatch)


def test_ranks_of_a_group_take_the_seeds_that_rank_0_draws(dataset: ShardDataset, group: _Group) -> None:
    loaders: dict[int, list[Any]] = {}
    for group.rank in (1, 0):
        torch.manual_seed(group.rank)
        loaders[group.rank] = [_loader(dataset) for _ in range(2)]
        if group.rank == 1:  # nothing of this waits for rank 0
            assert "seed" not in repr(loaders[1][0])
            assert len(loaders[1][0]) == 3
            assert _loader(dataset, rank=1, world_size=2, seed=6).seed == 6
            assert len([*_loader(dataset, rank=0, world_size=1)]) == 3
    seeds, second = {}, {}
    for group.rank in range(2):
        seeds[group.rank] = [loader.seed for loader in loaders[group.rank]]
        second[group.rank] = [*loaders[group.rank][1]]
    assert seeds[0] == seeds[1]
    assert seeds[0][0] != seeds[0][1]
    assert _same(second[0], second[1])


@pytest.mark.parametrize("has_store", [True, False])
def test_a_rank_that_gets_no_seed_raises_and_a_state_has_one(
    dataset: ShardDataset, group: _Group, has_store: bool
) -> None:
    state = _loader(dataset, seed=7).state_dict()
    group.rank, group.store = 1, group.store if has_store else None
    loader = _loader(dataset)
    with pytest.raises(ArgumentError, match=r"rank 1 waited .* give all ranks the same seed="):
        next(iter(loader))
    loader.load_state_dict(state)
    assert _same([*loader], [*_loader(dataset, seed=7)])


def test_ranks_without_a_group_take_0_and_say_so_once(dataset: ShardDataset) -> None:
    loader = _loader(dataset, rank=1, world_size=2)
    with pytest.warns(UserWarning, match="ranks can't agree on a seed .* so it is 0"):
        batches = [*loader]
    assert _same(batches, [*_loader(dataset, rank=1, world_size=2, seed=0)])
    assert loader.seed == 0


def test_a_loader_of_a_service_says_that_trials_share_nothing(shards: Path) -> None:
    dataset = ShardDataset(shards, CROP_AND_FLIP)
    with pytest.warns(UserWarning, match="give all trials the same seed="):
        _loader(dataset, service="trials")
    _loader(dataset, service="trials", seed=0)

"""Samples that a loader on torch's path leaves out: the rest as it was, resumed, and split by rank."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Subset

from feeder.dataset.shards import ShardDataset
from feeder.errors import ArgumentError
from feeder.loader.dataloader import DataLoader
from feeder.order.sample_order import Window
from feeder.order.skip import Skip
from feeder.transforms import RandomHorizontalFlip

OUT = [0, 3, 4, 17, 29]


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "this loader runs torch's path")
        yield


def test_a_skip_for_datasets_that_are_not_feeders_or_for_a_sampler_is_refused_by_name(shards: Path) -> None:
    with pytest.raises(ArgumentError, match="skip= is for feeder's datasets, and this is a range: leave the samples"):
        DataLoader(range(9), 2, skip=[1])
    with pytest.raises(ArgumentError, match="has a sampler: leave them out there"):
        own(shards, sampler=[3, 1], shuffle=None, seed=None, skip=[1])
    run: DataLoader[Any] = DataLoader(range(9), 2)
    with pytest.raises(ArgumentError, match="and this is a range"):
        run.skip = [1]
    assert run.skip is None


class _Own(ShardDataset):
    """Samples of the user's own."""

    def __getitem__(self, i: Any) -> Any:
        return i, torch.rand(())


def own(shards: Path, batch_size: int | None = 4, **options: Any) -> DataLoader[Any]:
    run: DataLoader[Any] = DataLoader(_Own(shards), batch_size, **{"shuffle": True, "seed": 5} | options)
    assert run.path == "generic"
    return run


def ids_of(run: Any) -> list[int]:
    return [i for ids, _ in run for i in torch.as_tensor(ids).flatten().tolist()]


@pytest.mark.parametrize("shuffle", [False, True, Window(7)], ids=repr)
@pytest.mark.parametrize("workers", [0, 2])
def test_samples_of_ones_own_come_in_feeders_order_without_those(shards: Path, shuffle: Any, workers: int) -> None:
    whole = own(shards, shuffle=shuffle)
    order, size = [ids_of(whole) for _ in range(2)], len(whole.dataset)
    run = own(shards, shuffle=shuffle, num_workers=workers, skip=Skip(OUT, [(1, 8, 16)]))
    assert len(run) == -(-(size - 5) // 4)
    assert ids_of(run) == [i for i in order[0] if i not in OUT]
    states, seen = [], []
    second = [i for place, i in enumerate(order[1]) if i not in OUT and not 8 <= place < 16]
    assert len(run) == -(-len(second) // 4)
    for ids, _ in run:
        seen += ids.tolist()
        states.append(run.state_dict())
    assert seen == second
    for step, state in enumerate(states, 1):
        again = own(shards, 3, shuffle=shuffle, num_workers=workers)
        again.load_state_dict(state)
        assert ids_of(again) == second[4 * step :]


class _Stateful(_Own):
    """A dataset with a state, which a loader takes snapshots of."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


def test_a_skip_that_changed_since_a_snapshot_is_refused(shards: Path) -> None:
    options: dict[str, Any] = {"seed": 5, "num_workers": 1, "snapshot_every_n_steps": 3}
    run: DataLoader[Any] = DataLoader(_Stateful(shards), 4, skip=[1], **options)
    iterator = iter(run)
    for _ in range(4):
        next(iterator)
    state, rest = run.state_dict(), ids_of(iterator)
    again: DataLoader[Any] = DataLoader(_Stateful(shards), 4, **options)
    again.load_state_dict(state)
    assert ids_of(again) == rest
    other: DataLoader[Any] = DataLoader(_Stateful(shards), 4, skip=[2], **options)
    other.load_state_dict(state)
    with pytest.raises(ArgumentError, match="save with snapshot_every_n_steps=1"):
        iter(other)
    with pytest.raises(ArgumentError, match="this state is damaged: what it skips"):
        own(shards, shuffle=False).load_state_dict(state | {"_skip": [3]})


def test_copies_skip_the_same_and_everything_may_be_skipped(shards: Path) -> None:
    run = own(shards, skip=OUT, shuffle=False)
    size = len(run.dataset)
    expected = [i for i in range(size) if i not in OUT]
    assert ids_of(copy.copy(run)) == ids_of(pickle.loads(pickle.dumps(run))) == expected
    run.skip = range(size)
    assert (len(run), [*run]) == (0, [])


def test_ranks_share_what_is_left(shards: Path) -> None:
    runs = [own(shards, 2, rank=rank, world_size=2, skip=OUT) for rank in range(2)]
    found = [ids_of(run) for run in runs]
    assert {*found[0], *found[1]} == {*range(len(runs[0].dataset))} - {*OUT}
    assert abs(len(found[0]) - len(found[1])) == 0


def test_single_samples_with_sizes_of_their_own_are_left_out(shards: Path) -> None:
    data = ShardDataset(shards, RandomHorizontalFlip(), ["index"])
    run: DataLoader[Any] = DataLoader(Subset(data, [9, 4, 3, 4, 20]), None, skip=[4, 5])
    assert [index for *_, index in run] == [9, 3, 20]

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
from torch.utils.data import IterableDataset, Subset

from feeder.dataset.shards import ShardDataset
from feeder.errors import ArgumentError
from feeder.loader.dataloader import DataLoader
from feeder.order.sample_order import Window
from feeder.order.skip import Skip
from feeder.transforms import RandomHorizontalFlip
from tests.support.torch_datasets import Counting

OUT = [0, 3, 4, 17, 29]


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "this loader runs torch's path")
        yield


def loader(**options: Any) -> DataLoader[Any]:
    return DataLoader(range(30), **{"batch_size": 4, "shuffle": True} | options)


def seeded(run: DataLoader[Any]) -> list[list[int]]:
    """An epoch from torch's random state of seed 1."""
    torch.manual_seed(1)
    return [batch.tolist() for batch in run]


def flat(batches: Any) -> list[int]:
    return [i for batch in batches for i in (batch if isinstance(batch, list) else batch.tolist())]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("options", [{}, {"shuffle": False}, {"drop_last": True}, {"batch_size": None}])
def test_the_rest_of_any_dataset_keeps_its_order(workers: int, options: dict[str, Any]) -> None:
    torch.manual_seed(1)
    whole = [int(i) for batch in loader(**{"batch_size": 1} | options) for i in torch.as_tensor(batch).flatten()]
    run = loader(skip=OUT, num_workers=workers, **options)
    torch.manual_seed(1)
    batches = [torch.as_tensor(batch).flatten().tolist() for batch in run]
    rest = [i for i in whole if i not in OUT]
    assert flat(batches) == (rest[:24] if options.get("drop_last") else rest)
    assert len(run) == len(batches) == {None: 25}.get(options.get("batch_size", 4), 6 if "drop_last" in options else 7)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("options", [{}, {"shuffle": False}, {"batch_size": None, "shuffle": False}])
def test_a_resumed_run_goes_on_alike_and_leaves_out_what_the_state_says(workers: int, options: dict[str, Any]) -> None:
    run = loader(skip=OUT, num_workers=workers, **options)
    seen, states = [], []
    for batch in run:
        seen.append(torch.as_tensor(batch).flatten().tolist())
        states.append(run.state_dict())
    for step, state in enumerate(states, 1):
        again = loader(num_workers=workers, **options)
        again.load_state_dict(state)
        assert [torch.as_tensor(batch).flatten().tolist() for batch in again] == seen[step:]
        assert again.skip == Skip(OUT)
        assert not {*OUT} & {*flat(torch.as_tensor(batch).flatten() for batch in again)}


@pytest.mark.parametrize("workers", [0, 2])
def test_a_run_takes_up_and_gives_up_a_skip_in_the_middle_of_an_epoch(workers: int) -> None:
    order = flat(seeded(loader()))
    run = loader(num_workers=workers)
    torch.manual_seed(1)
    iterator = iter(run)
    begun = flat(next(iterator) for _ in range(3))
    assert begun == order[:12]
    skipping = loader(num_workers=workers, skip=[begun[1], order[13], order[20]])
    skipping.load_state_dict(run.state_dict())
    iterator = iter(skipping)
    assert flat(next(iterator) for _ in range(2)) == [order[place] for place in (12, 14, 15, 16, 17, 18, 19, 21)]
    anew = loader(num_workers=workers, skip=[])
    anew.load_state_dict(skipping.state_dict())
    assert flat(anew) == order[22:]
    assert anew.skip == Skip()


@pytest.mark.parametrize("persistent", [False, True])
def test_a_loader_may_skip_more_from_an_epoch_to_the_next(persistent: bool) -> None:
    run = loader(shuffle=False, num_workers=1, persistent_workers=persistent)
    assert flat(run) == [*range(30)]
    run.skip = OUT
    assert len(run) == 7
    assert flat(run) == [i for i in range(30) if i not in OUT]
    run.skip = None
    assert flat(run) == [*range(30)]
    run.close()


def test_a_skip_that_changed_since_a_snapshot_is_refused() -> None:
    options: dict[str, Any] = {"batch_size": 4, "num_workers": 1, "snapshot_every_n_steps": 3}
    run = DataLoader(Counting(), skip=[1], **options)
    iterator = iter(run)
    for _ in range(4):
        next(iterator)
    state = run.state_dict()
    rest = [batch.tolist() for batch in iterator]
    again = DataLoader(Counting(), **options)
    again.load_state_dict(state)
    assert [batch.tolist() for batch in again] == rest
    other = DataLoader(Counting(), skip=[2], **options)
    other.load_state_dict(state)
    with pytest.raises(ArgumentError, match="save with snapshot_every_n_steps=1"):
        iter(other)


def test_a_subset_skips_by_the_indices_of_the_whole_dataset() -> None:
    part: Any = Subset(Subset(list(range(40)), range(10, 40)), [9, 4, -1, 4, 20])  # type: ignore[arg-type]
    assert flat(DataLoader(part, 2)) == [19, 14, 39, 14, 30]
    run = DataLoader(part, 2, skip=[14, 39, 5])
    assert flat(run) == [19, 30]
    assert len(run) == 1
    assert flat(DataLoader(Subset(range(40), [5, -1, 6]), 2, skip=[39])) == [5, 6]  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="skip has sample 40, and the dataset has samples 0 to 39"):
        run.skip = [40]


def test_copies_skip_the_same_and_everything_may_be_skipped() -> None:
    run = loader(skip=OUT, shuffle=False)
    expected = [i for i in range(30) if i not in OUT]
    assert flat(copy.copy(run)) == flat(pickle.loads(pickle.dumps(run))) == expected
    run.skip = range(30)
    assert (len(run), [*run]) == (0, [])


class _Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(4))


def test_what_can_not_be_left_out_is_refused_by_name() -> None:
    with pytest.raises(ArgumentError, match="this dataset is iterable: leave them out in it"):
        DataLoader(_Stream(), 2, skip=[1])
    with pytest.raises(ArgumentError, match="has a sampler: leave them out there"):
        DataLoader(range(9), 2, sampler=[3, 1], skip=[1])
    with pytest.raises(ArgumentError, match="in feeder's own order, and a range comes in torch's"):
        DataLoader(range(9), 2, skip=Skip(spans=[(0, 0, 4)]))
    run = loader(skip=OUT)
    next(iter(run))
    with pytest.raises(ArgumentError, match="this state is damaged: what it skips"):
        loader().load_state_dict(run.state_dict() | {"_skip": [3]})


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


def test_ranks_share_what_is_left(shards: Path) -> None:
    runs = [own(shards, 2, rank=rank, world_size=2, skip=OUT) for rank in range(2)]
    found = [ids_of(run) for run in runs]
    assert {*found[0], *found[1]} == {*range(len(runs[0].dataset))} - {*OUT}
    assert abs(len(found[0]) - len(found[1])) == 0


def test_single_samples_with_sizes_of_their_own_are_left_out(shards: Path) -> None:
    data = ShardDataset(shards, RandomHorizontalFlip(), ["index"])
    run: DataLoader[Any] = DataLoader(Subset(data, [9, 4, 3, 4, 20]), None, skip=[4, 5])
    assert [index for *_, index in run] == [9, 3, 20]

"""Loaders in lanes: ranks read from few shards, and a run goes on with its blocks whatever the batch size."""

from __future__ import annotations

import copy
import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import ConcatDataset, Subset

from feeder.dataset.folders import FolderDataset
from feeder.dataset.shards import ShardDataset
from feeder.errors import ArgumentError
from feeder.loader.dataloader import DataLoader
from feeder.order.lanes import Lanes
from feeder.order.sample_order import Window
from feeder.transforms import Resize
from tests.support.batches import copied_epoch, same_batches, sample_ids
from tests.support.loader_data import encode, write_shards

_SIZE, _PER_SHARD = 150, 6
_LANES = Lanes(4, window=8)


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """25 shards of 6 samples, so six or seven for each of four lanes."""
    return write_shards(tmp_path_factory.mktemp("shards"), _SIZE, _PER_SHARD)


@pytest.fixture(scope="module")
def dataset(shards: Path) -> ShardDataset:
    return ShardDataset(shards, Resize((8, 8)), fields=("index",))


def _loader(dataset: Any, batch_size: int | None = 5, **options: Any) -> DataLoader[Any]:
    keywords: dict[str, Any] = {"shuffle": _LANES, "seed": 4} | options
    return DataLoader(dataset, batch_size, **keywords)


def _json(state: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(state))
    return found


def test_ranks_read_from_their_share_of_the_shards(dataset: ShardDataset) -> None:
    for world_size, workers, most in ((1, 0, 25), (2, 1, 14), (4, 0, 9)):
        loaders = [
            _loader(dataset, rank=rank, world_size=world_size, num_workers=workers, drop_last=True)
            for rank in range(world_size)
        ]
        epochs: list[list[int]] = []
        needed: list[set[int]] = [set() for _ in loaders]
        for _ in range(2):
            parts = [sample_ids(copied_epoch(loader)) for loader in loaders]
            epochs.append([i for part in parts for i in part])
            for shards, part in zip(needed, parts, strict=True):
                shards |= {i // _PER_SHARD for i in part}
        assert max(map(len, needed)) <= most
        assert epochs[0] != epochs[1]
        for ids in epochs:
            assert len(set(ids)) == len(ids) == _SIZE // (5 * world_size) * 5 * world_size
        for loader in loaders:
            loader.close()


@pytest.mark.parametrize("workers", [0, 1])
def test_a_resumed_run_has_the_batches_of_the_unbroken_one(dataset: ShardDataset, workers: int) -> None:
    unbroken = _loader(dataset)
    flat = [batch for _ in range(3) for batch in copied_epoch(unbroken)]
    assert sorted(sample_ids(flat[:30])) == list(range(_SIZE))
    running = _loader(dataset, num_workers=workers)
    states = [_json(running.state_dict())]
    for _ in range(2):
        for _ in running:
            states.append(_json(running.state_dict()))
    for step in (0, 1, 7, 29, 30, 44):
        resumed = _loader(dataset, num_workers=workers if step == 7 else 0)
        resumed.load_state_dict(states[step])
        assert resumed.state_dict() == states[step]
        rest = copied_epoch(resumed) + copied_epoch(resumed)
        assert same_batches(rest, flat[step : step + len(rest)])
    fresh = _loader(dataset)
    fresh.set_epoch(2)
    assert same_batches(copied_epoch(fresh), flat[60:])


def test_other_batch_sizes_and_world_sizes_go_on_with_the_order_of_the_run(dataset: ShardDataset) -> None:
    whole = [sample_ids(copied_epoch(loader)) for loader in [_loader(dataset)] * 2]
    begun = _loader(dataset)
    iterator = iter(begun)
    seen = sample_ids([next(iterator) for _ in range(4)])
    state = begun.state_dict()
    assert state["shuffle"] == {"lanes": 4, "window": 8, "block": 5}
    for world_size, batch_size in ((3, 4), (2, 7), (1, 9)):
        loaders = [_loader(dataset, batch_size, rank=r, world_size=world_size) for r in range(world_size)]
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "rank . of . reads from about")
            for loader in loaders:
                loader.load_state_dict(state)
            iterators = [iter(loader) for loader in loaders]
            for _ in range(3):
                for each in iterators:
                    seen += sample_ids([next(each)])
        state = _json(loaders[0].state_dict())
        assert all(loader.state_dict() == state for loader in loaders)
        assert state["shuffle"]["block"] == 5
    last = _loader(dataset, 11)
    last.load_state_dict(state)
    assert seen + sample_ids(copied_epoch(last)) == whole[0]
    assert sample_ids(copied_epoch(last)) == whole[1]


def test_another_batch_size_or_world_size_is_told_once_with_the_share_of_shards(dataset: ShardDataset) -> None:
    state = _loader(dataset).state_dict()
    odd = _loader(dataset, rank=0, world_size=3)
    with pytest.warns(
        UserWarning, match=r"rank 0 of 3 reads from about 100 % .* 33.3 % would do: 3 ranks .* 4 lanes"
    ) as caught:
        epochs = [copied_epoch(odd), copied_epoch(odd)]
    assert len(caught) == 1
    resumed = _loader(dataset, 7, rank=1, world_size=4)
    resumed.load_state_dict(state)
    with pytest.warns(
        UserWarning, match=r"rank 1 of 4 reads .* blocks of 5, the batch size that .*, not of 7"
    ) as caught:
        epochs += [copied_epoch(resumed), copied_epoch(resumed)]
    assert len(caught) == 1
    assert [len(sample_ids(epoch)) for epoch in epochs] == [50, 50, 38, 38]
    for quiet, size in ((_loader(dataset, 10, rank=1, world_size=2), 10), (_loader(dataset, 7), 7)):
        quiet.load_state_dict(state)  # two blocks for each of two ranks; and one rank reads from all shards anyway
        assert len(copied_epoch(quiet)[0][0]) == size


def test_states_of_another_shuffle_are_refused(dataset: ShardDataset) -> None:
    state = _loader(dataset).state_dict()
    others: list[Any] = ["full", Window(8), Lanes(8, 8), Lanes(4, 9), Lanes(4, 8, block=6)]
    for shuffle in others:
        with pytest.raises(ArgumentError, match=r"its shuffle is .*'lanes': 4, 'window': 8, 'block': 5"):
            _loader(dataset, shuffle=shuffle).load_state_dict(state)
    for shuffle in (True, Window(8), Lanes(8, 8), Lanes(4, 9)):
        with pytest.raises(ArgumentError, match="shuffle"):
            _loader(dataset).load_state_dict(_loader(dataset, shuffle=shuffle).state_dict())
    for block in (None, 0, True, "5"):
        with pytest.raises(ArgumentError, match="shuffle"):
            _loader(dataset).load_state_dict(state | {"shuffle": state["shuffle"] | {"block": block}})
    given = _loader(dataset, 6, shuffle=Lanes(4, 8, block=5))
    given.load_state_dict(state)
    assert sample_ids(copied_epoch(given)) == sample_ids(copied_epoch(_loader(dataset)))


def test_a_refused_state_leaves_the_order_as_it_was(dataset: ShardDataset) -> None:
    loader = _loader(dataset, 6)
    before = loader.state_dict()
    with pytest.raises(ArgumentError, match="seed"):
        loader.load_state_dict(_loader(dataset, seed=9).state_dict())
    with pytest.raises(ArgumentError, match="epoch"):
        loader.load_state_dict(_loader(dataset).state_dict() | {"epoch": -1})
    assert loader.state_dict() == before


def test_the_sampler_shows_the_order_of_the_run(shards: Path, dataset: ShardDataset) -> None:
    state = _loader(dataset).state_dict()
    resumed = _loader(dataset, 6)
    resumed.load_state_dict(state)
    shown = list(copy.copy(resumed.sampler))
    assert shown == sample_ids(copied_epoch(resumed))


def test_parts_and_joined_sets_are_taken_by_their_shards(shards: Path, dataset: ShardDataset, tmp_path: Path) -> None:
    chosen = torch.randperm(_SIZE, generator=torch.Generator().manual_seed(1))[:100].tolist()
    ranks = [_loader(Subset(dataset, chosen), rank=rank, world_size=4, drop_last=True) for rank in range(4)]
    parts = [sample_ids(copied_epoch(loader)) for loader in ranks]
    assert sorted(i for part in parts for i in part) == sorted(chosen)
    assert all(len({i // _PER_SHARD for i in part}) <= 10 for part in parts)
    other = write_shards(tmp_path / "other", 40, _PER_SHARD)
    sets = [dataset, ShardDataset(other, Resize((8, 8)), fields=("index",))]
    folders = [shards, other]
    both: list[Any] = [ConcatDataset(sets), ShardDataset(folders, Resize((8, 8)))]
    for joined in both:
        loader = _loader(joined, num_workers=1)
        labels = torch.cat([batch[1] for batch in copied_epoch(loader)])
        assert labels.bincount().tolist() == [sum(i % 7 == k for n in (_SIZE, 40) for i in range(n)) for k in range(7)]
        loader.close()


def test_folders_and_what_hides_its_shards(shards: Path, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for i in range(40):
        (tmp_path / f"a/{i:02}.png").write_bytes(encode(i))
    ids = sample_ids(copied_epoch(_loader(FolderDataset(tmp_path, Resize((8, 8)), fields=("index",)))))
    assert sorted(ids) == list(range(40)) != ids

    class Named(ShardDataset):
        def __getitem__(self, i: Any) -> Any:
            return i

    with pytest.raises(ArgumentError, match=r"^shuffle=Lanes\(...\) is for feeder's datasets"):
        _loader(Subset(Named(shards), range(9)), seed=None)
    with pytest.raises(ArgumentError, match=r"^shuffle=Lanes\(...\) is for feeder's datasets"):
        _loader(torch.arange(9), seed=None)

"""Feeder's order and rank split where a feeder dataset runs torch's path."""

from __future__ import annotations

import copy
import json
import pickle
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import ConcatDataset, DistributedSampler, Subset

from feeder.dataset.shards import ShardDataset
from feeder.errors import ArgumentError
from feeder.loader.dataloader import DataLoader
from feeder.order.sample_order import Window
from feeder.transforms import RandomHorizontalFlip, RandomResizedCrop, Resize
from tests.support.ranks import run_two_ranks

_SIZE = 50
_RECIPE = RandomResizedCrop(8)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "this loader runs torch's path")
        yield


class _Named(ShardDataset):
    """Samples of the user's own: two random views, the number, and what else is drawn."""

    def __getitem__(self, i: Any) -> Any:
        one, two = super().__getitem__(i)[0], super().__getitem__(i)[0]
        return {"views": torch.stack([one, two]), "index": i, "drawn": torch.rand(())}


class _Counting(ShardDataset):
    """Has a state of its own: how many samples were made."""

    made = 0

    def __getitem__(self, i: Any) -> Any:
        self.made += 1
        return self.made, i

    def state_dict(self) -> dict[str, Any]:
        return {"made": self.made}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.made = state["made"]


def _dataset(kind: str, shards: Path) -> Any:
    plain = ShardDataset(shards, _RECIPE, fields=("index",))
    if kind == "own samples":
        return _Named(shards, _RECIPE)
    if kind == "subset of own samples":
        return Subset(_Named(shards, _RECIPE), range(_SIZE))
    if kind == "sizes of their own":  # the images are of one size, which the recipe does not say
        return ShardDataset(shards, RandomHorizontalFlip(), fields=("index",))
    if kind == "recipes that differ":
        other = ShardDataset(shards, Resize((8, 8)), fields=("index",))
        return ConcatDataset([Subset(plain, range(20)), Subset(other, range(20, _SIZE))])
    assert kind == "single samples"
    return plain


_KINDS = ("own samples", "subset of own samples", "sizes of their own", "recipes that differ", "single samples")


def _loader(kind: str, shards: Path, **options: Any) -> DataLoader[Any]:
    loader: DataLoader[Any] = DataLoader(
        _dataset(kind, shards), **{"batch_size": None if kind == "single samples" else 4, "shuffle": True} | options
    )
    assert loader.path == "generic"
    return loader


def _ids(batch: Any) -> list[int]:
    found = batch["index"] if isinstance(batch, dict) else batch[-1]
    return found.tolist() if isinstance(found, torch.Tensor) else [found]


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        a, b = [*a.values()], [*b.values()]
    return len(a) == len(b) and all(
        torch.equal(torch.as_tensor(x), torch.as_tensor(y)) for x, y in zip(a, b, strict=True)
    )


def _all_same(a: list[Any], b: list[Any]) -> bool:
    return len(a) == len(b) and all(map(_same, a, b))


@pytest.mark.parametrize("kind", _KINDS)
@pytest.mark.parametrize("workers", [0, 2])
def test_ranks_have_each_sample_of_every_epoch_once(shards: Path, kind: str, workers: int) -> None:
    options = {"seed": 3, "num_workers": workers, "persistent_workers": workers > 0}
    alone = _loader(kind, shards, seed=3)
    ranks = [_loader(kind, shards, **options, rank=rank, world_size=3) for rank in range(3)]
    epochs = []
    for epoch in range(2):
        assert [*ranks[0].sampler] != list(range(_SIZE))
        parts = [[_ids(batch) for batch in loader] for loader in ranks]
        assert {len(part) for part in parts} == {len(ranks[0])}
        assert len({str([len(batch) for batch in part]) for part in parts}) == 1
        seen = [i for part in parts for batch in part for i in batch]
        for loader in ranks:
            for i in loader.stats()["padded"][epoch:]:
                seen.remove(i)
        assert sorted(seen) == list(range(_SIZE))
        steps = [[i for part in step for i in part] for step in zip(*parts, strict=True)]
        whole = [i for batch in alone for i in _ids(batch)]
        assert [i for step in steps for i in step][:_SIZE] == whole
        epochs.append(whole)
    assert epochs[0] != epochs[1]
    for loader in ranks:
        loader.close()


@pytest.mark.parametrize("kind", ["sizes of their own", "single samples"])
@pytest.mark.parametrize("shuffle", [True, False, Window(8)])
def test_order_and_pixels_are_those_of_the_fast_path(shards: Path, kind: str, shuffle: Any) -> None:
    for dataset in (_dataset(kind, shards), Subset(_dataset(kind, shards), [40, 3, 17, 17, 8])):
        batch_size = None if kind == "single samples" else 5
        collate: dict[str, Any] = {"collate_fn": torch.utils.data.default_collate} if batch_size else {}
        options = {"shuffle": shuffle, "seed": 5, "rank": 1, "world_size": 2}
        generic = DataLoader(dataset, batch_size, num_workers=1, **options, **collate)
        fast = DataLoader(dataset, batch_size or 1, **options, collate_fn=lambda samples: samples)
        assert (generic.path, fast.path) == ("generic", "fast")
        generic.set_epoch(7)
        fast.set_epoch(7)
        for found, expected in zip(generic, fast, strict=True):
            if batch_size is None:
                assert _same(found, expected[0])
            else:
                assert _same(found, torch.utils.data.default_collate(expected))


@pytest.mark.parametrize("kind", _KINDS)
def test_batches_do_not_depend_on_the_number_of_workers(shards: Path, kind: str) -> None:
    torch.manual_seed(1)
    here = _loader(kind, shards)
    one = [list(here), list(here)]
    assert not _all_same(*one)
    torch.manual_seed(2)
    workers = _loader(kind, shards, num_workers=2, prefetch_factor=1)
    for expected in one:
        assert _all_same(list(workers), expected)
    if kind == "own samples":
        views = one[0][0]["views"]
        assert not torch.equal(views[:, 0], views[:, 1])


@pytest.mark.parametrize("kind", _KINDS)
@pytest.mark.parametrize("workers", [0, 1])
def test_a_resumed_epoch_and_the_next_are_those_of_the_unbroken_run(shards: Path, kind: str, workers: int) -> None:
    unbroken = _loader(kind, shards)
    flat = [batch for _ in range(3) for batch in unbroken]
    per_epoch = len(unbroken)
    running = _loader(kind, shards, num_workers=workers, snapshot_every_n_steps=5)
    states = [json.loads(json.dumps(running.state_dict()))]
    for _ in range(2):
        for _ in running:
            states.append(json.loads(json.dumps(running.state_dict())))
    for step in {0, 1, per_epoch - 1, per_epoch, per_epoch + 2, 2 * per_epoch}:
        resumed = _loader(kind, shards, num_workers=workers if step == 1 else 0)
        resumed.load_state_dict(states[step])
        rest = [*resumed, *resumed] if step < 2 * per_epoch else [*resumed]
        assert _all_same(rest, flat[step : step + len(rest)])


@pytest.mark.parametrize("kind", _KINDS)
def test_an_epoch_is_resumed_on_another_number_of_ranks(shards: Path, kind: str) -> None:
    two = [_loader(kind, shards, num_workers=rank, rank=rank, world_size=2, seed=0) for rank in range(2)]
    seen = []
    for loader in two:
        iterator = iter(loader)
        seen += [i for _ in range(3) for i in _ids(next(iterator))]
    places = [loader.state_dict() for loader in two]
    three = [_loader(kind, shards, rank=rank, world_size=3, seed=0) for rank in range(3)]
    for loader in three:
        loader.load_state_dict(places[0])
        seen += [i for batch in loader for i in _ids(batch)]
        for i in loader.stats()["padded"]:
            seen.remove(i)
    assert sorted(seen) == list(range(_SIZE))


def test_a_dataset_with_a_state_of_its_own_keeps_it(shards: Path) -> None:
    running = DataLoader(_Counting(shards), 4, shuffle=True)
    iterator = iter(running)
    for _ in range(3):
        next(iterator)
    resumed = DataLoader(_Counting(shards), 4, shuffle=True)
    resumed.load_state_dict(running.state_dict())
    assert _all_same([*resumed], [*iterator])


@pytest.mark.parametrize("every", [1, 2])
def test_a_state_between_two_snapshots_of_the_dataset_needs_the_same_global_batch(shards: Path, every: int) -> None:
    options: dict[str, Any] = {"shuffle": True, "num_workers": 1, "snapshot_every_n_steps": every}
    running = DataLoader(_Counting(shards), 4, **options)
    iterator = iter(running)
    for _ in range(3):
        next(iterator)
    state, rest = running.state_dict(), [*iterator]
    resumed = DataLoader(_Counting(shards), 4, **options)
    resumed.load_state_dict(state)
    assert _all_same([*resumed], rest)
    smaller = DataLoader(_Counting(shards), 2, **options)
    smaller.load_state_dict(state)
    if every == 1:
        assert [i for _, ids in smaller for i in ids] == [i for _, ids in rest for i in ids]
    else:
        with pytest.raises(ArgumentError, match="the same world size and batch size, or save with snapshot_every_n_st"):
            next(iter(smaller))


class _Broken(ShardDataset):
    def __getitem__(self, i: Any) -> Any:
        if i == 9:
            raise ValueError("sample 9")
        return i


@pytest.mark.parametrize("workers", [0, 1])
def test_a_batch_that_fails_counts_as_a_step(shards: Path, workers: int) -> None:
    loader = DataLoader(_Broken(shards), 4, num_workers=workers, rank=2, world_size=3, seed=0)
    iterator = iter(loader)
    with pytest.raises(ValueError, match="sample 9"):
        next(iterator)
    assert [batch.tolist() for batch in iterator] == [[k, k + 1, k + 2, k + 3] for k in (20, 32, 44)] + [[0]]
    assert loader.stats()["padded"] == [0]


def test_states_that_do_not_fit_are_refused_by_name(shards: Path) -> None:
    loader = _loader("own samples", shards)
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    for options, name in (({"seed": 1}, "seed"), ({"shuffle": False}, "shuffle")):
        with pytest.raises(ArgumentError, match=f"this state does not fit: its {name} is"):
            _loader("own samples", shards, **options).load_state_dict(state)
    with pytest.raises(ArgumentError, match="its fingerprint is"):
        _loader("subset of own samples", shards).load_state_dict(state)
    sampler = torch.utils.data.SequentialSampler(range(_SIZE))
    other = _loader("own samples", shards, shuffle=None, sampler=sampler)
    other.load_state_dict(state)
    with pytest.raises(ArgumentError, match="saved with another sampler"):
        next(iter(other))
    assert _ids(next(iter(other))) == [0, 1, 2, 3]
    with pytest.raises(ArgumentError, match="does not fit"):
        loader.load_state_dict(other.state_dict())


@pytest.mark.parametrize("workers", [0, 1])
def test_set_epoch_fixes_the_next_epoch_and_keeps_a_loaded_place_in_it(shards: Path, workers: int) -> None:
    whole = _loader("own samples", shards)
    epochs = [[_ids(batch) for batch in whole] for _ in range(4)]

    def epoch(loader: DataLoader[Any]) -> list[list[int]]:
        return [_ids(batch) for batch in loader]

    loader = _loader("own samples", shards, num_workers=workers)
    loader.state_dict()  # makes an iterator ahead
    loader.set_epoch(2)
    assert [epoch(loader), epoch(loader)] == epochs[2:]
    loader.set_epoch(1)
    state = loader.state_dict()
    assert epoch(loader) == epochs[1]
    iterator = iter(loader)
    next(iterator)
    midway = loader.state_dict()
    for told, expected in ((None, epochs[2][1:]), (2, epochs[2][1:]), (3, epochs[3])):
        resumed = _loader("own samples", shards, num_workers=workers)
        resumed.load_state_dict(midway)
        if told is not None:
            resumed.set_epoch(told)
        assert epoch(resumed) == expected
    resumed.load_state_dict(state)
    assert [epoch(resumed), epoch(resumed)] == epochs[1:3]
    with pytest.raises(ArgumentError, match="epoch must be 0"):
        resumed.set_epoch(-1)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("device", [None, "cpu"])
def test_a_framework_may_tell_the_sampler_the_epoch_after_the_iterator_was_made(
    shards: Path, workers: int, device: str | None
) -> None:
    whole = _loader("own samples", shards)
    epochs = [[_ids(batch) for batch in whole] for _ in range(4)]
    loader: Any = _loader("own samples", shards, num_workers=workers, device=device)
    for told in (0, 2, 3):
        iterator = iter(loader)
        loader.sampler.set_epoch(told)
        assert [_ids(batch) for batch in iterator] == epochs[told]
    loader.sampler.set_epoch(1)
    assert [_ids(batch) for batch in loader] == epochs[1]
    assert [*loader.sampler] == [i for batch in epochs[1] for i in batch]


def test_copies_and_pickles_have_the_same_order(shards: Path) -> None:
    loader: Any = _loader("own samples", shards, seed=3, rank=1, world_size=2)
    expected = [_ids(batch) for batch in loader]
    for other in (copy.deepcopy(loader), pickle.loads(pickle.dumps(loader)), copy.copy(loader)):
        assert [_ids(batch) for batch in other] == expected
    with pytest.raises(ArgumentError, match="seed can't be changed"):
        loader.seed = 4


@pytest.mark.parametrize("kind", ["single samples", "own samples"])  # the fast path, and torch's
@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_copies_take_the_epoch_that_their_sampler_is_told(shards: Path, kind: str, duplicate: Any) -> None:
    made = _dataset(kind, shards)
    loader: Any = DataLoader(made, 30, shuffle=True, seed=3)
    epochs = [[_ids(batch) for batch in loader] for _ in range(6)]
    loader = DataLoader(made, 30, shuffle=True, seed=3)
    other = duplicate(loader)
    other.sampler.set_epoch(5)
    assert [_ids(batch) for batch in other] == epochs[5]
    loader.sampler.set_epoch(3)
    assert [_ids(batch) for batch in loader] == epochs[3]


class _Pairs(Subset[Any]):
    """Its indices are not numbers."""

    def __getitem__(self, i: Any) -> Any:
        return self.indices[i]

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[i] for i in indices]


def test_a_subset_of_the_users_own_may_have_any_indices(shards: Path) -> None:
    names: Any = [("a", 1), ("b",), ("c", 3, 4)]
    loader = DataLoader(_Pairs(_dataset("single samples", shards), names), None, shuffle=True)
    assert sorted(map(tuple, loader)) == names
    state = loader.state_dict()
    with pytest.raises(ArgumentError, match="fingerprint"):
        DataLoader(_Pairs(_dataset("single samples", shards), names[::-1]), None, shuffle=True).load_state_dict(state)


def test_a_loader_may_be_dropped_while_its_iterator_is_used(shards: Path) -> None:
    iterator: Any = iter(_loader("own samples", shards, num_workers=1))
    assert len(iterator) == 13
    assert sorted(i for batch in iterator for i in _ids(batch)) == list(range(_SIZE))


def test_what_torchs_path_lacks_is_refused_and_the_rest_taken(shards: Path) -> None:
    for options in (
        {"backend": "cpu"},
        {"fidelity": "exact"},
        {"on_error": "skip"},
        {"memory_format": torch.channels_last},
    ):
        with pytest.raises(ArgumentError, match="a _Named, whose samples or length are not a feeder dataset's"):
            _loader("own samples", shards, **options)
    for kind in ("own samples", "single samples"):
        ids = [i for batch in _loader(kind, shards, shuffle=Window(8)) for i in _ids(batch)]
        assert sorted(ids) == list(range(_SIZE))
        assert ids != sorted(ids)
    for kind in ("subset of own samples", "recipes that differ"):
        with pytest.raises(ArgumentError, match=r"shuffle=Window\(...\) needs to know the samples of each shard"):
            _loader(kind, shards, shuffle=Window(8))
    dropping = _loader("own samples", shards, drop_last=True, rank=1, world_size=2, seed=0)
    assert [len(_ids(batch)) for batch in dropping] == [4] * 6
    drawn = _loader("own samples", shards, generator=torch.Generator().manual_seed(1))
    assert drawn.seed not in (None, 0)


def test_the_warning_says_what_is_missing(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.warns(
        UserWarning, match="runs torch's path, without feeder's speed: .* change what comes out"
    ) as caught:
        loader = _loader("own samples", shards, shuffle=False, seed=0)
    assert len(caught) == 1
    with pytest.warns(UserWarning, match="rank 1 of 2 gets its part of the epoch, 25 of 50 samples") as caught:
        epochs = [[*loader], [*loader]]
    assert len(caught) == 1
    assert [len(batches) for batches in epochs] == [7, 7]
    sampler: Any = DistributedSampler(_dataset("own samples", shards), 2, 1)
    with pytest.warns(UserWarning, match="without feeder's order, .* seed= has no effect here beside a sampler"):
        _loader("own samples", shards, shuffle=None, sampler=sampler, seed=3)


_RANK = """
import json, sys, warnings
from pathlib import Path
from torch import distributed
from feeder.errors import ArgumentError
from tests.loader.generic.test_split_order import _ids, _loader

warnings.simplefilter("ignore")
rank, store, shards = json.loads(sys.argv[1])
distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
seen = {}
for kind in ("own samples", "single samples"):
    loader = _loader(kind, Path(shards), num_workers=rank)
    seen[kind] = [[_ids(batch) for batch in loader] for _ in range(2)]
    loader.close()
loader = _loader("own samples", Path(shards), seed=rank)
raised = []
for step in (lambda: list(loader), distributed.barrier, loader.close):
    try:
        step()
    except ArgumentError as error:
        raised.append(str(error))
distributed.barrier()
print(json.dumps([seen, raised]))
distributed.destroy_process_group()
"""


@pytest.mark.slow
def test_two_processes_split_the_epochs_and_agree(shards: Path, tmp_path: Path) -> None:
    results = run_two_ranks(_RANK, tmp_path / "store", shards)
    for kind in ("own samples", "single samples"):
        epochs = [[results[rank][0][kind][epoch] for rank in range(2)] for epoch in range(2)]
        assert epochs[0] != epochs[1]
        for parts in epochs:
            assert sorted(i for part in parts for batch in part for i in batch) == list(range(_SIZE))
    for _, (raised,) in results:
        assert "seed is 0 there and 1 here" in raised or "seed is 1 there and 0 here" in raised

"""States of loaders on torch's path: resumed epochs go on where they were left."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, RandomSampler, SubsetRandomSampler, WeightedRandomSampler

from feeder.errors import ArgumentError
from feeder.loader.dataloader import DataLoader
from tests.support.torch_datasets import Counting, Stream, as_lists


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("interval", [1, 3])
def test_resume_after_every_step(workers: int, interval: int) -> None:
    options: dict[str, Any] = {"batch_size": 4, "shuffle": True, "num_workers": workers}
    loader = DataLoader(range(30), snapshot_every_n_steps=interval, **options)
    seen: list[list[int]] = []
    states = []
    for batch in loader:
        seen.append(batch.tolist())
        states.append(loader.state_dict())
    assert sorted(i for batch in seen for i in batch) == list(range(30))
    for step, state in enumerate(states, 1):
        resumed = DataLoader(range(30), snapshot_every_n_steps=interval, **options)
        resumed.load_state_dict(state)
        assert [batch.tolist() for batch in resumed] == seen[step:]


@pytest.mark.parametrize(("before", "after"), [(0, 2), (2, 0), (2, 3), (3, 1)])
def test_map_style_dataset_without_state_resumes_with_another_number_of_workers(before: int, after: int) -> None:
    loader = DataLoader(range(30), batch_size=4, shuffle=True, num_workers=before)
    iterator = iter(loader)
    for _ in range(3):
        next(iterator)
    state = loader.state_dict()
    rest = [batch.tolist() for batch in iterator]
    resumed = DataLoader(range(30), batch_size=4, shuffle=True, num_workers=after)
    resumed.load_state_dict(state)
    assert [batch.tolist() for batch in resumed] == rest


def test_states_of_workers_do_not_fit_another_number_of_them() -> None:
    loader = DataLoader(Counting(), batch_size=4, num_workers=2)
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    rest = [batch.tolist() for batch in iterator]
    resumed = DataLoader(Counting(), batch_size=4, num_workers=2)
    resumed.load_state_dict(state)
    assert [batch.tolist() for batch in resumed] == rest
    for workers in (0, 3):
        other = DataLoader(Counting(), batch_size=4, num_workers=workers)
        other.load_state_dict(state)
        with pytest.raises(ArgumentError, match="num_workers=2"):
            iter(other)


def test_iterable_dataset_without_state_is_counted_off() -> None:
    for workers in (0, 2):
        loader = DataLoader(Stream(), batch_size=3, num_workers=workers)
        iterator = iter(loader)
        for _ in range(2):
            next(iterator)
        state = loader.state_dict()
        rest = [batch.tolist() for batch in iterator]
        resumed = DataLoader(Stream(), batch_size=3, num_workers=workers)
        resumed.load_state_dict(state)
        assert [batch.tolist() for batch in resumed] == rest


class _Foreign:
    """Methods of the protocols' names that are another's, as litdata's and MosaicML's, or None."""

    def state_dict(self, num_samples_yielded: int, num_workers: int, batch_size: int) -> dict[str, Any]:
        raise AssertionError

    load_state_dict = None

    def set_epoch(self, epoch: int, shuffle: bool) -> None:
        raise AssertionError


class _ForeignStream(_Foreign, torch.utils.data.IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return _ForeignIterator(24)


class _ForeignIterator(_Foreign):
    load_state_dict: Any = _Foreign.state_dict

    def __init__(self, size: int) -> None:
        self._numbers = iter(range(size))

    def __iter__(self) -> _ForeignIterator:
        return self

    def __next__(self) -> int:
        return next(self._numbers)


class _ForeignSampler(_Foreign, torch.utils.data.Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        return _ForeignIterator(24)

    def __len__(self) -> int:
        return 24


class _ForeignDataset(_Foreign, torch.utils.data.Dataset[int]):
    state_dict: Any = None
    __getitems__ = None

    def __getitem__(self, index: int) -> int:
        return index

    def __len__(self) -> int:
        return 24


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    "given",
    [
        (_ForeignStream(), {}),
        (_ForeignDataset(), {}),
        (_ForeignDataset(), {"sampler": _ForeignSampler()}),
        (_ForeignDataset(), {"batch_sampler": torch.utils.data.BatchSampler(_ForeignSampler(), 3, False)}),
    ],
    ids=["iterable", "dataset", "sampler", "batch sampler"],
)
def test_methods_of_other_protocols_are_left_alone(given: tuple[Any, dict[str, Any]], workers: int) -> None:
    dataset, options = given
    options = {"num_workers": workers} | ({} if "batch_sampler" in options else {"batch_size": 3}) | options
    loader = DataLoader(dataset, **options)
    loader.set_epoch(1)
    iterator = iter(loader)
    for _ in range(3):
        next(iterator)
    state = loader.state_dict()
    rest = [batch.tolist() for batch in iterator]
    assert rest
    resumed = DataLoader(dataset, **options)
    resumed.load_state_dict(state)
    assert [batch.tolist() for batch in resumed] == rest


def test_state_after_an_epoch_fixes_the_next_ones_order() -> None:
    loader = DataLoader(range(30), batch_size=4, shuffle=True)
    list(loader)
    state = loader.state_dict()
    expected = [batch.tolist() for batch in loader]
    torch.manual_seed(12345)
    resumed = DataLoader(range(30), batch_size=4, shuffle=True, num_workers=1)
    resumed.load_state_dict(state)
    assert [batch.tolist() for batch in resumed] == expected


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"batch_size": None},
        {"generator": lambda: torch.Generator().manual_seed(6)},
        {"device": "cpu"},
        {"batch_sampler": lambda: BatchSampler(RandomSampler(range(9)), 2, False)},
        {"sampler": lambda: SubsetRandomSampler(range(9))},
        {"sampler": lambda: WeightedRandomSampler([1] * 9, 9)},
    ],
)
def test_a_state_fixes_the_order_of_all_later_epochs(workers: int, persistent: bool, options: dict[str, Any]) -> None:
    def loader() -> DataLoader[Any]:
        given = {name: value() if callable(value) else value for name, value in options.items()}
        order = {} if {*given} & {"sampler", "batch_sampler"} else {"shuffle": True}
        size = {} if "batch_sampler" in given else {"batch_size": 2}
        return DataLoader(
            range(9), num_workers=workers, persistent_workers=persistent and workers > 0, **(size | order | given)
        )

    def epoch(batches: Any) -> list[Any]:
        return [batch if isinstance(batch, int) else batch.tolist() for batch in batches]

    run = loader()
    epoch(run)
    iterator = iter(run)
    next(iterator)
    states = [run.state_dict()]
    expected = [epoch(iterator)]
    states.append(run.state_dict())
    for _ in range(3):
        expected.append(epoch(run))
        run.state_dict()
    states.append(run.state_dict())
    assert len({str(found) for found in expected}) == 4
    expected.append(epoch(run))
    for state, first in zip(states, (0, 1, 4), strict=True):
        torch.manual_seed(12345)
        resumed = loader()
        resumed.load_state_dict(state)
        assert [epoch(resumed) for _ in expected[first:]] == expected[first:]


@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (1, False), (1, True)])
def test_orders_are_the_same_if_states_are_taken_or_loaded_or_not(workers: int, persistent: bool) -> None:
    def loader() -> DataLoader[Any]:
        torch.manual_seed(3)
        return DataLoader(range(9), 2, shuffle=True, num_workers=workers, persistent_workers=persistent)

    plain = loader()
    expected = [as_lists([[*plain]]) for _ in range(5)]
    saving = loader()
    found = [as_lists([[*saving]])]
    for _ in range(2):
        saving.state_dict()
        found.append(as_lists([[*saving]]))
    resumed = loader()
    resumed.load_state_dict(saving.state_dict())
    assert found + [as_lists([[*resumed]]) for _ in range(2)] == expected


@pytest.mark.parametrize("midway", [True, False])
@pytest.mark.parametrize("saved", [(0, False), (1, True)], ids=str)
def test_later_epochs_are_the_same_with_workers_that_stay_or_not(saved: tuple[int, bool], midway: bool) -> None:
    def loader(workers: int, persistent: bool) -> DataLoader[Any]:
        return DataLoader(range(9), 2, shuffle=True, num_workers=workers, persistent_workers=persistent)

    run = loader(*saved)
    iterator = iter(run)
    begun = [next(iterator).tolist() for _ in range(2 if midway else 5)]
    if not midway:
        assert next(iterator, None) is None
    state = run.state_dict()
    rest = [batch.tolist() for batch in iterator] if midway else []
    expected = [rest] * midway + [as_lists([[*run]]) for _ in range(3)]
    assert begun != expected[-1]

    for how in ((0, False), (1, False), (1, True)):
        resumed = loader(*how)
        resumed.load_state_dict(state)
        found = [[batch.tolist() for batch in resumed]] * midway if midway else []
        assert found + [as_lists([[*resumed]]) for _ in range(3)] == expected, how


@pytest.mark.parametrize("wrong", [{"_num_yielded": 1}, {"_snapshot": {}}, {"epoch": 0}])
def test_a_damaged_state_is_refused_with_what_it_has(wrong: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match=f"got one with {next(iter(wrong))}"):
        DataLoader(range(9)).load_state_dict(wrong)


class _Drawn(torch.utils.data.Dataset[int]):
    """Draws its samples in the worker."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> int:
        return int(torch.randint(1 << 40, ()))


class _DrawnWithState(_Drawn):
    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


@pytest.mark.parametrize("dataset", [_Drawn(), _DrawnWithState()], ids=["no state", "state"])
@pytest.mark.parametrize("shuffle", [False, True])
def test_an_epoch_after_a_loaded_one_has_seeds_of_its_own(dataset: Any, shuffle: bool) -> None:
    def loader() -> DataLoader[Any]:
        return DataLoader(dataset, 2, shuffle=shuffle, num_workers=1, generator=torch.Generator().manual_seed(4))

    run = loader()
    first = as_lists([[*run]])
    state = run.state_dict()
    second = as_lists([[*run]])
    resumed = loader()
    resumed.load_state_dict(state)
    assert as_lists([[*resumed]]) == second != first


@pytest.mark.filterwarnings("ignore:'set_vital'")  # torchdata's
@pytest.mark.parametrize("dataset", [range(9), Stream, Counting], ids=["map", "iterable", "state"])
@pytest.mark.parametrize("steps", [0, 2, 3])
def test_states_without_workers_pass_to_torchdatas_loader_and_back(dataset: Any, steps: int) -> None:
    theirs = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader

    def loader(kind: Any, **options: Any) -> Any:
        return kind(dataset() if callable(dataset) else dataset, 4, shuffle=isinstance(dataset, range), **options)

    for before, after in ((theirs, DataLoader), (DataLoader, theirs)):
        run = loader(before)
        iterator = iter(run)
        for _ in zip(range(steps), iterator, strict=False):
            pass
        state = run.state_dict()
        rest = as_lists([[*iterator]])
        resumed = loader(after)
        resumed.load_state_dict(state)
        assert as_lists([[*resumed]]) == rest


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("options", [{}, {"shuffle": True}, {"batch_size": None}, {"batch_sampler": [[0], [1]]}])
def test_a_place_beyond_the_end_of_the_epoch_is_refused(options: dict[str, Any], workers: int) -> None:
    """An epoch without any batch would be the alternative."""
    longer = options | {"batch_sampler": [[0]] * 9} if "batch_sampler" in options else options
    loader = DataLoader(range(9), num_workers=workers, **longer)
    iterator = iter(loader)
    for _ in range(7):
        next(iterator)
    other = DataLoader(range(5), num_workers=workers, **options)
    other.load_state_dict(loader.state_dict())
    with pytest.raises(ArgumentError, match=r"7 of its sampler's numbers were handed out, and this sampler gives [25]"):
        next(iter(other))


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("batches", [1, 3])
def test_a_state_of_a_shuffled_epoch_is_refused_in_stored_order_and_the_other_way_around(
    batches: int, workers: int
) -> None:
    for shuffled in (True, False):
        run = DataLoader(range(9), 3, shuffle=shuffled, num_workers=workers)
        iterator = iter(run)
        for _ in range(batches):
            next(iterator)
        other = DataLoader(range(9), 3, shuffle=not shuffled)
        with pytest.raises(ArgumentError, match=f"it is {'' if shuffled else 'not '}of a shuffled epoch"):
            other.load_state_dict(run.state_dict())
    for snapshot in (None, {}, {"_main_snapshot": [1]}):
        with pytest.raises(ArgumentError, match="this state is damaged"):
            run.load_state_dict({"_iterator_finished": False, "_snapshot": snapshot})

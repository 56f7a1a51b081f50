"""Explicit samplers on the fast path: an epoch that is resumed has the samples that it would have had, or an error."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler, SubsetRandomSampler, WeightedRandomSampler

from feeder.dataset.shards import ShardDataset
from feeder.errors import ArgumentError
from feeder.loader.dataloader import DataLoader
from feeder.transforms import RandomResizedCrop
from tests.support.generators import generator_states
from tests.support.loader_data import write_shards

_SAMPLES = 20


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> ShardDataset:
    folder = write_shards(tmp_path_factory.mktemp("replay") / "shards", _SAMPLES)
    return ShardDataset(folder, RandomResizedCrop(8), fields=("index",))


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(3)


class _Numpys:
    def __init__(self, bits: Any) -> None:
        self.rng = bits

    def __iter__(self) -> Iterator[int]:
        yield from (self.rng.integers if hasattr(self.rng, "integers") else self.rng.randint)(0, _SAMPLES, 30).tolist()


class _Pythons:
    def __init__(self, rng: Any = random) -> None:
        self.rng = rng

    def __iter__(self) -> Iterator[int]:
        return iter(self.rng.sample(range(_SAMPLES), _SAMPLES))


class _Lazy:
    """Draws from torch's global state again with each sample."""

    def __iter__(self) -> Iterator[int]:
        for _ in range(_SAMPLES):
            yield int(torch.randint(_SAMPLES, ()))


class _KeepsPlace:
    """A sampler with a state as torchdata's StatefulDistributedSampler has it."""

    def __init__(self) -> None:
        self.yielded = 0
        self.next_yielded: int | None = None
        self.epoch = 0

    def __iter__(self) -> Iterator[int]:
        self.yielded, self.next_yielded = self.next_yielded or 0, None
        order = random.Random(self.epoch).sample(range(_SAMPLES), _SAMPLES)
        for i in order[self.yielded :]:
            self.yielded += 1
            yield i

    def state_dict(self) -> dict[str, Any]:
        return {"yielded": self.yielded}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.next_yielded = state["yielded"]


def _replacing(generator: torch.Generator | None = None) -> Any:
    return RandomSampler(range(_SAMPLES), replacement=True, num_samples=70, generator=generator)


_KEPT: dict[str, Callable[[], Any]] = {
    "random": lambda: RandomSampler(range(_SAMPLES), generator=_generator()),
    "replacing": lambda: _replacing(_generator()),
    "subset": lambda: SubsetRandomSampler(range(2, _SAMPLES), generator=_generator()),
    "weighted": lambda: WeightedRandomSampler([1.0, 9.0] * 10, 30, generator=_generator()),
    "numpy": lambda: _Numpys(np.random.default_rng(3)),
    "numpy twister": lambda: _Numpys(np.random.RandomState(3)),
    "python": lambda: _Pythons(random.Random(3)),
}
_GLOBAL: dict[str, Callable[[], Any]] = {
    "random": lambda: RandomSampler(range(_SAMPLES)),
    "replacing": _replacing,
    "subset": lambda: SubsetRandomSampler(range(2, _SAMPLES)),
    "weighted": lambda: WeightedRandomSampler([1.0, 9.0] * 10, 30),
    "numpy": lambda: _Numpys(np.random),
    "python": _Pythons,
}


def _rest(batches: Any) -> list[tuple[list[int], int]]:
    """Sample ids of batches, and a figure of their pixels."""
    return [(index.tolist(), int(images.to(torch.int64).sum())) for images, _, index in batches]


def _seed_all(seed: int) -> None:
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)


def _saved(loader: DataLoader[Any]) -> Any:
    return json.loads(json.dumps(loader.state_dict()))


@pytest.mark.parametrize(
    ("kind", "workers", "batched"), [*((k, 0, k == "random") for k in _KEPT), ("random", 2, False)]
)
def test_a_samplers_generator_is_saved_with_it(dataset: ShardDataset, kind: str, workers: int, batched: bool) -> None:
    def loader() -> DataLoader[Any]:
        sampler = _KEPT[kind]()
        options: Any = {"batch_sampler": BatchSampler(sampler, 4, False)} if batched else {"batch_size": 4}
        return DataLoader(dataset, **options, **({} if batched else {"sampler": sampler}), num_workers=workers)

    unbroken = loader()
    for steps in (0, 3):  # in the second epoch, and between it and the third
        _rest(unbroken)
        iterator = iter(unbroken)
        for _ in range(steps):
            next(iterator)
        state = _saved(unbroken)
        rest = _rest(iterator), _rest(unbroken)
        resumed = loader()
        resumed.load_state_dict(state)
        assert _saved(resumed) == state
        assert (_rest(resumed), _rest(resumed)) == rest


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", _GLOBAL)
def test_an_epoch_drawn_from_the_global_random_state_is_finished_as_it_was(
    dataset: ShardDataset, kind: str, workers: int
) -> None:
    _seed_all(1)
    loader = DataLoader(dataset, batch_size=4, sampler=_GLOBAL[kind](), num_workers=workers)
    iterator: Iterator[Any] = iter(loader)
    seen = _rest([next(iterator), next(iterator)])
    with pytest.warns(UserWarning, match="generator=torch.Generator"):
        state = _saved(loader)
    assert loader.state_dict()  # one warning is enough
    rest = _rest(iterator)
    _seed_all(2)
    before = generator_states()
    resumed = DataLoader(dataset, batch_size=4, sampler=_GLOBAL[kind](), num_workers=workers)
    resumed.load_state_dict(state)
    assert _rest(resumed) == rest
    assert generator_states() == before
    assert seen[0] != rest[0]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_replay_with_other_samples_ends_with_the_first_batch(dataset: ShardDataset, workers: int) -> None:
    def loader(**options: Any) -> DataLoader[Any]:
        sampler: Any = DistributedSampler(dataset, 1, 0, seed=options.pop("seed", 0))
        return DataLoader(dataset, sampler=sampler, num_workers=workers, **{"batch_size": 4} | options)

    saved = loader()
    iterator = iter(saved)
    next(iterator)
    state = _saved(saved)
    rest = _rest(iterator)
    fitting = loader()
    fitting.load_state_dict(state)
    assert _rest(fitting) == rest
    for bad, change, reason in [
        (loader(seed=1), {}, "DistributedSampler: of the 1 batch handed out.*set_epoch"),
        (loader(batch_size=5), {}, "more than the 4 samples"),
        (loader(batch_size=2), {}, "other samples"),
        (loader(), {"batches": 10**9}, "more than the 4 samples"),
        (loader(), {"sampler": state["sampler"] | {"generators": {"sampler.generator": "AA=="}}}, "has none"),
    ]:
        bad.load_state_dict(state | change)
        with pytest.raises(ArgumentError, match=reason):
            next(iter(bad))  # with workers, of which the first are asked at once, by iter()
        assert bad.state_dict()["batches"] == (state | change)["batches"]
        assert bad.state_dict() == state | change  # not what another sampler's batches came to
        bad.set_epoch(state["epoch"])
        assert len(_rest(iter(bad))) == len(bad)  # the way out that the error names


def test_a_place_beyond_the_end_of_a_sampler_without_a_length_is_refused(dataset: ShardDataset) -> None:
    loader = DataLoader(dataset, batch_size=4, sampler=_Pythons(random.Random(3)))
    state = loader.state_dict()
    loader.load_state_dict(state | {"batches": 10**9})
    with pytest.raises(ArgumentError, match="samples"):
        next(iter(loader))


def test_a_sampler_that_draws_as_it_goes_is_refused_where_the_state_of_then_is_not_known(dataset: ShardDataset) -> None:
    loader = DataLoader(dataset, batch_size=4, sampler=_Lazy())
    iterator = iter(loader)
    next(iterator)
    torch.rand(1)  # as a training step does
    next(iterator)
    with pytest.warns(UserWarning, match="_Lazy"):
        state = loader.state_dict()
    loader.load_state_dict(state)
    with pytest.raises(ArgumentError, match="_Lazy"):
        next(iter(loader))


def test_a_state_of_another_rank_serves_where_nothing_random_is_in_it(dataset: ShardDataset) -> None:
    def loader(rank: int, **options: Any) -> DataLoader[Any]:
        sampler = options.get("sampler", DistributedSampler(dataset, 2, rank))
        return DataLoader(dataset, batch_size=2, sampler=sampler, rank=rank, world_size=2, seed=0)

    both = [loader(0), loader(1)]
    iterators: list[Iterator[Any]] = [iter(each) for each in both]
    for iterator in iterators:
        next(iterator)
    state = _saved(both[0])
    resumed = loader(1)
    resumed.load_state_dict(state)
    assert _rest(resumed) == _rest(iterators[1])
    random_one = loader(0, sampler=_KEPT["random"]())
    other = loader(1, sampler=_KEPT["random"]())
    other.load_state_dict(random_one.state_dict())
    with pytest.raises(ArgumentError, match=r"rank 0, and this is rank 1.*each rank"):
        next(iter(other))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_sampler_with_a_state_keeps_its_place(dataset: ShardDataset, workers: int) -> None:
    loader = DataLoader(dataset, batch_size=4, sampler=_KeepsPlace(), num_workers=workers)
    for steps in (0, 3):
        iterator = iter(loader)
        for _ in range(steps):
            next(iterator)
        state = _saved(loader)
        rest = _rest(iterator)
        resumed = DataLoader(dataset, batch_size=4, sampler=_KeepsPlace())
        resumed.load_state_dict(state)
        assert _rest(resumed) == rest
        assert len(_rest(resumed)) == 5


def test_a_sampler_whose_state_fails_does_not_fail_the_loaders(dataset: ShardDataset) -> None:
    class Failing(_KeepsPlace):
        def state_dict(self) -> dict[str, Any]:
            raise RuntimeError("no state now")

    loader = DataLoader(dataset, batch_size=4, sampler=Failing())
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    rest = _rest(iterator)
    resumed = DataLoader(dataset, batch_size=4, sampler=Failing())
    resumed.load_state_dict(state)
    assert _rest(resumed) == rest


def test_a_damaged_state_of_a_sampler_is_refused(dataset: ShardDataset) -> None:
    loader = DataLoader(dataset, batch_size=4, sampler=range(_SAMPLES))
    state = loader.state_dict() | {"batches": 2}
    for damaged in (None, {}, 1, {"rank": 0, "digest": 1}):
        with pytest.raises(ArgumentError, match="damaged"):
            loader.load_state_dict(state | {"sampler": damaged})


_TORCHS: dict[str, Callable[[torch.Generator | None], dict[str, Any]]] = {
    "subset": lambda g: {"sampler": SubsetRandomSampler(range(40), generator=g), "batch_size": 4},
    "weighted": lambda g: {"sampler": WeightedRandomSampler([1.0, 3.0] * 20, 40, generator=g), "batch_size": 4},
    "batched random": lambda g: {"batch_sampler": BatchSampler(RandomSampler(range(40), generator=g), 4, False)},
    "batched subset": lambda g: {"batch_sampler": BatchSampler(SubsetRandomSampler(range(40), generator=g), 4, False)},
}


@pytest.mark.pairwise
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("seeded", [False, True])
@pytest.mark.parametrize("kind", _TORCHS)
def test_torchs_random_samplers_resume_with_any_dataset_too(kind: str, seeded: bool, workers: int) -> None:
    def loader(cls: Any = DataLoader) -> Any:
        return cls(torch.arange(40), num_workers=workers, **_TORCHS[kind](_generator() if seeded else None))

    torch.manual_seed(1)
    plain = loader(torch.utils.data.DataLoader)
    expected = [batch.tolist() for _ in range(2) for batch in plain]
    torch.manual_seed(1)
    unbroken = loader()
    first = [batch.tolist() for batch in unbroken]
    iterator = iter(unbroken)
    second = [next(iterator).tolist() for _ in range(3)]
    state = unbroken.state_dict()
    rest = [batch.tolist() for batch in iterator]
    assert first + second + rest == expected  # torch's numbers
    torch.manual_seed(2)
    resumed = loader()
    resumed.load_state_dict(state)
    assert [batch.tolist() for batch in resumed] == rest
    if seeded:
        assert [b.tolist() for b in resumed] == [b.tolist() for b in unbroken]


def test_a_state_without_a_samplers_own_is_counted_off() -> None:
    loader = DataLoader(torch.arange(40), sampler=SubsetRandomSampler(range(40), generator=_generator()), batch_size=4)
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    place = state["_snapshot"]["_main_snapshot"]["_sampler_iter_state"]
    del place["sampler_iter_state"]  # as torchdata's loader saves it
    rest = [batch.tolist() for batch in iterator]
    other = DataLoader(torch.arange(40), sampler=SubsetRandomSampler(range(40), generator=_generator()), batch_size=4)
    other.load_state_dict(state)
    assert [batch.tolist() for batch in other] == rest

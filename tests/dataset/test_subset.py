"""Parts of feeder's datasets, as torch's Subset and random_split make them, and datasets of the user's own."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Subset, get_worker_info, random_split

from feeder.dataset.folders import FolderDataset
from feeder.dataset.shards import ShardDataset
from feeder.errors import ArgumentError
from feeder.loader.dataloader import DataLoader
from feeder.order.sample_order import Window
from feeder.tools.tune.tuner import tune
from feeder.transforms import Compose, MixUp, RandomHorizontalFlip, RandomResizedCrop, Resize
from tests.support.batches import copied_epoch, same_batches, sample_ids
from tests.support.loader_data import encode, write_shards, write_tree

RANDOM = Compose([RandomResizedCrop(16), RandomHorizontalFlip()])


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_shards(tmp_path_factory.mktemp("shards"), 50)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["shards", "folder"])
def test_a_subset_gives_its_samples_in_its_order_on_the_fast_path(
    shards: Path, tmp_path: Path, kind: str, workers: int
) -> None:
    chosen = [7, 3, 3, 31, -1, 20]
    dataset: Any
    if kind == "shards":
        dataset = ShardDataset(shards, Resize((8, 8)), fields=("index",))
    else:
        (tmp_path / "a").mkdir()
        for i in range(50):
            (tmp_path / f"a/{i:02}.png").write_bytes(encode(i))
        dataset = FolderDataset(tmp_path, Resize((8, 8)), fields=("index",))
    subset = Subset(dataset, chosen)
    loader = DataLoader(subset, batch_size=4, num_workers=workers, backend="cpu")
    assert len(loader) == 2
    assert loader.dataset is subset
    batches = copied_epoch(loader)
    assert loader.stats()["backend"] == "cpu"
    assert sample_ids(batches) == [7, 3, 3, 31, 49, 20]
    for batch, first in zip(batches, (0, 4), strict=True):
        for row, i in enumerate(chosen[first : first + 4]):
            image, label, index = dataset[i]
            assert (batch[1][row], batch[2][row]) == (label, index)
            assert torch.equal(batch[0][row], image)


@pytest.mark.parametrize("make", [list, tuple, np.array, torch.tensor, lambda ids: [torch.tensor(i) for i in ids]])
def test_indices_in_all_the_forms_that_torch_takes(shards: Path, make: Any) -> None:
    dataset = ShardDataset(shards, Resize((8, 8)), fields=("index",))
    assert sample_ids(copied_epoch(DataLoader(Subset(dataset, make([4, 2, 9])), batch_size=2))) == [4, 2, 9]


def test_parts_of_a_split_have_every_sample_once_and_draw_for_themselves(shards: Path) -> None:
    dataset = ShardDataset(shards, RANDOM, fields=("index",))
    parts = random_split(dataset, [30, 20], torch.Generator().manual_seed(5))
    found = []
    for part in parts:
        loaders = [DataLoader(part, batch_size=8, shuffle=True, seed=1, num_workers=workers) for workers in (0, 1, 2)]
        first, second = copied_epoch(loaders[0]), copied_epoch(loaders[0])
        assert sorted(sample_ids(first)) == sorted(sample_ids(second)) == sorted(part.indices)
        assert sample_ids(first) != sample_ids(second) != list(part.indices)
        for loader in loaders[1:]:
            assert same_batches(copied_epoch(loader), first)
        found += sample_ids(first)
    assert sorted(found) == list(range(50))
    # The same sample twice, and a part of a part.
    twice = copied_epoch(DataLoader(Subset(Subset(dataset, [9, 8, 7, 6]), [1, 3, 1]), batch_size=3))
    assert sample_ids(twice) == [8, 6, 8]
    assert not torch.equal(twice[0][0][0], twice[0][0][2])


def test_ranks_share_a_subset_and_pad_it_by_its_own_samples(shards: Path) -> None:
    subset = Subset(ShardDataset(shards, RANDOM, fields=("index",)), [40, 30, 20, 10, 5])
    loaders = [DataLoader(subset, batch_size=2, rank=rank, world_size=2, seed=0) for rank in (0, 1)]
    assert [sample_ids(copied_epoch(loader)) for loader in loaders] == [[40, 30, 5], [20, 10, 40]]
    assert [loader.stats()["padded"] for loader in loaders] == [[], [40]]


def test_an_explicit_sampler_counts_in_the_subset(shards: Path) -> None:
    subset = Subset(ShardDataset(shards, RANDOM, fields=("index",)), range(20, 30))
    assert sample_ids(copied_epoch(DataLoader(subset, batch_size=2, sampler=[0, 9, 4]))) == [20, 29, 24]
    with pytest.raises(IndexError, match="the dataset has 10"):
        next(iter(DataLoader(subset, sampler=[10])))


@pytest.mark.parametrize("workers", [0, 2])
def test_substitutes_come_from_the_subset_alone(tmp_path: Path, workers: int) -> None:
    dataset = ShardDataset(write_shards(tmp_path, 40, bad=(3, 9)), RANDOM, fields=("index",))
    training = [3, 30, 31, 9, 32, 33]
    loader = DataLoader(Subset(dataset, training), 3, on_error="skip", num_workers=workers)
    for _ in range(8):
        made = sample_ids(copied_epoch(loader))
        assert set(made) <= {30, 31, 32, 33}
        ledger = loader.stats()["substitutions"][-2:]
        assert [entry["key"] for entry in ledger] == ["00000003", "00000009"]
        assert [entry["substitute"] for entry in ledger] == [made[0], made[3]]


def test_a_state_goes_on_in_the_same_subset_only(shards: Path) -> None:
    dataset = ShardDataset(shards, RANDOM, fields=("index",))
    subset = Subset(dataset, list(range(0, 50, 2)))

    def loader(part: Any, **options: Any) -> DataLoader[Any]:
        return DataLoader(part, shuffle=True, seed=2, **{"batch_size": 4, **options})

    whole = copied_epoch(loader(subset))
    first = loader(subset, num_workers=1)
    iterator = iter(first)
    for _ in range(3):
        next(iterator)
    state = first.state_dict()
    second = pickle.loads(pickle.dumps(loader(subset, num_workers=2)))
    second.load_state_dict(state)
    assert same_batches(copied_epoch(second), whole[3:])
    with pytest.raises(ArgumentError, match="fingerprint"):
        loader(Subset(dataset, list(range(1, 50, 2)))).load_state_dict(state)
    with pytest.raises(ArgumentError, match="samples"):
        loader(dataset).load_state_dict(state)


def test_a_window_keeps_to_the_stored_order(shards: Path) -> None:
    dataset = ShardDataset(shards, RANDOM, fields=("index",))
    chosen = torch.randperm(50, generator=torch.Generator().manual_seed(1))[:40].tolist()
    loader = DataLoader(Subset(dataset, chosen), batch_size=8, shuffle=Window(4), seed=3)
    first_shards = set()
    for _ in range(4):
        ids = sample_ids(copied_epoch(loader))
        assert sorted(ids) == sorted(chosen)
        assert ids != sorted(ids)
        # Shards have 16 samples. One after another, but for windows of four that reach from one into the next.
        visits = [ids[0] // 16]
        for first in range(0, 40, 4):
            visits += [i for i in dict.fromkeys(j // 16 for j in ids[first : first + 4]) if i != visits[-1]]
        assert len(visits) <= 4 + 2 * 3
        first_shards.add(visits[0])
    assert len(first_shards) > 1


def test_indices_that_are_no_samples_are_refused(shards: Path) -> None:
    dataset = ShardDataset(shards, RANDOM)
    for indices in ([3, 50], [-51]):
        with pytest.raises(IndexError, match=f"sample {indices[-1]} of a Subset is out of range: .* 50 samples"):
            DataLoader(Subset(dataset, indices))
    with pytest.raises(ArgumentError, match=r"np.flatnonzero\(mask\)"):
        DataLoader(Subset(dataset, [True] * 50))  # of which torch makes 50 times sample 1
    with pytest.raises(ArgumentError, match="integers in one row, got float64"):
        DataLoader(Subset(dataset, np.ones(3)))  # type: ignore[arg-type]


def test_the_two_sides_of_a_split_at_once_are_refused(shards: Path) -> None:
    split = np.arange(40), np.arange(40, 50)
    with pytest.raises(ArgumentError, match="integers in one row"):
        DataLoader(Subset(ShardDataset(shards, RANDOM), split))  # type: ignore[arg-type]


@pytest.mark.parametrize("shuffle", [True, Window(4)])
def test_indices_that_change_later_are_refused(shards: Path, shuffle: Any) -> None:
    chosen = [3, 1, 2]
    loader = DataLoader(Subset(ShardDataset(shards, RANDOM), chosen), shuffle=shuffle)
    assert len(list(loader)) == 3
    chosen[0] = 4
    with pytest.raises(ArgumentError, match="make another loader"):
        iter(loader)


def test_a_dataset_that_changes_later_is_refused(shards: Path) -> None:
    subset = Subset(ShardDataset(shards, RANDOM), [3, 1, 2])
    loader = DataLoader(subset)
    for made in (loader, copy.copy(loader), copy.deepcopy(loader), pickle.loads(pickle.dumps(loader))):
        assert len(list(made)) == 3
    subset.dataset = ShardDataset(shards, Resize((16, 16)))  # as where validation is to have a recipe of its own
    with pytest.raises(ArgumentError, match="the datasets of the Subset were changed"):
        iter(loader)


def test_a_subset_of_few_classes_is_mixed_for_these(shards: Path) -> None:
    dataset = ShardDataset(shards, RANDOM)
    few, others = (
        Subset(dataset, [i for i, label in enumerate(dataset.targets) if label in classes])
        for classes in ((0, 1, 2), (0, 1, 6))
    )
    loader = DataLoader(few, batch_size=len(few), mix=MixUp(num_classes=3))
    assert [tuple(shares.shape) for _, shares in loader] == [(len(few), 3)]
    with pytest.raises(ArgumentError, match="takes labels from 0 to 2, got 6"):
        DataLoader(others, mix=MixUp(num_classes=3))


def test_workers_know_the_subset_as_torchs_do(shards: Path) -> None:
    subset = Subset(ShardDataset(shards, RANDOM), [1, 2])

    def init(worker: int) -> None:
        info = get_worker_info()
        assert info is not None
        assert type(info.dataset) is Subset
        assert len(info.dataset) == 2

    assert len(list(DataLoader(subset, num_workers=1, worker_init_fn=init))) == 2


def test_settings_are_searched_for_a_subset(shards: Path) -> None:
    subset = Subset(ShardDataset(shards, RANDOM), list(range(40)))
    found = tune(subset, batch_size=4, shuffle=True, seconds=2)
    assert found.keywords is not None


class _Relabelled(ShardDataset):
    def __getitem__(self, i: Any) -> tuple[Any, ...]:
        image, label, *rest = super().__getitem__(i)
        return (image, label + 100, *rest)


class _Listed(ShardDataset):
    def __init__(self, path: Path) -> None:
        super().__init__(path, RANDOM)
        self.targets = [label + 50 for label in self.targets]

    def __getitem__(self, i: Any) -> tuple[Any, ...]:
        return super().__getitem__(i)[0], self.targets[i]


class _Shorter(ShardDataset):
    def __len__(self) -> int:
        return 5


class _Doubled(Subset[Any]):
    def __getitem__(self, i: Any) -> Any:
        return super().__getitem__(i)[1] * 2

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[i] for i in indices]


@pytest.mark.filterwarnings("ignore:this loader runs torch's path")
@pytest.mark.parametrize("loader", [DataLoader, torch.utils.data.DataLoader])
@pytest.mark.parametrize("workers", [0, 1])
def test_samples_of_a_class_of_the_users_own_are_not_passed_over(shards: Path, loader: Any, workers: int) -> None:
    options: dict[str, Any] = {"batch_size": 4, "num_workers": workers}
    dataset = _Relabelled(shards, RANDOM)
    assert next(iter(loader(dataset, **options)))[1].tolist() == [100, 101, 102, 103]
    assert next(iter(loader(Subset(dataset, [8, 5, 1]), **options)))[1].tolist() == [101, 105, 101]
    listed = pickle.loads(pickle.dumps(_Listed(shards)))  # as it comes to a worker that is not forked
    assert next(iter(loader(listed, **options)))[1].tolist() == listed.targets[:4] == [50, 51, 52, 53]
    assert len(list(loader(_Shorter(shards, RANDOM), **options))) == 2
    assert next(iter(loader(_Doubled(ShardDataset(shards, RANDOM), [1, 2]), **options))).tolist() == [2, 4]


class _Named(Subset[Any]):
    @property
    def targets(self) -> list[int]:
        return [self.dataset.targets[i] for i in self.indices]  # type: ignore[attr-defined]


def test_a_class_that_keeps_the_samples_of_a_subset_takes_the_fast_path(shards: Path) -> None:
    subset = _Named(ShardDataset(shards, RANDOM), [8, 5, 1])
    loader = DataLoader(subset, batch_size=3, seed=1)
    assert next(iter(loader))[1].tolist() == subset.targets == [1, 5, 1]


def test_what_the_fast_path_lacks_is_said_of_such_a_class(shards: Path) -> None:
    with pytest.raises(ArgumentError, match="a _Relabelled, whose samples or length are not a feeder dataset's"):
        DataLoader(_Relabelled(shards, RANDOM), rank=0, world_size=2)
    with pytest.raises(ArgumentError, match="the dataset is a Subset of a _Relabelled, whose samples or length are"):
        DataLoader(Subset(_Relabelled(shards, RANDOM), [0]), rank=0, world_size=2)
    with pytest.raises(
        ArgumentError,
        match="the dataset is a Subset of a Subset of a ConcatDataset, of which dataset 0 is a _Relabelled",
    ):
        DataLoader(Subset(Subset(ConcatDataset([_Relabelled(shards, RANDOM)]), [0]), [0]), rank=0, world_size=2)


def test_a_subclass_with_sources_of_its_own_is_no_mixture(tmp_path: Path) -> None:
    class Own(FolderDataset):
        sources = ("a camera", "a scan")

    write_tree(tmp_path / "images", 4)
    dataset = Own(str(tmp_path / "images"), RANDOM)
    loader = DataLoader(Subset(dataset, [0, 2, 3]), 3, sampler=[2, 0, 1])
    assert loader.path == "fast"
    assert len(next(iter(loader))[1]) == 3

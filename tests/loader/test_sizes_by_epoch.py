"""Sizes that change with the epoch, in the loader."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.utils.data

from feeder import transforms as T
from feeder.dataset.shards import ShardDataset
from feeder.errors import ArgumentError
from feeder.loader.dataloader import DataLoader
from feeder.loader.options import ToDevice
from feeder.order.buckets import Buckets
from tests.support.batches import copied_epoch, same_batches
from tests.support.loader_data import write_shards

SIZES = {0: 8, 2: 12, 6: (10, 20)}
BY_EPOCH = T.ByEpoch(SIZES)


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_shards(tmp_path_factory.mktemp("shards"), 20, jpegs=True)


def recipe_of(size: Any) -> T.Compose:
    return T.Compose([T.RandomResizedCrop(size), T.RandomHorizontalFlip(), T.ToDtype(torch.float32, scale=True)])


def loader_of(shards: Path, size: Any = BY_EPOCH, **options: Any) -> DataLoader:
    given: dict[str, Any] = {"batch_size": 8, "shuffle": True, "seed": 5, **options}
    return DataLoader(ShardDataset(shards, recipe_of(size), fields=("index",)), **given)


def needed(options: dict[str, Any]) -> dict[str, Any]:
    """The options on which pixels depend."""
    if options.get("backend") == "dali":
        pytest.importorskip("nvidia.dali", reason="DALI is not installed")
    return {name: options[name] for name in ("backend", "mix") if name in options}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_workers": 2, "persistent_workers": True},
        {"num_workers": 1, "device": "cpu"},
        {"mix": T.CutMix()},
        {"backend": "dali", "num_workers": 1, "mix": T.CutMix()},
    ],
    ids=str,
)
def test_each_epoch_is_that_of_a_loader_with_its_size(shards: Path, options: dict[str, Any]) -> None:
    same = needed(options)
    loader = loader_of(shards, **options)
    for epoch in range(8):
        fixed = loader_of(shards, SIZES[max(first for first in SIZES if first <= epoch)], **same)
        fixed.set_epoch(epoch)
        found, expected = copied_epoch(loader), copied_epoch(fixed)
        assert [batch[0].shape for batch in found] == [batch[0].shape for batch in expected]
        assert all(torch.equal(batch[0], other[0]) for batch, other in zip(found, expected, strict=True))


def test_a_collate_fn_gets_the_epochs_size(shards: Path) -> None:
    loader = loader_of(shards, collate_fn=_shapes, num_workers=1)
    found = [{shape for batch in loader for shape in batch} for _ in range(3)]
    assert found == [{(3, 8, 8)}, {(3, 8, 8)}, {(3, 12, 12)}]


def _shapes(samples: list[Any]) -> list[tuple[int, ...]]:
    return [tuple(image.shape) for image, *_ in samples]


def test_a_run_resumed_in_epoch_8_has_the_size_of_epoch_8(shards: Path) -> None:
    loader = loader_of(shards)
    loader.set_epoch(8)
    iterator = iter(loader)
    next(iterator)
    state = json.loads(json.dumps(loader.state_dict()))
    resumed = loader_of(shards, num_workers=1)
    resumed.load_state_dict(state)
    rest = copied_epoch(resumed)
    assert rest[0][0].shape[2:] == (10, 20)
    assert same_batches(rest, copied_epoch(iterator))


def views_of(shards: Path, size: Any = BY_EPOCH, **options: Any) -> DataLoader:
    views = T.Views(
        [[T.RandomResizedCrop(size), T.ToDtype("float32")], [T.Resize((9, 7))], [T.RandomResizedCrop(size)]]
    )
    return DataLoader(ShardDataset(shards, views), 8, shuffle=True, seed=5, **options)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_workers": 2, "persistent_workers": True},
        {"num_workers": 1, "device": "cpu"},
        {"mix": T.CutMix()},
        {"backend": "dali", "num_workers": 1, "mix": T.CutMix()},
    ],
    ids=str,
)
def test_views_have_their_sizes_of_each_epoch(shards: Path, options: dict[str, Any]) -> None:
    same = needed(options)
    loader = views_of(shards, **options)
    for epoch in range(7):
        fixed = views_of(shards, SIZES[max(first for first in SIZES if first <= epoch)], **same)
        fixed.set_epoch(epoch)
        for (images, *_), (expected, *_) in zip(loader, fixed, strict=True):
            assert all(torch.equal(view, other) for view, other in zip(images, expected, strict=True))


def test_views_resumed_in_epoch_8_have_the_sizes_of_epoch_8(shards: Path) -> None:
    loader = views_of(shards)
    loader.set_epoch(8)
    iterator = iter(loader)
    next(iterator)
    state = json.loads(json.dumps(loader.state_dict()))
    assert len(state["sizes_by_epoch"]) == 2
    resumed = views_of(shards, num_workers=1)
    resumed.load_state_dict(state)
    for (images, _), (expected, _) in zip(resumed, iterator, strict=True):
        assert [view.shape[2:] for view in images] == [(10, 20), (9, 7), (10, 20)]
        assert all(torch.equal(view, other) for view, other in zip(images, expected, strict=True))
    with pytest.raises(ArgumentError, match="its sizes_by_epoch is"):
        views_of(shards, 8).load_state_dict(state)


def test_sizes_belong_to_the_state(shards: Path) -> None:
    state = loader_of(shards).state_dict()
    assert state["sizes_by_epoch"] == [[[0, [8, 8]], [2, [12, 12]], [6, [10, 20]]]]
    for other in (T.ByEpoch({0: 8, 2: 12}), 8):
        with pytest.raises(ArgumentError, match="its sizes_by_epoch is"):
            loader_of(shards, other).load_state_dict(state)
    plain = loader_of(shards, 8).state_dict()
    assert "sizes_by_epoch" not in plain
    with pytest.raises(ArgumentError, match="its sizes_by_epoch is None"):
        loader_of(shards).load_state_dict(plain)


def test_a_bucket_is_cropped_from_sizes_by_epoch(shards: Path) -> None:
    recipe = T.Compose([T.Resize(T.ByEpoch({0: 26, 1: 40})), T.RandomCrop(T.BUCKET)])
    dataset = ShardDataset(shards, recipe)
    loader = DataLoader(dataset, 5, sizes=Buckets(sizes=[(16, 16), (12, 20)]), num_workers=1)
    for size in (26, 40):
        fixed = DataLoader(ShardDataset(shards, [T.Resize(size), T.RandomCrop((12, 20))]), 5)
        fixed.set_epoch(0 if size == 26 else 1)
        assert same_batches(copied_epoch(loader), copied_epoch(fixed))


def test_the_device_finishes_each_epoch_as_its_sizes_need(shards: Path) -> None:
    """A crop is part of the decoding only if all images are known to be large enough for it."""
    dtype = T.ToDtype(torch.float32)
    buckets = Buckets(sizes=[(24, 24), (24, 30)])
    recipe = T.Compose([T.Resize(T.ByEpoch({0: 24, 1: 40})), T.RandomCrop(T.BUCKET), dtype])
    loader = DataLoader(ShardDataset(shards, recipe), 5, sizes=buckets, device="cpu", num_workers=1)
    for size in (24, 40):
        fixed = DataLoader(ShardDataset(shards, [T.Resize(size), T.RandomCrop((24, 30)), dtype]), 5)
        fixed.set_epoch(int(size == 40))
        assert same_batches(copied_epoch(loader), copied_epoch(fixed))


def test_single_samples_have_the_size_of_the_first_epoch(shards: Path) -> None:
    dataset = ShardDataset(shards, recipe_of(T.ByEpoch(SIZES)))
    assert dataset[0][0].shape == (3, 8, 8)


@pytest.mark.parametrize("transform", [T.RandomResizedCrop(BY_EPOCH), T.Views([T.RandomResizedCrop(BY_EPOCH)])])
def test_torchs_loader_is_told_once_that_it_has_the_first_epochs_size(shards: Path, transform: Any) -> None:
    loader = torch.utils.data.DataLoader(ShardDataset(shards, transform), 8)
    with pytest.warns(UserWarning, match="T.ByEpoch stays at the size of epoch 0.*feeder.DataLoader") as caught:
        assert len([batch for _ in range(2) for batch in loader]) == 6
    assert len(caught) == 1


def test_what_sizes_by_epoch_do_not_go_with_is_refused_by_name(shards: Path) -> None:
    for options, message in (
        ({"batch_size": None, "shuffle": False}, "batch_size is None"),
        ({"device": ToDevice("cpu", static_buffers=True)}, "static_buffers=True"),
    ):
        with pytest.raises(ArgumentError, match=message):
            loader_of(shards, **options)


def test_datasets_that_only_torchs_path_takes_are_refused(shards: Path) -> None:
    class Derived(ShardDataset):
        def __getitem__(self, i: Any) -> Any:
            return super().__getitem__(i)

    recipe = recipe_of(T.ByEpoch(SIZES))
    joined: Any = torch.utils.data.ConcatDataset([ShardDataset(shards, recipe), Derived(shards, recipe)])
    for dataset in (Derived(shards, recipe), joined):
        with pytest.raises(ArgumentError, match=r"sizes by bucket or by epoch.*on feeder's path only.* Derived"):
            DataLoader(dataset, 5)

"""Several views of each image: a list of tensors, keyed by view, in every option of the loader."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import feeder
from feeder import transforms as T
from feeder.dataset.shards import ShardDataset
from feeder.decoders.decoder import View
from feeder.decoders.registry import available_decoders, get_decoder
from feeder.decoders.staged.capacity import plan_capacity
from feeder.decoders.staged.staged import ROW
from feeder.errors import ArgumentError
from feeder.loader.dataloader import DataLoader
from feeder.loader.fast.sample_maker import Work
from feeder.loader.slots.image_slots import Samples
from tests.support.loader_data import write_shards

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
FLIP = T.RandomHorizontalFlip()
LARGE = T.Compose([T.RandomResizedCrop(16), FLIP, T.Normalize(MEAN, STD)])
SMALL = T.Compose([T.RandomResizedCrop(8, scale=(0.05, 0.4)), FLIP])
HALF = T.Compose([T.RandomResizedCrop((8, 12)), T.RandomGrayscale(0.5), T.ToDtype("bfloat16", scale=True)])
VIEWS = T.Views([LARGE, LARGE, SMALL, HALF])
SHAPES = [(3, 16, 16), (3, 16, 16), (3, 8, 8), (3, 8, 12)]


def epoch(loader: Any) -> list[tuple[Any, ...]]:
    """An epoch's batches, with the views in memory of their own."""
    return [
        ([view.clone() for view in images], *(torch.as_tensor(x).clone() for x in rest)) for images, *rest in loader
    ]


def assert_same(batches: list[tuple[Any, ...]], expected: list[tuple[Any, ...]], atol: float = 0.0) -> None:
    assert len(batches) == len(expected)
    for (images, *rest), (others, *more) in zip(batches, expected, strict=True):
        for view, other in zip(images, others, strict=True):
            torch.testing.assert_close(view, other, rtol=0.0, atol=atol)
        assert all(torch.equal(a, b) for a, b in zip(rest, more, strict=True))


def drawn(
    dataset: ShardDataset, ids: list[int], *, at_epoch: int = 0, seed: int = 0, backend: str = "pillow"
) -> list[Any]:
    """Views of samples, drawn as the documentation says and decoded apart."""
    encoded = dataset.reader.read(np.array(ids))
    found = []
    for number, recipe in enumerate(dataset.recipe.views):
        assert recipe.output_size is not None
        keys = np.array(ids) + number * len(dataset)
        draws = recipe.draw(seed, at_epoch, keys, encoded.sizes)
        out = np.empty((len(ids), 3, *recipe.output_size), recipe.storage_dtype)
        decoder = get_decoder(backend, recipe)
        assert not any(decoder.decode(encoded.buffers, encoded.orientations, [View(recipe, draws, out)]).errors)
        tensor = torch.from_numpy(out)
        found.append(tensor.view(torch.bfloat16) if recipe.output_dtype == "bfloat16" else tensor)
    return found


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("backend", ["cpu", "pillow"])
def test_a_batch_has_a_list_of_views_drawn_by_view(shards: Path, backend: str, workers: int) -> None:
    dataset = ShardDataset(shards, VIEWS, fields=("index",))
    loader = DataLoader(dataset, batch_size=8, shuffle=True, seed=5, num_workers=workers, backend=backend)
    for number in range(2):
        batches = epoch(loader)
        assert sorted(i for batch in batches for i in batch[2].tolist()) == list(range(50))
        for images, labels, ids in batches:
            assert [tuple(view.shape[1:]) for view in images] == SHAPES
            assert [view.dtype for view in images] == [torch.float32, torch.float32, torch.uint8, torch.bfloat16]
            assert labels.tolist() == [i % 7 for i in ids.tolist()]
            expected = drawn(dataset, ids.tolist(), at_epoch=number, seed=5)
            assert all(torch.equal(view, other) for view, other in zip(images, expected, strict=True))
            assert not torch.equal(images[0], images[1])


def test_one_view_is_the_image_of_the_recipe_alone(shards: Path) -> None:
    views, alone = (ShardDataset(shards, transform) for transform in (T.Views([LARGE]), LARGE))
    options: dict[str, Any] = {"batch_size": 8, "sampler": [3, 3, 9, 3, 0], "seed": 2}
    for ((images,), _), (expected, _) in zip(DataLoader(views, **options), DataLoader(alone, **options), strict=True):
        assert torch.equal(images, expected)


def test_no_two_views_share_draws(shards: Path) -> None:
    dataset = ShardDataset(shards, T.Views([LARGE] * 3))
    ids, repeats = (each.reshape(-1) for each in np.meshgrid(np.arange(50), np.arange(4)))
    keys = Work(dataset.reader, dataset.recipe, "pillow").keys(Samples(np.arange(len(ids)), ids, repeats))
    assert len(np.unique(np.concatenate(keys))) == 50 * 4 * 3
    alone = Work(dataset.reader, T.Recipe.of(LARGE), "pillow").keys(Samples(np.arange(len(ids)), ids, repeats))
    assert np.array_equal(alone[0], ids + repeats * 50)
    # Repeats of a sample in an epoch have views of their own.
    ((images, _),) = DataLoader(dataset, batch_size=4, sampler=[7, 7, 7, 7])
    seen = {view[row].numpy().tobytes() for view in images for row in range(4)}
    assert len(seen) == 12


def test_bad_samples_are_replaced_in_all_views(tmp_path: Path) -> None:
    dataset = ShardDataset(write_shards(tmp_path, 24, bad=(3, 9)), VIEWS, fields=("index",))
    runs = []
    for workers in (0, 2):
        loader = DataLoader(dataset, batch_size=8, on_error="skip", num_workers=workers)
        runs.append(epoch(loader))
        assert [entry["position"] for entry in loader.stats()["substitutions"]] == [3, 9]
    assert_same(runs[1], runs[0])
    for images, labels, ids in runs[0]:
        assert not {3, 9} & set(ids.tolist())
        assert labels.tolist() == [i % 7 for i in ids.tolist()]
        assert images[2][:, 0].float().mean((1, 2)).round().tolist() == ids.tolist()  # red says which image it is
        assert all(torch.equal(a, b) for a, b in zip(images, drawn(dataset, ids.tolist()), strict=True))


@pytest.mark.parametrize("device", [None, "cpu"])
@pytest.mark.parametrize("op", [T.MixUp(), T.CutMix()], ids=["mixup", "cutmix"])
def test_mixing_is_the_same_for_all_views(shards: Path, op: T.BatchOp, device: str | None) -> None:
    dataset = ShardDataset(shards, VIEWS)
    plain = epoch(DataLoader(dataset, batch_size=16))
    mixed = DataLoader(dataset, batch_size=16, mix=op, device=device, num_workers=1)
    for step, ((images, (own, others, weight)), (expected, labels)) in enumerate(zip(mixed, plain, strict=True)):
        drawn_mixes = [op.draw(0, 0, 16 * step, *shape[1:]) for shape in SHAPES]
        for view, other, mixing in zip(images, expected, drawn_mixes, strict=True):
            assert view.dtype == other.dtype
            torch.testing.assert_close(view, mixing.apply(other), rtol=0.0, atol=0.01 if device else 0.0)
        assert weight == drawn_mixes[0].label_weight
        assert torch.equal(own, labels)
        assert torch.equal(others, labels.roll(1))


@pytest.mark.parametrize("workers", [0, 1])
def test_views_go_to_a_device_in_static_buffers_and_channels_last(shards: Path, workers: int) -> None:
    dataset = ShardDataset(shards, VIEWS)
    plain = epoch(DataLoader(dataset, batch_size=8))
    loader = DataLoader(
        dataset,
        batch_size=8,
        device=feeder.ToDevice("cpu", static_buffers=True),
        memory_format=torch.channels_last,
        num_workers=workers,
    )
    addresses = set()
    batches = []
    for images, labels in loader:
        assert all(view.is_contiguous(memory_format=torch.channels_last) for view in images)
        addresses.add(tuple(view.data_ptr() for view in images))
        batches.append(([view.clone(memory_format=torch.contiguous_format) for view in images], labels.clone()))
    assert_same(batches, plain, atol=1e-2)
    assert len(addresses) == 1
    on_host = DataLoader(dataset, batch_size=8, memory_format=torch.channels_last)
    assert all(view.is_contiguous(memory_format=torch.channels_last) for images, _ in on_host for view in images)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_collate_fn_gets_lists_of_views(shards: Path, workers: int) -> None:
    dataset = ShardDataset(shards, VIEWS)

    def by_view(samples: list[Any]) -> tuple[list[torch.Tensor], torch.Tensor]:
        views = [torch.stack(view) for view in zip(*(images for images, _ in samples), strict=True)]
        return views, torch.tensor([label for _, label in samples])

    plain = epoch(DataLoader(dataset, batch_size=8))
    assert_same(epoch(DataLoader(dataset, batch_size=8, collate_fn=by_view, num_workers=workers)), plain)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_resumed_epoch_has_the_same_views(shards: Path, workers: int) -> None:
    dataset = ShardDataset(shards, VIEWS)
    options: dict[str, Any] = {"batch_size": 8, "shuffle": True, "num_workers": workers}
    whole = epoch(DataLoader(dataset, **options))
    loader = DataLoader(dataset, **options)
    iterator = iter(loader)
    for _ in range(3):
        next(iterator)
    state = loader.state_dict()
    del iterator
    resumed = DataLoader(dataset, **options)
    resumed.load_state_dict(state)
    assert_same(epoch(resumed), whole[3:])


def test_samples_one_by_one_are_lists_of_views(shards: Path) -> None:
    dataset = ShardDataset(shards, VIEWS)
    torch.manual_seed(0)
    images, label = dataset[9]
    assert label == 2
    assert [tuple(view.shape) for view in images] == SHAPES
    assert [view.dtype for view in images] == [torch.float32, torch.float32, torch.uint8, torch.bfloat16]
    assert not torch.equal(images[0], images[1])
    torch.manual_seed(0)
    assert all(torch.equal(a, b) for a, b in zip(dataset[9][0], images, strict=True))
    more = dataset.__getitems__([9, 9])
    assert not torch.equal(more[0][0][1], more[1][0][0])  # view 1 of the first, view 0 of the second


@pytest.mark.filterwarnings("ignore:this loader runs torch's path")
@pytest.mark.parametrize("kind", [torch.utils.data.DataLoader, DataLoader])
@pytest.mark.parametrize("workers", [0, 1])
def test_torchs_path_collates_views_to_a_list(shards: Path, kind: Any, workers: int) -> None:
    class Own(ShardDataset):
        def __getitem__(self, i: Any) -> Any:
            images, label = super().__getitem__(i)
            return images, label + 1

    views = T.Views([LARGE, SMALL])
    for dataset, more in ((ShardDataset(shards, views), 0), (Own(shards, views), 1)):
        images, labels = next(iter(kind(dataset, batch_size=8, num_workers=workers)))
        assert isinstance(images, list)
        assert [tuple(view.shape) for view in images] == [(8, 3, 16, 16), (8, 3, 8, 8)]
        assert labels.tolist() == [i % 7 + more for i in range(8)]


def test_subsets_and_joined_datasets_keep_the_views(shards: Path, tmp_path: Path) -> None:
    first, second = ShardDataset(shards, VIEWS), ShardDataset(write_shards(tmp_path, 10), VIEWS)
    part: Any = torch.utils.data.Subset(first, [4, 2, 40])
    ((images, labels),) = DataLoader(part, batch_size=3)
    assert labels.tolist() == [4, 2, 5]
    assert [tuple(view.shape[1:]) for view in images] == SHAPES
    joined: Any = torch.utils.data.ConcatDataset([first, second])
    assert [len(images[3]) for images, _ in DataLoader(joined, batch_size=60)] == [60]


@pytest.mark.parametrize("option", [{"sizes": feeder.Buckets(sizes=[(8, 8)])}, {"sizes": feeder.PadToBatch()}])
def test_views_have_no_sizes_of_a_batch(shards: Path, option: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match="the transform is Views"):
        DataLoader(ShardDataset(shards, VIEWS), **option)


def test_a_view_that_draws_from_boxes_needs_boxes(shards: Path) -> None:
    with pytest.raises(ArgumentError, match="RandomIoUCrop"):
        ShardDataset(shards, T.Views([LARGE, [T.RandomIoUCrop(), T.Resize((8, 8))]]))


def test_one_image_of_each_sample_is_no_list(shards: Path) -> None:
    with pytest.raises(ArgumentError, match="Views stands"):
        feeder.decode([b""], VIEWS)


@pytest.mark.skipif("dali" not in available_decoders(), reason="DALI is not installed")
@pytest.mark.parametrize("workers", [0, 2])
def test_dali_decodes_every_view(tmp_path: Path, workers: int) -> None:
    folder = write_shards(tmp_path, 24, jpegs=True, bad=(4,), cut=(7, 8))
    dataset = ShardDataset(folder, VIEWS, fields=("index",))
    options: dict[str, Any] = {"batch_size": 8, "on_error": "skip", "num_workers": workers, "backend": "dali"}
    loader = DataLoader(dataset, **options)
    batches = epoch(loader)
    assert sorted(entry["position"] for entry in loader.stats()["substitutions"]) == [4, 7, 8]
    for images, labels, ids in batches:
        assert labels.tolist() == [i % 7 for i in ids.tolist()]
        expected = drawn(dataset, ids.tolist(), backend="dali")
        assert all(torch.equal(view, other) for view, other in zip(images, expected, strict=True))
    mixed = DataLoader(dataset, mix=T.MixUp(), memory_format=torch.channels_last, **options)
    for step, ((images, *_), (expected, *_)) in enumerate(zip(mixed, batches, strict=True)):
        mixing = T.MixUp().draw(0, 0, 8 * step, 16, 16)
        for view, other in zip(images, expected, strict=True):
            assert view.is_contiguous(memory_format=torch.channels_last)
            torch.testing.assert_close(view, mixing.apply(other), rtol=0.0, atol=1e-2)


@pytest.mark.skipif("dali" not in available_decoders(), reason="DALI is not installed")
@pytest.mark.parametrize("workers", [0, 2])
def test_staged_views_that_find_no_room_in_a_slot_travel_another_way(
    tmp_path: Path, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = ShardDataset(write_shards(tmp_path, 24, jpegs=True), VIEWS)
    options: dict[str, Any] = {"batch_size": 8, "shuffle": True, "num_workers": workers, "backend": "dali"}
    whole = DataLoader(dataset, **options)
    expected, decoded = epoch(whole), whole.stats()["dali_images"]
    assert 0 < decoded <= len(dataset)  # each image once, for all of its views
    plan = "feeder.loader.fast.setup.plan_capacity"
    for share in (ROW.itemsize * len(SHAPES), ROW.itemsize * len(SHAPES) + 320):
        with monkeypatch.context() as patched:
            patched.setattr(plan, lambda *a, share=share, **k: plan_capacity(*a, **k)._replace(share_bytes=share))
            loader = DataLoader(dataset, **options)
            assert_same(epoch(loader), expected)
        assert loader.stats()["dali_images"] == decoded

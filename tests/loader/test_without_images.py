"""Loaders without images: ids, labels and fields as the loader with images gives them, also where that one skips."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves

import feeder
from feeder import transforms as T
from feeder.dataset.folders import FolderDataset
from feeder.dataset.shards import ShardDataset
from feeder.errors import ArgumentError, DecodeError
from feeder.fields import Json
from feeder.loader.dataloader import DataLoader
from feeder.order.sample_order import substitute
from tests.support.batches import check_same, copied_epoch
from tests.support.loader_data import CROP_AND_FLIP, write_shards, write_tree
from tests.support.target_data import TARGETS, write_target_shards

FIELDS = ("index", "key", "json")


def without_pixels(batches: list[Any]) -> list[Any]:
    """The batches of a loader without images, from those of one with the field "index" first."""
    return [(ids, labels, ids, *fields) for _, labels, ids, *fields in batches]


def both(dataset: Any, substitutes: Any = None, **options: Any) -> tuple[DataLoader, DataLoader]:
    """A loader with images, and one without."""
    options = {"batch_size": 8, "shuffle": True, "seed": 5} | options
    return DataLoader(dataset, **options), DataLoader(dataset, **options, images=False, substitutes=substitutes)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["shards", "folder", "subset"])
def test_order_labels_and_fields_are_those_of_the_loader_with_images(tmp_path: Path, workers: int, kind: str) -> None:
    dataset: Any
    if kind == "folder":
        dataset = FolderDataset(write_tree(tmp_path, 40), CROP_AND_FLIP, fields=("index", "key", "crop_box"))
    else:
        dataset = ShardDataset(write_shards(tmp_path, 40), CROP_AND_FLIP, fields=(*FIELDS, "crop_box"))
    if kind == "subset":
        dataset = torch.utils.data.Subset(dataset, [*range(30, 10, -1)])
    images, labels = both(dataset, num_workers=workers)
    for _ in range(2):
        check_same(copied_epoch(labels), without_pixels(copied_epoch(images)))


def test_images_are_not_read(tmp_path: Path) -> None:
    dataset = ShardDataset(write_shards(tmp_path, 24, bad=(9,)), CROP_AND_FLIP, fields=("key",))
    for shard in tmp_path.glob("*.tar"):
        shard.unlink()
    loader = DataLoader(dataset, batch_size=8, images=False)
    batches = copied_epoch(loader)
    assert [i for ids, _, _ in batches for i in ids.tolist()] == list(range(24))
    assert [label for _, labels, _ in batches for label in labels.tolist()] == [i % 7 for i in range(24)]
    assert loader.stats()["encoded_bytes"] == 0


def test_images_need_no_size(tmp_path: Path) -> None:
    dataset = ShardDataset(write_shards(tmp_path, 16, sizes=((24, 32), (40, 20))))
    loader = DataLoader(dataset, batch_size=8, images=False)
    assert loader.path == "fast"
    assert [ids.tolist() for ids, _ in loader] == [[*range(8)], [*range(8, 16)]]


def test_a_state_of_the_loader_with_images_is_one_for_the_other(tmp_path: Path) -> None:
    dataset = ShardDataset(write_shards(tmp_path, 64), CROP_AND_FLIP, fields=FIELDS)
    images, labels = both(dataset, rank=1, world_size=2)
    iterator, other = iter(images), iter(labels)
    for _ in range(2):
        next(iterator), next(other)
    assert labels.state_dict() == images.state_dict()
    _, resumed = both(dataset, rank=1, world_size=2)
    resumed.load_state_dict(images.state_dict() | {"backend": "dali"})
    check_same(copied_epoch(resumed), without_pixels([*iterator]))
    again, _ = both(dataset, rank=1, world_size=2)
    again.load_state_dict(labels.state_dict())
    assert len(copied_epoch(again)) == 2


def test_ranks_get_their_parts(tmp_path: Path) -> None:
    dataset = ShardDataset(write_shards(tmp_path, 40), CROP_AND_FLIP, fields=("index",))
    for rank in range(2):
        images, labels = both(dataset, rank=rank, world_size=2)
        check_same(copied_epoch(labels), without_pixels(copied_epoch(images)))


def test_skipping_is_refused_without_the_other_loaders_substitutes(tmp_path: Path) -> None:
    dataset = ShardDataset(write_shards(tmp_path, 16), CROP_AND_FLIP)
    with pytest.raises(ArgumentError, match=r"on_error='skip' .* give substitutes="):
        DataLoader(dataset, batch_size=8, images=False, on_error="skip")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"images": False, "collate_fn": list}, "collate_fn="),
        ({"images": False, "service": "feeder"}, "service="),
        ({"images": False, "substitutes": torch.clone}, "substitutes= is for"),
        ({"on_error": "skip", "substitutes": torch.clone}, "substitutes= is for"),
        ({"images": False, "batch_size": None}, "^images is for"),
    ],
)
def test_what_does_not_go_together_is_refused(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    dataset = ShardDataset(write_shards(tmp_path, 16), CROP_AND_FLIP)
    with pytest.raises(ArgumentError, match=message):
        DataLoader(dataset, **{"batch_size": 8, **options})


class Wire:
    """The ids of the batches of a loader with images, on their way to another loader."""

    def __init__(self) -> None:
        self.ids: list[Any] = []

    def __call__(self, own: torch.Tensor) -> torch.Tensor:
        return self.ids.pop(0)


@pytest.mark.filterwarnings("ignore:This DataLoader")
@pytest.mark.parametrize("options", [{}, {"num_workers": 2}, {"device": "cpu", "prefetch_to_device": 2}])
@pytest.mark.parametrize("kind", ["shards", "folder"])
def test_substitutes_of_the_loader_with_images_are_taken_over(
    tmp_path: Path, kind: str, options: dict[str, Any]
) -> None:
    bad = (3, 9, 10, 11, 31)
    dataset: Any
    if kind == "shards":
        dataset = ShardDataset(write_shards(tmp_path, 40, bad=bad), CROP_AND_FLIP, fields=(*FIELDS, "crop_box"))
    else:
        dataset = FolderDataset(write_tree(tmp_path, 40, bad=bad), CROP_AND_FLIP, fields=("index", "key", "crop_box"))
    wire = Wire()
    images, labels = both(dataset, wire, on_error="skip", **options)
    for _ in range(2):
        others = iter(labels)
        for batch in images:
            assert wire.ids == []
            wire.ids.append(batch[2].clone())  # the other loader takes no ids before it is asked for their batch
            check_same([next(others)], without_pixels([batch]))
        assert next(others, None) is None
    skipped, taken = images.stats(), labels.stats()
    assert taken["skipped"] == skipped["skipped"] >= 10
    for one, other in zip(taken["substitutions"], skipped["substitutions"], strict=True):
        assert one.pop("reason") == "bad, as the loader with images found"
        assert one.items() < other.items()


def test_substitutes_in_padded_batches_fit_in_them(tmp_path: Path) -> None:
    """One sample of 20 fits in place of the bad ones, so that most of their substitutes are passed over."""
    sizes = [(16, 16)] + [(40, 40)] * 19
    folder = write_shards(tmp_path, 200, bad=(20, 60, 100, 140), sizes=sizes)
    dataset, wire = ShardDataset(folder, T.Compose([T.RandomHorizontalFlip()]), fields=("index",)), Wire()
    images, labels = both(dataset, wire, on_error="skip", pad=feeder.PadToBatch(8), batch_size=1)
    others = iter(labels)
    for _, targets, padded, ids in images:
        wire.ids.append(ids)
        check_same([next(others)], [(ids, targets, padded, ids)])


def test_substitutes_are_none_of_those_left_out(tmp_path: Path) -> None:
    dataset = ShardDataset(write_shards(tmp_path, 60, bad=(3, 41, 50)), CROP_AND_FLIP, fields=("index",))
    wire = Wire()
    images, labels = both(dataset, wire, on_error="skip", skip=feeder.Skip(ids=range(4, 40)))
    others = iter(labels)
    for batch in images:
        wire.ids.append(batch[2])
        check_same([next(others)], without_pixels([batch]))
    assert labels.stats()["skipped"] == images.stats()["skipped"] > 0


def test_a_sample_without_a_field_is_left_to_the_loader_with_images(tmp_path: Path) -> None:
    """That one keeps the sample if it does not ask for the field, which is then missed by name."""
    folder = write_shards(tmp_path, 16)
    for shard in tmp_path.glob("*.tar"):
        data = shard.read_bytes()
        assert data.count(b'{"i": 5}') == 1
        shard.write_bytes(data.replace(b'{"i": 5}', b'{"i": 5)'))
    wire = Wire()
    images = DataLoader(ShardDataset(folder, CROP_AND_FLIP, fields=("index",)), batch_size=8, on_error="skip")
    asks = ShardDataset(folder, CROP_AND_FLIP, fields={"json": Json()})
    labels = DataLoader(asks, batch_size=8, on_error="skip", images=False, substitutes=wire)
    wire.ids.append(next(iter(images))[2])
    with pytest.raises(DecodeError, match="00000005"):
        next(iter(labels))


def test_loaders_of_different_orders_are_found_out(tmp_path: Path) -> None:
    dataset = ShardDataset(write_shards(tmp_path, 64), CROP_AND_FLIP, fields=("index",))
    images = DataLoader(dataset, batch_size=8, shuffle=True, seed=1)
    ids = next(iter(images))[2]
    labels = DataLoader(
        dataset, batch_size=8, shuffle=True, seed=2, images=False, on_error="skip", substitutes=lambda _: ids
    )
    with pytest.raises(ArgumentError, match=r"is no substitute of it: give both loaders the same"):
        next(iter(labels))
    short = DataLoader(dataset, batch_size=8, images=False, on_error="skip", substitutes=lambda own: own[1:])
    with pytest.raises(ArgumentError, match=r"must return the ids of the batch, int64 \[8\]"):
        next(iter(short))


@pytest.mark.parametrize("mix", [T.MixUp(num_classes=7), T.CutMix(num_classes=7)])
def test_labels_are_mixed_as_with_images(tmp_path: Path, mix: Any) -> None:
    dataset = ShardDataset(write_shards(tmp_path, 40), CROP_AND_FLIP, fields=("index",))
    images, labels = both(dataset, mix=mix)
    check_same(copied_epoch(labels), without_pixels(copied_epoch(images)))


def test_targets_move_with_images_that_are_not_there(tmp_path: Path) -> None:
    recipe = T.Compose([T.RandomResizedCrop(16), T.RandomHorizontalFlip()])
    dataset = ShardDataset(write_target_shards(tmp_path, 24), recipe, ["index"], targets=TARGETS)
    images, labels = both(dataset)
    for (_, *expected), (_, *found) in zip(images, labels, strict=True):
        check_same([tree_leaves(found)], [tree_leaves(expected)])


def test_fields_of_views_are_the_same(tmp_path: Path) -> None:
    views = T.Views([CROP_AND_FLIP, CROP_AND_FLIP])
    images, labels = both(ShardDataset(write_shards(tmp_path, 24), views, fields=("index", "original_size")))
    check_same(copied_epoch(labels), without_pixels(copied_epoch(images)))


def test_a_batch_is_made_again_in_order(tmp_path: Path) -> None:
    folder = write_shards(tmp_path, 24)
    loader = DataLoader(
        ShardDataset(folder, CROP_AND_FLIP),
        batch_size=8,
        images=False,
        on_error="skip",
        substitutes=lambda ids: torch.where(ids == 3, torch.tensor(next(loader_substitutes(loader))), ids),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        first = copied_epoch(loader)[0]
    assert first[0].tolist()[3] != 3
    assert loader.replay(0, 0).batch[0].tolist() == list(range(8))


def loader_substitutes(loader: DataLoader) -> Any:
    """The samples to try in place of the one at position 3."""
    return (substitute(3, attempt, 24, loader.seed or 0, 0) for attempt in range(16))

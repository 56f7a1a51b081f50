"""MixUp and CutMix in a loader: drawn by the batch's place in the epoch, and labels as shares of classes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from feeder.dataset.folders import FolderDataset
from feeder.dataset.shards import ShardDataset
from feeder.errors import ArgumentError
from feeder.loader.dataloader import DataLoader
from feeder.transforms import (
    Compose,
    CutMix,
    MixUp,
    Normalize,
    RandomResizedCrop,
)
from feeder.transforms.mixing import pick
from tests.support.loader_data import encode

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@pytest.mark.parametrize("device", [None, "cpu"])
def test_labels_come_as_shares_of_classes_if_their_number_is_given(shards: Path, device: str | None) -> None:
    dataset = ShardDataset(shards, Compose([RandomResizedCrop(16), Normalize(MEAN, STD)]))
    classes = int(max(dataset.targets)) + 1
    options: dict[str, Any] = {"batch_size": 16, "shuffle": True, "device": device}
    plain = DataLoader(dataset, mix=CutMix(), **options)
    loader = DataLoader(dataset, mix=CutMix(num_classes=classes + 2), num_workers=1, **options)
    for step, ((images, shares), (expected, (own, others, weight))) in enumerate(zip(loader, plain, strict=True)):
        assert torch.equal(images, expected)
        assert weight == CutMix().draw(0, 0, 16 * step, 16, 16).label_weight
        assert shares.shape == (len(images), classes + 2)
        assert shares.dtype == torch.float32
        hot = torch.eye(classes + 2)
        torch.testing.assert_close(shares, weight * hot[own] + (1 - weight) * hot[others])


def test_of_several_mixing_ops_each_batch_gets_one(shards: Path) -> None:
    dataset = ShardDataset(shards, Compose([RandomResizedCrop(16), Normalize(MEAN, STD)]))
    options: dict[str, Any] = {"batch_size": 4, "shuffle": True}
    ops = [MixUp(), CutMix(alpha=0.5)]
    each = [list(DataLoader(dataset, mix=op, **options)) for op in ops]
    mixed = DataLoader(dataset, mix=ops, **options)
    picked = []
    for step, (images, (_, _, weight)) in enumerate(list(mixed)):
        found = [torch.equal(images, batches[step][0]) and weight == batches[step][1][2] for batches in each]
        assert sum(found) == 1
        picked.append(found.index(True))
    assert set(picked) == {0, 1}
    mixed.set_epoch(0)
    again = DataLoader(dataset, mix=ops, device="cpu", num_workers=1, **options)
    for (images, labels), (expected, wanted) in zip(again, list(mixed), strict=True):
        assert torch.allclose(images, expected, atol=1e-5)
        assert labels[2] == wanted[2]
    counts = np.bincount([ops.index(pick(ops, 7, 1, step)) for step in range(2000)])
    assert abs(counts[0] - 1000) < 150
    for wrong in ([], [MixUp(), 3], [MixUp(num_classes=7), CutMix()]):
        with pytest.raises(ArgumentError, match="mix"):
            DataLoader(dataset, mix=wrong)  # type: ignore[arg-type]


def test_labels_beyond_num_classes_are_an_error_before_they_reach_a_device(
    shards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = ShardDataset(shards, RandomResizedCrop(16))
    monkeypatch.setattr(dataset.reader, "classes", None)
    assert max(dataset.targets) == 6
    with pytest.raises(ArgumentError, match="MixUp with num_classes=6 takes labels from 0 to 5, got 6"):
        DataLoader(dataset, batch_size=16, mix=MixUp(num_classes=6), device="cpu")


def test_too_few_classes_are_refused_when_the_loader_is_built(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / name).mkdir()
        (tmp_path / name / "0.png").write_bytes(encode(0))
    dataset = FolderDataset(tmp_path, RandomResizedCrop(16))
    DataLoader(dataset, mix=MixUp(num_classes=3))
    with pytest.raises(ArgumentError, match="MixUp with num_classes=2 takes labels from 0 to 1, got 2"):
        DataLoader(dataset, mix=MixUp(num_classes=2))


def test_mixing_depends_on_the_place_in_the_epoch_and_not_on_a_resume(shards: Path) -> None:
    recipe = Compose([RandomResizedCrop(16), Normalize(MEAN, STD)])
    dataset = ShardDataset(shards, recipe)
    loader = DataLoader(dataset, batch_size=16, shuffle=True, mix=MixUp())
    batches = list(loader)
    assert len({labels[2] for _, labels in batches}) == 4
    loader.set_epoch(0)
    iterator = iter(loader)
    next(iterator)
    resumed = DataLoader(dataset, batch_size=16, shuffle=True, mix=MixUp(), device="cpu")
    resumed.load_state_dict(loader.state_dict())
    for (images, labels), (expected, wanted) in zip(resumed, batches[1:], strict=True):
        assert torch.allclose(images, expected, atol=1e-5)
        assert labels[2] == wanted[2]
    with pytest.raises(ArgumentError, match="mix must be"):
        DataLoader(dataset, mix=0.2)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="mix"):
        DataLoader(torch.zeros(4), mix=MixUp())

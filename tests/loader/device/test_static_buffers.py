"""Batches that always lie at the same addresses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from feeder.dataset.shards import ShardDataset
from feeder.errors import ArgumentError
from feeder.loader.dataloader import DataLoader
from feeder.loader.device.feed import StaticBuffers
from feeder.loader.options import ToDevice
from feeder.transforms import (
    RandomResizedCrop,
)


def _dataset(shards: Path) -> ShardDataset:
    return ShardDataset(shards, RandomResizedCrop(16), fields=("index", "key"))


@pytest.mark.parametrize("generic", [False, True])
def test_static_buffers_keep_their_addresses(shards: Path, generic: bool) -> None:
    dataset: Any = torch.utils.data.TensorDataset(torch.arange(50.0), torch.arange(50)) if generic else _dataset(shards)
    plain = list(DataLoader(dataset, batch_size=8))
    loader = DataLoader(dataset, batch_size=8, device=ToDevice("cpu", static_buffers=True))
    addresses = set()
    for _ in range(2):
        if not generic:
            loader.set_epoch(0)
        for batch, expected in zip(loader, plain, strict=True):
            assert torch.equal(batch[0], expected[0])
            assert torch.equal(batch[1], expected[1])
            addresses.add((batch[0].data_ptr(), batch[1].data_ptr()))
        assert len(batch[0]) == 2
    assert len(addresses) == 1


def test_static_buffers_refuse_what_does_not_fit() -> None:
    static = StaticBuffers(None)
    first = static.put((torch.ones(3, 2), {"a": torch.zeros(3)}))
    second = static.put((torch.zeros(2, 2), {"a": torch.ones(2)}))
    assert second[0].data_ptr() == first[0].data_ptr()
    assert first[0].tolist() == [[0, 0], [0, 0], [1, 1]]
    for wrong in (torch.zeros(4, 2), torch.zeros(2, 3), torch.zeros(2, 2, dtype=torch.int64)):
        with pytest.raises(ArgumentError, match="tensor 0 of a batch"):
            static.put((wrong,))


def test_static_buffers_refuse_nested_tensors() -> None:
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
    with pytest.raises(ArgumentError, match="nested tensor, as tensor 1 of a batch is"):
        StaticBuffers(2).put((torch.ones(2), nested))

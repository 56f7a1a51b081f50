"""Loaders that decode with DALI."""

from __future__ import annotations

from typing import Any

from feeder.dataset.folders import FolderDataset
from feeder.dataset.shards import ShardDataset
from feeder.loader.dataloader import DataLoader
from feeder.transforms import Compose, Normalize, RandomHorizontalFlip, RandomResizedCrop

__all__ = ["RECIPE", "DaliLoader"]

RECIPE = Compose([RandomResizedCrop(16), RandomHorizontalFlip(), Normalize([0.5] * 3, [0.25] * 3)])


class DaliLoader(DataLoader[Any]):
    """A loader that takes DALI for feeder's datasets unless another backend is asked for."""

    def __init__(self, dataset: Any, *arguments: Any, backend: Any = "dali", **options: Any) -> None:
        ours = isinstance(dataset, (ShardDataset, FolderDataset))
        super().__init__(dataset, *arguments, backend=backend if ours else "auto", **options)

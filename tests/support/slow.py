"""Stages that are slow on purpose: the sleep is the load. Imports no torch, so that workers start fast."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import numpy.typing as npt

from feeder.dataset.reader import ReadSamples, Wanted
from feeder.dataset.shard_reader import ShardReader

__all__ = ["SlowItems", "SlowReader", "Slowly", "collate_slowly"]


class SlowReader(ShardReader):
    """A slow disk.

    Args:
        index: Path of the index file.
        sample_s: How long each sample takes, seconds.
    """

    def __init__(self, index: str, sample_s: float) -> None:
        super().__init__(index)
        self.sample_s = sample_s

    def __reduce__(self) -> tuple[Any, ...]:
        return SlowReader, (self.index.path, self.sample_s)

    def read(self, ids: npt.NDArray[Any], wanted: Wanted | None = None) -> ReadSamples:
        time.sleep(self.sample_s * len(ids))
        return super().read(ids, wanted)


class Slowly:
    """A slow augmentation, for :class:`feeder.transforms.Lambda`.

    Args:
        image_s: How long each image takes, seconds.
    """

    def __init__(self, image_s: float) -> None:
        self.image_s = image_s

    def __call__(self, image: npt.NDArray[Any]) -> npt.NDArray[Any]:
        time.sleep(self.image_s)
        return image


class SlowItems:
    """A dataset that is not feeder's: arrays of 4 KiB.

    Args:
        count: How many samples.
        sample_s: How long each takes, seconds.
        bad: A sample that can't be had.
    """

    item_bytes = 4096

    def __init__(self, count: int, sample_s: float, bad: int = -1) -> None:
        self.count, self.sample_s, self.bad = count, sample_s, bad

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, i: int) -> npt.NDArray[Any]:
        if i == self.bad:
            raise ValueError(f"sample {i}")
        time.sleep(self.sample_s)
        return np.full(self.item_bytes, i % 256, np.uint8)


def collate_slowly(batch_s: float, samples: list[Any]) -> Any:
    """torch's default collate function, after a while."""
    from torch.utils.data import default_collate

    time.sleep(batch_s)
    return default_collate(samples)

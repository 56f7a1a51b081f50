"""Stages that are slow on purpose: the sleep is the load. Imports no torch, so that workers start fast."""

from __future__ import annotations

import time
from typing import Any

import numpy.typing as npt

from feeder.read import Encoded
from feeder.read_shards import ShardReader

__all__ = ["SlowReader", "Slowly"]


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

    def read(self, ids: npt.NDArray[Any]) -> Encoded:
        time.sleep(self.sample_s * len(ids))
        return super().read(ids)


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

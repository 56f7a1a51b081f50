"""Samples of a feeder dataset as the loader draws them, made one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from feeder.dataset.base import FeederDataset
from feeder.dataset.further_images import key_rows

__all__ = ["drawn_samples"]


def drawn_samples(dataset: FeederDataset, seed: int, epoch: int, ids: Sequence[int]) -> list[tuple[Any, ...]]:
    """Returns samples as ``dataset[i]`` does, with the augmentation that the loader's fast path draws for them.

    Args:
        dataset: A dataset for which :func:`keeps_samples` is True.
        seed: 0 to 2**64-1.
        epoch: 0 to 2**32-1.
        ids: Sample ids, 0 or more.
    """
    found = np.array(ids, np.int64)
    rows = np.arange(key_rows(dataset.recipe, dataset.extras))[:, None]
    return dataset._drawn(seed, epoch, found + rows * len(dataset), found)

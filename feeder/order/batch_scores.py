"""Scores of a shuffle: the distance at which the samples of a batch are stored."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from feeder.order.sample_order import Order
from feeder.order.split import Split

__all__ = ["BatchScores", "batch_scores"]

_STEPS = 16


@dataclass(frozen=True)
class BatchScores:
    """Scores of a shuffle for a number of ranks.

    Attributes:
        rank: Mean distance at which two samples of a rank's batch are stored, relative to that of any two samples: 1 is
            as good as a full shuffle, 0 is the stored order. Batch normalization sees a rank's batch.
        job: The same for the batches of all ranks together, from which a step's gradient is.
        shards: Share of the shards that a rank reads from in an epoch, 0-1.
    """

    rank: float
    job: float
    shards: float


def batch_scores(order: Order, batch_size: int, world_size: int, epoch: int = 0) -> BatchScores:
    """Measures an epoch at 16 of its steps.

    Args:
        order: The order, of at least two samples for each rank.
        batch_size: Samples in a rank's batch, 2 or more.
        world_size: Number of ranks.
        epoch: 0 to 2**32-1.
    """
    splits = [Split(order.samples, batch_size, rank, world_size) for rank in range(world_size)]
    steps = np.unique(np.linspace(0, max(0, len(splits[0]) - 2), _STEPS).astype(np.int64)).tolist()
    batches = [[order.ids(epoch, split.positions(step)) for split in splits] for step in steps]
    usual = (order.samples + 1) / 3
    rank = float(np.mean([_distance(batch) for ranks in batches for batch in ranks])) / usual
    job = float(np.mean([_distance(np.concatenate(ranks)) for ranks in batches])) / usual
    shards = 1.0 if order.lanes is None else order.lanes.share(batch_size, 0, world_size)
    return BatchScores(round(rank, 4), round(job, 4), round(shards, 4))


def _distance(ids: npt.NDArray[np.int64]) -> float:
    """Returns the mean distance of two of these numbers, int64 [N], two or more."""
    ranks = 2 * np.arange(len(ids)) - len(ids) + 1
    return float(2 * (np.sort(ids) * ranks).sum() / (len(ids) * (len(ids) - 1)))

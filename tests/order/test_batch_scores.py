from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pytest

from feeder.order.lanes import Lanes
from feeder.order.sample_order import Order, Window
from feeder.order.split import Split


class BatchScores(NamedTuple):
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
    steps = np.unique(np.linspace(0, max(0, len(splits[0]) - 2), 16).astype(np.int64)).tolist()
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


def test_lanes_mix_the_batches_of_all_ranks_and_read_fewer_shards() -> None:
    sizes = np.full(400, 250)
    full = batch_scores(Order(100_000, 1, True), 64, 8)
    window = batch_scores(Order(100_000, 1, Window(2048), sizes), 64, 8)
    lanes = batch_scores(Order(100_000, 1, Lanes(64, 1024, 64), sizes), 64, 8)
    stored = batch_scores(Order(100_000), 64, 8)
    assert [full.rank, full.job] == pytest.approx([1, 1], rel=0.05)
    assert (full.shards, window.shards, lanes.shards) == (1, 1, 1 / 8)
    assert stored.rank < stored.job < 0.02
    assert 0.5 < lanes.rank < 0.9 < lanes.job < 1.1
    assert window.job < lanes.job


def test_scores_are_distances_of_pairs() -> None:
    order = Order(600, 3, Window(100), [60] * 10)
    distances = []
    for rank in range(2):
        split = Split(600, 20, rank, 2)
        for step in range(len(split) - 1):
            ids = order.ids(4, split.positions(step)).tolist()
            distances.append(np.mean([abs(a - b) for a, b in itertools.combinations(ids, 2)]))
    assert batch_scores(order, 20, 2, epoch=4).rank == pytest.approx(np.mean(distances) / (601 / 3), abs=1e-3)

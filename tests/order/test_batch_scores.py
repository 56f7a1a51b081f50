from __future__ import annotations

import itertools

import numpy as np
import pytest

from feeder.order.lanes import Lanes
from feeder.order.sample_order import Order, Window
from feeder.order.split import Split
from feeder.tools.inspect import batch_scores


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

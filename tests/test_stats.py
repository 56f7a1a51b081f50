from __future__ import annotations

import time
from pathlib import Path

import pytest

from feeder.dataset import ShardDataset
from feeder.loader import DataLoader
from feeder.stats import verdict
from feeder.transforms import RandomResizedCrop
from tests.loader_data import write_shards


@pytest.mark.parametrize(
    ("waited", "busy", "read", "decode", "workers", "expected"),
    [
        (10, 900, 100, 800, 2, "trainer"),
        (500, 1900, 100, 1700, 2, "decode"),
        (500, 1900, 1700, 100, 2, "read"),
        (500, 300, 100, 200, 2, "workers"),
        (0, 900, 100, 800, 0, "decode"),
        (0, 10, 5, 5, 0, "trainer"),
    ],
)
def test_the_verdict_names_what_holds_the_loop_up(
    waited: int, busy: int, read: int, decode: int, workers: int, expected: str
) -> None:
    meters = {"busy_ns": busy, "read_ns": read, "decode_ns": decode}
    assert verdict({"elapsed_ns": 1000, "waited_ns": waited}, meters, workers)["bottleneck"] == expected


def test_no_verdict_before_the_first_batch() -> None:
    assert verdict({}, {}, 2) == {"waited_share": 0.0, "busy_share": 0.0, "bottleneck": None}


@pytest.mark.parametrize("workers", [0, 1])
def test_a_loaders_stats_add_up(tmp_path: Path, workers: int) -> None:
    loader = DataLoader(
        ShardDataset(write_shards(tmp_path, 20), RandomResizedCrop(8)), batch_size=4, num_workers=workers
    )
    assert loader.stats()["bottleneck"] is None
    started = time.monotonic_ns()
    for _ in loader:
        pass
    elapsed = time.monotonic_ns() - started
    stats = loader.stats()
    assert (stats["batches"], stats["samples"]) == (5, 20)
    assert 0 < stats["elapsed_ns"] <= elapsed
    assert stats["read_ns"] + stats["decode_ns"] <= stats["busy_ns"]
    assert stats["encoded_bytes"] > 0
    assert stats["bottleneck"] in ("decode", "read", "workers", "trainer")

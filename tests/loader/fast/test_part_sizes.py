from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from feeder.dataset.extras import Column
from feeder.dataset.shards import ShardDataset
from feeder.loader.dataloader import DataLoader
from feeder.loader.fast import part_sizes
from feeder.loader.fast.part_sizes import PartSizes, enough_ahead, most_sent_parts, part_rows, sent_part_rows
from feeder.loader.options import WorkerOptions
from feeder.loader.slots.image_slots import Layout
from feeder.service.part_memory import PART_BYTES
from feeder.transforms import RandomResizedCrop

MS = 1_000_000


def _sizes(rows: int, workers: int, ahead: int, sample_ns: int) -> list[int]:
    """Sizes of the parts once it is known what a sample takes."""
    sizes = PartSizes(workers)
    first = sizes.next(rows, ahead)
    assert first == part_rows(rows, workers)
    assert sizes.is_due
    sizes.learn(len(first), rows * sample_ns)
    return [count for _, count in sizes.next(rows, ahead)]


@pytest.mark.parametrize("sample_ns", [10, MS // 3, 20 * MS, 2000 * MS])
def test_parts_cover_the_batch_and_there_is_space_for_them(sample_ns: int) -> None:
    for workers, rows, ahead in itertools.product((1, 2, 5, 64, 300), (1, 3, 64, 257, 4096), (1, 3, 600)):
        sizes = PartSizes(workers)
        learnt = sizes.next(rows, ahead)
        sizes.learn(len(learnt), rows * sample_ns)
        parts = sizes.next(rows, ahead)
        assert [row for first, count in parts for row in range(first, first + count)] == list(range(rows))
        assert len(parts) <= len(learnt) == len(part_rows(rows, workers))


def test_parts_of_cheap_samples_are_larger() -> None:
    assert set(_sizes(256, 64, 128, MS // 3)) == {6, 7}  # even parts have 4
    assert max(_sizes(256, 64, 128, MS // 100)) == 64
    assert max(_sizes(256, 64, 128, 40 * MS)) == 4


def test_parts_stay_so_small_that_no_worker_waits_for_a_slot() -> None:
    for ahead in (3, 6, 20):
        parts = len(_sizes(256, 64, ahead, MS // 100))
        assert parts * (ahead - 1) >= 2 * 64 or parts == len(part_rows(256, 64))


def test_what_a_sample_takes_is_learnt_again_ever_more_seldom() -> None:
    sizes, due = PartSizes(2), []
    for batch in range(100):
        if sizes.is_due:
            due.append(batch)
        sizes.next(8, 4)
    assert due == [1, 2, 4, 8, 16, 32, 64]


def test_batches_ahead_are_bounded_by_parts_and_bytes() -> None:
    large = Layout(256, (Column((3, 224, 224), "float32"),))
    small = Layout(256, (Column((3, 32, 32), "uint8"),))
    assert enough_ahead(small, 64, 64, 128) == 128
    assert enough_ahead(large, 64, 64, 128) == part_sizes.AHEAD_BYTES // large.slot_bytes == 6
    assert enough_ahead(large, 64, 4, 128) == 33  # two parts for each worker, and the batch that is waited for
    assert enough_ahead(large, 1, 4, 2) == 2


def test_prefetch_factor_means_what_torchs_means_where_it_is_given(
    shards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(part_sizes, "AHEAD_BYTES", 0)
    dataset = ShardDataset(shards, RandomResizedCrop(8))

    def slots(**options: Any) -> int:
        loader = DataLoader(dataset, batch_size=16, num_workers=4, **options)
        iterator = iter(loader)
        next(iterator)
        total = loader.stats()["slots"]["total"]
        loader.close()
        assert isinstance(total, int)
        return total

    held = 2
    assert slots(prefetch_factor=2) == 8 + held
    assert slots(worker_options=WorkerOptions(memory_limit_bytes=1 << 30)) == 8 + held
    assert slots() == 3 + held  # of four parts each


def test_batches_do_not_depend_on_the_sizes_of_parts(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = ShardDataset(shards, RandomResizedCrop(8))

    def epoch() -> list[npt.NDArray[np.uint8]]:
        loader = DataLoader(dataset, batch_size=16, shuffle=True, num_workers=2)
        return [images.numpy().copy() for images, _ in loader]

    expected = epoch()
    monkeypatch.setattr(PartSizes, "next", lambda self, rows, ahead: [(0, rows)])
    assert all(map(np.array_equal, epoch(), expected))


@pytest.mark.parametrize("cores", [1, 8, 64])
def test_every_core_of_a_service_has_two_parts_of_the_batches_ahead(cores: int) -> None:
    batch, ahead = 256, 27
    parts = sent_part_rows(batch, 0, cores, ahead, 3 * 224 * 224)
    assert [first for first, _ in parts] == [sum(rows for _, rows in parts[:k]) for k in range(len(parts))]
    assert sum(rows for _, rows in parts) == batch
    assert len(parts) * ahead >= 2 * cores
    assert len(parts) <= most_sent_parts(batch, 0, 3 * 224 * 224)


def test_a_part_that_is_sent_is_no_larger_than_servers_have_memory_for() -> None:
    row_bytes = 4 * 3 * 2048 * 2048
    parts = sent_part_rows(64, 0, 1, 2, row_bytes)
    assert max(rows for _, rows in parts) * row_bytes <= PART_BYTES
    assert [rows for _, rows in sent_part_rows(2, 0, 1, 2, 2 * PART_BYTES)] == [1, 1]  # and never of no sample

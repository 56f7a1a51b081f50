"""A cache on a disk that is too small for the set, though it may take more: the epoch goes on with what fits."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from feeder.dataset.shards import ShardDataset
from feeder.loader.dataloader import DataLoader
from feeder.order.lanes import Lanes
from feeder.transforms import Resize
from tests.support.batches import check_same, copied_epoch
from tests.support.remote import Bucket
from tests.support.remote_sets import end_fetchers, make_set, upload


@contextlib.contextmanager
def _disk(folder: Path, size_bytes: int) -> Iterator[Path]:
    """A disk of a size, in memory."""
    if os.geteuid():
        pytest.skip("needs root, to mount a small disk")
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "feeder-test", str(folder)]
    made = subprocess.run(mount, capture_output=True, text=True, check=False)
    if made.returncode:
        pytest.skip(f"needs the right to mount a small disk: {made.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_an_epoch_goes_on_when_the_disk_of_its_cache_is_full(bucket: Bucket, tmp_path: Path, workers: int) -> None:
    local = make_set(tmp_path)
    url, size_bytes = upload(bucket, local), sum(path.stat().st_size for path in local.iterdir())
    recipe, disk_bytes = Resize((8, 8)), size_bytes * 3 // 4

    def epoch(dataset: ShardDataset) -> tuple[list, int]:
        loader = DataLoader(dataset, 4, shuffle=Lanes(1, 4), seed=4, num_workers=workers)
        with contextlib.closing(loader):
            batches = copied_epoch(loader)
            return batches, loader.stats()["remote"][
                "budget_bytes"
            ] if disk_bytes and dataset.reader.place == url else 0

    with _disk(tmp_path / "disk", disk_bytes) as disk, end_fetchers(disk):
        there = ShardDataset(url, recipe, fields=("index",), cache_dir=disk, cache_bytes=100 * size_bytes)
        batches, budget_bytes = epoch(there)
    check_same(batches, epoch(ShardDataset(local, recipe, fields=("index",)))[0])
    assert disk_bytes // 3 < budget_bytes < disk_bytes

"""A server reads nothing outside of its roots, whatever links lie in a set."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import feeder
from feeder import transforms as T
from tests.support.batches import check_same, copied_epoch
from tests.support.loader_data import write_shards, write_tree
from tests.support.service import ServiceServer, refusal

CROP = T.Compose([T.RandomResizedCrop(16)])


def shard_of(folder: Path) -> Path:
    (shard,) = folder.glob("*.tar")
    return shard


def shards(root: Path, outside: Path) -> feeder.ShardDataset:
    """A set of which a shard is a link."""
    write_shards(outside, 16)
    shutil.copytree(outside, root / "shards")
    shard = shard_of(root / "shards")
    shard.unlink()
    shard.symlink_to(shard_of(outside))
    return feeder.ShardDataset(root / "shards", CROP)


def images(root: Path, outside: Path) -> feeder.FolderDataset:
    """A folder of which an image is a link."""
    write_tree(outside, 16)
    shutil.copytree(outside, root / "images")
    image = min((root / "images" / "class").iterdir())
    image.unlink()
    image.symlink_to(outside / "class" / image.name)
    return feeder.FolderDataset(root / "images", CROP)


def classes(root: Path, outside: Path) -> feeder.FolderDataset:
    """A folder of which a class folder is a link."""
    write_tree(outside, 16)
    (root / "classes").mkdir()
    (root / "classes" / "class").symlink_to(outside / "class")
    return feeder.FolderDataset(root / "classes", CROP)


@pytest.mark.parametrize("make", [shards, images, classes])
def test_links_inside_a_set_do_not_lead_out_of_the_roots(
    tmp_path: Path, make: Callable[[Path, Path], feeder.ShardDataset | feeder.FolderDataset]
) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    root.mkdir()
    dataset = make(root, outside)
    with contextlib.closing(ServiceServer(tmp_path, root)) as narrow:
        one = feeder.DataLoader(
            dataset, batch_size=8, seed=0, service=feeder.Service(narrow.service, only=True), timeout=1
        )
        assert "leads out of the folders that the service was started for" in refusal(one)
    with contextlib.closing(ServiceServer(tmp_path, tmp_path)) as wide:
        other = feeder.DataLoader(dataset, batch_size=8, seed=0, service=feeder.Service(wide.service, only=True))
        check_same(copied_epoch(other), copied_epoch(feeder.DataLoader(dataset, batch_size=8)))

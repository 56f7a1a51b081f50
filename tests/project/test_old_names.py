"""Names of earlier versions go on: imports of public classes, and pickled datasets."""

from __future__ import annotations

import importlib
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

import feeder
from feeder.dataset.datasets import ShardDataset
from feeder.transforms import RandomResizedCrop
from tests.support.loader_data import write_shards

OLD = {
    "feeder.dataset.datasets": "feeder.dataset",
    "feeder.dataset.shard_reader": "feeder.read_shards",
    "feeder.dataset.folder_reader": "feeder.read_folder",
}


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("feeder.loader", "DataLoader"),
        ("feeder.dataset", "ShardDataset"),
        ("feeder.dataset", "FolderDataset"),
        ("feeder.order", "Window"),
        ("feeder.shard", "write_shards"),
    ],
)
def test_a_public_class_is_where_it_was(module: str, name: str) -> None:
    assert getattr(importlib.import_module(module), name) is getattr(feeder, name)


def test_a_dataset_that_an_earlier_version_pickled_still_loads(tmp_path: Path) -> None:
    dataset = ShardDataset(write_shards(tmp_path, 8), RandomResizedCrop(16))
    data = pickle.dumps(dataset, protocol=0)  # names modules in plain text
    for new, old in OLD.items():
        data = data.replace(f"c{new}\n".encode(), f"c{old}\n".encode())
    assert b"feeder.read_shards" in data
    (tmp_path / "old.pickle").write_bytes(data.replace(b"_decoder", b"_work"))
    code = f"import pickle; d = pickle.load(open({str(tmp_path / 'old.pickle')!r}, 'rb')); print(len(d), d[0][0].shape)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "8 torch.Size([3, 16, 16])\n"

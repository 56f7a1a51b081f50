"""Names of earlier versions go on: imports of public classes, and pickled datasets."""

from __future__ import annotations

import importlib
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

import feeder
from feeder.dataset.base import FeederDataset
from feeder.dataset.folders import FolderDataset
from feeder.dataset.shards import ShardDataset
from feeder.transforms import RandomResizedCrop
from tests.support.loader_data import encode, write_shards

# Modules as they are called now, and as pickles of two earlier versions call them.
FIRST = {
    "feeder.dataset.shards": "feeder.dataset",
    "feeder.dataset.folders": "feeder.dataset",
    "feeder.dataset.shard_reader": "feeder.read_shards",
    "feeder.dataset.folder_reader": "feeder.read_folder",
}
SECOND = {"feeder.dataset.shards": "feeder.dataset.datasets", "feeder.dataset.folders": "feeder.dataset.datasets"}


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("feeder.loader", "DataLoader"),
        ("feeder.dataset", "ShardDataset"),
        ("feeder.dataset", "FolderDataset"),
        ("feeder.order", "Lanes"),
        ("feeder.order", "Window"),
        ("feeder.shard", "write_shards"),
    ],
)
def test_a_public_class_is_where_it_was(module: str, name: str) -> None:
    assert getattr(importlib.import_module(module), name) is getattr(feeder, name)


@pytest.mark.parametrize("names", [FIRST, SECOND])
def test_datasets_that_an_earlier_version_pickled_still_load(tmp_path: Path, names: dict[str, str]) -> None:
    (tmp_path / "images" / "cat").mkdir(parents=True)
    (tmp_path / "images" / "cat" / "0.png").write_bytes(encode(0))
    datasets: list[FeederDataset] = [
        ShardDataset(write_shards(tmp_path, 8), RandomResizedCrop(16)),
        FolderDataset(tmp_path / "images", RandomResizedCrop(16)),
    ]
    data = pickle.dumps(datasets, protocol=0)  # names modules in plain text
    for new, old in names.items():
        assert f"c{new}\n".encode() in data
        data = data.replace(f"c{new}\n".encode(), f"c{old}\n".encode())
    if names is FIRST:
        data = data.replace(b"_decoder", b"_work")
    (tmp_path / "old.pickle").write_bytes(data)
    code = f"import pickle; d = pickle.load(open({str(tmp_path / 'old.pickle')!r}, 'rb'))"
    code += "; print(*map(len, d), d[0][0][0].shape, d[1][0][0].shape)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "8 1 torch.Size([3, 16, 16]) torch.Size([3, 16, 16])\n"

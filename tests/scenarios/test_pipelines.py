"""The pipelines of docs/frameworks.md that call feeder.decode, as they stand there."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import feeder
from feeder import transforms as T
from tests.support import ROOT
from tests.support.documents import block
from tests.support.images import encode, pixels
from tests.support.shard_sets import write_tar

CROPS = T.Compose([T.RandomResizedCrop(8), T.RandomHorizontalFlip(), T.ToDtype(torch.float32, scale=True)])
IMAGES = {f"{i:03d}": encode(pixels(i, 30 + i, 40)) for i in range(10)}
EPOCH = 3


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # theirs
        yield


def run(sign: str, **names: Any) -> dict[str, Any]:
    """Runs the one block of the docs that has this sign; returns its names."""
    names |= {"feeder": feeder, "recipe": CROPS, "epoch": EPOCH}
    exec(block("docs/frameworks.md", sign), names)
    return names


def expected(*keys: str, epoch: int = EPOCH) -> torch.Tensor:
    return feeder.decode([IMAGES[key] for key in keys], CROPS, ids=keys, epoch=epoch)


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_webdataset(tmp_path: Path) -> None:
    wds = pytest.importorskip("webdataset")
    members = [
        member for key, data in IMAGES.items() for member in ((f"{key}.jpg", data), (f"{key}.cls", key.encode()))
    ]
    urls = [str(write_tar(tmp_path / "a.tar", members))]
    names = run("wds.WebDataset", wds=wds, urls=urls)
    assert names["loader"].pipeline[0].num_workers == 4
    for epoch in (0, 1):
        ((images, labels),) = names["dataset"]
        keys = [f"{label:03d}" for label in labels]
        assert sorted(keys) == list(IMAGES)
        assert torch.equal(images, expected(*keys, epoch=epoch))


def test_torchdata() -> None:
    nodes = pytest.importorskip("torchdata.nodes")
    node = run("nodes.Batcher", nodes=nodes, node=nodes.IterableWrapper(IMAGES.items()))["node"]
    (batch,) = list(nodes.Loader(node))
    assert torch.equal(batch, expected(*IMAGES))


@pytest.mark.parametrize("form", ["bytes", "path"])
def test_hugging_face_datasets(form: str, tmp_path: Path) -> None:
    """With the bytes in the table, and with paths, as those of folders are."""
    datasets = pytest.importorskip("datasets")
    images: list[dict[str, Any]] = []
    for key, data in IMAGES.items():
        (tmp_path / f"{key}.jpg").write_bytes(data)
        path = str(tmp_path / f"{key}.jpg")
        images.append({"bytes": data, "path": None} if form == "bytes" else {"bytes": None, "path": path})
    columns = {"id": list(IMAGES), "image": images}
    features = datasets.Features({"id": datasets.Value("string"), "image": datasets.Image()})
    source = datasets.Dataset.from_dict(columns, features)
    dataset = run("with_transform", datasets=datasets, dataset=source, Path=Path)["dataset"]
    assert torch.equal(torch.stack(list(dataset[2:5]["image"])), expected("002", "003", "004"))
    assert torch.equal(dataset[7]["image"], expected("007")[0])
    loader = torch.utils.data.DataLoader(dataset, batch_size=4, num_workers=1)
    assert torch.equal(torch.cat([batch["image"] for batch in loader]), expected(*IMAGES))


@pytest.mark.slow
def test_ray_data(tmp_path: Path) -> None:
    """In a process of its own, as one that has used Ray must not fork, and ends Ray's processes with it."""
    pytest.importorskip("ray.data", reason="Ray is not installed")
    for key, data in IMAGES.items():
        (tmp_path / f"{key}.jpg").write_bytes(data)
    script = f"""
import numpy as np, ray, torch
import feeder
from feeder import transforms as T
ray.init(num_cpus=1, include_dashboard=False, object_store_memory=100 << 20, log_to_driver=False)
recipe = T.Compose([T.RandomResizedCrop(8), T.RandomHorizontalFlip(), T.ToDtype(torch.float32, scale=True)])
folder, epoch = {str(tmp_path)!r}, {EPOCH}
{block("docs/frameworks.md", "map_batches")}
rows = dataset.take_all()
np.savez({str(tmp_path / "found.npz")!r}, np.stack([row["image"] for row in rows]))
ray.shutdown()
"""
    # Ray's sockets need a short path.
    with tempfile.TemporaryDirectory(prefix="feeder-ray-", dir="/tmp") as short:
        environment = os.environ | {"RAY_TMPDIR": short, "RAY_DATA_DISABLE_PROGRESS_BARS": "1"}
        done = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, env=environment, check=False
        )
    assert done.returncode == 0, done.stderr[-3000:]
    with np.load(tmp_path / "found.npz") as file:
        (found,) = file.values()
    keys = [str(tmp_path / f"{key}.jpg") for key in IMAGES]
    expected = feeder.decode(list(IMAGES.values()), CROPS, ids=keys, epoch=EPOCH).numpy()
    assert found.shape == expected.shape
    assert sorted(image.tobytes() for image in found) == sorted(image.tobytes() for image in expected)

"""The examples of docs/loading.md and docs/image-sizes.md, as they stand there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import feeder
from feeder import transforms as T
from tests.support.documents import block
from tests.support.images import make_tree
from tests.support.loader_data import write_shards
from tests.support.target_data import members
from tests.support.with_torchvision import run_with_torchvision

_DETECTOR = """
import sys, types
from pathlib import Path
import torch
from torchvision.models.detection.transform import GeneralizedRCNNTransform
from tests.scenarios.test_loading_docs import code, run

class Detector:
    def __init__(self, image_mean, image_std):
        self.transform = GeneralizedRCNNTransform(800, 1333, image_mean, image_std)

    def __call__(self, images, targets):
        return self.transform(images)[0]

names = run("PadToBatch(multiple", Path(sys.argv[1]))
detection = types.SimpleNamespace(fasterrcnn_resnet50_fpn=Detector)
models = types.SimpleNamespace(models=types.SimpleNamespace(detection=detection))
names |= {"torchvision": models, "targets": None}
exec(code("model.transform.resize"), names)
assert torch.equal(names["losses"].tensors, names["images"])
assert names["losses"].image_sizes == [tuple(size) for size in names["sizes"].tolist()]
"""


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_shards(tmp_path_factory.mktemp("docs") / "shards", 8, sizes=[(30, 40), (40, 30), (31, 33)])


def code(sign: str) -> str:
    """The one block on sizes with this sign, for a machine with few cores."""
    return block("docs/image-sizes.md", sign).replace("num_workers=8", "num_workers=1")


def run(sign: str, shards: Path) -> dict[str, Any]:
    """Runs a block; returns its names."""
    names: dict[str, Any] = {"feeder": feeder, "T": T, "torch": torch}
    exec(code(sign).replace('"shards"', repr(str(shards))), names)
    return names


def test_a_dataset_class_of_ones_own(tmp_path: Path) -> None:
    paths = sorted(make_tree(tmp_path, 2, 4).rglob("*.jpg"))
    names: dict[str, Any] = {"feeder": feeder, "T": T, "torch": torch, "rows": [(path, 7) for path in paths]}
    exec(block("docs/loading.md", "class Table").replace("num_workers=8", "num_workers=0"), names)
    (images, labels), *others = names["loader"]
    assert not others
    assert images.shape == (8, 3, 224, 224)
    assert images.dtype == torch.float32
    assert labels.tolist() == [7] * 8


def test_targets_of_a_dataset_class_of_ones_own(tmp_path: Path) -> None:
    rows = []
    for i in range(6):
        paths = [tmp_path / f"{i}.{name}" for name in ("png", "seg.png")]
        for path, name in zip(paths, ("png", "seg.png"), strict=True):
            path.write_bytes(members(i)[name])
        rows.append((*paths, np.array([[2, 3, 20, 12]]), torch.tensor([5])))
    names: dict[str, Any] = {"feeder": feeder, "T": T, "torch": torch, "rows": rows}
    exec(block("docs/loading.md", "class Scenes").replace("num_workers=8", "num_workers=0"), names)
    assert names["images"].shape == (6, 3, 224, 224)
    assert names["masks"].shape == (6, 224, 224)
    assert [len(each["boxes"]) for each in names["boxes"]] == [len(each["labels"]) for each in names["boxes"]]
    assert {label for each in names["boxes"] for label in each["labels"].tolist()} == {5}


def test_buckets(shards: Path) -> None:
    names = run("feeder.Buckets(pixels", shards)
    size = tuple(names["images"].shape[2:])
    assert size in names["buckets"].sizes
    assert names["conditions"].shape == (8, 6)
    assert {tuple(row) for row in names["conditions"][:, 4:].tolist()} == {size}


def test_padded_batches(shards: Path) -> None:
    names = run("PadToBatch(multiple", shards)
    assert names["images"].dtype == torch.float32
    assert names["images"].shape[2] % 32 == names["images"].shape[3] % 32 == 0
    assert [list(image.shape[1:]) for image in names["inside"]] == names["sizes"].tolist()


@pytest.mark.slow
def test_torchvisions_detectors_take_padded_batches_as_they_are(shards: Path, tmp_path: Path) -> None:
    (tmp_path / "detector.py").write_text(_DETECTOR)
    run_with_torchvision(tmp_path / "detector.py", shards)

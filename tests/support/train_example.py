"""examples/train.py as a module, images that it learns from, and readers of what it writes."""

from __future__ import annotations

import csv
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from feeder.tools.cli import main as feeder_main
from tests.support import ROOT

__all__ = ["SCRIPT", "SMALL", "data", "load", "log", "script", "stripes"]

SCRIPT = ROOT / "examples" / "train.py"
SMALL = ["--image-size", "24", "--batch-size", "20", "--lr", "0.05", "--workers"]


def stripes(kind: int, seed: int) -> Image.Image:
    """Stripes that stand, lie, or cross, of any width, color and brightness, under noise."""
    rng = np.random.default_rng([kind, seed])
    y, x = np.mgrid[0:36, 0:48]
    frequency, (a, b) = 2 * np.pi / rng.uniform(5, 9), rng.uniform(0, 6.3, 2)
    standing, lying = np.sin(x * frequency + a), np.sin(y * frequency + b)
    wave = (standing, lying, standing * lying)[kind]
    image = rng.uniform(80, 170, 3) + wave[..., None] * rng.uniform(30, 70, 3) + rng.normal(0, 15, (36, 48, 3))
    return Image.fromarray(image.clip(0, 255).astype(np.uint8))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The shards to train on and those to validate with."""
    root = tmp_path_factory.mktemp("stripes")
    for part, count in (("train", 60), ("val", 21)):
        for kind in range(3):
            folder = root / part / f"class-{kind}"
            folder.mkdir(parents=True)
            for i in range(count):
                stripes(kind, i + 1000 * (part == "val")).save(folder / f"{i}.jpg", quality=90)
        assert feeder_main(["shard", str(root / part), "--out", str(root / f"{part}-shards"), "-q"]) == 0
    return [str(root / "train-shards"), str(root / "val-shards")]


@pytest.fixture(scope="module")
def script() -> Iterator[Any]:
    """The example as a module, on one thread."""
    spec = importlib.util.spec_from_file_location("train_example", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.path.append(str(SCRIPT.parent))
    spec.loader.exec_module(module)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield module
    torch.set_num_threads(threads)
    sys.path.remove(str(SCRIPT.parent))


def log(out: Path) -> list[list[float]]:
    """Loss and accuracy of each step."""
    with open(out / "log.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["step"]) for row in rows] == list(range(len(rows)))
    return [[float(row["loss"]), float(row["accuracy"])] for row in rows]


def load(path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = torch.load(path, weights_only=True)
    return loaded

"""The page for authors of backends is true: the backend on it, installed as a package, conforms and feeds a loader."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from feeder.dataset.shards import ShardDataset
from feeder.decoders.registry import decoder_names, get_decoder
from feeder.loader.dataloader import DataLoader
from feeder.transforms import RandomResizedCrop
from tests.support.conformance import CHECKS
from tests.support.documents import block
from tests.support.loader_data import write_shards
from tests.support.requirements import toml


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The page's backend, as a package that is installed."""
    (tmp_path / "toy_backend.py").write_text(block("docs/new-backend.md", "class ToyDecoder"))
    info = tmp_path / "toy_backend-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-backend\nVersion: 1.0\n")
    ((group, names),) = toml(block("docs/new-backend.md", "toy", "toml"))["project"]["entry-points"].items()
    lines = [f"{name} = {place.replace('my_package.toy', 'toy_backend')}\n" for name, place in names.items()]
    (info / "entry_points.txt").write_text(f"[{group}]\n{''.join(lines)}")
    monkeypatch.syspath_prepend(str(tmp_path))
    return "toy"


def test_the_backend_of_the_page_conforms(toy: str) -> None:
    assert toy in decoder_names()
    for check in CHECKS:
        check(get_decoder(toy))


def test_the_backend_of_the_page_feeds_a_loader(toy: str, tmp_path: Path) -> None:
    dataset = ShardDataset(write_shards(tmp_path, 12), RandomResizedCrop(16))
    options: dict[str, Any] = {"batch_size": 5, "shuffle": True, "seed": 3}
    expected = list(DataLoader(dataset, backend="pillow", **options))
    found = list(DataLoader(dataset, backend=toy, num_workers=1, **options))
    assert [labels.tolist() for _, labels in found] == [labels.tolist() for _, labels in expected]
    for (images, _), (reference, _) in zip(found, expected, strict=True):
        torch.testing.assert_close(images, reference, atol=1, rtol=0)

"""The training benchmark: its tiles, its rule for seed noise, and the documented table."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from bench import training
from tests.support import ROOT


def test_no_pixel_of_the_test_is_trained_on(tmp_path: Path) -> None:
    places = np.zeros((3 * training.TILE + 5, 4 * training.TILE, 3), np.uint8)
    for y in range(3):
        for x in range(4):
            places[y * training.TILE :, x * training.TILE :] = 20 * (4 * y + x)
    Image.fromarray(places).save(tmp_path / "photo.png")
    assert training.cut([tmp_path / "photo.png"], tmp_path) == {"train": 9, "test": 3}
    levels = {}
    for part in ("train", "test"):
        tiles = [np.asarray(Image.open(path)) for path in (tmp_path / part / "photo").iterdir()]
        assert {tile.shape for tile in tiles} == {(training.TILE, training.TILE, 3)}
        levels[part] = {round(float(tile.mean()) / 20) for tile in tiles}
    assert levels["train"] | levels["test"] == set(range(12))
    assert not levels["train"] & levels["test"]


@pytest.mark.parametrize(
    ("added", "beyond"), [(0.0, []), (0.024, []), (0.026, ["files, fast"]), (-0.026, ["files, fast"])]
)
def test_a_difference_of_more_than_some_deviations_is_no_seed_noise(added: float, beyond: list[str]) -> None:
    seeds = [0.70, 0.71, 0.72]  # their deviation is 0.01
    found = training.summary({training.TORCH: seeds, "files, fast": [value + added for value in seeds]})
    assert found["limit"] == pytest.approx(0.025)
    assert found["above_torch"] == pytest.approx({"files, fast": added})
    assert found["beyond_seed_noise"] == beyond


def test_the_documented_accuracies_are_the_committed_ones() -> None:
    found = json.loads((ROOT / "bench/results/training.json").read_text())
    assert found["beyond_seed_noise"] == []
    passage = f"<!-- training: python -m bench.pages -->\n\n{training.markdown(found)}\n\n<!-- end -->\n"
    assert passage in (ROOT / "docs/transforms.md").read_text()

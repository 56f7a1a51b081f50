"""The recipes' benchmark: what it leaves out and why, which of two runs counts, and its table."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.recipe_rivals import RECIPES, RIVALS
from bench.recipes import INSTALL, better, check, left_out, markdown, missed, missing, summary
from tests.support import ROOT
from tests.support.warm_python import run_warm


def test_a_missing_rival_is_named_with_the_command_that_installs_it(tmp_path: Path) -> None:
    (tmp_path / "timm").mkdir()
    found = missing(tmp_path)
    assert "timm" not in found
    assert found["albumentations"].startswith(f"pip install --target {tmp_path}/albumentations albumentations==2.0.8")


def test_without_its_rivals_it_refuses(tmp_path: Path) -> None:
    command = ["-m", "bench.recipes", "--images", "none", "--rivals", tmp_path, "--without", "timm,dali"]
    done = run_warm(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1
    assert "--without pillow-simd" in done.stderr
    assert "--without timm" not in done.stderr


def test_every_need_has_a_command() -> None:
    assert {need for rival in RIVALS.values() for need in rival.needs} | {"timm"} == INSTALL.keys()


@pytest.mark.parametrize("recipe", RECIPES)
def test_whoever_is_left_out_has_a_reason(recipe: str) -> None:
    found = left_out(recipe, {"dali"})
    assert all(found.values())
    assert {name for name in RIVALS if name.startswith("DALI")} <= found.keys()
    assert "torchvision, Pillow" not in found
    assert "feeder, seekable" not in found
    assert ("AlbumentationsX, INTER_AREA" in found) == (recipe.endswith("augment") or recipe == "timm")


def test_without_timm_its_recipe_has_no_rivals() -> None:
    assert RIVALS.keys() - left_out("timm", {"timm"}).keys() == {name for name in RIVALS if name.startswith("feeder, ")}


def test_the_better_number_of_workers_counts_within_turns() -> None:
    found = {
        ("feeder, seekable", "jitter", 0): [20.0, 40.0],
        ("feeder, seekable", "jitter", 1): [10.0, 10.0],
        ("feeder, seekable", "nothing", 0): [40.0, 40.0],
        ("torchvision, Pillow", "jitter", 0): [2.0, 2.0],
        ("torchvision, Pillow", "jitter", 1): [4.0, 5.0],
        ("DALI, prefetch 2", "jitter", 0): [3.0, 3.0],
    }
    result = summary({key: found[key] for key in better(found)}, "jitter")
    assert {name: rate["workers"] for name, rate in result["images_per_cpu_s"].items()} == {
        "feeder, seekable": 0,
        "torchvision, Pillow": 1,
        "DALI, prefetch 2": 0,
    }
    assert result["fastest_rival"] == "torchvision, Pillow"
    assert result["ratio"]["feeder, seekable"]["all"] == [5.0, 8.0]
    assert result["of_base"]["feeder, seekable"]["all"] == [0.5, 1.0]

    assert missed({"jitter": result}) == ["jitter, seekable, of_base: 0.75, the goal is 0.9"]
    row = markdown({"jitter": result}).splitlines()[-1]
    assert row == "| ColorJitter(0.4, 0.4, 0.4) | – | 30 | – | torchvision, Pillow 4 | 6.5 | 0.75 |"


def test_other_pixels_are_refused() -> None:
    said = {(name, "nothing", 0): {"mean": 0.1, "std": 1.0} for name in ("a", "b", "c")}
    check(said)
    said["c", "nothing", 0] = {"mean": 0.1, "std": 0.3}
    with pytest.raises(SystemExit, match=r"c: std of the pixels is 0\.30"):
        check(said)

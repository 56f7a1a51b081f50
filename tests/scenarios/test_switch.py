"""Scripts of the shape of public ones train on, with few lines changed; bench/switch.py measures what that brings."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bench.switch_rival import AS_IT_IS, EDITS, FOLDER, SHARDS, changed_lines, source
from tests.support import ROOT
from tests.support.with_torchvision import run_with_torchvision

_SCRIPTS = ("imagenet", "torchvision_reference", "mae", "dino", "own_dataset")
_MOST_LINES = {FOLDER: 2, SHARDS: 3}
_MORE_LINES = {"dino": 3, "own_dataset": 3}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """By script and variant, the counts of labels in an epoch, and the loader's path."""
    folder = tmp_path_factory.mktemp("switch")
    run_with_torchvision(ROOT / "tests/support/switched_scripts.py", folder)
    found: dict[str, Any] = json.loads((folder / "results.json").read_text())
    return found


@pytest.mark.parametrize(("script", "variant"), [(name, each) for name in _SCRIPTS for each in EDITS[name]])
def test_a_changed_script_trains_on_the_same_labels(results: dict[str, Any], script: str, variant: str) -> None:
    before, after = results[f"{script}, {AS_IT_IS}"], results[f"{script}, {variant}"]
    assert before["labels"] == after["labels"]
    assert sum(seen for _, seen in after["labels"]) == 16
    assert after["path"] == ("generic" if script == "own_dataset" else "fast")


@pytest.mark.parametrize(("script", "variant"), [(name, each) for name in EDITS for each in EDITS[name]])
def test_the_change_is_a_few_lines(script: str, variant: str) -> None:
    assert source(script, variant) != source(script, AS_IT_IS)
    assert changed_lines(script, variant) <= _MORE_LINES.get(script, _MOST_LINES[variant])

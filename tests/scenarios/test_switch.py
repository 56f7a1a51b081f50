"""Scripts of the shape of public ones train on, with few lines changed; bench/switch.py measures what that brings."""

from __future__ import annotations

import difflib
import json
import re
from typing import Any

import pytest

from bench.switch import passage
from bench.switch_rival import AS_IT_IS, DALI, EDITS, FOLDER, SHARDS, changed_lines, source
from tests.support import ROOT
from tests.support.documents import block, blocks, smaller
from tests.support.with_torchvision import run_with_torchvision

_SCRIPTS = ("imagenet", "torchvision_reference", "mae", "dino", "own_dataset")
_README = "from_torch(train_loader)"
_PAGE_CODE = {  # the path of the loader, by a sign of the code
    _README: "fast",
    "wrap_dataset_for": "fast",
    "LightningDataModule": "fast",
    "accelerator": "fast",
    "transformers": "fast",
    "ClassificationTrainer": "generic",
    "random_split": "fast",
}
_PAGE_TITLES = {
    "torchvision_reference": "Torchvision's references",
    "mae": "MAE",
    "dino": "DINO",
    "timm_train": "timm",
    "own_dataset": "Your own dataset class",
}
_MOST_LINES = {FOLDER: 2, SHARDS: 3}
_MORE_LINES = {"dino": 3}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """By script and variant, the counts of labels in an epoch, and the loader's path."""
    folder = tmp_path_factory.mktemp("switch")
    code = {sign: block("docs/switching.md", sign) for sign in _PAGE_CODE if sign != _README}
    code[_README] = block("README.md", _README)
    (folder / "code.json").write_text(json.dumps({sign: smaller(text) for sign, text in code.items()}))
    run_with_torchvision(ROOT / "tests/support/switched_scripts.py", folder)
    found: dict[str, Any] = json.loads((folder / "results.json").read_text())
    return found


@pytest.mark.parametrize(("script", "variant"), [(name, each) for name in _SCRIPTS for each in EDITS[name]])
def test_a_changed_script_trains_on_the_same_labels(results: dict[str, Any], script: str, variant: str) -> None:
    before, after = results[f"{script}, {AS_IT_IS}"], results[f"{script}, {variant}"]
    assert before["labels"] == after["labels"]
    assert sum(seen for _, seen in after["labels"]) == 16
    assert after["path"] == (None if script == "own_dataset" else "fast")  # whose loader stays torch's


@pytest.mark.parametrize(("script", "variant"), [(name, each) for name in EDITS for each in EDITS[name]])
def test_the_change_is_a_few_lines(script: str, variant: str) -> None:
    assert source(script, variant) != source(script, AS_IT_IS)
    assert changed_lines(script, variant) <= _MORE_LINES.get(script, _MOST_LINES[variant])


@pytest.mark.parametrize("sign", _PAGE_CODE)
def test_the_code_of_the_page_trains(results: dict[str, Any], sign: str) -> None:
    if results[sign].startswith("no "):  # on Pythons for which a framework has no wheels
        pytest.skip(results[sign])
    assert results[sign] == _PAGE_CODE[sign]


def test_the_table_of_a_result_has_a_line_for_each_script() -> None:
    rates = {AS_IT_IS: (300.0, 1.0, 0), FOLDER: (1200.0, 4.0, 2), SHARDS: (2400.0, 8.0, 3), DALI: (150.0, 0.5, 9)}
    found = {
        name: {"images_per_cpu_s": {"median": rate}, "ratio": {"median": ratio}, "changed_lines": lines}
        for name, (rate, ratio, lines) in rates.items()
    }
    dino = {name: found[name] for name in (AS_IT_IS, FOLDER)}
    result: dict[str, Any] = {"machine": {"processor": "a CPU"}, "goals_missed": [], "mae": found, "dino": dino}
    lines = passage(result).splitlines()
    assert lines[0] == "## Measured"
    assert lines[-2:] == [
        "| `mae` | 300 | 4.0x | 2 | 8.0x | 3 | 0.5x | 9 |",
        "| `dino` | 300 | 4.0x | 2 | – | – | – | – |",
    ]


def test_the_changes_of_the_page_are_those_of_the_scripts() -> None:
    """And so is the number of lines in its table, where a script of the same shape is there."""
    found = {}
    for script in _PAGE_TITLES:
        before, after = (source(script, each).splitlines() for each in (AS_IT_IS, FOLDER))
        lines = difflib.ndiff(before, after)
        found[script] = [line[0] + line[2:] for line in lines if line[0] in "+-"]
    assert [each.text.splitlines() for each in blocks("docs/switching.md", "diff")] == [*found.values()]

    text = (ROOT / "docs/switching.md").read_text()
    for script, title in _PAGE_TITLES.items():
        anchor = re.sub(r"[^\w-]", "", title.lower().replace(" ", "-"))
        counts = {int(number) for number in re.findall(rf"\(#{anchor}\) \| (\d) \|", text)}
        assert counts == {changed_lines(script, FOLDER)}, script
        assert f"\n## {title}\n" in text

"""Converted recipes beside torchvision's own, all in one process, as its import takes seconds."""

from __future__ import annotations

import ast
import json

import pytest

from tests.support import ROOT
from tests.support.with_torchvision import run_with_torchvision

_SCRIPT = ROOT / "tests/support/torchvision_recipes.py"
_NAMES = [
    node.name
    for node in ast.parse(_SCRIPT.read_text()).body
    if isinstance(node, ast.FunctionDef) and not node.args.args and not node.name.startswith(("_", "check"))
]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The traceback of each check that failed."""
    file = tmp_path_factory.mktemp("recipes") / "results.json"
    run_with_torchvision(_SCRIPT, file, json.dumps(_NAMES))
    found: dict[str, str] = json.loads(file.read_text())
    return found


@pytest.mark.parametrize("name", _NAMES)
def test_recipe(results: dict[str, str], name: str) -> None:
    assert not results[name], results[name]

"""torchvision's and Hugging Face's own datasets through ``feeder.from_torch``; the checks are in ``torch_objects``."""

from __future__ import annotations

import json

import pytest

from tests.support import ROOT, torch_objects
from tests.support.with_torchvision import run_with_torchvision


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str | None]:
    """The traceback of each check; all of one process, as the import of torchvision takes seconds."""
    folder = tmp_path_factory.mktemp("objects")
    run_with_torchvision(ROOT / "tests/support/torch_objects.py", folder)
    found: dict[str, str | None] = json.loads((folder / "results.json").read_text())
    return found


@pytest.mark.parametrize("name", list(torch_objects.CHECKS))
def test_from_torch(name: str, results: dict[str, str | None]) -> None:
    assert results[name] is None, results[name]

"""The site of the documents: it is built without a warning, from what the repository has."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import feeder
from feeder import fields, service, transforms
from tests.support import ROOT

# Public for those who write ops and frameworks, and described where they are used.
UNLISTED = {"BatchOp", "Draws", "fields", "recipe_or_views", "service", "transforms", "wds"}


@pytest.mark.slow
def test_site_is_built_and_its_links_lead_somewhere(tmp_path: Path) -> None:
    script = ROOT / "scripts/build_site.py"
    done = subprocess.run([sys.executable, script, tmp_path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "RandomResizedCrop" in (tmp_path / "docs/reference/transforms/index.html").read_text()
    assert "feeder shard" in (tmp_path / "docs/reference/commands/index.html").read_text()


def test_reference_names_everything_public() -> None:
    text = "".join(path.read_text() for path in (ROOT / "docs/reference").glob("*.md"))
    public = {f"feeder.{name}" for name in feeder.__all__ if name not in UNLISTED}
    public |= {f"feeder.transforms.{name}" for name in transforms.__all__ if name not in UNLISTED}
    public |= {f"feeder.fields.{name}" for name in fields.__all__}
    public |= {f"feeder.service.{name}" for name in service.__all__}
    assert {name for name in public if f"::: {name}\n" not in text} == set()

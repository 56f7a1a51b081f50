"""The HTML reports of the commands in a browser."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from feeder.tools.bench.show import result_page
from tests.support import ROOT
from tests.support.browser import PHONE_PX, check_look, open_page

TRAINING = """
import torch

images = torch.utils.data.TensorDataset(torch.ones(400, 3, 8, 8))
model = torch.nn.Linear(192, 3)
for epoch in range(2):
    for (batch,) in torch.utils.data.DataLoader(images, batch_size=8):
        model(batch.flatten(1)).sum().backward()
"""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A report of each kind: of a benchmark and of a training script's profile."""
    folder = tmp_path_factory.mktemp("reports")
    result = ROOT / "bench/results/throughput.json"
    (folder / "bench.html").write_text(result_page(json.loads(result.read_text())))
    (folder / "train.py").write_text(TRAINING)
    profile = [sys.executable, "-m", "feeder", "profile", "--out", "profile.html", "train.py"]
    subprocess.run(profile, cwd=folder, capture_output=True, check=True)
    return sorted(folder.glob("*.html"))


@pytest.mark.parametrize("width_px", [PHONE_PX, 1280])
def test_reports_are_readable_on_a_phone_and_a_desktop_in_light_and_dark(width_px: int, reports: list[Path]) -> None:
    assert [path.stem for path in reports] == ["bench", "profile"]
    seen = set()
    with open_page(width_px) as page:
        for path in reports:
            page.goto(path.as_uri())
            seen |= check_look(page, "light") | check_look(page, "dark")
    assert seen >= {"H1", "H2", "BDI", "P", "text"}

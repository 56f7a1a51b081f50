"""The examples, run as a user runs them, on generated images."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from feeder.tools.cli import main
from tests.support import PYTHON_PATH, ROOT
from tests.support.gil import need
from tests.support.images import encode
from tests.support.ranks import TORCHRUN, run_job


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 images of three classes that their brightness tells apart."""
    folder = tmp_path_factory.mktemp("examples")
    rng = np.random.default_rng(0)
    for label in range(3):
        (folder / f"images/{label}").mkdir(parents=True)
        for i in range(20):
            pixels = rng.normal(40 + 80 * label, 12, (36, 48, 3)).clip(0, 255).astype(np.uint8)
            (folder / f"images/{label}/{i}.jpg").write_bytes(encode(Image.fromarray(pixels)))
    assert main(["shard", str(folder / "images"), "--out", str(folder / "shards"), "-q"]) == 0
    return folder / "shards"


def _example(folder: Path, name: str, shards: Path, *arguments: str, ranks: int = 1) -> str:
    return run_job(ROOT / "examples" / name, shards, *arguments, ranks=ranks, folder=folder)


def test_load_epoch(shards: Path, tmp_path: Path) -> None:
    out = _example(tmp_path, "load_epoch.py", shards, "--batch-size", "16", "--workers", "1")
    assert out.startswith("60 samples in 4 batches, the last one torch.float32 (12, 3, 224, 224)\n")


def test_dino_trains_on_views(shards: Path, tmp_path: Path) -> None:
    out = _example(
        tmp_path, "dino_views.py", shards, "--size", "32", "--small-size", "16", "--batch-size", "20", "--workers", "0"
    )
    losses = [float(found) for found in re.findall(r"^epoch \d: 3 steps, loss (\d+\.\d+)$", out, re.M)]
    assert len(losses) == 3, out
    assert max(losses) < 3.5  # about log(32) for scores that tell nothing


@pytest.mark.slow
def test_lightning_learns(shards: Path, tmp_path: Path) -> None:
    out = _example(tmp_path, "lightning_fit.py", shards, "--size", "32", "--batch-size", "8")
    found = re.search(r"epochs 3, steps 24, loss (\d+\.\d+)$", out, re.M)
    assert found is not None, out
    assert float(found[1]) < 1.09  # a guess costs log(3)
    assert list(tmp_path.glob("lightning-run/checkpoints/*.ckpt"))


@pytest.mark.slow
def test_accelerate_goes_on_with_another_number_of_processes(shards: Path, tmp_path: Path) -> None:
    need("accelerate")
    options = ("--size", "32", "--epochs", "2", "--checkpoint", "state.pt")
    (tmp_path / "state.pt.unfinished").write_bytes(b"of a run that was killed")
    broken = ("--batch-size", "8", "--max-steps", "2")
    assert _example(tmp_path, "accelerate_loop.py", shards, *options, *broken, ranks=2) == ""
    out = _example(tmp_path, "accelerate_loop.py", shards, *options, "--batch-size", "4")
    # 32 of 60 samples are seen, so 7 batches of 4 are left of this epoch; the next has 15.
    found = re.search(r"epochs 2, steps 24, loss (\d+\.\d+)$", out, re.M)
    assert found is not None, out
    assert [path.name for path in tmp_path.iterdir()] == ["state.pt"]


@pytest.mark.slow
def test_timm_style_learns(shards: Path, tmp_path: Path) -> None:
    out = _example(tmp_path, "timm_style.py", shards, "--size", "32", "--batch-size", "8", "--epochs", "4")
    scores = [float(score) for score in re.findall(r"^epoch \d: .* top-1 (\d+\.\d) %", out, re.M)]
    assert len(scores) == 4
    assert scores[-1] > 60
    rows = [line.split(",") for line in (tmp_path / "loss.csv").read_text().splitlines()]
    assert [step for step, _ in rows] == ["step", *map(str, range(4 * 7))]
    losses = [float(loss) for loss in re.findall(r": loss (\d+\.\d+),", out)]
    means = [sum(float(loss) for _, loss in rows[1:][7 * k : 7 * k + 7]) / 7 for k in range(4)]
    assert means == pytest.approx(losses, abs=1e-3)


@pytest.mark.slow
def test_torchrun_ddp(shards: Path, tmp_path: Path) -> None:
    options = ("--size", "32", "--batch-size", "8", "--epochs", "3")
    command = [sys.executable, *TORCHRUN, str(ROOT / "examples/torchrun_ddp.py"), str(shards), *options]
    env = {**os.environ, "PYTHONPATH": PYTHON_PATH, "OMP_NUM_THREADS": "1"}
    out = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    found = re.findall(r"^epoch \d: (\d+) samples, loss (\d+\.\d+)$", out, re.M)
    assert [int(samples) for samples, _ in found] == [60, 60, 60]
    assert float(found[-1][1]) < float(found[0][1])


@pytest.mark.slow
def test_transformers_trainer_goes_on_from_its_last_checkpoint(shards: Path, tmp_path: Path) -> None:
    need("accelerate", "transformers")
    options = ("--size", "32", "--batch-size", "8", "--save-steps", "5")
    _example(tmp_path, "transformers_trainer.py", shards, *options, "--epochs", "1")
    out = _example(tmp_path, "transformers_trainer.py", shards, *options, "--epochs", "3", "--resume")
    found = re.search(r"^epochs 3, steps 24, loss (\d+\.\d+)$", out, re.M)
    assert found is not None, out
    assert float(found[1]) < 1.15  # a guess costs log(3)

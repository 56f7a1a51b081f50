"""Whoever has no Ray trains on one machine, and with servers that a file names."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

import feeder
import feeder.service
from feeder.tools.cli import main
from tests.support import ROOT
from tests.support.service import ServiceServer

EPOCHS = (
    "import sys, feeder, feeder.service\n"
    "from feeder import transforms as T\n"
    "dataset = feeder.ShardDataset(sys.argv[1], transform=T.Compose([T.RandomResizedCrop(16)]))\n"
    "for how in ({'num_workers': 1}, {'service': feeder.Service(sys.argv[2], only=True)}):\n"
    "    loader = feeder.DataLoader(dataset, batch_size=8, seed=0, **how)\n"
    "    print(len(list(loader)))\n"
    "    loader.close()\n"
)


def test_epochs_with_a_service_and_without_need_no_ray(root: Path, tmp_path: Path) -> None:
    (tmp_path / "banned").mkdir()
    (tmp_path / "banned" / "ray.py").write_text("raise ModuleNotFoundError('No module named ray')\n")
    path = os.pathsep.join([str(tmp_path / "banned"), *filter(None, [os.environ.get("PYTHONPATH")])])
    banned = {"PYTHONPATH": path}  # all processes inherit it
    with contextlib.closing(ServiceServer(tmp_path, root, environment=banned, is_warm=False)) as server:
        command = [sys.executable, "-c", EPOCHS, str(root / "set"), server.service]
        env = {**os.environ, **banned}
        ended = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, check=False)
        assert (ended.returncode, ended.stdout) == (0, "8\n8\n"), ended.stderr
        assert server.parts() >= 8


def test_without_ray_a_service_on_a_cluster_is_refused_by_the_packages_name(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    message = r"an input service needs the package ray: pip install 'feeder-data\[ray\]'"
    with pytest.raises(feeder.ArgumentError, match=message):
        feeder.service.start(roots=[root], cpus=1)
    with pytest.raises(feeder.ArgumentError, match=message):
        feeder.service.status()
    assert main(["serve", "--root", str(root), "--cpus", "1"]) != 0
    assert "needs the package ray" in capsys.readouterr().err

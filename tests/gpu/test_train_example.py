"""examples/train.py on a GPU: it learns, goes on, waits for nothing, and means the same over several devices."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import feeder
from tests.support import train_example as example

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

data, script = example.data, example.script
OPTIONS = [*example.SMALL, "1", "--device", "cuda"]


@pytest.mark.parametrize("amp", [["--amp", "off"], ["--amp", "bf16", "--channels-last"], ["--amp", "fp16"]])
def test_it_learns_and_goes_on(data: list[str], tmp_path: Path, script: Any, amp: list[str]) -> None:
    for epochs in ("3", "5"):
        script.main([*data, "--out", str(tmp_path), *OPTIONS, *amp, "--epochs", epochs])
    assert example.load(tmp_path / "best.pt")["accuracy"] >= 0.8
    assert len(example.log(tmp_path)) == 45
    last = example.load(tmp_path / "last.pt")
    assert all(bool(tensor.isfinite().all()) for tensor in last["model"].values())
    assert ("scale" in last["scaler"]) == ("fp16" in amp)


def test_dp_has_the_loss_curve_of_one_device(
    data: list[str], tmp_path: Path, script: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over all devices; where there is one, over two replicas on it."""
    if torch.cuda.device_count() == 1:
        ways = importlib.import_module("train_parallel")
        whole = ways.DataParallel.__init__

        def twice(self: Any, *arguments: Any) -> None:
            whole(self, *arguments)
            self.devices *= 2

        monkeypatch.setattr(ways.DataParallel, "__init__", twice)
    # Of the same decoder: with a device, "auto" may choose one on the GPU.
    loader = feeder.DataLoader
    monkeypatch.setattr(feeder, "DataLoader", lambda *args, **options: loader(*args, backend="cpu", **options))
    for parallel in ("none", "dp"):
        options = [*OPTIONS, "--epochs", "1", "--norm", "group", "--parallel", parallel]
        script.main([*data, "--out", str(tmp_path / parallel), *options])
    # Convolutions in TF32 round to ten bits.
    np.testing.assert_allclose(example.log(tmp_path / "dp"), example.log(tmp_path / "none"), rtol=0.05, atol=0.051)


@pytest.mark.parametrize("amp", ["off", "fp16"])
def test_no_step_waits_for_the_gpu(data: list[str], tmp_path: Path, script: Any, amp: str) -> None:
    options = [*OPTIONS, "--amp", amp, "--epochs", "3", "--log-every", "4"]
    trainer = script.Trainer(script.arguments([*data, "--out", str(tmp_path), *options]))
    rows: list[int] = []
    with feeder.DeviceLog(lambda step, _: rows.append(step), every=4, device="cuda") as log:
        trainer.train_epoch(log)  # what is made at the first use may wait
        torch.cuda.set_sync_debug_mode("error")
        try:
            trainer.train_epoch(log)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert rows == list(range(18))
    trainer.loader.close()

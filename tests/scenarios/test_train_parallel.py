"""examples/train.py by pipeline and by FSDP: the losses of one process, also where samples are skipped."""

from __future__ import annotations

import importlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import distributed
from torch.testing._internal.distributed.fake_pg import FakeStore

import feeder
from feeder import transforms as T
from tests.support import train_example
from tests.support.ranks import run_job
from tests.support.train_example import SCRIPT, load, log, stripes

script = train_example.script

OPTIONS = ["--image-size", "24", "--batch-size", "12", "--lr", "0.01", "--workers", "0", "--epochs", "1"]
OPTIONS += ["--norm", "group", "--on-error", "skip"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Class folders to train on, with a damaged image in every tenth batch, and to validate with, with one."""
    root = tmp_path_factory.mktemp("folders")
    for part, count in (("train", 84), ("val", 13)):
        for kind in range(3):
            (root / part / f"class-{kind}").mkdir(parents=True)
            for i in range(count):
                stripes(kind, i + 1000 * (part == "val")).save(root / part / f"class-{kind}/{i}.jpg", quality=90)
    dataset = feeder.FolderDataset(root / "train", T.CenterCrop(8), fields=["path"])
    batches = [paths for _, _, paths in feeder.DataLoader(dataset, 12, shuffle=True, seed=0)]
    for path in [*(Path(batches[step][5]) for step in (0, 10, 20)), root / "val/class-1/3.jpg"]:
        path.write_bytes(path.read_bytes()[:200])
    return [str(root / "train"), str(root / "val")]


@pytest.fixture(scope="module")
def one(folders: list[str], script: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of one process."""
    out = tmp_path_factory.mktemp("one")
    with pytest.warns(UserWarning, match=r"^3 of 252 samples of epoch 0 "):
        script.main([*folders, "--out", str(out), *OPTIONS, "--accumulate", "2"])
    return out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("processes", "options"),
    [
        (2, ["pipeline", "--microbatches", "3"]),
        (3, ["pipeline", "--stages", "3"]),
        (4, ["pipeline", "--stages", "2", "--microbatches", "2"]),
        (2, ["fsdp"]),
    ],
)
def test_the_losses_are_those_of_one_process(
    folders: list[str], one: Path, tmp_path: Path, processes: int, options: list[str]
) -> None:
    arguments = [*folders, "--out", tmp_path, *OPTIONS, "--accumulate", "2", "--parallel", *options]
    warnings = ["-W", "error", "-W", "ignore:[0-9,]+ of [0-9,]+ samples? of epoch"]
    run_job(SCRIPT, *arguments, ranks=processes, options=warnings)
    np.testing.assert_allclose(log(tmp_path), log(one), rtol=0, atol=1e-4)
    last, expected = load(tmp_path / "last.pt"), load(one / "last.pt")
    torch.testing.assert_close(last["model"], expected["model"], rtol=1e-3, atol=1e-4)
    assert last["best"] == pytest.approx(expected["best"], abs=1e-9)


_GRADIENTS = """
import gc, sys
import torch
from torch import distributed
sys.path.append(sys.argv.pop(1))
import train
out, *options = sys.argv[1:]
args = train.arguments(options)
if args.parallel != "none":
    distributed.init_process_group("gloo")
trainer = train.Trainer(args)
trainer.module.train()
images, labels = next(iter(trainer.loader))
trainer.way.backward(images, labels, 1, True, trainer.scaler)
found = trainer.way.gathered({name: p.grad for name, p in trainer.model.named_parameters()})
shards = [p.grad for p in trainer.model.parameters() if hasattr(p.grad, "full_tensor")]
if train.rank() == 0:
    torch.save({"gradients": found, "sharded": len(shards)}, out)
trainer.way.end()
del trainer, found, shards
gc.collect()
if distributed.is_initialized():
    distributed.destroy_process_group()
"""


@pytest.mark.slow
def test_the_gradients_of_fsdp_are_those_of_one_process(folders: list[str], tmp_path: Path) -> None:
    (tmp_path / "step.py").write_text(_GRADIENTS)
    common = [*folders, "--out", str(tmp_path), *OPTIONS]
    for name, ranks in (("none", 1), ("fsdp", 2)):
        arguments = [SCRIPT.parent, tmp_path / f"{name}.pt", *common, "--parallel", name]
        run_job(tmp_path / "step.py", *arguments, ranks=ranks, options=["-W", "error"])
    none, fsdp = (torch.load(tmp_path / f"{name}.pt", weights_only=True) for name in ("none", "fsdp"))
    assert (none["sharded"], fsdp["sharded"]) == (0, len(none["gradients"]))
    torch.testing.assert_close(fsdp["gradients"], none["gradients"], rtol=1e-4, atol=1e-6)


@pytest.fixture
def two_processes() -> Iterator[None]:
    """A group of two processes, of which only this one is there."""
    distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield
    distributed.destroy_process_group()


def trainer_of(script: Any, folders: list[str], out: Path, *options: str) -> Any:
    return script.Trainer(script.arguments([*folders, "--out", str(out), *OPTIONS, *options]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["pipeline", "--stages", "3"], "--stages 3: 2 processes are no pipelines"),
        (["pipeline", "--stages", "1"], "--stages 1"),
        (["pipeline", "--microbatches", "5"], "--batch-size 12 does not divide into 1 times 5 microbatches"),
        (["pipeline", "--amp", "fp16"], "--parallel pipeline does not go with --amp fp16"),
        (["pipeline", "--freeze"], "--parallel pipeline does not go with --freeze: leave it out"),
        (["fsdp", "--amp", "fp16"], "--parallel fsdp does not go with --amp fp16"),
        (["fsdp", "--batch-size", "9"], "--batch-size 9 does not divide into 2 equal parts"),
    ],
)
def test_what_a_way_does_not_go_with_is_refused(
    folders: list[str], tmp_path: Path, script: Any, two_processes: None, options: list[str], message: str
) -> None:
    with pytest.raises(SystemExit, match=message):
        trainer_of(script, folders, tmp_path, "--parallel", *options)


def test_an_older_torch_is_refused_by_name(
    folders: list[str], tmp_path: Path, script: Any, two_processes: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsdp, pipelining = (importlib.import_module(f"torch.distributed.{name}") for name in ("fsdp", "pipelining"))
    monkeypatch.setattr(distributed, "get_backend", lambda: "gloo")
    monkeypatch.setattr(fsdp, "FSDPModule", object)
    with pytest.raises(SystemExit, match=rf"FSDP2 of torch {torch.__version__.partition('+')[0]}.* gloo"):
        trainer_of(script, folders, tmp_path, "--parallel", "fsdp")
    monkeypatch.delattr(fsdp, "fully_shard")
    with pytest.raises(SystemExit, match=r"has no torch\.distributed\.fsdp\.fully_shard"):
        trainer_of(script, folders, tmp_path, "--parallel", "fsdp")
    monkeypatch.setattr(pipelining, "ScheduleGPipe", lambda stage, n_microbatches, loss_fn: None)
    with pytest.raises(SystemExit, match=r"ScheduleGPipe of torch .* has no scale_grads"):
        trainer_of(script, folders, tmp_path, "--parallel", "pipeline")


def test_batch_norm_in_a_pipeline_is_warned_of(
    folders: list[str], tmp_path: Path, script: Any, two_processes: None
) -> None:
    with pytest.warns(UserWarning, match="BatchNorm takes its statistics from microbatches, 4 of each batch"):
        trainer_of(script, folders, tmp_path, "--parallel", "pipeline", "--norm", "batch")


def test_the_first_stage_alone_reads_images(
    folders: list[str], tmp_path: Path, script: Any, two_processes: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = trainer_of(script, folders, tmp_path, "--parallel", "pipeline")
    assert (trainer.loader.rank, trainer.loader.world_size) == (0, 1)
    names = {name.partition(".")[0] for name, _ in trainer.model.named_parameters()}
    assert names == {"0", "2", "3"}
    distributed.destroy_process_group()
    distributed.init_process_group("fake", store=FakeStore(), rank=1, world_size=2)
    shutil.rmtree(tmp_path, ignore_errors=True)
    trainer = trainer_of(script, folders, tmp_path, "--parallel", "pipeline")
    labels = [torch.tensor([1, 2]), torch.tensor([0, 2])]
    sent: list[Any] = [2, *labels, None]
    monkeypatch.setattr(distributed, "broadcast_object_list", lambda values, *_: values.__setitem__(0, sent.pop(0)))
    total, batches = trainer.way.begin(trainer.loader)
    assert (total, [*batches]) == (2, [(None, each) for each in labels])
    assert trainer.loader.stats()["batches"] == 0
    assert {name.partition(".")[0] for name, _ in trainer.model.named_parameters()} == {"4", "7"}

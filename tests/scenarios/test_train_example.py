"""examples/train.py as a user runs it: it learns, goes on when killed, and means the same on several devices."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from feeder.tools.cli import main as feeder_main
from tests.support import PYTHON_PATH, train_example
from tests.support.ranks import run_job
from tests.support.train_example import SCRIPT, SMALL, load, log, stripes
from tests.support.warm_python import run_warm

data, script = train_example.data, train_example.script


def _plain(value: Any) -> Any:
    """Nested containers with the bytes of their tensors."""
    if isinstance(value, torch.Tensor):
        return value.dtype, value.shape, value.numpy().tobytes()
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def test_it_is_short() -> None:
    assert len(SCRIPT.read_text().splitlines()) < 350


def test_the_cache_of_sets_in_stores_is_the_one_that_was_named(script: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    options = ["s3://bucket/train", "s3://bucket/val", "--out", "run", "--cache-dir", "cache", "--cache-bytes", "5000"]
    opened = list[dict[str, Any]]()
    monkeypatch.setattr("feeder.ShardDataset", lambda *_, **given: opened.append(given))
    monkeypatch.setattr("feeder.DataLoader", lambda *_, **__: None)
    way = SimpleNamespace(parts=1, loader_options=lambda _: {})
    for training in (True, False):
        script.make_loader(script.arguments(options), training, way)
    assert [(given["cache_dir"], given["cache_bytes"]) for given in opened] == 2 * [("cache", 5000)]


@pytest.mark.slow
def test_it_learns(data: list[str], tmp_path: Path) -> None:
    out = tmp_path / "run"
    printed = run_job(SCRIPT, *data, "--out", out, *SMALL, "1", "--epochs", "5", options=["-W", "error"])
    assert load(out / "best.pt")["accuracy"] >= 0.9, printed
    losses = [loss for loss, _ in log(out)]
    assert len(losses) == 45
    assert np.mean(losses[-9:]) < 0.6 * np.mean(losses[:9])
    assert "best accuracy" in printed.splitlines()[-1]


_KILLED = """
import json, os, runpy, signal, sys, tempfile, traceback
import torch
import torch.distributed.nn
from torch import distributed
from torch.optim.optimizer import register_optimizer_step_post_hook
import feeder.loader.dataloader, feeder.transforms

script, runs = json.loads(sys.argv[1])

def run(arguments, rank, store, death):
    counts = {"step": 0, "write": 0, "validate": 0}
    def at(name):
        counts[name] += 1
        if death == [name, counts[name]]:
            os.kill(os.getpid(), signal.SIGKILL)
    register_optimizer_step_post_hook(lambda *_: at("step"))
    replace, inference = os.replace, torch.inference_mode.__enter__
    os.replace = lambda *names: (at("write"), replace(*names))
    torch.inference_mode.__enter__ = lambda self: (at("validate"), inference(self))[1]
    init = distributed.init_process_group
    distributed.init_process_group = lambda backend: init(backend, store, rank=rank, world_size=2)
    sys.argv = [script, *arguments]
    runpy.run_path(script, run_name="__main__")

def child(*arguments):
    pid = os.fork()
    if pid:
        return pid
    try:
        run(*arguments)
        sys.stdout.flush()
        os._exit(0)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(1)

for arguments, ranks, (mortal, *death) in runs:
    with tempfile.TemporaryDirectory() as folder:
        store = f"file://{folder}/store"
        pids = [child(arguments, rank, store, death if rank == mortal else None) for rank in range(ranks)]
        first = pids.pop(mortal or 0)
        _, status = os.waitpid(first, 0)
        for pid in pids:
            if mortal is not None:
                os.kill(pid, signal.SIGKILL)  # as torchrun ends the others
            _, other = os.waitpid(pid, 0)
            assert mortal is not None or other == 0, other
    assert status == (0 if mortal is None else signal.SIGKILL), (mortal, death, status)
"""


def _run_killed(runs: list[Any]) -> str:
    environment = {**os.environ, "PYTHONPATH": PYTHON_PATH, "OMP_NUM_THREADS": "1"}
    command = ["-W", "error", "-c", _KILLED, json.dumps([str(SCRIPT), runs])]
    done = run_warm(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return str(done.stdout)


def _assert_alike(killed: Path, unbroken: Path, deaths: list[Any]) -> None:
    for name in ("last.pt", "best.pt"):
        assert _plain(load(killed / name)) == _plain(load(unbroken / name)), deaths
    assert (killed / "log.csv").read_text() == (unbroken / "log.csv").read_text()
    assert sorted(path.name for path in killed.iterdir()) == ["best.pt", "last.pt", "log.csv"]


@pytest.mark.slow
def test_killed_anywhere_it_ends_with_the_weights_of_an_unbroken_run(data: list[str], tmp_path: Path) -> None:
    """An epoch has five steps: checkpoints are in it, at its end, and in the next one."""
    chance = np.random.default_rng(0)
    options = [*data, "--epochs", "2", "--accumulate", "2", "--log-every", "3", *SMALL]
    unbroken = tmp_path / "unbroken"
    deaths: dict[int, list[Any]] = {
        2: [
            ("1", "step", int(chance.integers(1, 5))),  # a worker has batches ready that were not handed out
            ("0", "write", int(chance.integers(1, 3))),  # of a checkpoint
            ("0", "validate", 1),
            ("0", "step", int(chance.integers(1, 6))),
        ],
        # After an epoch's last checkpoint; in the next epoch, between checkpoints.
        3: [("0", "step", int(chance.integers(4, 6))), ("1", "step", int(chance.integers(4, 6)))],
        # All of the epoch is in the checkpoint, but what follows it is not; in the next epoch, before a checkpoint.
        5: [("0", "validate", 1), ("0", "step", int(chance.integers(1, 5)))],
    }
    runs: list[Any] = [([*options, "0", "--out", str(unbroken)], 1, (None,))]
    for every, several in deaths.items():
        arguments = ["--out", str(tmp_path / f"{every}"), "--checkpoint-every", str(every)]
        runs += [([*options, workers, *arguments], 1, (0, *death)) for workers, *death in several]
        runs += [([*options, "0", *arguments], 1, (None,))]
    printed = _run_killed(runs)
    resumed = re.findall(r"resuming at step (\d+) in epoch (\d+)", printed)
    assert resumed[-4:] == [("3", "0"), ("6", "1"), ("5", "0"), ("5", "1")], deaths
    for every, several in deaths.items():
        _assert_alike(tmp_path / f"{every}", unbroken, several)


@pytest.mark.slow
@pytest.mark.parametrize("way", [["ddp"], ["fsdp"], ["pipeline", "--norm", "group"]], ids=lambda way: way[0])
def test_a_job_that_loses_a_process_ends_with_the_weights_of_an_unbroken_run(
    data: list[str], tmp_path: Path, way: list[str]
) -> None:
    options = [*data, "--epochs", "2", "--accumulate", "2", "--checkpoint-every", "3", *SMALL, "0", "--parallel", *way]
    deaths = [(1, "step", 5), (0, "step", 4)]
    runs: list[Any] = [([*options, "--out", str(tmp_path / "unbroken")], 2, (None,))]
    runs += [([*options, "--out", str(tmp_path / "killed")], 2, death) for death in [*deaths, (None,)]]
    printed = _run_killed(runs)
    assert printed.count("resuming at step") == 2
    _assert_alike(tmp_path / "killed", tmp_path / "unbroken", deaths)


@pytest.mark.slow
@pytest.mark.parametrize("ways", [("pipeline", "none", "fsdp"), ("fsdp", "pipeline", "none")], ids="-".join)
def test_a_run_goes_on_another_way(data: list[str], tmp_path: Path, ways: tuple[str, ...]) -> None:
    options = [*data, "--epochs", "2", "--checkpoint-every", "3", *SMALL, "0", "--norm", "group", "--parallel"]
    runs: list[Any] = [([*options, "none", "--out", str(tmp_path / "one")], 1, (None,))]
    for way, death in zip(ways, [(0, "step", 5), (0, "step", 8), (None,)], strict=True):
        runs.append(([*options, way, "--out", str(tmp_path / "three")], 1 if way == "none" else 2, death))
    printed = _run_killed(runs)
    assert re.findall(r"resuming at step (\d+)", printed) == ["3", "9"]
    np.testing.assert_allclose(log(tmp_path / "three"), log(tmp_path / "one"), rtol=1e-3)
    one, three = load(tmp_path / "one/last.pt"), load(tmp_path / "three/last.pt")
    assert list(three["model"]) == list(one["model"])
    torch.testing.assert_close(three["model"], one["model"], rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(three["optimizer"], one["optimizer"], rtol=1e-2, atol=1e-2)


def test_dp_has_the_loss_curve_of_one_device(data: list[str], tmp_path: Path, script: Any) -> None:
    options = [*SMALL, "0", "--epochs", "1", "--norm", "group"]
    for parallel in ("none", "dp"):
        script.main([*data, "--out", str(tmp_path / parallel), *options, "--parallel", parallel])
    np.testing.assert_allclose(log(tmp_path / "dp"), log(tmp_path / "none"), rtol=1e-3)
    torch.testing.assert_close(
        load(tmp_path / "dp/last.pt")["model"], load(tmp_path / "none/last.pt")["model"], rtol=1e-3, atol=1e-3
    )


def test_dp_computes_each_loss_where_its_part_is(data: list[str], tmp_path: Path, script: Any) -> None:
    arguments = script.arguments([*data, "--out", str(tmp_path), *SMALL, "0", "--parallel", "dp"])
    trainer = script.Trainer(arguments)
    sizes = []
    trainer.module.register_forward_hook(lambda module, inputs, output: sizes.append((len(inputs[0]), output[0].shape)))
    images, labels = next(iter(trainer.loader))
    loss, right = trainer.way.forward(images[:19], labels[:19])
    assert sizes == [(10, ()), (9, ())]
    assert loss.shape == right.shape == ()
    loss.backward()
    assert all(p.grad is not None for p in trainer.model.parameters())


@pytest.mark.slow
def test_ddp_has_the_loss_curve_of_one_process(data: list[str], tmp_path: Path, script: Any) -> None:
    # 63 images to validate with, 20 at a time: the two processes fill the last batch up, which must not count.
    options = [*SMALL, "0", "--epochs", "1", "--norm", "group", "--accumulate", "2"]
    script.main([*data, "--out", str(tmp_path / "one"), *options])
    run_job(SCRIPT, *data, "--out", tmp_path / "two", *options, "--parallel", "ddp", ranks=2, options=["-W", "error"])
    np.testing.assert_allclose(log(tmp_path / "two"), log(tmp_path / "one"), rtol=1e-3)
    one, two = load(tmp_path / "one/last.pt"), load(tmp_path / "two/last.pt")
    torch.testing.assert_close(two["model"], one["model"], rtol=1e-3, atol=1e-3)
    spans = [state["loader"].pop("spans") for state in (one, two)]
    assert [[span["batch_size"] * span["world_size"] for span in each] for each in spans] == [[20], [20]]
    assert (two["loader"], two["best"]) == (one["loader"], pytest.approx(one["best"], abs=1e-9))


def test_frozen_layers_and_their_statistics_stay_as_loaded(data: list[str], tmp_path: Path, script: Any) -> None:
    model = script.small_resnet(5, "batch")
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    options = [*SMALL, "0", "--epochs", "1", "--weights", str(tmp_path / "weights.pt"), "--freeze"]
    script.main([*data, "--out", str(tmp_path / "run"), *options])
    after = load(tmp_path / "run/last.pt")["model"]
    head = [name for name, tensor in after.items() if tensor.shape != before[name].shape]
    assert [after[name].shape[0] for name in head] == [3, 3]
    rest = after.keys() - set(head)
    assert len(rest) > 50
    assert all(torch.equal(after[name], before[name]) for name in rest)


def test_it_stops_when_nothing_gets_better_and_keeps_the_best(data: list[str], tmp_path: Path, script: Any) -> None:
    options = [*data, "--out", str(tmp_path), *SMALL, "0", "--epochs", "9", "--patience", "2"]
    script.main([*options, "--lr", "0", "--norm", "group"])
    assert (load(tmp_path / "last.pt")["epoch"], load(tmp_path / "best.pt")["epoch"]) == (3, 0)


def test_autocast_and_channels_last_learn_the_same(data: list[str], tmp_path: Path, script: Any) -> None:
    options = [*SMALL, "0", "--epochs", "1"]
    script.main([*data, "--out", str(tmp_path / "plain"), *options])
    script.main([*data, "--out", str(tmp_path / "fast"), *options, "--amp", "bf16", "--channels-last"])
    losses = [np.array(log(tmp_path / name))[:, 0] for name in ("plain", "fast")]
    np.testing.assert_allclose(losses[1], losses[0], rtol=0.1)
    assert not np.array_equal(losses[0], losses[1])


def test_scaled_losses_learn_the_same_and_the_scale_is_kept(data: list[str], tmp_path: Path, script: Any) -> None:
    for amp in ("bf16", "fp16"):
        # The CPU takes long to compute in 16 bits, so images are small, and none are there to validate with.
        options = [*SMALL, "0", "--image-size", "8", "--epochs", "1", "--accumulate", "2", "--amp", amp]
        trainer = script.Trainer(script.arguments([data[0], "--out", str(tmp_path), *options]))
        trainer.module.dtype = torch.bfloat16  # float16 takes the CPU half a minute
        trainer.last_path = tmp_path / f"{amp}.pt"
        trainer.run()
    scaled = load(tmp_path / "fp16.pt")
    assert (scaled["scaler"]["scale"], scaled["scaler"]["_growth_tracker"]) == (65536.0, 5)
    # Powers of two change no digit.
    assert _plain(scaled["model"]) == _plain(load(tmp_path / "bf16.pt")["model"])


def test_sets_of_other_classes_are_refused(data: list[str], tmp_path: Path, script: Any) -> None:
    stripes(0, 0).save(tmp_path / "image.jpg")
    for kind in range(3):
        (tmp_path / f"val/other-{kind}").mkdir(parents=True)
        stripes(kind, 0).save(tmp_path / f"val/other-{kind}/0.jpg")
    with pytest.raises(SystemExit, match="need the same classes"):
        script.main([data[0], str(tmp_path / "val"), "--out", str(tmp_path / "run"), *SMALL, "0"])


@pytest.mark.parametrize(
    ("place", "said"),
    [("", "has no classes: put its images into a folder for each"), ("kind/", r"1 images.*: use --batch-size 1 or")],
)
def test_images_that_can_not_be_trained_on_are_refused(place: str, said: str, tmp_path: Path, script: Any) -> None:
    (tmp_path / "images" / place).mkdir(parents=True)
    stripes(0, 0).save(tmp_path / "images" / place / "0.jpg")
    assert feeder_main(["shard", str(tmp_path / "images"), "-q"]) == 0
    with pytest.raises(SystemExit, match=said):
        script.main([str(tmp_path / "images-shards"), "--out", str(tmp_path / "run"), *SMALL, "0"])


def test_without_validation_images_the_loss_of_each_epoch_is_said(
    data: list[str], tmp_path: Path, script: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    script.main([data[0], "--out", str(tmp_path), *SMALL, "0", "--epochs", "2"])
    said, losses = capsys.readouterr().out, [loss for loss, _ in log(tmp_path)]
    for epoch, part in enumerate((losses[:9], losses[9:])):
        assert f"epoch {epoch}: loss {np.mean(part):.3f}, training accuracy" in said
    assert "validation accuracy" not in said
    assert said.splitlines()[-1] == f"trained after 2 epoch(s): {tmp_path / 'last.pt'}"
    assert load(tmp_path / "last.pt")["epoch"] == 2
    assert not (tmp_path / "best.pt").exists()

"""examples/ray_train.py and ray_tune.py, by the commands of the documents, on a Ray cluster in one machine: what is
killed goes on exactly.
"""

from __future__ import annotations

import csv
import json
import os
import re
import runpy
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support import ROOT, train_example
from tests.support.documents import block, run_shell, smaller
from tests.support.processes import wait_until
from tests.support.ray_cluster import RayCluster
from tests.support.train_example import load

data = train_example.data

pytestmark = pytest.mark.slow

PATH = os.pathsep.join([str(ROOT), str(ROOT / "examples")])
SMALL = ["--size", "24", "--batch-size", "20", "--epochs", "2", "--loader-workers", "1"]
EPOCH_PARTS = 9 + 4  # full batches to train on, and batches to validate with

# Runs an example whose function for workers ends its process by SIGKILL at a step, the first time that it comes there.
_KILLED = """
import importlib, os, signal, sys
script, function, mark, step = sys.argv.pop(1), sys.argv.pop(1), sys.argv.pop(1), int(sys.argv.pop(1))
example = importlib.import_module(script)
train = getattr(example, function)

def killed(config):
    from torch.optim.optimizer import register_optimizer_step_post_hook
    from tests.support.processes import is_first
    steps = iter(range(1, 1000))
    def count(*_):
        if next(steps) == step and is_first(mark):
            os.kill(os.getpid(), signal.SIGKILL)
    hook = register_optimizer_step_post_hook(count)
    try:
        train(config)
    finally:
        hook.remove()

setattr(example, function, killed)
example.main()
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    """A cluster with two nodes of two cores."""
    made = RayCluster()
    for _ in range(2):
        made.add_node({"PYTHONPATH": PATH}, cores=2)
    yield made
    made.close()


def commands(script: str, data: list[str], out: Path = Path()) -> list[str]:
    """The lines of the block with an example, for these sets, a folder for what it writes, and few cores."""
    here = {
        "/shared/sets/train": data[0],
        "/shared/sets/val": data[1],
        "/shared/sets": str(Path(data[0]).parent),
        " train-shards ": f" {data[0]} ",
        "/shared/runs": str(out),
        "--num-workers 4": "--num-workers 2",
        "--trials 32": "--trials 3",
        "--cpus 8": "--cpus 1 --nodes 1",
    }
    return smaller(block("docs/cluster.md", script, "sh"), here).splitlines()


def without_service(command: str) -> str:
    alone = command.replace(" --service feeder", "")
    assert alone != command
    return alone


def run(command: str, *further: str, killed: tuple[str, Path, int] | None = None) -> str:
    """Runs an example with further options; with ``killed`` the function of that name dies at a step, once, which a
    file marks.
    """
    program, script, *arguments = shlex.split(command)
    assert program == "python"
    start = [script]
    if killed is not None:
        start = ["-c", _KILLED, Path(script).stem, *map(str, killed)]
    env = {**os.environ, "PYTHONPATH": PATH, "OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    done = subprocess.run(
        [sys.executable, *start, *arguments, *further],
        env=env,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    return done.stdout


@pytest.fixture(scope="module")
def service(data: list[str], cluster: RayCluster) -> None:
    """The service that the documents start, on one of the nodes."""
    (command,) = (line for line in commands("ray_tune.py", data) if line.startswith("feeder serve "))
    arguments = [*shlex.split(command), "--address", cluster.address]
    subprocess.run([sys.executable, "-m", *arguments], check=True, cwd=ROOT, timeout=200)


@pytest.mark.usefixtures("service")
def test_training_goes_on_exactly_after_a_worker_is_killed(
    data: list[str], cluster: RayCluster, tmp_path: Path
) -> None:
    """With the service, and without."""
    install, command = commands("ray_train.py", data, tmp_path / "runs")
    run_shell(install, tmp_path)
    options = ["--address", cluster.address, *SMALL, "--checkpoint-every", "4"]
    marks = [tmp_path / "mark", tmp_path / "mark-alone"]
    runs = []
    for name, line, killed in (
        ("whole", command, None),
        ("killed", command, ("train", marks[0], 7)),
        ("killed-alone", without_service(command), ("train", marks[1], 7)),
    ):
        out = run(line, *options, "--name", name, killed=killed)
        (told,) = re.findall(r"^epochs 2, steps 18, loss \d+\.\d+$", out, re.M)
        (folder,) = re.findall(r"^checkpoint (.*)$", out, re.M)
        runs.append((told, load(Path(folder) / "state.pt")))
    assert all(mark.exists() for mark in marks)
    (told, state), *of_killed = runs
    for told_killed, state_killed in of_killed:
        assert told_killed == told
        assert state_killed["loader"] == state["loader"]
        for name, tensor in state["model"].items():
            assert torch.equal(state_killed["model"][name], tensor)


def served(cluster: RayCluster) -> dict[str, Any]:
    """The state of the service's one server."""
    command = [sys.executable, "-m", "feeder", "serve", "--address", cluster.address, "--status", "--json"]
    out = subprocess.run(command, check=True, cwd=ROOT, capture_output=True, text=True).stdout
    found: dict[str, Any]
    (found,) = json.loads(out)["servers"]
    return found


def table(out: Path) -> list[dict[str, str]]:
    with open(out / "trials.csv", newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.usefixtures("service")
@pytest.mark.parametrize("order", [[], ["--own-order"]], ids=["one-order", "own-order"])
def test_a_search_over_a_service_has_the_results_of_one_without(
    data: list[str], cluster: RayCluster, tmp_path: Path, order: list[str]
) -> None:
    """One of the trials dies, and goes on from its checkpoint. The service makes all that trials read."""
    install, _, command = commands("ray_tune.py", data, tmp_path / "runs")
    run_shell(install, tmp_path)
    alone = without_service(command)
    options = ["--address", cluster.address, *SMALL, *order, "--at-once", "2"]
    mark, idle = tmp_path / "mark", served(cluster)
    out = run(command, *options, "--name", "with", "--service-only", killed=("trial", mark, 12))
    assert mark.exists()
    after = served(cluster)
    jobs = [job for name, job in after["jobs"].items() if name not in idle["jobs"]]
    assert len([job for job in jobs if job["parts"]]) >= 3
    if not order:  # more than the trial that went on has asked for a second time
        assert after["shared"] - idle["shared"] > EPOCH_PARTS
    run(alone, *options, "--name", "without")
    found, expected = (
        {
            row["lr"]: (row["width"], results(tmp_path / "runs" / name, row["lr"]))
            for row in table(tmp_path / "runs" / name)
        }
        for name in ("with", "without")
    )
    assert len(found) == 3
    assert found.keys() == expected.keys()
    compared = 0
    for lr, (width, epochs) in found.items():
        assert width == expected[lr][0]
        assert lr[:5] in out
        # ASHA stops trials by those that came before. A trial that went on has no earlier epochs in Ray's file, so that
        # it has none in common with one that was stopped before them.
        common = epochs.keys() & expected[lr][1].keys()
        assert all(epochs[epoch] == expected[lr][1][epoch] for epoch in common)
        compared += bool(common)
    assert compared >= 2
    before = table(tmp_path / "runs/without")
    run(alone, *options, "--name", "without")
    assert table(tmp_path / "runs/without") == before  # of trials that are finished already


def test_a_search_goes_on_after_its_driver_is_killed(
    data: list[str], cluster: RayCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the same command; one with other options is refused. Where a kill left Ray's state torn, it begins again."""
    drop_torn_states = runpy.run_path(str(ROOT / "examples/ray_tune.py"))["drop_torn_states"]
    _, _, command = commands("ray_tune.py", data, tmp_path / "runs")
    options = ["--address", cluster.address, *SMALL, "--at-once", "1", "--name"]
    alone = without_service(command)
    _, *arguments = shlex.split(alone)
    env = {**os.environ, "PYTHONPATH": PATH, "OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    folder, torn = tmp_path / "runs" / "killed", tmp_path / "runs" / "torn"
    with subprocess.Popen([sys.executable, *arguments, *options, "killed"], env=env, cwd=ROOT) as driver:
        wait_until(lambda: any(path.read_text() for path in folder.glob("*/result.json")))
        while True:
            driver.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, driver.pid, os.WSTOPPED)
            shutil.rmtree(torn, ignore_errors=True)
            shutil.copytree(folder, torn)
            if drop_torn_states(torn):  # else Ray was just writing its state
                break
            driver.send_signal(signal.SIGCONT)
        driver.kill()
    assert not (folder / "trials.csv").exists()
    changed = [sys.executable, *arguments, *options, "killed", "--trials", "4", "--epochs", "3"]
    refused = subprocess.run(changed, env=env, cwd=ROOT, capture_output=True, text=True, check=False)
    assert refused.returncode == 1
    assert "holds a search with trials 3 (now 4), epochs 2 (now 3): repeat them" in refused.stderr

    parts = ["experiment_state", "basic-variant-state"]
    whole = [next(torn.glob(f"{part}-*.json")).read_bytes() for part in parts]
    for lengths in ((0, 1), (1, 0), (0.5, 1), (1, 0.5)):  # of each part, 0 if there is none
        for part, length, content in zip(parts, lengths, whole, strict=True):
            if length:
                (torn / f"{part}-3000-01-01_00-00-00.json").write_bytes(content[: int(length * len(content))])
        assert drop_torn_states(torn)
        assert not list(torn.glob("*state-3000*"))
    next(torn.glob("experiment_state-*.json")).write_bytes(whole[0][: len(whole[0]) // 2])
    assert not drop_torn_states(torn)
    assert "the search begins again" in capsys.readouterr().err
    for path in torn.glob("trial_*"):
        shutil.rmtree(path)

    for name in ("killed", "torn", "whole"):
        run(alone, *options, name)
    rates = {row["lr"] for row in table(tmp_path / "runs/whole")}
    assert len(rates) == 3
    for place in (folder, torn):
        assert {row["lr"] for row in table(place)} == rates
        for lr in rates:  # Ray may have lost what ASHA knew of earlier trials, so that it stops others
            found, expected = results(place, lr), results(tmp_path / "runs/whole", lr)
            assert found.keys() & expected.keys()
            assert all(found[epoch] == expected[epoch] for epoch in found.keys() & expected.keys())


def results(folder: Path, lr: str) -> dict[int, tuple[float, float]]:
    """Loss and accuracy of a trial, by epoch."""
    for path in folder.glob("*/result.json"):
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        if rows and str(rows[0]["config"]["lr"]) == lr:
            return {row["epoch"]: (row["loss"], row["accuracy"]) for row in rows}
    raise AssertionError(f"no trial with lr {lr}")

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
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support import PYTHON_PATH, ROOT, train_example
from tests.support.documents import block, run_shell, smaller
from tests.support.ray_cluster import RayCluster
from tests.support.train_example import load
from tests.support.warm_python import run_warm

data = train_example.data

pytestmark = pytest.mark.slow

PATH = os.pathsep.join([PYTHON_PATH, str(ROOT / "examples")])
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


# Runs an example's search, which stops once a trial has reported and Ray has saved its state.
_STOPPED = """
import importlib, os, signal, sys
from ray.tune.execution.tune_controller import TuneController
step = TuneController.step

def stopping(self):
    step(self)
    if any(each.last_result for each in self.get_trials()):
        self.checkpoint(force=True, wait=True)
        os.kill(os.getpid(), signal.SIGSTOP)

TuneController.step = stopping
importlib.import_module(sys.argv.pop(1)).main()
"""


# Trains by an example's function as Ray would, in one process, and prints what was reported.
_WITHOUT_RAY = """
import importlib, json, shutil, sys
import ray.train.torch
from ray import train, tune
from torch import distributed
script, function, folder, configs = sys.argv[1], sys.argv[2], sys.argv[3], json.loads(sys.argv[4])
example, results = importlib.import_module(script), []
distributed.init_process_group("gloo", f"file://{folder}/store", rank=0, world_size=1)
train.torch.get_device, train.torch.prepare_model = lambda: example.torch.device("cpu"), lambda model: model
for module in (train, tune):
    module.get_checkpoint = lambda: None
    module.Checkpoint.from_directory = staticmethod(lambda path: shutil.copytree(path, folder, dirs_exist_ok=True))
    module.report = lambda metrics, checkpoint: results[-1].append(metrics)
for config in configs:
    results.append([])
    getattr(example, function)(config)
print(json.dumps(results))
distributed.destroy_process_group()
"""


def without_ray(script: str, function: str, folder: Path, configs: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Trains by an example's function without Ray, and returns what it reports for each configuration.

    The folder gets the files of its last checkpoint.
    """
    command = ["-c", _WITHOUT_RAY, script, function, folder, json.dumps(configs)]
    env = {**os.environ, "PYTHONPATH": PATH, "OMP_NUM_THREADS": "1"}
    done = run_warm(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    reported: list[list[dict[str, Any]]] = json.loads(done.stdout)
    return reported


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    """A cluster with two nodes of two cores."""
    made = RayCluster(has_agents=True)
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
        "--trials 32": "--trials 2",
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
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    return done.stdout


@pytest.fixture(scope="module")
def service(data: list[str], cluster: RayCluster) -> None:
    """The service that the documents start, on one of the nodes."""
    (command,) = (line for line in commands("ray_tune.py", data) if line.startswith("feeder serve "))
    arguments = [*shlex.split(command), "--address", cluster.address]
    subprocess.run([sys.executable, "-m", *arguments], check=True, cwd=ROOT)


@pytest.mark.usefixtures("service")
def test_training_goes_on_exactly_after_a_worker_is_killed(
    data: list[str], cluster: RayCluster, tmp_path: Path
) -> None:
    """With the service; the run that it is compared with is of one process without it."""
    install, command = commands("ray_train.py", data, tmp_path / "runs")
    run_shell(install, tmp_path)
    options = ["--address", cluster.address, *SMALL, "--checkpoint-every", "4"]
    out = run(command, *options, killed=("train", tmp_path / "mark", 7))
    assert (tmp_path / "mark").exists()
    (steps, loss) = re.findall(r"^epochs 2, steps (\d+), loss (\d+\.\d+)$", out, re.M)[0]
    (folder,) = re.findall(r"^checkpoint (.*)$", out, re.M)
    config = {"dir": data[0], "epochs": 2, "batch_size": 20, "size": 24, "checkpoint_every": 4}
    whole = without_ray("ray_train", "train", tmp_path, [config | {"loader_workers": 0, "service": None}])[0][-1]
    assert int(steps) == whole["step"]
    assert float(loss) == pytest.approx(whole["loss"], abs=1e-5)
    found, expected = load(Path(folder) / "state.pt"), load(tmp_path / "state.pt")
    for state in (found, expected):
        (span,) = state["loader"].pop("spans")
        assert span["batch_size"] * span["world_size"] == 20
    assert found["loader"] == expected["loader"]
    torch.testing.assert_close(found["model"], expected["model"], rtol=0, atol=1e-5)


def served(cluster: RayCluster) -> dict[str, Any]:
    """The state of the service's one server."""
    command = [sys.executable, "-m", "feeder", "serve", "--address", cluster.address, "--status", "--json"]
    out = subprocess.run(command, check=True, cwd=ROOT, capture_output=True, text=True).stdout
    found: dict[str, Any]
    (found,) = json.loads(out)["servers"]
    return found


def check_results(search: Path, folder: Path) -> list[dict[str, Any]]:
    """Fails unless the table of a search has two trials, with results of training without Ray and without a service.

    ASHA stops trials by those that came before, and a trial that went on has no earlier epochs in Ray's file.

    Returns:
        The configurations of the trials.
    """
    with open(search / "trials.csv", newline="") as file:
        rows = {row["lr"]: row for row in csv.DictReader(file)}
    trials = [[json.loads(line) for line in path.read_text().splitlines()] for path in search.glob("*/result.json")]
    configs = [trial[0]["config"] for trial in trials if trial]
    assert {(lr, row["width"]) for lr, row in rows.items()} == {
        (str(each["lr"]), str(each["width"])) for each in configs
    }
    assert len(rows) == 2
    alone = [each | {"args": each["args"] | {"service": None}} for each in configs]
    for trial, epochs in zip(filter(None, trials), without_ray("ray_tune", "trial", folder, alone), strict=True):
        assert all(epochs[result["epoch"] - 1].items() <= result.items() for result in trial)
    return configs


@pytest.mark.usefixtures("service")
@pytest.mark.parametrize("order", [[], ["--own-order"]], ids=["one-order", "own-order"])
def test_a_search_over_a_service_has_the_results_of_one_without(
    data: list[str], cluster: RayCluster, tmp_path: Path, order: list[str]
) -> None:
    """One of the trials dies, and goes on from its checkpoint. The service makes all that trials read."""
    install, _, command = commands("ray_tune.py", data, tmp_path)
    run_shell(install, tmp_path)
    options = ["--address", cluster.address, *SMALL, *order, "--at-once", "2", "--service-only"]
    mark, idle = tmp_path / "mark", served(cluster)
    out = run(command, *options, killed=("trial", mark, 12))
    assert mark.exists()
    after = served(cluster)
    jobs = [job for name, job in after["jobs"].items() if name not in idle["jobs"]]
    assert len([job for job in jobs if job["parts"]]) >= 3  # the trial that went on has two
    if not order:  # more than the trial that went on has asked for a second time
        assert after["shared"] - idle["shared"] > EPOCH_PARTS
    configs = check_results(tmp_path / "ray-tune", tmp_path)
    assert all(str(config["lr"])[:5] in out for config in configs)
    assert len({config["order"] for config in configs}) == (2 if order else 1)


def test_a_search_goes_on_after_its_driver_is_killed(
    data: list[str], cluster: RayCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the same command; one with other options is refused. Where a kill left Ray's state torn, it begins again."""
    drop_torn_states = runpy.run_path(str(ROOT / "examples/ray_tune.py"))["drop_torn_states"]
    _, _, command = commands("ray_tune.py", data, tmp_path / "runs")
    _, *arguments = shlex.split(without_service(command))
    arguments += ["--address", cluster.address, *SMALL, "--at-once", "1", "--name", "killed"]
    env = {**os.environ, "PYTHONPATH": PATH, "OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    folder, torn = tmp_path / "runs" / "killed", tmp_path / "runs" / "torn"
    stopped = [sys.executable, "-c", _STOPPED, "ray_tune", *arguments[1:]]
    with subprocess.Popen(stopped, env=env, cwd=ROOT) as driver:
        ended = os.waitid(os.P_PID, driver.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        assert ended is not None
        assert ended.si_code == os.CLD_STOPPED
        shutil.copytree(folder, torn)
        assert drop_torn_states(torn)
        driver.kill()
    assert not (folder / "trials.csv").exists()
    changed = [sys.executable, *arguments, "--trials", "4", "--epochs", "3"]
    refused = subprocess.run(changed, env=env, cwd=ROOT, capture_output=True, text=True, check=False)
    assert refused.returncode == 1
    assert "holds a search with trials 2 (now 4), epochs 2 (now 3): repeat them" in refused.stderr

    parts = ["experiment_state", "basic-variant-state"]
    contents = [next(torn.glob(f"{part}-*.json")).read_bytes() for part in parts]
    for lengths in ((0, 1), (1, 0), (0.5, 1), (1, 0.5)):  # of each part, 0 if there is none
        for part, length, content in zip(parts, lengths, contents, strict=True):
            if length:
                (torn / f"{part}-3000-01-01_00-00-00.json").write_bytes(content[: int(length * len(content))])
        assert drop_torn_states(torn)
        assert not list(torn.glob("*state-3000*"))
    next(torn.glob("experiment_state-*.json")).write_bytes(contents[0][: len(contents[0]) // 2])
    assert not drop_torn_states(torn)
    assert "the search begins again" in capsys.readouterr().err

    run(shlex.join(["python", *arguments]), "--at-once", "2")
    check_results(folder, tmp_path)
    before = (folder / "trials.csv").read_text()
    run(shlex.join(["python", *arguments]))  # all of its trials are finished
    assert (folder / "trials.csv").read_text() == before

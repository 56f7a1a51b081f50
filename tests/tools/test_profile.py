"""feeder profile as a user runs it: the script's output, exit code and errors stay its own, and the report is true."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

import feeder
from feeder.tools.profile import session
from tests.support import PYTHON_PATH, ROOT
from tests.support.loader_data import write_shards
from tests.support.warm_python import run_warm


def profile(folder: Path, script: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(script)
    return run_warm(
        ["-W", "error", "-m", "feeder", "profile", "train.py", *arguments],
        env={**os.environ, "PYTHONPATH": PYTHON_PATH, "COLUMNS": "80", **environment},
        cwd=folder,
        capture_output=True,
        text=True,
    )


SLOW_LOADER = """
import argparse
import pickle
import sys
import time

import torch
from torch.utils.data import DataLoader, Dataset


class Images(Dataset):
    def __len__(self):
        return 60

    def __getitem__(self, index):
        time.sleep(0.01)
        return torch.ones(3, 4, 4), index % 3


class Mine:
    pass


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float)
    args = parser.parse_args()
    assert type(pickle.loads(pickle.dumps(Mine()))) is Mine
    loader = DataLoader(Images(), batch_size=4)
    val_loader = DataLoader(Images(), batch_size=20)
    model = torch.nn.Linear(48, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    for epoch in range(2):
        for x, y in loader:
            loss = torch.nn.functional.cross_entropy(model(x.flatten(1)), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            for x, y in val_loader:
                model(x.flatten(1))
    print("trained with", sys.argv, __file__)
    sys.exit(7)


if __name__ == "__main__":
    main()
"""


def test_a_script_slowed_at_the_loader(tmp_path: Path) -> None:
    done = profile(tmp_path, SLOW_LOADER, "--lr", "0.1")
    assert done.returncode == 7, done.stderr
    assert done.stdout == "trained with ['train.py', '--lr', '0.1'] train.py\n"
    assert "Input-bound" in done.stderr
    assert re.search(r"torch, train\.py:34 +training +0 +29", done.stderr)
    assert re.search(r"torch, train\.py:40 +evaluation +0 +5", done.stderr)
    assert re.search(r"1\. num_workers=\d+ \(at most [\d.]+x: the step alone takes", done.stderr)
    assert "not tried: the script failed)" in " ".join(done.stderr.split())
    assert re.search(r"\d\d% for\s+storage", done.stderr)
    assert "GPU: not measured" in done.stderr or "GPU: busy" in done.stderr


LOADERS = """
import torch
from torch.utils.data import DataLoader, TensorDataset

model = torch.nn.Linear(8, 1)

def run(loader):
    for x in loader:
        if len(loader) == 6:
            model(x[0]).sum().backward()

held = DataLoader(TensorDataset(torch.ones(30, 8)), batch_size=5)
for epoch in range(3):
    run(DataLoader(TensorDataset(torch.ones(30, 8)), batch_size=5))
    run(DataLoader(TensorDataset(torch.ones(20, 8)), batch_size=5))
run(held)
again = DataLoader(held.dataset, batch_size=5)
run(again)
"""


def test_a_loader_that_each_epoch_makes_anew_is_one_loader(tmp_path: Path) -> None:
    done = profile(tmp_path, LOADERS)
    assert done.returncode == 0, done.stderr
    rows = re.findall(r"torch, train\.py:8 +(\w+) +0 +(\d+)", done.stderr)
    # All batches of a record but its first. The last loader, made while a like one is there, is another.
    assert rows == [("training", "23"), ("evaluation", "11"), ("training", "5")]


SLOW_STEP = """
import time

import torch
from torch.utils.data import DataLoader, TensorDataset

# Python 3.14's server of processes complains of a parent that ends by an error.
options = {"batch_size": 5, "num_workers": 1, "multiprocessing_context": "fork"}
loader = DataLoader(TensorDataset(torch.ones(60, 8), torch.ones(60, 1)), **options)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for x, y in loader:
    loss = (model(x) - y).square().mean()
    loss.backward()
    optimizer.step()
    time.sleep(0.3)
raise KeyError("at the end")
"""


def test_a_script_slowed_at_the_step_and_an_error_at_its_end(tmp_path: Path) -> None:
    done = profile(tmp_path, SLOW_STEP)
    assert done.returncode == 1
    trace, _, summary = done.stderr.partition("\nfeeder profile\n")
    assert trace == 'Traceback (most recent call last):\n  File "train.py", line 17, in <module>\n    ' + (
        "raise KeyError(\"at the end\")\nKeyError: 'at the end'\n"
    )
    assert summary.startswith("Compute-bound")


THREADS = """
import os
import sys
import time

import torch
from torch.utils.data import DataLoader

os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
torch.set_num_threads(int(sys.argv[1]))
ones = torch.ones(1 << 20)
for x in DataLoader(ones[:40], batch_size=10):
    until = 0.2 + 1.5 * time.process_time()  # so that the ops outweigh the imports
    while time.process_time() < until:
        ones.exp()
"""


@pytest.mark.parametrize("threads", [1, 4])
def test_more_threads_of_torch_than_cores_are_a_finding(tmp_path: Path, threads: int) -> None:
    done = profile(tmp_path, THREADS, str(threads))
    assert done.returncode == 0, done.stderr
    said = " ".join(done.stderr.split())
    assert ("OMP_NUM_THREADS=1, or torch.set_num_threads(1) (no bound: only the script itself" in said) == (
        threads == 4
    )
    assert ("torch computes with 4 threads on 1 core" in said) == (threads == 4)


FEEDER = """
import os
import signal

import torch

import feeder
from feeder import transforms as T

dataset = feeder.ShardDataset("shards", transform=T.Compose([T.Resize((16, 16)), T.ToDtype(torch.float32, scale=True)]))
loader = feeder.DataLoader(dataset, batch_size=4, shuffle=True, num_workers=1, backend="pillow")
model = torch.nn.Linear(768, 7)
step = 0
while True:
    for images, labels in loader:
        torch.nn.functional.cross_entropy(model(images.flatten(1)), labels).backward()
        step += 1
        if step == 20:
            os.kill(os.getpid(), signal.SIGINT)
"""


def test_a_feeder_loader_and_an_interrupt_that_leaves_a_report_of_what_there_is(tmp_path: Path) -> None:
    write_shards(tmp_path / "shards", 32)
    done = profile(tmp_path, FEEDER)
    assert done.returncode == 130, done.stderr
    assert "KeyboardInterrupt" in done.stderr
    assert re.search(r"feeder, train\.py:15 +training +1 +19", done.stderr)
    assert "of the loader's own time" in done.stderr.replace("\n", " ")


def test_each_rank_of_a_launcher_prints_its_own_summary(tmp_path: Path) -> None:
    done = profile(tmp_path, "print('hi')", RANK="1", WORLD_SIZE="2")
    assert (done.returncode, done.stdout) == (0, "hi\n")
    assert "feeder profile, rank 1\n" in done.stderr


@pytest.mark.parametrize(
    ("script", "code", "output"),
    [
        ("import sys\nprint(sys.path[0])", 0, "No loader was iterated over"),
        ("raise SystemExit('no data here')", 1, "no data here\n"),
        ("def f():\n    return 1 / 0\nf()", 1, "line 2, in f\n"),
        ("for x in\n", 1, "feeder: train.py:1: not valid Python: invalid syntax: for x in"),
        ("raise SystemExit", 0, "No loader was iterated over"),
    ],
)
def test_scripts_that_never_iterate_or_fail(tmp_path: Path, script: str, code: int, output: str) -> None:
    done = profile(tmp_path, script)
    assert done.returncode == code
    assert output in done.stderr
    assert "launch.py" not in done.stderr
    if "sys.path" in script:
        assert done.stdout == f"{tmp_path}\n"


def test_a_script_that_is_not_there_is_named(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "feeder", "profile", str(tmp_path / "none.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 1
    assert "can't read" in done.stderr


def test_a_script_that_is_not_there_leaves_the_process_as_it_was(tmp_path: Path) -> None:
    before = torch.utils.data.DataLoader.__iter__, feeder.DataLoader.__iter__
    with pytest.raises(feeder.SourceError, match="can't read"):
        session.profile(str(tmp_path / "none.py"), [])
    assert (torch.utils.data.DataLoader.__iter__, feeder.DataLoader.__iter__) == before
    assert "feeder profile" not in {thread.name for thread in threading.enumerate()}

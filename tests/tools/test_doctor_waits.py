"""feeder doctor --run: torch's warnings of synchronizing calls, by the line of the script that led to them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support import ROOT
from tests.support.warm_python import run_warm

# A line that waits in every step, by way of a library; one that waits now and then; one of another warning.
SCRIPT = """
import sys
import warnings

import helper
from torch.utils.data import DataLoader

warnings.warn("called a synchronizing CUDA operation")
for step, x in enumerate(DataLoader(list(range(40)), batch_size=2)):
    helper.wait()
    if step % 10 == 0:
        warnings.warn("called a synchronizing CUDA operation")
    if step == 5:
        warnings.warn("something else", stacklevel=1)
sys.exit(len(sys.argv))
"""
HELPER = "import warnings\ndef wait():\n    warnings.warn('called a synchronizing CUDA operation')\n"
RUN = """
import json, sys
from feeder.tools.doctor.gpu_waits import find_waits
code, findings = find_waits("train.py", ["--x"], enable=lambda: True)
print(json.dumps([code, [[f.level, f.file, f.line, f.found, f.excerpt] for f in findings]]))
"""


def options(folder: Path) -> dict[str, Any]:
    """Those of a process in a folder, with the modules in its site-packages."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder / "site-packages"), str(ROOT)])}
    return {"cwd": folder, "env": environment, "capture_output": True, "text": True}


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *command], **options(folder))


def test_waits_are_counted_by_the_line_of_the_script(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages/helper.py").write_text(HELPER)
    done = run_warm(["-c", RUN], **options(tmp_path))
    assert "something else" in done.stderr
    code, findings = json.loads(done.stdout)
    assert code == 2
    # Of 20 batches those after the third count: 18 steps, in which step % 10 == 0 comes once.
    assert findings == [
        ["warning", "train.py", 10, "waits for the GPU 1 times a step (18 in 18 steps)", "helper.wait()"],
        [
            "note",
            "train.py",
            12,
            "waits for the GPU 0.056 times a step (1 in 18 steps)",
            'warnings.warn("called a synchronizing CUDA operation")',
        ],
    ]


def test_without_a_gpu_the_script_is_not_run(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('must not run')")
    (tmp_path / "site-packages/torch").mkdir(parents=True)
    (tmp_path / "site-packages/torch/__init__.py").write_text("class cuda:\n    is_available = lambda: False\n")
    done = run(tmp_path, "-m", "feeder", "doctor", "--run", "train.py", "--lr", "1")
    assert (done.returncode, done.stdout) == (1, "")
    assert "--run needs a CUDA device" in done.stderr
    assert run(tmp_path, "-m", "feeder", "doctor", "--run").returncode == 2
    assert run(tmp_path, "-m", "feeder", "doctor", "train.py", "--run", "train.py").returncode == 2


GPU_SCRIPT = """
import torch
from torch.utils.data import DataLoader

for x in DataLoader(torch.ones(40, 2), batch_size=2, pin_memory=True):
    y = x.cuda(non_blocking=True) * 2
    y.sum().item()
"""


@pytest.mark.gpu
def test_torchs_own_warnings_on_a_gpu(tmp_path: Path) -> None:
    import torch

    if not torch.cuda.is_available():
        pytest.skip("no CUDA device here")
    (tmp_path / "train.py").write_text(GPU_SCRIPT)
    done = run(tmp_path, "-m", "feeder", "doctor", "--json", "--run", "train.py")
    assert done.returncode == 0, done.stderr
    (finding,) = json.loads(done.stdout)["findings"]
    assert (finding["line"], finding["level"]) == (7, "warning")

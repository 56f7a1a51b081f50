"""Runs a script that imports torchvision: ``python -m tests.support.with_torchvision SCRIPT ARGUMENTS...``

``make env`` keeps torchvision in a folder of its own, out of the path: its wheels are built for one torch, and beside
another, such as a torch for the CPU alone, the import of torchvision fails, and with it that of every package which
imports torchvision where it is installed.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import sys
from pathlib import Path

from tests.support import ROOT
from tests.support.warm_python import run_warm

__all__ = ["add_torchvision", "run_with_torchvision"]

FOLDER = Path(sys.prefix) / "torchvision"
_SIGNATURE = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


def add_torchvision() -> None:
    """Makes torchvision importable in this process; without its operators, where they don't load beside this torch."""
    import torch

    sys.path.append(str(FOLDER))
    for library in FOLDER.glob("torchvision/_C*.so"):
        try:
            torch.ops.load_library(str(library))
        except OSError:
            # The import describes these two further, so they must exist; only detection models call them.
            for name in ("nms", "qnms"):
                torch.library.define(f"torchvision::{name}", _SIGNATURE)


def run_with_torchvision(script: Path, *arguments: object) -> None:
    """Runs a script in a process of its own, which must end well; skips the test where there is no torchvision."""
    if not FOLDER.exists():
        import pytest

        assert os.environ.get("CI") != "true", f"no {FOLDER}"
        pytest.skip(f"no {FOLDER}: `make env` makes it")
    done = run_warm(["-m", __name__, script, *arguments], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


if __name__ == "__main__":
    multiprocessing.set_start_method("fork")  # as tests/conftest.py does; scripts have no main guard
    add_torchvision()
    del sys.argv[0]
    runpy.run_path(sys.argv[0], run_name="__main__")

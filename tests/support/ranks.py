"""Processes that are the ranks of one job."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support import PYTHON_PATH, ROOT
from tests.support.daemons import free_port
from tests.support.warm_python import WarmPython

__all__ = ["TORCHRUN", "run_job", "run_ranks", "run_two_ranks", "start_rank"]

# Two ranks of a script, which follows, and fail if they leave threads of torch.distributed behind.
TORCHRUN = (
    *("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"),
    str(ROOT / "tests/support/whole_exit.py"),
)


def run_job(
    script: Path, *arguments: Any, ranks: int = 1, options: Sequence[str] = (), folder: Path | None = None
) -> str:
    """Runs a script as torchrun does, and returns what its ranks print.

    Args:
        script: Fails if it leaves threads of torch.distributed behind.
        arguments: Those of the script.
        ranks: How many processes run it; one is of no job.
        options: Those of Python.
        folder: The one that it runs in; None: this process's.
    """
    # With more threads, small operations mostly wait for each other where others use the cores too.
    env = {**os.environ, "PYTHONPATH": PYTHON_PATH, "OMP_NUM_THREADS": "1"}
    if ranks > 1:
        env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        env |= {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
    command, printed = [*options, "-m", "tests.support.whole_exit", script, *arguments], ""
    with contextlib.ExitStack() as stack:
        started = []
        for rank in map(str, range(ranks)):
            place = {"RANK": rank, "LOCAL_RANK": rank} if ranks > 1 else {}
            pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
            process = WarmPython(command, env=env | place, cwd=folder, **pipes)
            started.append(stack.enter_context(process))
            stack.callback(process.kill)  # the others of one that fails
        for process in started:
            out, err = process.communicate()
            assert process.returncode == 0, out + err
            printed += out
    return printed


def start_rank(script: str, argument: Any) -> subprocess.Popen[str]:
    """Starts a script that gets JSON as its argument."""
    return WarmPython(["-c", script, json.dumps(argument)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def run_ranks(script: str, arguments: Sequence[Any]) -> list[Any]:
    """Runs a script once for each rank, at the same time, and returns what each of them prints, as JSON.

    Args:
        script: Gets JSON of its rank's argument.
        arguments: For each rank.
    """
    results = []
    for rank in [start_rank(script, argument) for argument in arguments]:
        out, err = rank.communicate()
        assert rank.returncode == 0, err
        results.append(json.loads(out))
    return results


def run_two_ranks(script: str, store: Path, shards: Path) -> list[Any]:
    """Runs a script for each of two ranks, as :func:`run_ranks` does.

    Args:
        script: Gets JSON of rank, store and shards as its argument.
        store: Path of the group's file store; nothing is there yet.
        shards: Path of a shard set.
    """
    return run_ranks(script, [[rank, str(store), str(shards)] for rank in range(2)])

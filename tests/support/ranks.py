"""Processes that are the ranks of one job."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support import ROOT

__all__ = ["TORCHRUN", "run_ranks", "run_two_ranks", "start_rank"]

# Two ranks of a script, which follows, and fail if they leave threads of torch.distributed behind.
TORCHRUN = (
    *("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"),
    str(ROOT / "tests/support/whole_exit.py"),
)


def start_rank(script: str, argument: Any) -> subprocess.Popen[str]:
    """Starts a script that gets JSON as its argument."""
    command = [sys.executable, "-c", script, json.dumps(argument)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def run_ranks(script: str, arguments: Sequence[Any]) -> list[Any]:
    """Runs a script once for each rank, at the same time, and returns what each of them prints, as JSON.

    Args:
        script: Gets JSON of its rank's argument.
        arguments: For each rank.
    """
    results = []
    for rank in [start_rank(script, argument) for argument in arguments]:
        out, err = rank.communicate(timeout=200)
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

"""Two processes that are the ranks of one job."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

__all__ = ["run_two_ranks"]


def run_two_ranks(script: str, store: Path, shards: Path) -> list[Any]:
    """Runs a script once for each of two ranks and returns what each of them prints, as JSON.

    Args:
        script: Gets JSON of rank, store and shards as its argument.
        store: Path of the group's file store; nothing is there yet.
        shards: Path of a shard set.
    """
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", script, json.dumps([rank, str(store), str(shards)])],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    results = []
    for rank in ranks:
        out, err = rank.communicate(timeout=200)
        assert rank.returncode == 0, err
        results.append(json.loads(out))
    return results

"""Opening of a set of very many shards, of which there is a header only: ``python -m bench.remote_runs.opening JSON``.

Prints a line of JSON with the seconds, and the memory that it took beyond what the imported modules have.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from feeder.dataset.shards import ShardDataset
from feeder.shard.format.index_file import INDEX_NAME
from feeder.shard.format.set_header import ROW, SetInfo, write_header
from feeder.system.process_usage import process_tree

__all__ = ["Opening", "ShardNames", "make_header"]

_SHARD_SAMPLES, _SHARD_BYTES, _INDEX_BYTES = 2400, 256 << 20, 160_000


@dataclass(frozen=True)
class Opening:
    """An opening of a set.

    Attributes:
        place: URL or path of the set.
        cache: The cache folder of a remote set; "" for a local one.
    """

    place: str
    cache: str = ""


class ShardNames:
    """Names of shards, numbered in a row, each made when it is asked for."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> str:
        if not 0 <= number < self._count:
            raise IndexError(number)
        return f"shard-{number:07d}.tar"


def make_header(folder: Path, samples: int) -> None:
    """Writes the header of a set of so many samples, in shards of 2,400, into a folder."""
    rows = np.zeros(-(-samples // _SHARD_SAMPLES), ROW)
    rows["samples"], rows["size_bytes"], rows["index_bytes"] = _SHARD_SAMPLES, _SHARD_BYTES, _INDEX_BYTES
    rows["samples"][-1] -= len(rows) * _SHARD_SAMPLES - samples
    info = SetInfo(("jpg",), None, (), 999, is_numbered=False, fingerprint="0" * 32)
    write_header(str(folder / INDEX_NAME), info, rows, cast(Any, ShardNames(len(rows))))


def _resident_kib(name: str) -> int:
    """A figure of /proc/self/status: VmRSS is the memory that this process has, VmHWM the most that it had."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def _main(opening: Opening) -> None:
    before, started = _resident_kib("VmRSS"), time.perf_counter()
    dataset = ShardDataset(opening.place, cache_dir=opening.cache or None)
    seconds = time.perf_counter() - started
    found = {"seconds": seconds, "memory_mib": (_resident_kib("VmHWM") - before) / 1024, "samples": len(dataset)}
    print(json.dumps(found), flush=True)
    for pid in process_tree()[1:]:
        os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    _main(Opening(**json.loads(sys.argv[1])))

"""Runs of ``feeder shard`` that do not come to their end."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from feeder.system.progress import Progress

__all__ = ["StopAfter", "append_killed_at", "killed_at"]


class StopAfter(Progress):
    """Interrupts the run from the thread that reports progress."""

    def __init__(self, samples: int) -> None:
        self.left = samples

    def advance(self, samples: int, size_bytes: int) -> None:
        self.left -= samples
        if self.left < 0:
            raise KeyboardInterrupt


_KILLED = """
import os, signal, sys
import feeder.system.files, feeder.shard
steps = int(sys.argv[3])
real = {name: getattr(os, name) for name in ("replace", "fsync", "rename", "unlink")}
def wrap(name):
    def call(*args, **kwargs):
        global steps
        steps -= 1
        if steps < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return real[name](*args, **kwargs)
    return call
for name in real:
    setattr(os, name, wrap(name))
"""
_SHARD = """
options = feeder.shard.ShardOptions(samples_per_shard=20, workers=1, max_bad=1)
feeder.shard.shard(sys.argv[1], sys.argv[2], options, force=len(sys.argv) > 4)
"""
_APPEND = """
from feeder.shard.write.append import append
append(sys.argv[2], sys.argv[1], feeder.shard.ShardOptions(workers=1))
"""


def killed_at(step: int, source: Path, out: Path, *, force: bool = False) -> bool:
    """Shards a source in another process, which is killed before its fsync, rename or unlink of this number.

    Returns:
        False if the process came to its end before.
    """
    return _is_killed(_SHARD, [str(source), str(out), str(step), *(["force"] if force else [])])


def append_killed_at(step: int, source: Path, out: Path) -> bool:
    """Adds a source to a set in another process, as :func:`killed_at`."""
    return _is_killed(_APPEND, [str(source), str(out), str(step)])


def _is_killed(work: str, arguments: list[str]) -> bool:
    status = subprocess.run([sys.executable, "-c", _KILLED + work, *arguments], check=False).returncode
    assert status in (0, -signal.SIGKILL)
    return status != 0

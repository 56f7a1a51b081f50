"""Runs of ``feeder shard`` that do not come to their end."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import obstore

from feeder.shard.store.url import is_remote
from feeder.shard.write.set_append import append
from feeder.shard.write.set_takedown import takedown
from feeder.shard.write.shard_options import ShardOptions
from feeder.shard.write.sharding import shard
from feeder.system.progress import Progress

__all__ = ["OPTIONS", "StopAfter", "append_killed_at", "killed_at", "takedown_killed_at"]


class StopAfter(Progress):
    """Interrupts the run from the thread that reports progress."""

    def __init__(self, samples: int) -> None:
        self.left = samples

    def advance(self, samples: int, size_bytes: int) -> None:
        self.left -= samples
        if self.left < 0:
            raise KeyboardInterrupt


OPTIONS = ShardOptions(samples_per_shard=20, workers=1, max_bad=1)
_STEPS, _REQUESTS = ("replace", "fsync", "rename", "unlink", "rmdir"), ("put", "delete")


def killed_at(
    step: int, source: Path, out: Path | str, options: ShardOptions = OPTIONS, *, force: bool = False
) -> bool:
    """Shards a source in another process, which is killed before its fsync, rename or deletion of this number; in a
    store before its request that changes it.

    Returns:
        False if the process came to its end before.
    """
    return _is_killed(step, shard, str(source), str(out), options, force=force)


def append_killed_at(step: int, source: Path, out: Path | str) -> bool:
    """Adds a source to a set in another process, as :func:`killed_at`."""
    return _is_killed(step, append, str(out), str(source), ShardOptions(workers=1))


def takedown_killed_at(step: int, keys: list[str], folder: Path | str) -> bool:
    """Takes samples out of a set in another process, as :func:`append_killed_at`."""
    return _is_killed(step, takedown, str(folder), keys)


def _is_killed(step: int, work: Callable[..., object], *arguments: Any, **options: Any) -> bool:
    context = multiprocessing.get_context("forkserver")
    process = context.Process(target=_run, args=(step, work, arguments, options, dict(os.environ)))
    process.start()
    process.join()
    assert process.exitcode in (0, -signal.SIGKILL)
    return process.exitcode != 0


def _run(
    left: int,
    work: Callable[..., object],
    arguments: tuple[Any, ...],
    options: dict[str, Any],
    environment: dict[str, str],
) -> None:
    def counted(call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*args, **kwargs)

        return wrapped

    os.environ.update(environment)
    is_in_store = any(is_remote(each) for each in arguments[:2] if isinstance(each, str))
    for module, names in ((obstore, _REQUESTS),) if is_in_store else ((os, _STEPS),):
        for name in names:
            setattr(module, name, counted(getattr(module, name)))
    work(*arguments, **options)

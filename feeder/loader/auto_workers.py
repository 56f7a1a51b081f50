"""Numbers "auto" of workers and their threads, by a rule.

Note [Threads for processes]
    A process takes memory, and the trainer's time at every message; a thread of a worker takes neither, but those steps
    of a part that are Python's have one thread alone. So a rank has up to 8 workers of one thread. With more cores the
    workers get 2, 4 or 8 threads, the fewest with which 8 workers have all cores busy; with 8 threads there are as many
    workers as it takes. More than 8 would wait for the worker's own steps, and be lost with a worker that has to be
    replaced.

Note [Ranks of a host]
    The ranks of a host share its cores, so each gets its part of them. Nothing waits for another rank, and ranks with
    different numbers of workers still agree on order and pixels, which do not depend on them.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Any

import torch
from torch import distributed

from feeder.decoders.registry import Dali, dali_is_installed
from feeder.errors import ArgumentError
from feeder.loader.options import DEFAULT_COLLATES, WorkerOptions
from feeder.loader.path_choice import PathChoice
from feeder.loader.ranks import is_initialized
from feeder.system.cores import cores, local_world_size
from feeder.system.text import count

_log = logging.getLogger("feeder")

MOST_THREADS = 8  # the most threads of a worker; see Note [Threads for processes]
_FEW_WORKERS = 8


def settle_workers(
    given: Mapping[str, Any], path: PathChoice, device: torch.device | None
) -> tuple[int, int | None, dict[str, Any] | None]:
    """Returns numbers in place of "auto", for a loader that is about to be made.

    Args:
        given: The loader's arguments, by name.
        path: The path that it takes.
        device: The device that batches go to.

    Returns:
        Number of workers; threads of each, None: not given; the choice of the former as :meth:`feeder.DataLoader.stats`
        has it, None: it was given.

    Raises:
        ArgumentError: for a number of workers that is another word.
    """
    number, threads = given["num_workers"], (given["worker_options"] or WorkerOptions()).threads
    if isinstance(number, str) and number != "auto":
        raise ArgumentError(f"num_workers must be 'auto', or 0 or more, got {number!r}")

    if number != "auto":
        if threads == "auto":  # as many as keep the cores of this rank busy
            threads = max(1, min(MOST_THREADS, _cores_of_rank()[0] // max(1, number))) if path.is_fast else 1
        return number, threads, None

    usable, words = _cores_of_rank()
    if not isinstance(threads, int):
        threads = _threads_by_rule(usable) if _threads_share(given, path, device) else 1
    number = max(1, usable // threads)
    _log.info("num_workers is %d, of %s each: %s", number, count(threads, "thread"), words)
    return number, threads, {"num_workers": number, "worker_threads": threads, "reason": words}


def _threads_share(given: Mapping[str, Any], path: PathChoice, device: torch.device | None) -> bool:
    """Returns True if threads of a worker share its work: where it decodes, and no collate_fn takes one for all."""
    if not path.is_fast or given["collate_fn"] not in DEFAULT_COLLATES:
        return False
    backend, on_gpu = given["backend"], device is not None and device.type == "cuda" and dali_is_installed()
    reads_only = backend in ("cuda", "dali") or isinstance(backend, Dali) or (on_gpu and backend == "auto")
    return not reads_only


def _threads_by_rule(usable: int) -> int:
    """Returns the number of threads of each worker on so many cores; see Note [Threads for processes]."""
    return next((threads for threads in (1, 2, 4) if usable // threads <= _FEW_WORKERS), MOST_THREADS)


def _cores_of_rank() -> tuple[int, str]:
    """Returns the number of cores for this rank, and those of the host in words."""
    world_size = distributed.get_world_size() if is_initialized() else int(os.environ.get("WORLD_SIZE", "1"))
    ranks, machine = _local_ranks(world_size), cores()
    return max(1, machine.usable // ranks), machine.describe() + (f" for {ranks} ranks" if ranks > 1 else "")


def _local_ranks(world_size: int) -> int:
    """Returns the number of ranks on this host: the launcher's, else one for each GPU at most, else all."""
    launched = local_world_size()
    if launched > 1 or world_size == 1 or "LOCAL_WORLD_SIZE" in os.environ:
        return launched
    return min(world_size, torch.cuda.device_count() or world_size)

"""Numbers "auto" of workers and their threads: a few seconds of measurement when a loader is made, or a rule.

Note [Threads for processes]
    A process takes memory, and the trainer's time at every message; a thread of a worker takes neither, but those steps
    of a part that are Python's have one thread alone. So a rank has up to 8 workers of one thread. With more cores the
    workers get 2, 4 or 8 threads, the fewest with which 8 workers have all cores busy; with 8 threads there are as many
    workers as it takes. More than 8 would wait for the worker's own steps, and be lost with a worker that has to be
    replaced. Where it can be measured, the threads must prove themselves first: one worker of so many threads has to be
    about as fast as so many workers.

Note [Ranks of a host]
    The ranks of a host share its cores, so each gets its part of them, and measures for itself, at the same time as the
    others. Nothing waits for another rank, and ranks with different numbers of workers still agree on order and pixels,
    which do not depend on them.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import distributed
from torch.utils.data import IterableDataset, RandomSampler

from feeder.decoders.registry import Dali, dali_is_installed
from feeder.errors import ArgumentError
from feeder.loader.group_store import is_initialized
from feeder.loader.options import DEFAULT_COLLATES, WorkerOptions
from feeder.loader.path_choice import PathChoice
from feeder.loader.stateful import method_of
from feeder.loader.trial import run
from feeder.system.cores import cores, local_world_size

__all__ = ["MOST_THREADS", "WorkersChoice", "measured", "settle_workers"]

_log = logging.getLogger("feeder")

# Arguments that the work of a worker depends on.
_OF_WORK = ("dataset", "worker_init_fn", "multiprocessing_context", "collate_fn", "backend", "fidelity", "sizes")
SECONDS = 3.0
RUN_S = 0.4
MOST_THREADS = 8  # of a worker; see Note [Threads for processes]
_FEW_WORKERS = 8
# Smaller differences are not seen in two short runs.
_NEAR = 0.1


@dataclass(frozen=True)
class WorkersChoice:
    """A number of workers, and of the threads of each.

    Attributes:
        num_workers: 1 or more.
        reason: The reason for them, in words.
        images_per_s: Measured images/s by number of workers; empty if nothing was measured.
        worker_threads: 1 or more.
    """

    num_workers: int
    reason: str
    images_per_s: Mapping[int, float] = field(default_factory=dict)
    worker_threads: int = 1


def settle_workers(
    make: Callable[..., Any], given: Mapping[str, Any], path: PathChoice, device: torch.device | None
) -> tuple[int, int | None, WorkersChoice | None]:
    """Returns numbers in place of "auto", for a loader that is about to be made.

    Args:
        make: Makes a loader.
        given: The loader's arguments, by name.
        path: The path that it takes.
        device: The device that batches go to.

    Returns:
        Number of workers; threads of each, None: not given; the choice of the former, None: it was given.

    Raises:
        ArgumentError: for a number of workers that is another word.
    """
    number, threads = given["num_workers"], (given["worker_options"] or WorkerOptions()).threads
    if number == "auto":
        choice = _choose(make, given, path, device)
        return choice.num_workers, choice.worker_threads, choice
    if isinstance(number, str):
        raise ArgumentError(f"num_workers must be 'auto', or 0 or more, got {number!r}")
    if threads == "auto":  # as many as keep the cores of this rank busy
        threads = max(1, min(MOST_THREADS, _cores_of_rank()[0] // max(1, number))) if path.is_fast else 1
    return number, threads if isinstance(threads, int) else None, None


def _choose(
    make: Callable[..., Any], given: Mapping[str, Any], path: PathChoice, device: torch.device | None
) -> WorkersChoice:
    """Returns the number of workers for a loader that is about to be made, and of the threads of each.

    The caller's sampler and random state stay untouched: the measured samples are drawn apart from them, in workers.
    Arguments are those of :func:`settle_workers`.
    """
    usable, words = _cores_of_rank()
    elsewhere = _decoded_elsewhere(given, device) if path.is_fast else None
    why_not = _unmeasurable(given["dataset"], path.is_fast) or elsewhere

    options = given["worker_options"] or WorkerOptions()
    threads = options.threads if isinstance(options.threads, int) else None
    # A collate_fn runs in one thread of its worker, with all that it takes.
    shares_parts = path.is_fast and elsewhere is None and given["collate_fn"] in DEFAULT_COLLATES
    each = threads or (_threads_by_rule(usable) if shares_parts else 1)

    def rule(why: str) -> WorkersChoice:
        reason = f"{_in_words(words, each)}; not measured: {why}"
        return WorkersChoice(max(1, usable // each), reason, worker_threads=each)

    if usable // (threads or 1) <= 1:
        choice = WorkersChoice(1, _in_words(words, threads or 1), worker_threads=threads or 1)
    elif why_not is not None:
        choice = rule(why_not)
    else:
        probe = _Probe(make, given, path, options, usable)
        paid = each if each == threads or _threads_pay(probe, each) else 1
        most = max(1, usable // paid)
        choice = measured(lambda workers, left_s: probe(workers, paid, left_s), most, _in_words(words, paid), rule)
        if choice.images_per_s:
            choice = replace(choice, worker_threads=paid)

    further = f", {choice.worker_threads} threads each" if threads is None and choice.worker_threads > 1 else ""
    _log.info("num_workers is %d%s: %s", choice.num_workers, further, choice.reason)
    return choice


def _in_words(cores: str, threads: int) -> str:
    return cores + (f", {threads} threads a worker" if threads > 1 else "")


class _Probe:
    """Measures loaders like the one that is about to be made; arguments are those of :func:`settle_workers`."""

    def __init__(
        self, make: Callable[..., Any], given: Mapping[str, Any], path: PathChoice, options: WorkerOptions, usable: int
    ) -> None:
        self._make = make
        self._options = options if path.is_fast else None
        self._arguments = {name: given[name] for name in _OF_WORK}
        batches, batch_size = given["batch_sampler"], given["batch_size"]
        if batches is not None:
            batch_size = getattr(batches, "batch_size", None) or 32

        if path.is_fast:
            self._arguments |= {"shuffle": True, "seed": 0, "rank": 0, "world_size": 1}
            self._arguments |= {"batch_size": min(batch_size or 1, 16 * usable), "on_error": "skip"}
        else:
            endless = RandomSampler(range(_length(given["dataset"])), True, 1 << 30, torch.Generator())
            self._arguments |= {"sampler": endless, "batch_size": batch_size}
            self._arguments |= {"generator": torch.Generator(), "on_error": given["on_error"]}

    def __call__(self, workers: int, threads: int, left_s: float) -> float:
        """Returns images/s with a number of workers and of the threads of each, in about a number of seconds."""
        options = {} if self._options is None else {"worker_options": replace(self._options, threads=threads)}
        with warnings.catch_warnings():  # the caller's own loader warns
            warnings.simplefilter("ignore")
            loader = self._make(**self._arguments, **options, num_workers=workers, timeout=left_s)
        return run(loader, RUN_S).images_per_s


def _threads_by_rule(usable: int) -> int:
    """Returns the number of threads of each worker on so many cores; see Note [Threads for processes]."""
    threads = 1
    while threads < MOST_THREADS and usable // threads > _FEW_WORKERS:
        threads *= 2
    return threads


def _threads_pay(probe: Callable[[int, int, float], float], threads: int) -> bool:
    """Returns True if one worker of so many threads is about as fast as so many workers."""
    if threads == 1:
        return True
    with contextlib.suppress(Exception):  # the next measurement says what is wrong
        return probe(1, threads, SECONDS) >= (1 - _NEAR) * probe(threads, 1, SECONDS)
    return False


def measured(
    probe: Callable[[int, float], float],
    most: int,
    given: str,
    rule: Callable[[str], WorkersChoice],
    *,
    seconds: float | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> WorkersChoice:
    """Returns the smallest number of workers that is about as fast as the largest.

    Args:
        probe: Measures images/s with a number of workers, in about a number of seconds at most.
        most: The largest number of workers.
        given: The cores, in words.
        rule: Returns the choice if nothing can be measured, given the reason.
        seconds: No run starts later than this; None: three.
        clock: Returns the time in seconds.
    """
    seconds = SECONDS if seconds is None else seconds
    end = clock() + seconds
    rates: dict[int, float] = {}
    low, high = 0, most

    try:
        rates[most] = probe(most, seconds)
        while high - low > max(1, high // 8) and (left := end - clock()) > RUN_S:
            middle = (low + high) // 2
            rates[middle] = probe(middle, left)
            if rates[middle] >= (1 - _NEAR) * max(rates.values()):
                high = middle
            else:
                low = middle
    except Exception as error:  # the caller's own loop will raise it
        if not rates:
            return rule(f"{type(error).__name__}: {error}".partition("\n")[0])

    found = ", ".join(f"{rate:,.0f} with {workers}" for workers, rate in sorted(rates.items()))
    return WorkersChoice(high, f"{given}; images/s: {found}", rates)


def _unmeasurable(dataset: Any, fast: bool) -> str | None:
    """Returns the reason why measuring a dataset would be wrong; None if there is none."""
    if isinstance(dataset, IterableDataset):
        return "reading ahead in an iterable dataset would consume it"
    if not fast and method_of(dataset, "state_dict", 0):
        return "a dataset with a state goes on only with the number of workers it had"
    if _length(dataset) == 0:
        return "the dataset has no length, or 0"
    return None


def _decoded_elsewhere(given: Mapping[str, Any], device: torch.device | None) -> str | None:
    """Returns, in words, what decodes a feeder dataset in place of workers; None if they do."""
    backend, has_collate = given["backend"], given["collate_fn"] not in DEFAULT_COLLATES
    if backend == "cuda":
        return "workers only read, the GPU decodes"
    on_gpu = device is not None and device.type == "cuda" and dali_is_installed() and not has_collate
    if backend == "dali" or isinstance(backend, Dali) or (on_gpu and backend == "auto"):
        return "workers only read, decoding is DALI's"
    return None


def _length(dataset: Any) -> int:
    """Returns the dataset's length; 0 if it has none."""
    try:
        return len(dataset)
    except Exception:
        return 0


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

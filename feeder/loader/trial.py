"""One measured run of a loader: images/s, CPU time and memory."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from feeder.errors import ArgumentError
from feeder.loader.generic.meters import batch_rows
from feeder.system.process_usage import cpu_seconds_by_process, pss_bytes

__all__ = ["Trial", "run", "step_rate"]

# A run goes on past its time until it has this many batches: fewer say nothing.
_BATCHES = 2
_LONGEST = 4.0
_epochs = itertools.count(1 << 20)  # far from those of any training


def run(loader: Any, seconds: float, step: Callable[[Any], Any] | None = None) -> Trial:
    """Takes batches from a loader for a while, epoch after epoch, and closes it.

    Args:
        loader: A :class:`feeder.DataLoader`.
        seconds: Length of the run, from the first batch on; it goes on if there are fewer than two batches by then.
        step: Called with each batch.

    Raises:
        ArgumentError: if the loader has no batch.
    """
    memory_before = pss_bytes(os.getpid())
    started = time.perf_counter()

    try:
        batches = _forever(loader)
        _consume(next(batches), step)
        _synchronize()

        begun = time.perf_counter()
        cpu_before, stats_before = cpu_seconds_by_process(), loader.stats()
        images = count = 0
        while (elapsed := time.perf_counter() - begun) < seconds or (count < _BATCHES and elapsed < _LONGEST * seconds):
            images += _consume(next(batches), step)
            count += 1

        _synchronize()
        elapsed = time.perf_counter() - begun
        cpu_after, stats = cpu_seconds_by_process(), loader.stats()
        cpu_s = sum(cpu_after[pid] - cpu_before.get(pid, 0.0) for pid in cpu_after)
        workers = set(cpu_after) - {os.getpid()}
        memory = sum(map(pss_bytes, workers)) + max(0, pss_bytes(os.getpid()) - memory_before)

        return Trial(
            images_per_s=images / elapsed,
            cpu_ms=1000 * cpu_s / max(1, images),
            memory_bytes=memory,
            first_batch_s=begun - started,
            skipped=stats.get("skipped", 0),
            **_shares(loader, stats_before, stats, elapsed),
        )
    finally:
        loader.close()


def step_rate(step: Callable[[Any], Any], batch: Any, seconds: float) -> float:
    """Returns images/s of the step alone, repeated on one batch."""
    _consume(batch, step)
    _synchronize()
    begun, images = time.perf_counter(), 0
    while time.perf_counter() - begun < seconds:
        images += _consume(batch, step)
    _synchronize()
    return images / (time.perf_counter() - begun)


def _consume(batch: Any, step: Callable[[Any], Any] | None) -> int:
    if step is not None:
        step(batch)
    return batch_rows(batch)


def _forever(loader: Any) -> Iterator[Any]:
    while True:
        if hasattr(loader, "set_epoch") and "backend" in loader.stats():  # feeder's order: other samples in each run
            loader.set_epoch(next(_epochs))
        any_batch = False
        for batch in loader:
            any_batch = True
            yield batch
        if not any_batch:
            raise ArgumentError("the loader has no batch: the dataset is empty, or smaller than one with drop_last")


def _shares(loader: Any, before: Mapping[str, Any], after: Mapping[str, Any], elapsed_s: float) -> dict[str, float]:
    """Returns shares by the loader's own meters; none if it has no such meters."""
    change = {name: after.get(name, 0) - before.get(name, 0) for name in ("busy_ns", "read_ns", "samples")}
    if not change["busy_ns"] or not change["samples"]:
        return {}
    return {
        "make_ms": change["busy_ns"] / change["samples"] / 1e6,
        "read_share": change["read_ns"] / change["busy_ns"],
        "busy_share": min(1.0, change["busy_ns"] / 1e9 / elapsed_s / max(1, loader.num_workers)),
    }


def _synchronize() -> None:
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()


@dataclass(frozen=True)
class Trial:
    """The figures of one run.

    Attributes:
        images_per_s: Images/s from the first batch on.
        cpu_ms: CPU time of all processes per image, milliseconds; includes the step, if there is one.
        memory_bytes: Memory of the workers and the batches.
        first_batch_s: Seconds from asking for the first batch to getting it.
        make_ms: Time that a worker spends on an image, milliseconds; None if the loader does not meter it.
        read_share: Share of that time spent reading, 0-1.
        busy_share: Share of the time that workers are at work, 0-1.
        skipped: Number of samples that could not be decoded.
    """

    images_per_s: float
    cpu_ms: float
    memory_bytes: int
    first_batch_s: float
    make_ms: float | None = None
    read_share: float | None = None
    busy_share: float | None = None
    skipped: int = 0

"""Measured runs of a loader: rate, CPU time, waits, stages and memory, for every tool that measures one."""

from __future__ import annotations

import collections
import contextlib
import itertools
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from feeder.errors import ArgumentError
from feeder.loader.device.nested import map_tensors
from feeder.loader.generic.meters import batch_rows
from feeder.system.process_usage import cpu_seconds_by_process, process_tree, pss_bytes

# Stages of the meters that are work on samples; the others are waits, and the caller's.
STAGES = ("read", "draw", "cut", "decode", "transform", "fetch", "collate", "write")
# A run goes on past its time until it has this many batches: fewer say nothing.
_BATCHES = 2
_LONGEST = 4.0
_epochs = itertools.count(1 << 20)  # far from those of any training


@dataclass
class RunSums:
    """Sums over the measured parts of a run.

    Attributes:
        samples: Samples received.
        batches: Batches received.
        elapsed_s: Duration.
        next_s: Seconds in ``next()``.
        step_s: Seconds in the step.
        cpu_s: CPU seconds of all processes.
        meters: Changes of the numbers of the loader's ``stats()``, and of its stages as "decode count" and "decode ns".
    """

    samples: int = 0
    batches: int = 0
    elapsed_s: float = 0.0
    next_s: float = 0.0
    step_s: float = 0.0
    cpu_s: float = 0.0
    meters: collections.Counter[str] = field(default_factory=collections.Counter)

    @property
    def images_per_s(self) -> float:
        """Samples received each second."""
        return self.samples / max(1e-9, self.elapsed_s)

    @property
    def cpu_ms(self) -> float:
        """CPU time of all processes for each sample, milliseconds."""
        return 1000 * self.cpu_s / max(1, self.samples)

    def stages_s(self) -> dict[str, float]:
        """Returns the seconds of each stage of work that ran, over all workers."""
        return {name: spent / 1e9 for name in STAGES if (spent := self.meters[f"{name} ns"])}


@dataclass(frozen=True)
class Trial:
    """The figures of one run.

    Attributes:
        images_per_s: Images/s from the first batch on.
        cpu_ms: CPU time of all processes per image, milliseconds; includes the step, if there is one.
        memory_bytes: Memory of the workers and the batches.
        make_ms: Time that a worker spends on an image, milliseconds; None if the loader does not meter it.
        read_share: Share of that time spent reading, 0-1.
        busy_share: Share of the time that workers are at work, 0-1.
        skipped: Number of samples that could not be decoded.
        batches_per_s: Batches/s from the first one on.
    """

    images_per_s: float
    cpu_ms: float
    memory_bytes: int
    make_ms: float | None = None
    read_share: float | None = None
    busy_share: float | None = None
    skipped: int = 0
    batches_per_s: float = 0.0


def consume(
    batches: Iterator[Any],
    stats: Callable[[], Mapping[str, Any]],
    seconds: float,
    step: Callable[[Any], Any] | None = None,
) -> RunSums:
    """Takes batches for a while, or until there are no more.

    Args:
        batches: The batches of a loader.
        stats: Returns the loader's meters.
        seconds: Duration. It takes two batches at least, if they come within four times as long.
        step: Called with each batch.
    """
    sums = RunSums()
    with _measured(sums, stats):
        while (spent := sums.next_s + sums.step_s) < seconds or (
            sums.batches < _BATCHES and spent < _LONGEST * seconds
        ):
            asked = time.perf_counter()
            batch = next(batches, None)
            given = time.perf_counter()
            sums.next_s += given - asked
            if batch is None:
                break

            sums.batches += 1
            sums.samples += _take(batch, step)
            sums.step_s += time.perf_counter() - given
    return sums


@contextlib.contextmanager
def _measured(sums: RunSums, stats: Callable[[], Mapping[str, Any]]) -> Iterator[None]:
    """Adds the time, the CPU time and the changes of the meters in a block."""
    _synchronize()
    meters_before, cpu_before = _numbers(stats()), cpu_seconds_by_process()
    began = time.perf_counter()
    yield
    _synchronize()
    sums.elapsed_s += time.perf_counter() - began

    cpu_after = cpu_seconds_by_process()
    sums.cpu_s += sum(spent - cpu_before.get(pid, 0.0) for pid, spent in cpu_after.items())
    sums.meters += _numbers(stats()) - meters_before


def _numbers(stats: Mapping[str, Any]) -> collections.Counter[str]:
    found = collections.Counter({name: int(value) for name, value in stats.items() if isinstance(value, (int, float))})
    for name, stage in stats.get("stages", {}).items():
        found[f"{name} count"] = int(stage["count"])
        found[f"{name} ns"] = int(stage["total_ns"])
    return found


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
    try:
        batches = _forever(loader)
        _take(next(batches), step)
        sums = consume(batches, loader.stats, seconds, step)
        workers = set(process_tree()) - {os.getpid()}
        memory = sum(map(pss_bytes, workers)) + max(0, pss_bytes(os.getpid()) - memory_before)
        return Trial(
            images_per_s=sums.images_per_s,
            cpu_ms=sums.cpu_ms,
            memory_bytes=memory,
            skipped=loader.stats().get("skipped", 0),
            batches_per_s=sums.batches / max(1e-9, sums.elapsed_s),
            **_shares(loader, sums),
        )
    finally:
        loader.close()


def step_rate(step: Callable[[Any], Any], loader: Any, seconds: float) -> float:
    """Returns images/s of the step alone, repeated on a loader's first batch; closes the loader.

    Raises:
        ArgumentError: if the loader has no batch.
    """
    try:
        batch = map_tensors(next(_forever(loader)), torch.Tensor.clone)  # holds no slot
    finally:
        loader.close()
    _take(batch, step)
    return consume(itertools.repeat(batch), dict, seconds, step).images_per_s


def _take(batch: Any, step: Callable[[Any], Any] | None) -> int:
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


def _shares(loader: Any, sums: RunSums) -> dict[str, float]:
    """Returns shares by the loader's own meters; none if it has no such meters."""
    busy_ns, samples = sums.meters["busy_ns"], sums.meters["samples"]
    if not busy_ns or not samples:
        return {}
    return {
        "make_ms": busy_ns / samples / 1e6,
        "read_share": sums.meters["read_ns"] / busy_ns,
        "busy_share": min(1.0, busy_ns / 1e9 / sums.elapsed_s / max(1, loader.num_workers)),
    }


def _synchronize() -> None:
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()

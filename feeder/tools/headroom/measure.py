"""Runs of a loader, alone or with the training step, and their sums."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from feeder.errors import ArgumentError
from feeder.loader.device.nested import map_tensors
from feeder.loader.generic.meters import batch_rows
from feeder.system.process_usage import cpu_seconds_by_process

if TYPE_CHECKING:
    from feeder.loader.dataloader import DataLoader

__all__ = ["RunSums", "first_batch", "run"]

_STAGES = ("read", "draw", "cut", "decode", "transform", "fetch", "collate", "write")
_FIRST_BATCHES = 2  # left out of each epoch, as workers make them while they start
_NO_BATCH = "the loader has no batch: the dataset is empty, or smaller than one with drop_last"


@dataclass
class RunSums:
    """Sums over a run, without the first batches of every epoch.

    Attributes:
        samples: Samples received.
        made: Samples that the workers made in that time.
        elapsed_s: Duration.
        step_s: Seconds in the step.
        next_s: Seconds in ``next()``.
        waited_s: Seconds in which the loader waited for its workers.
        busy_s: Seconds in which the workers were busy, all together.
        cpu_s: CPU seconds of this process and the workers.
        stages_s: Seconds by stage.
    """

    samples: int = 0
    made: float = 0.0
    elapsed_s: float = 0.0
    step_s: float = 0.0
    next_s: float = 0.0
    waited_s: float = 0.0
    busy_s: float = 0.0
    cpu_s: float = 0.0
    stages_s: dict[str, float] = dataclasses.field(default_factory=dict)


def run(loader: DataLoader[Any], step: Callable[[Any], Any] | None, seconds: float) -> RunSums:
    """Takes batches for a while, epoch after epoch, and closes the loader.

    Args:
        loader: The loader.
        step: Called with each batch; None for the loader alone.
        seconds: Duration, without the first batches of every epoch.

    Raises:
        ArgumentError: if the loader has no batch.
    """
    sums = RunSums()
    began = time.perf_counter()
    while sums.elapsed_s < seconds and (sums.samples == 0 or time.perf_counter() - began < 4 * seconds):
        _epoch(loader, step, seconds - sums.elapsed_s, sums)
    loader.close()
    return sums


def _epoch(loader: DataLoader[Any], step: Callable[[Any], Any] | None, seconds: float, sums: RunSums) -> None:
    clock = time.perf_counter
    batches = iter(loader)
    rows = 0
    skipped = min(_FIRST_BATCHES, len(loader) - 1) if hasattr(loader.dataset, "__len__") else _FIRST_BATCHES
    for number in range(skipped):
        batch = next(batches, None)
        if batch is None:
            if number == 0:
                raise ArgumentError(_NO_BATCH)
            return
        if step is not None:
            step(batch)
    _synchronize()
    before, cpu = loader.stats(), cpu_seconds_by_process()
    started = clock()
    next_s = step_s = 0.0
    while True:
        asked = clock()
        batch = next(batches, None)
        given = clock()
        next_s += given - asked
        if batch is None:
            break
        rows += batch_rows(batch)
        if step is not None:
            step(batch)
        step_s += clock() - given
        if clock() - started >= seconds:
            break
    _synchronize()
    sums.elapsed_s += clock() - started
    after, cpu_after = loader.stats(), cpu_seconds_by_process()
    del batch
    _add(sums, before, after, rows)
    sums.next_s += next_s
    sums.step_s += step_s
    sums.cpu_s += sum(cpu_after[pid] - cpu[pid] for pid in cpu_after.keys() & cpu.keys())


def _add(sums: RunSums, before: dict[str, Any], after: dict[str, Any], rows: int) -> None:
    def change(stage: str, key: str) -> int:
        none = {key: 0}
        return int(after["stages"].get(stage, none)[key]) - int(before["stages"].get(stage, none)[key])

    sums.samples += rows
    sums.waited_s += (after["waited_ns"] - before["waited_ns"]) / 1e9
    sums.busy_s += (after["busy_ns"] - before["busy_ns"]) / 1e9
    handed = after["batches"] - before["batches"]
    if change("transform", "count"):
        sums.made += change("transform", "count")
    elif change("fetch", "count") and handed:
        sums.made += change("fetch", "count") * (after["samples"] - before["samples"]) / handed
    else:
        sums.made += rows
    for stage in _STAGES:
        sums.stages_s[stage] = sums.stages_s.get(stage, 0.0) + change(stage, "total_ns") / 1e9


def first_batch(loader: DataLoader[Any]) -> Any:
    """Returns a copy of the loader's first batch, so that it holds no slot, and closes the loader.

    Raises:
        ArgumentError: if the loader has no batch.
    """
    for batch in loader:
        copied = map_tensors(batch, torch.Tensor.clone)
        loader.close()
        return copied
    raise ArgumentError(_NO_BATCH)


def _synchronize() -> None:
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()

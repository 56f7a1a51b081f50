"""Times of each loader in a run, and the machine's load during it.

Note [Times of a step]
    The step is the time between two calls of ``next()``. Loops over other loaders inside a step, usually evaluation,
    are not part of it. The run's first batch, which includes start-up, does not count.
"""

from __future__ import annotations

import collections
import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from feeder.tools.instrument.record import TRAINER_DECODE, LoaderRecord, ProcessRecord


@dataclass(frozen=True)
class LoaderTimes:
    """Times of one loader.

    Args:
        record: The measurements.
        trains: True if the batches of some epoch were trained on; then these epochs alone count.
        batches: Batches that count: all but the first of the run.
        images: Samples in these batches.
        wait_s: Seconds in ``next()``.
        step_s: Seconds between the calls, without other loaders' waits and loops.
        epochs: Number of iterations over the loader.
        epoch_start_s: Extra seconds that the first batches of epochs took, without the run's first epoch.
        making_s: Mean seconds to make a batch in one worker; None if unknown.
        dataset_share: Share of ``making_s`` in the data set, 0-1.
        cpu_share: Share of the data set's time on a processor, 0-1.
        queued_share: Share of the data set's time spent ready to run without a processor, 0-1.
        workers_busy: Share of the workers' time in which they made batches, 0-1; None if unknown.
    """

    record: LoaderRecord
    trains: bool
    batches: int
    images: int
    wait_s: float
    step_s: float
    epochs: int
    epoch_start_s: float
    making_s: float | None = None
    dataset_share: float = 0.0
    cpu_share: float = 0.0
    queued_share: float = 0.0
    workers_busy: float | None = None

    @property
    def total_s(self) -> float:
        """Seconds of waits and steps."""
        return self.wait_s + self.step_s

    @property
    def evaluation(self) -> str:
        """Words for a loader that does not train, with the calls of backward() that were seen."""
        batches = self.record.batches
        trained, number = sum(batch.trained for batch in batches), sum(batch.images > 0 for batch in batches)
        seen = f"in {trained:,} of {number:,} batches backward() was seen" if trained else "no backward() was seen"
        return f"evaluation ({seen})"

    @property
    def wait_share(self) -> float:
        """Share of the waits in ``total_s``, 0-1."""
        return self.wait_s / self.total_s if self.total_s else 0.0

    @property
    def wait_a_batch_s(self) -> float:
        """Mean seconds in ``next()``."""
        return self.wait_s / max(1, self.batches)

    @property
    def step_a_batch_s(self) -> float:
        """Mean seconds of a step."""
        return self.step_s / max(1, self.batches)

    @property
    def storage_share(self) -> float:
        """Share of the data set's time spent waiting, usually for storage, 0-1."""
        return max(0.0, 1 - self.cpu_share - self.queued_share)

    @property
    def most(self) -> float:
        """The gain if nothing waited for data any more, see :meth:`gain`."""
        return self.gain(0.0)

    def gain(self, batch_s: float) -> float:
        """Returns the factor of the rate if a batch and its step took so long, but no less than the step now."""
        return (self.wait_a_batch_s + self.step_a_batch_s) / max(1e-6, self.step_a_batch_s, batch_s)


class MachineLoad(NamedTuple):
    """Mean load of a machine; None for figures that were not measured.

    Args:
        own_cores: Cores that the training process kept busy.
        children_cores: Cores that its descendants kept busy.
        gpu_busy: Share of the time that the busiest GPU worked, 0-1.
    """

    own_cores: float | None
    children_cores: float | None
    gpu_busy: float | None

    @property
    def used_cores(self) -> float:
        """Cores that all of them kept busy; 0 if not measured."""
        return (self.own_cores or 0.0) + (self.children_cores or 0.0)


def overlap(a: LoaderTimes, b: LoaderTimes) -> bool:
    """Returns True if two loaders were in use at the same time."""
    first, second = a.record.batches, b.record.batches
    return first[0].asked_ns < second[-1].got_ns and second[0].asked_ns < first[-1].got_ns


def times_of(record: LoaderRecord, others: Sequence[LoaderRecord]) -> LoaderTimes:
    """Returns a loader's times, without those of the process's other loaders."""
    training = _training_epochs(record)
    counts = [bool(batch.images) and (not training or batch.epoch in training) for batch in record.batches]
    real = [*itertools.compress(record.batches, counts)]
    steps = [*itertools.compress(_steps(record, others), counts)]
    # An epoch begins with the start of the workers, for which the loop waits too.
    begun = {
        batch: (record.made_ns[batch.epoch][1] - record.made_ns[batch.epoch][0]) / 1e9
        for batch, before in zip(real[1:], real, strict=False)
        if batch.epoch != before.epoch
    }
    waits = {batch: (batch.got_ns - batch.asked_ns) / 1e9 + begun.get(batch, 0.0) for batch in real[1:]}
    typical = statistics.median(waits.values()) if waits else 0.0

    dataset = sum(fetch.dataset_ns for fetch in record.fetches)
    whole = dataset + sum(fetch.collate_ns for fetch in record.fetches)
    cpu = sum(fetch.dataset_cpu_ns for fetch in record.fetches) / max(1, dataset)
    queued = sum(fetch.dataset_queued_ns for fetch in record.fetches) / max(1, dataset)
    return LoaderTimes(
        record=record,
        trains=bool(training),
        batches=len(waits),
        images=sum(batch.images for batch in waits),
        wait_s=sum(waits.values()),
        step_s=sum(steps[1:]),
        epochs=len({batch.epoch for batch in real}),
        epoch_start_s=sum(max(0.0, waits[batch] - typical) for batch in begun),
        making_s=whole / len(record.fetches) / 1e9 if record.fetches else None,
        dataset_share=dataset / max(1, whole),
        cpu_share=min(1.0, cpu),
        queued_share=max(0.0, min(1 - cpu, queued)),
        workers_busy=_workers_busy(record, whole),
    )


def _training_epochs(record: LoaderRecord) -> set[int]:
    """Returns the epochs of which at least half the batches were trained on: a loader may validate in others."""
    batches = collections.Counter(batch.epoch for batch in record.batches if batch.images)
    trained = collections.Counter(batch.epoch for batch in record.batches if batch.trained)
    return {epoch for epoch, count in batches.items() if 2 * trained[epoch] >= count}


def _workers_busy(record: LoaderRecord, fetches_ns: int) -> float | None:
    """Returns the share of the workers' time in which they made batches; None if unknown."""
    work_ns = fetches_ns or sum(record.stage_ns.values()) - record.stage_ns.get(TRAINER_DECODE, 0)
    if not record.batches or not (record.fetches or record.stage_ns):
        return None
    first = record.made_ns[0][0] if record.made_ns else record.batches[0].asked_ns
    available_ns = (record.batches[-1].got_ns - first) * record.workers
    return min(1.0, work_ns / available_ns) if available_ns else None


def _steps(record: LoaderRecord, others: Sequence[LoaderRecord]) -> list[float]:
    """Returns seconds from each batch to the next call, 0 after an epoch's last call; see Note [Times of a step]."""
    got, ends = _ends(record)
    steps = np.maximum(0, ends - got)
    for other in others:
        if other is record or not other.batches:
            continue

        asked = np.array([batch.asked_ns for batch in other.batches], np.int64)
        their_got, their_ends = _ends(other)
        at = np.searchsorted(got, asked, "right") - 1
        inside = (at >= 0) & (asked < ends[np.maximum(at, 0)])
        whole = their_ends <= ends[np.maximum(at, 0)]
        taken = np.where(whole, their_ends, their_got) - asked
        np.subtract.at(steps, at[inside], taken[inside])
    return [float(step) for step in np.maximum(0, steps) / 1e9]


def _ends(record: LoaderRecord) -> tuple[Any, Any]:
    """Returns the times at which each call returned, and at which the next call of the same epoch came."""
    got = [call.got_ns for call in record.batches]
    ends = [call.got_ns if after is None else after.asked_ns for call, after in record.steps()]
    return np.array(got, np.int64), np.array(ends, np.int64)


def machine_load(process: ProcessRecord, main: LoaderTimes | None) -> MachineLoad:
    """Returns the load while the main loader runs; of the whole run if there is none."""
    batches = main.record.batches if main is not None else []
    first, last = (batches[0].got_ns, batches[-1].got_ns) if batches else (process.started_ns, process.ended_ns)
    samples = [s for s in process.samples if first < s.at_ns <= last] or process.samples
    if not samples:
        return MachineLoad(None, None, None)
    busy: dict[int, list[float]] = {}
    for sample in samples:
        for gpu, found in sample.gpus.items():
            if found is not None:
                busy.setdefault(gpu, []).append(found)
    busiest = max((statistics.fmean(values) for values in busy.values()), default=None)
    own, children = (statistics.fmean(v) for v in zip(*((s.own_cores, s.children_cores) for s in samples), strict=True))
    return MachineLoad(own, children, busiest)

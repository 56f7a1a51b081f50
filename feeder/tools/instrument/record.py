"""Measurements of a profile. Times are nanoseconds of the monotonic clock, which all processes share."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

TRAINER_DECODE = "decode in the training process"


class NextCall(NamedTuple):
    """One call of ``next()``.

    Attributes:
        asked_ns: Time of the call.
        got_ns: Time of its return.
        images: Samples in the batch; 0 at the end of an epoch.
        epoch: Number of the iteration over this loader, from 0.
        trained: True if gradients were computed since the previous batch, so that its step trained.
    """

    asked_ns: int
    got_ns: int
    images: int
    epoch: int
    trained: bool


class Fetch(NamedTuple):
    """One batch made by torch's own worker or, without workers, by the training loop.

    Attributes:
        start_ns: Time at which it began.
        dataset_ns: Time in the data set.
        dataset_cpu_ns: Part of that on a processor.
        dataset_queued_ns: Part of that spent ready to run without a processor. The rest is waiting, usually for
            storage.
        collate_ns: Time in ``collate_fn``.
    """

    start_ns: int
    dataset_ns: int
    dataset_cpu_ns: int
    dataset_queued_ns: int
    collate_ns: int


class Sample(NamedTuple):
    """A sample of the machine.

    Attributes:
        at_ns: Time of the sample.
        own_cores: Cores that this process kept busy since the last sample.
        children_cores: Cores that its descendants kept busy.
        gpus: Share of the time in which each GPU was busy, 0-1, by its number; None if it does not tell.
    """

    at_ns: int
    own_cores: float
    children_cores: float
    gpus: dict[int, float | None]


@dataclass
class LoaderRecord:
    """One loader and all calls of it.

    Args:
        place: The script's line that iterates over it, "train.py:34".
        kind: "torch", "feeder", or the class's name.
        workers: Number of worker processes.
        batch_size: Samples of a batch, by the loader or its batch sampler; None if neither says.
        pin_memory: The loader's argument.
        persistent: True if workers outlive an epoch.
        made_ns: (asked, got) of each call of ``iter()``, which starts the workers.
        batches: The calls of ``next()``.
        fetches: The batches that torch's workers made.
        stage_ns: feeder's own meters: time by stage, over all workers; :data:`TRAINER_DECODE` in the trainer.
        bottleneck: feeder's own verdict.
        path_reason: Reason why a feeder dataset does not take the fast path, and the remedy; else None.
        convertible: Class of a dataset that ``feeder.from_torch`` takes and that is not feeder's yet; else None.
        matters: If a batch was trained on, then the time in ``next()`` so far: trials are of the most.
    """

    place: str
    kind: str
    workers: int
    batch_size: int | None
    pin_memory: bool
    persistent: bool
    made_ns: list[tuple[int, int]] = field(default_factory=list)
    batches: list[NextCall] = field(default_factory=list)
    fetches: list[Fetch] = field(default_factory=list)
    stage_ns: dict[str, int] = field(default_factory=dict)
    bottleneck: str | None = None
    path_reason: str | None = None
    convertible: str | None = None
    matters: tuple[bool, int] = (False, 0)

    def steps(self) -> Iterator[tuple[NextCall, NextCall | None]]:
        """Yields each call with the next one of the same epoch; None after an epoch's last."""
        for call, after in itertools.zip_longest(self.batches, self.batches[1:]):
            yield call, after if after is not None and after.epoch == call.epoch and call.images else None


@dataclass
class ProcessRecord:
    """All measurements in one process.

    Args:
        started_ns: Time at which the script began.
        ended_ns: Time at which it ended.
        loaders: Its loaders.
        samples: Samples of the machine.
        torch_threads: torch's threads within an op, the calling one included; 0 without torch.
        busy_threads: The process's threads that computed at least a tenth as long as the main one, which is included.
    """

    started_ns: int
    ended_ns: int = 0
    loaders: list[LoaderRecord] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    torch_threads: int = 0
    busy_threads: int = 1

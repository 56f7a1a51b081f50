"""What a profile measured. Times are of the monotonic clock, which all processes of a machine share, in nanoseconds."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

__all__ = ["TRAINER_DECODE", "Batch", "Fetch", "GpuReading", "LoaderRecord", "ProcessRecord", "Sample"]

TRAINER_DECODE = "decode in the training process"


class Batch(NamedTuple):
    """One call of ``next()``.

    Attributes:
        asked_ns: When it began.
        got_ns: When it returned.
        images: Samples in the batch; 0 for the end of an epoch.
        epoch: Number of the iteration over this loader, from 0.
        trained: Whether gradients had been computed since the batch before: its step trained.
    """

    asked_ns: int
    got_ns: int
    images: int
    epoch: int
    trained: bool


class Fetch(NamedTuple):
    """One batch as torch's own worker (or, without workers, the training loop) made it.

    Attributes:
        pid: The process.
        start_ns: When it began.
        dataset_ns: Time in the data set.
        dataset_cpu_ns: Of that, on a processor.
        dataset_queued_ns: Of that, ready to run while others had the processors. What is left is waiting, for storage
            as a rule.
        collate_ns: Time in ``collate_fn``.
    """

    pid: int
    start_ns: int
    dataset_ns: int
    dataset_cpu_ns: int
    dataset_queued_ns: int
    collate_ns: int


class GpuReading(NamedTuple):
    """What one GPU, by its number, was at; None for what it does not say. See :class:`feeder.system.nvml.GpuSample`."""

    gpu: int
    busy: float | None
    memory_bytes: int | None
    received_bytes_s: int | None
    sent_bytes_s: int | None


class Sample(NamedTuple):
    """A look at the machine.

    Attributes:
        at_ns: When.
        own_cores: Cores that this process kept busy since the last look.
        children_cores: Cores that the processes below it kept busy.
        memory_bytes: Resident memory of all of them; shared pages count in each.
        gpus: One reading a GPU.
    """

    at_ns: int
    own_cores: float
    children_cores: float
    memory_bytes: int
    gpus: tuple[GpuReading, ...]


@dataclass
class LoaderRecord:
    """One loader and all that was asked of it.

    Args:
        place: Where the script iterates over it, "train.py:34".
        kind: "torch", "feeder", or the class's name.
        workers: Its worker processes.
        batch_size: As it was made; None for batches of its own making.
        pin_memory: As it was made.
        persistent: Whether workers outlive an epoch.
        made_ns: (asked, got) of each call of ``iter()``, which starts the workers.
        batches: The calls of ``next()``.
        fetches: How torch's workers made the batches.
        stage_ns: feeder's own meters: time by stage, over all workers; decoding in the caller under a name of its own.
        bottleneck: feeder's own verdict.
        path_reason: Why a feeder loader of a feeder dataset goes without the fast path, and the way out; else None.
        folder: Class folders that its dataset reads files from, as torchvision's ImageFolder does; else None.
    """

    place: str
    kind: str
    workers: int
    batch_size: int | None
    pin_memory: bool
    persistent: bool
    made_ns: list[tuple[int, int]] = field(default_factory=list)
    batches: list[Batch] = field(default_factory=list)
    fetches: list[Fetch] = field(default_factory=list)
    stage_ns: dict[str, int] = field(default_factory=dict)
    bottleneck: str | None = None
    path_reason: str | None = None
    folder: str | None = None


@dataclass
class ProcessRecord:
    """All that was measured in one process.

    Args:
        pid: The process.
        rank: Its rank, where a launcher gives one.
        started_ns: When the script began.
        ended_ns: When it ended.
        loaders: Its loaders.
        samples: Looks at the machine; of the first process only.
    """

    pid: int
    rank: int | None
    started_ns: int
    ended_ns: int = 0
    loaders: list[LoaderRecord] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Ready for JSON."""
        return asdict(self)

    @staticmethod
    def from_json(found: dict[str, Any]) -> ProcessRecord:
        """What :meth:`to_json` gave, back from a child process."""
        loaders = []
        for loader in found.pop("loaders"):
            batches = [Batch(*batch) for batch in loader.pop("batches")]
            fetches = [Fetch(*fetch) for fetch in loader.pop("fetches")]
            made = [(asked, got) for asked, got in loader.pop("made_ns")]
            loaders.append(LoaderRecord(**loader, batches=batches, fetches=fetches, made_ns=made))
        found.pop("samples")
        return ProcessRecord(**found, loaders=loaders)

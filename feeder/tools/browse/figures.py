"""The figures of a running loader, or of a service's server, for people."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from feeder.tools.browse.intervals import Curve, Interval, Look, curve, idle_s, recent
from feeder.tools.browse.metrics_reader import LONG_WAIT, value_of

__all__ = ["STAGES_SAID", "JobFigures", "LoaderFigures", "ServiceFigures", "StageShare", "of_loader", "of_service"]

# The stages, in words; feeder.DataLoader.stats explains them.
STAGES_SAID = {
    "read": "reading encoded bytes",
    "draw": "drawing augmentations",
    "cut": "cutting to the crops",
    "decode": "decoding",
    "transform": "transforming",
    "fetch": "the dataset",
    "collate": "collating",
    "write": "writing batches",
    "wait_slot": "idle",
    "wait_batch": "waiting for a batch",
    "copy": "copies to the device",
    "consumer": "the training step",
}
_IDLE = "wait_slot"
_NOTICED_S = 5.0
_STAGE_RUNS = "feeder_stage_seconds_bucket"


class StageShare(NamedTuple):
    """A stage's part of some processes' time.

    Attributes:
        name: The stage's name.
        share: Of the time of all their stages, 0-1.
        run_s: Time of one of its runs, seconds; None: unknown.
    """

    name: str
    share: float
    run_s: float | None


@dataclasses.dataclass(frozen=True)
class LoaderFigures:
    """The recent figures of a loader, and its counts since it was made.

    Attributes:
        name: Its number on its server.
        samples_per_s, bytes_per_s: Samples handed out, and encoded bytes read.
        waited_share: Share of the caller's time spent waiting for workers, 0-1; None without a batch.
        busy_share: Share of the workers' time spent at work, 0-1; None without a batch, or without workers.
        verdict: The bottleneck, in words; empty if unknown.
        idle_s: Time without a batch; 0 if the last look found one.
        long_waits: Number of waits of the caller over 0.27 s, since the time that is shown began.
        lost: Number of workers that were replaced since then.
        batches, samples, skipped, respawns: Counts.
        ready, slots, workers: Full slots, all slots, worker processes.
        of_workers, of_trainer: Parts of their time, the largest first, and idleness last.
        rate, waited: ``samples_per_s`` and ``waited_share`` over time.
    """

    name: str
    samples_per_s: float
    bytes_per_s: float
    waited_share: float | None
    busy_share: float | None
    verdict: str
    idle_s: float
    long_waits: int
    lost: int
    batches: int
    samples: int
    skipped: int
    respawns: int
    ready: int
    slots: int
    workers: int
    of_workers: list[StageShare]
    of_trainer: list[StageShare]
    rate: Curve
    waited: Curve


class JobFigures(NamedTuple):
    """A job of a server: its name, images made a second, and counts."""

    name: str
    images_per_s: float
    images: int
    parts: int
    failed: int


@dataclasses.dataclass(frozen=True)
class ServiceFigures:
    """The recent figures of a service's server, and its counts, see :meth:`feeder.service.server.Server.status`.

    Attributes:
        images_per_s: Images made.
        cpu_share: CPU time of its cores in use, 0-1.
        rate: ``images_per_s`` over time.
    """

    images_per_s: float
    cpu_share: float
    cores: int
    busy: int
    queue: int
    connections: int
    lost: int
    dropped: int
    shared: int
    jobs: list[JobFigures]
    rate: Curve


def of_loader(name: str, looks: Sequence[Look]) -> LoaderFigures:
    """Returns the figures of a loader.

    Args:
        name: Its number on its server.
        looks: Two or more.
    """
    now, whole = recent(looks), Interval(looks[0], looks[-1])
    values = looks[-1].values
    workers, run_s = int(value_of(values, "feeder_workers")), now.run_s()
    waited_share, idle = now.waited_share(), idle_s(looks)
    found = now.verdict(workers)
    states = {state: int(value_of(values, "feeder_slots", state=state)) for state in ("total", "making", "ready")}
    waits = [whole.grown(_STAGE_RUNS, stage="wait_batch", le=edge) for edge in ("+Inf", LONG_WAIT)]
    return LoaderFigures(
        name=name,
        samples_per_s=now.rate("feeder_samples_total"),
        bytes_per_s=now.rate("feeder_stage_bytes_total", stage="read"),
        waited_share=waited_share,
        busy_share=found["busy_share"] if workers and waited_share is not None else None,
        verdict=_stuck(idle, states) if idle >= _NOTICED_S else _said(found["bottleneck"], waited_share),
        idle_s=idle,
        long_waits=int(waits[0] - waits[1]),
        lost=int(whole.grown("feeder_worker_respawns_total")),
        batches=int(value_of(values, "feeder_batches_total")),
        samples=int(value_of(values, "feeder_samples_total")),
        skipped=int(value_of(values, "feeder_skipped_samples_total")),
        respawns=int(value_of(values, "feeder_worker_respawns_total")),
        ready=states["ready"],
        slots=states["total"] or states["making"] + states["ready"],
        workers=workers,
        of_workers=_shares(now.of_workers(), run_s),
        of_trainer=_shares(now.of_trainer(), run_s),
        rate=curve(looks, lambda each: each.rate("feeder_samples_total")),
        waited=curve(looks, lambda each: each.waited_share() or 0.0, 1.0),
    )


def of_service(looks: Sequence[Look]) -> ServiceFigures:
    """Returns the figures of a service's server.

    Args:
        looks: Two or more.
    """
    now, values = recent(looks), looks[-1].values

    def counts(suffix: str, *names: str) -> dict[str, int]:
        return {name: int(value_of(values, f"feeder_service_{name}{suffix}")) for name in names}

    names = {dict(labels).get("job", "") for known, labels in values if known == "feeder_service_job_images_total"}
    jobs = [
        JobFigures(
            name,
            now.rate("feeder_service_job_images_total", job=name),
            *(
                int(value_of(values, f"feeder_service_job_{what}_total", job=name))
                for what in ("images", "parts", "failed")
            ),
        )
        for name in sorted(names)
    ]
    cores = int(value_of(values, "feeder_service_cores"))
    return ServiceFigures(
        images_per_s=sum(job.images_per_s for job in jobs),
        cpu_share=now.rate("feeder_service_cpu_seconds_total") / max(1, cores),
        cores=cores,
        jobs=jobs,
        rate=curve(looks, lambda each: each.total_rate("feeder_service_job_images_total")),
        **counts("", "busy", "queue", "connections"),
        **counts("_total", "lost", "dropped", "shared"),
    )


def _said(bottleneck: str | None, waited_share: float | None) -> str:
    if bottleneck is None or waited_share is None:
        return ""
    waits = f"The training loop waits {waited_share:.0%} of the time"
    if bottleneck == "trainer":
        return f"The loader keeps up. {waits}."
    if bottleneck == "workers":
        return f"{waits}, though workers are idle: too few batches are made ahead."
    return f"{waits}, most of it for {STAGES_SAID[bottleneck]}."


def _stuck(seconds: float, slots: Mapping[str, int]) -> str:
    none = f"No batch for {seconds:.0f} s"
    if not any(slots.values()):
        return f"{none}: between epochs, or at the end."
    if slots["ready"]:
        return f"{none}, though {slots['ready']} are ready: the training step takes its time, or hangs."
    return f"{none}, and none is ready: the workers take their time, or hang."


def _shares(seconds: Mapping[str, float], run_s: Mapping[str, float]) -> list[StageShare]:
    spent = {name: value for name, value in seconds.items() if value > 1e-6}
    total = sum(spent.values())
    found = [StageShare(name, value / total, run_s.get(name)) for name, value in spent.items()]
    return sorted(found, key=lambda stage: (stage.name == _IDLE, -stage.share))

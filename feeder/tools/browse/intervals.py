"""Looks at the metrics of a loader or service, and differences of counters between them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from feeder.loader.observe.stats import verdict
from feeder.tools.browse.metrics_reader import Values, value_of

__all__ = ["SHOWN_S", "Curve", "Interval", "Look", "curve", "idle_s", "recent"]

SHOWN_S = 180.0
_RECENT_S = 10.0
_SMOOTH_S = 5.0  # a curve's values are averaged over about this time
_STAGE_S = "feeder_stage_seconds_sum"
_WORKER_S = "feeder_worker_stage_seconds_total"


class Look(NamedTuple):
    """Values at a time, in seconds."""

    at_s: float
    values: Values


class Curve(NamedTuple):
    """A quantity over time.

    Attributes:
        top: The largest value, or the end of its axis.
        points: (share of the time that is shown, share of ``top``) each, 0-1.
    """

    top: float
    points: list[tuple[float, float]]


class Interval:
    """The time between two looks."""

    def __init__(self, before: Look, after: Look) -> None:
        self.seconds = max(after.at_s - before.at_s, 1e-9)
        self.before, self.after = before.values, after.values

    def grown(self, name: str, **labels: str) -> float:
        """Returns what a counter has grown by."""
        return value_of(self.after, name, **labels) - value_of(self.before, name, **labels)

    def rate(self, name: str, **labels: str) -> float:
        """Returns what a counter has grown by a second."""
        return self.grown(name, **labels) / self.seconds

    def total_rate(self, name: str) -> float:
        """Returns what a counter has grown by a second, over all its labels."""
        return sum(self.rate(name, **dict(labels)) for known, labels in self.after if known == name)

    def by_stage(self, name: str) -> dict[str, float]:
        """Returns what a counter of stages has grown by, over all its other labels."""
        found: dict[str, float] = {}
        for known, labels in self.after:
            given = dict(labels)
            if known == name and "stage" in given:
                found[given["stage"]] = found.get(given["stage"], 0.0) + self.grown(name, **given)
        return found

    def of_workers(self) -> dict[str, float]:
        """Returns the workers' time, seconds, by stage."""
        return self.by_stage(_WORKER_S)

    def of_trainer(self) -> dict[str, float]:
        """Returns the trainer's time, seconds, by stage."""
        theirs = self.of_workers()
        return {stage: seconds - theirs.get(stage, 0.0) for stage, seconds in self.by_stage(_STAGE_S).items()}

    def run_s(self) -> dict[str, float]:
        """Returns the time of a run, seconds, by stage that has run."""
        counts = self.by_stage("feeder_stage_seconds_count")
        return {stage: seconds / counts[stage] for stage, seconds in self.by_stage(_STAGE_S).items() if counts[stage]}

    def waited_share(self) -> float | None:
        """Returns the share of the caller's time spent waiting, 0-1; None without a batch."""
        elapsed = self.grown("feeder_elapsed_seconds_total")
        return min(1.0, max(0.0, self.grown("feeder_waited_seconds_total") / elapsed)) if elapsed > 0 else None

    def verdict(self, workers: int) -> dict[str, Any]:
        """Returns :func:`feeder.loader.observe.stats.verdict` of this time alone."""
        stages = self.by_stage(_STAGE_S)
        spent = {f"{name}_ns": _ns(stages.get(name, 0.0)) for name in ("read", "fetch", "collate", "write")}
        spent["decode_ns"] = _ns(sum(stages.get(name, 0.0) for name in ("draw", "cut", "decode", "transform")))
        spent["busy_ns"] = _ns(self.grown("feeder_busy_seconds_total"))
        if workers:
            spent["trainer_decode_ns"] = _ns(self.of_trainer().get("decode", 0.0))
        counts = {f"{name}_ns": _ns(self.grown(f"feeder_{name}_seconds_total")) for name in ("elapsed", "waited")}
        return verdict(counts, spent, workers)


def recent(looks: Sequence[Look]) -> Interval:
    """Returns the last ten seconds, or the time between the last two looks."""
    return Interval(_before(looks, len(looks) - 1, _RECENT_S), looks[-1])


def idle_s(looks: Sequence[Look]) -> float:
    """Returns the time, seconds, in which no look has found a further batch."""
    last = len(looks) - 1
    first = last
    while first and _batches(looks[first - 1]) == _batches(looks[last]):
        first -= 1
    return looks[last].at_s - looks[first].at_s


def curve(looks: Sequence[Look], value: Callable[[Interval], float], top: float = 0.0) -> Curve:
    """Returns a quantity over the time that is shown; without ``top``, up to its largest value."""
    found = [
        (1 - (looks[-1].at_s - looks[k].at_s) / SHOWN_S, value(Interval(_before(looks, k, _SMOOTH_S), looks[k])))
        for k in range(1, len(looks))
    ]
    top = top or max((y for _, y in found), default=0.0)
    return Curve(top, [(x, min(1.0, max(0.0, y / top)) if top else 0.0) for x, y in found])


def _before(looks: Sequence[Look], k: int, seconds: float) -> Look:
    """Returns the first look within some seconds before the k-th; the one before it, if there is none."""
    first = max(0, k - 1)
    while first and looks[k].at_s - looks[first - 1].at_s <= seconds:
        first -= 1
    return looks[first]


def _batches(look: Look) -> float:
    return value_of(look.values, "feeder_batches_total")


def _ns(seconds: float) -> int:
    return int(max(0.0, seconds) * 1e9)

"""One setting of a loader, what a run of it gave, and when one is better than another beyond the noise."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from feeder.loader.trial import Trial
from feeder.tools.noticeable import NOTICEABLE_GAIN

__all__ = ["ROUNDS_TO_TELL", "Gain", "Point", "Setting", "cheaper", "gain"]

ROUNDS_TO_TELL = 3


@dataclass(frozen=True)
class Setting:
    """What is looked for.

    Attributes:
        num_workers: Worker processes; 0: the caller's process makes the batches.
        worker_threads: Threads of the backend in each.
        prefetch_factor: Batches ahead for each worker.
        backend: Decode backend; None for loaders that have none.
        window: Samples of a windowed shuffle; None: the shuffle that was asked for.
    """

    num_workers: int
    worker_threads: int = 1
    prefetch_factor: int = 2
    backend: str | None = None
    window: int | None = None

    @property
    def cores(self) -> int:
        """How many cores it can keep busy."""
        return max(1, self.num_workers) * self.worker_threads


@dataclass
class Point:
    """A setting and its runs.

    Attributes:
        setting: The setting.
        why: Why it was tried.
        trials: Its runs while the search went on.
        turns: Its runs in turn with the other finalists, one a round.
        problem: Why it can't be taken; None if it can.
    """

    setting: Setting
    why: str
    trials: list[Trial] = field(default_factory=list)
    turns: list[Trial] = field(default_factory=list)
    problem: str | None = None

    @property
    def usable(self) -> bool:
        """Whether it was measured and can be taken."""
        return bool(self.runs) and self.problem is None

    @property
    def runs(self) -> list[Trial]:
        """The runs that count: those in turn with others if there are any."""
        return self.turns or self.trials

    @property
    def rates(self) -> list[float]:
        """Their images/s."""
        return [trial.images_per_s for trial in self.runs]

    @property
    def rate(self) -> float:
        """The median of these."""
        return statistics.median(self.rates)

    def median(self, name: str) -> Any:
        """Median over the runs of an attribute of :class:`Trial`; None where there is none."""
        values = [value for trial in self.runs if (value := getattr(trial, name)) is not None]
        return statistics.median(values) if values else None


@dataclass(frozen=True)
class Gain:
    """How much faster one setting is than another, from runs in turn.

    Attributes:
        ratios: Of images/s, one for each round.
    """

    ratios: tuple[float, ...]

    @property
    def median(self) -> float:
        """The ratio to report."""
        return statistics.median(self.ratios)

    @property
    def certain(self) -> bool:
        """Whether it is a gain beyond the noise: noticeable, and in the same direction in each of enough rounds."""
        return len(self.ratios) >= ROUNDS_TO_TELL and self.median > 1 + NOTICEABLE_GAIN and min(self.ratios) > 1


def gain(ours: Sequence[float], theirs: Sequence[float]) -> Gain:
    """The gain of one over the other, round by round."""
    return Gain(tuple(a / b for a, b in zip(ours, theirs, strict=True)))


def cheaper(a: Point, b: Point) -> bool:
    """Whether a costs less than b: cores first, then CPU time an image, memory, and the simpler setting."""
    if a.setting.cores != b.setting.cores:
        return a.setting.cores < b.setting.cores
    for name, noticeable in (("cpu_ms", 0.05), ("memory_bytes", 0.1)):
        ours, theirs = a.median(name), b.median(name)
        if abs(ours - theirs) > noticeable * max(ours, theirs):
            return bool(ours < theirs)
    return _complexity(a.setting) < _complexity(b.setting)


def _complexity(setting: Setting) -> tuple[bool, int, int]:
    return setting.window is not None, setting.worker_threads, setting.prefetch_factor

"""Settings of a loader, their runs, and the comparison of two settings beyond the noise."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from feeder.system.text import count
from feeder.tools.thresholds import NOTICEABLE_GAIN
from feeder.tools.trial import Trial

ROUNDS_TO_TELL = 3


@dataclass(frozen=True)
class Setting:
    """One setting of a loader.

    Attributes:
        num_workers: Worker processes; with 0, the caller's process makes the batches.
        worker_threads: Threads of the backend in each worker.
        backend: Decode backend; None for loaders without one.
    """

    num_workers: int
    worker_threads: int = 1
    backend: str | None = None

    @property
    def cores(self) -> int:
        """Number of cores that it can keep busy."""
        return max(1, self.num_workers) * self.worker_threads

    def __str__(self) -> str:
        threads = f" of {self.worker_threads} threads" if self.worker_threads > 1 else ""
        backend = f", {self.backend}" if self.backend is not None else ""
        return f"{count(self.num_workers, 'worker')}{threads}{backend}"


@dataclass(eq=False)
class TriedSetting:
    """A setting and its runs.

    Attributes:
        setting: The setting.
        why: Reason for trying it.
        trials: Runs during the search.
        turns: Runs in turn with the other finalists, one per round.
        problem: Reason why it can't be chosen; None if it can.
    """

    setting: Setting
    why: str
    trials: list[Trial] = field(default_factory=list)
    turns: list[Trial] = field(default_factory=list)
    problem: str | None = None

    @property
    def usable(self) -> bool:
        """True if it was measured and can be chosen."""
        return bool(self.runs) and self.problem is None

    @property
    def runs(self) -> list[Trial]:
        """Runs that count: those in turn with others if there are any."""
        return self.turns or self.trials

    @property
    def rates(self) -> list[float]:
        """Images/s of these runs."""
        return [trial.images_per_s for trial in self.runs]

    @property
    def rate(self) -> float:
        """Median images/s."""
        return statistics.median(self.rates)

    def median(self, name: str) -> Any:
        """Returns the median over the runs of an attribute of :class:`Trial`; None if the runs lack it."""
        values = [value for trial in self.runs if (value := getattr(trial, name)) is not None]
        return statistics.median(values) if values else None


@dataclass(frozen=True)
class Gain:
    """The gain of one setting over another, from runs in turn.

    Attributes:
        ratios: Ratio of images/s in each round.
    """

    ratios: tuple[float, ...]

    @property
    def median(self) -> float:
        """Median ratio."""
        return statistics.median(self.ratios)

    @property
    def certain(self) -> bool:
        """True if the gain is beyond the noise: noticeable, and above 1 in each of enough rounds."""
        return len(self.ratios) >= ROUNDS_TO_TELL and self.median > 1 + NOTICEABLE_GAIN and min(self.ratios) > 1


def gain(ours: Sequence[float], theirs: Sequence[float]) -> Gain:
    """Returns the gain of one over the other, round by round."""
    return Gain(tuple(a / b for a, b in zip(ours, theirs, strict=True)))


def cheaper(a: TriedSetting, b: TriedSetting) -> bool:
    """Returns True if a costs less than b: cores first, then CPU time per image, memory, and simplicity."""
    if a.setting.cores != b.setting.cores:
        return a.setting.cores < b.setting.cores
    for name, noticeable in (("cpu_ms", 0.05), ("memory_bytes", 0.1)):
        ours = a.median(name)
        theirs = b.median(name)
        if abs(ours - theirs) > noticeable * max(ours, theirs):
            return bool(ours < theirs)
    return a.setting.worker_threads < b.setting.worker_threads

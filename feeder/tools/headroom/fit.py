"""The model of a training loop and its loader, fitted to measurements.

Note [The model]
    The step on one repeated batch has the rate S. Fed by the loader, it has the rate F, and the meters give each
    stage's cost in worker seconds per sample under the load of training. W workers with a total cost b per sample make
    at most C samples per second: F if the trainer waited for them, else the rate of the loader alone. With W' workers
    and a total cost b', the rate is predicted as

        rate = min(S, 1 / (step + handing out), C * W'/W * b/b', cores / CPU seconds per sample)

    Without workers, the training process does it all in sequence: 1 / (step + handing out + b').
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from feeder.tools.thresholds import NOTICEABLE_WAIT

__all__ = ["Fit"]


@dataclass(frozen=True)
class Fit:
    """Measurements, and their prediction for other settings; see Note [The model].

    Attributes:
        step_rate: Samples/s of the step on one repeated batch.
        fed_rate: Samples/s of the step fed by the loader.
        loader_rate: Samples/s of the loader alone.
        workers: Number of workers.
        costs_s: Worker seconds per sample by stage; "other" is the rest.
        step_s: Seconds per sample spent in the step, fed by the loader.
        hand_out_s: Seconds per sample spent in the loader itself, waiting excluded.
        waited_share: Share of the training process's time spent waiting, 0-1.
        busy_share: Share of the workers' time in which they were busy, 0-1.
        cpu_s: CPU seconds per sample of this process and the workers; 0 if unknown.
        cores: Number of usable cores.
    """

    step_rate: float
    fed_rate: float
    loader_rate: float
    workers: int
    costs_s: Mapping[str, float]
    step_s: float
    hand_out_s: float
    waited_share: float
    busy_share: float
    cpu_s: float
    cores: int

    @property
    def ceiling(self) -> float:
        """Samples/s if the step never waited for the loader."""
        return min(self.step_rate, 1 / max(1e-12, self.step_s + (self.hand_out_s if self.workers else 0.0)))

    def predict(self, *, workers: int | None = None, scale: Mapping[str, float] | None = None) -> float:
        """Predicts samples/s with another number of workers, or with stages that cost more or less.

        Args:
            workers: Number of workers; None for the present one.
            scale: Factors of the costs, by stage.
        """
        workers = self.workers if workers is None else workers
        now = sum(self.costs_s.values())
        then = sum(cost * (scale or {}).get(name, 1.0) for name, cost in self.costs_s.items())
        if workers == 0:
            return 1 / max(1e-12, self.step_s + self.hand_out_s + then)
        if self.workers == 0:
            capacity = workers / max(1e-12, then)
        else:
            is_fed_by_waiting = self.waited_share >= NOTICEABLE_WAIT
            base = self.fed_rate if is_fed_by_waiting else max(self.fed_rate, self.loader_rate)
            capacity = base * workers / self.workers * now / max(1e-12, then)
        rate = min(self.ceiling, capacity)
        if self.cpu_s > 0:
            cpu_s = max(1e-12, self.cpu_s - min(self.cpu_s, max(0.0, now - then)))
            rate = min(rate, max(self.fed_rate, self.cores / cpu_s))
        return rate

    def steady_rate(self) -> float:
        """Returns samples/s if the workers were never idle: the most that a larger prefetch_factor could give."""
        busy = max(1e-9, min(1.0, self.busy_share))
        return min(self.ceiling, self.fed_rate / busy)

"""The model of a training loop and its loader, fitted to what was measured.

Note [The model]
    The step fed from one repeated batch has a rate S. The same step fed from the loader has a rate F and gives each
    stage's cost, worker seconds a sample, as the meters have it under the load of training. W workers that cost b a
    sample made at most C samples a second: F where the caller waited for them, else what the loader gave with nobody in
    its way. Then with W' workers and costs b'

        rate = min(S, 1 / (step + handing out), C * W'/W * b/b', cores / CPU seconds a sample)

    Without workers the caller does it all, one after another: 1 / (step + handing out + b').
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from feeder.tools.noticeable import NOTICEABLE_WAIT

__all__ = ["Fit"]


@dataclass(frozen=True)
class Fit:
    """What was measured, and what it says of other settings; see Note [The model].

    Attributes:
        step_rate: Samples/s of the step on one repeated batch.
        fed_rate: Samples/s of the step fed by the loader.
        loader_rate: Samples/s of the loader with nobody in its way.
        workers: How many made the batches.
        costs_s: By stage, worker seconds a sample; "other" is what no stage has.
        step_s: Seconds a sample of the caller's, in the step, while it was fed.
        hand_out_s: And in the loader, but for waiting.
        waited_share: Of the caller's time, 0-1.
        busy_share: Of the workers' time, 0-1.
        cpu_s: CPU seconds a sample, of this process and the workers; 0: not known.
        cores: That can be used.
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
        """Samples/s with a loader that never lets the step wait."""
        return min(self.step_rate, 1 / max(1e-12, self.step_s + (self.hand_out_s if self.workers else 0.0)))

    def predict(self, *, workers: int | None = None, scale: Mapping[str, float] | None = None) -> float:
        """Samples/s with another number of workers, or with stages that cost more or less.

        Args:
            workers: How many; None: as many as there are.
            scale: By stage, what its cost is multiplied with.
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
        """Samples/s if the workers were never idle: what more batches made ahead could give at most."""
        busy = max(1e-9, min(1.0, self.busy_share))
        return min(self.ceiling, self.fed_rate / busy)

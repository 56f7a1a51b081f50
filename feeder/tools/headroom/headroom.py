"""The headroom of a training loop: how much faster it could go, its limit, and remedies."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from feeder.errors import ArgumentError
from feeder.loader.trial import step_rate
from feeder.system.cores import cores
from feeder.system.text import count
from feeder.tools.headroom.fit import Fit
from feeder.tools.headroom.measure import RunSums, first_batch, run
from feeder.tools.headroom.remedies import Remedy, remedies
from feeder.tools.thresholds import NOTICEABLE_WAIT
from feeder.tools.training.training_state import Snapshot

if TYPE_CHECKING:
    from feeder.loader.dataloader import DataLoader

__all__ = ["Headroom", "headroom"]

_HAND_OUT_SHARE = 0.1  # of the step's time; a smaller share is not called the limit


@dataclass(frozen=True)
class Headroom:
    """The result of :func:`headroom`; as text, a sentence or two.

    Attributes:
        fit: The fitted model.
        input_bound_share: Share of the step's possible rate that is lost to waiting for input, 0-1.
        limit: The stage that limits the loop: one of :meth:`feeder.DataLoader.stats`, "step", "prefetch" (workers are
            idle, yet the step waits), or "hand out" (the loader's own work in the training process).
        remedies: The remedies, the best first.
        path_reason: Reason why a feeder dataset does not take the fast path, and the remedy; else None.
    """

    fit: Fit
    input_bound_share: float
    limit: str
    remedies: tuple[Remedy, ...] = ()
    path_reason: str | None = None

    def __str__(self) -> str:
        if self.path_reason is None:
            return self._verdict()
        return f"{self._verdict()}. The loader runs torch's path, not feeder's fast one: {self.path_reason}"

    def _verdict(self) -> str:
        fit = self.fit
        if self.limit == "step":
            return (
                f"the step takes {fit.fed_rate:,.0f} of the {fit.step_rate:,.0f} images/s that it could: it is the "
                f"limit; the loader alone gives {fit.loader_rate:,.0f}"
            )
        where = {
            "prefetch": "too few batches are made ahead",
            "hand out": "the loader's work in the training process is the limit",
        }.get(self.limit, f"{self.limit} {_on(fit.workers)} is the limit")
        text = (
            f"the step could take {fit.step_rate:,.0f} images/s and gets {fit.fed_rate:,.0f}: input-bound "
            f"{self.input_bound_share:.0%} of the time; {where}"
        )
        closing = [remedy.text for remedy in self.remedies if remedy.closes]
        partial = [remedy for remedy in self.remedies if not remedy.closes]
        if closing:
            return f"{text}; {' or '.join(closing)} would close the gap"
        if partial:
            parts = " or ".join(f"{remedy.text} ({remedy.rate:,.0f} images/s)" for remedy in partial)
            return f"{text}; {parts} would help, and nothing tried closes the gap"
        return text


def headroom(
    loader: DataLoader[Any],
    step: Callable[[Any], Any],
    *,
    seconds: float = 15.0,
    restore: Sequence[Any] = (),
) -> Headroom:
    """Measures how much faster a training step could go if it never waited for its input, and finds what would help.

    The step runs first on one repeated batch, then the loader runs alone, then the step on the loader's batches. The
    random state, the loader's place and the objects in ``restore`` are restored afterwards.

    Args:
        loader: The loader. An epoch in progress can't be continued, and its workers are ended.
        step: Trains on one batch, copies to the device included.
        seconds: Approximate duration, without start-up.
        restore: Modules, and objects with state_dict and load_state_dict such as optimizers, that the step changes.

    Raises:
        ArgumentError: if the loader is not feeder's or has no batch, or for objects that can't be restored.
    """
    if not hasattr(loader, "stats"):
        raise ArgumentError(f"loader must be a feeder.DataLoader, got {type(loader).__name__}")
    if not seconds > 0:
        raise ArgumentError(f"seconds must be more than 0, got {seconds}")
    device = "cuda" if torch.cuda.is_initialized() else "cpu"  # type: ignore[no-untyped-call]
    snapshot = Snapshot(restore, torch.device(device))
    place = loader.state_dict()
    view, loader.progress = loader.progress, False
    try:
        alone = step_rate(step, first_batch(loader), 0.25 * seconds)
        drained = run(loader, None, 0.25 * seconds)
        fed = run(loader, step, 0.5 * seconds)
        fit = _fit(loader, alone, drained, fed)
        return dataclasses.replace(_judged(loader, fit), path_reason=loader.stats()["path_reason"])
    finally:
        loader.close()
        loader.progress = view
        loader.load_state_dict(place)
        snapshot.put_back()


def _fit(loader: DataLoader[Any], alone: float, drained: RunSums, fed: RunSums) -> Fit:
    workers, samples, made = loader.num_workers, max(1, fed.samples), max(1.0, fed.made)
    in_trainer = "redone_images" in loader.stats()
    costs = {
        name: spent / made
        for name, spent in fed.stages_s.items()
        if spent > 0 and not (in_trainer and name == "decode")  # a GPU decodes, driven by the training process
    }
    # A stage's time is the sum over a worker's threads, which run at the same time.
    known, busy = sum(costs.values()), fed.busy_s / made
    if known > busy > 0:
        costs = {name: cost * busy / known for name, cost in costs.items()}
    elif busy > known:
        costs["other"] = busy - known
    busy_share = fed.busy_s / max(1e-9, fed.elapsed_s * max(1, workers))
    own = fed.next_s - (fed.waited_s if workers else fed.busy_s)
    return Fit(
        step_rate=alone,
        fed_rate=fed.samples / max(1e-9, fed.elapsed_s),
        loader_rate=drained.samples / max(1e-9, drained.elapsed_s),
        workers=workers,
        costs_s=costs,
        step_s=fed.step_s / samples,
        hand_out_s=max(0.0, own) / samples,
        waited_share=min(1.0, (fed.waited_s if workers else fed.busy_s) / max(1e-9, fed.elapsed_s)),
        busy_share=min(1.0, busy_share),
        cpu_s=fed.cpu_s / samples,
        cores=cores().usable,
    )


def _judged(loader: DataLoader[Any], fit: Fit) -> Headroom:
    bound = max(0.0, 1 - fit.fed_rate / fit.step_rate)
    if fit.waited_share < NOTICEABLE_WAIT or bound < NOTICEABLE_WAIT:
        is_handing_out = bound >= NOTICEABLE_WAIT and fit.hand_out_s > _HAND_OUT_SHARE * fit.step_s
        return Headroom(fit, bound, "hand out" if is_handing_out else "step")
    slowest = max(fit.costs_s, key=lambda name: fit.costs_s[name], default="other")
    idle = fit.workers > 0 and fit.busy_share < 0.5
    found = sorted(remedies(loader, fit), key=lambda remedy: -remedy.rate)
    worth = tuple(remedy for remedy in found if remedy.rate > (1 + NOTICEABLE_WAIT) * fit.fed_rate)
    return Headroom(fit, bound, "prefetch" if idle else slowest, worth)


def _on(workers: int) -> str:
    if not workers:
        return "in the training process (num_workers=0)"
    return f"on {count(workers, 'worker')}"

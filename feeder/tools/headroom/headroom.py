"""The headroom of a training loop: how much faster it could go, its limit, and remedies."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from feeder.dataset.subset import as_feeder
from feeder.errors import ArgumentError
from feeder.loader.trial import RunSums, consume, step_rate
from feeder.system.cores import cores
from feeder.system.text import count
from feeder.tools.encoding_gain import EncodingGain, encoding_gains
from feeder.tools.headroom.fit import Fit
from feeder.tools.thresholds import NOTICEABLE_GAIN, NOTICEABLE_WAIT
from feeder.tools.training.training_state import Snapshot

if TYPE_CHECKING:
    from feeder.loader.dataloader import DataLoader

__all__ = ["Headroom", "Remedy", "headroom"]

_FIRST_BATCHES = 2  # left out of each epoch, as workers make them while they start
_LONGEST = 4  # times the duration that a run may take with all that is left out
_HAND_OUT_SHARE = 0.1  # of the step's time; a smaller share is not called the limit
_SHARE_WORTH_A_TRY = 0.1
_MOST_WORKERS = 256


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

        on = f"on {count(fit.workers, 'worker')}" if fit.workers else "in the training process (num_workers=0)"
        where = {
            "prefetch": "too few batches are made ahead",
            "hand out": "the loader's work in the training process is the limit",
        }.get(self.limit, f"{self.limit} {on} is the limit")
        text = (
            f"the step could take {fit.step_rate:,.0f} images/s and gets {fit.fed_rate:,.0f}: input-bound "
            f"{self.input_bound_share:.0%} of the time; {where}"
        )

        closing = [remedy.text for remedy in self.remedies if remedy.closes]
        if closing:
            return f"{text}; {' or '.join(closing)} would close the gap"
        if self.remedies:
            parts = " or ".join(f"{remedy.text} ({remedy.rate:,.0f} images/s)" for remedy in self.remedies)
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
    metrics, loader.metrics = loader.metrics, None
    try:
        alone = step_rate(step, loader, 0.25 * seconds)
        drained = _run(loader, None, 0.25 * seconds)
        fed = _run(loader, step, 0.5 * seconds)
        return _judged(loader, _fit(loader, alone, drained.images_per_s, fed))
    finally:
        loader.close()
        loader.metrics = metrics
        loader.load_state_dict(place)
        snapshot.put_back()


def _run(loader: DataLoader[Any], step: Callable[[Any], Any] | None, seconds: float) -> RunSums:
    """Takes batches for a while, epoch after epoch, without the first batches of each, and closes the loader."""
    sums = RunSums()
    left_out = _FIRST_BATCHES
    began = time.perf_counter()
    while sums.elapsed_s < seconds and (sums.samples == 0 or time.perf_counter() - began < _LONGEST * seconds):
        batches = iter(loader)
        first = 0
        for batch in itertools.islice(batches, left_out):
            first += 1
            if step is not None:
                step(batch)

        consume(batches, loader.stats, seconds, step, sums)
        if sums.samples == 0:  # the epoch has too few batches to leave so many out
            left_out = first - 1
    loader.close()
    return sums


def _fit(loader: DataLoader[Any], alone: float, loader_rate: float, fed: RunSums) -> Fit:
    workers = loader.num_workers
    samples = max(1, fed.samples)
    elapsed_s = max(1e-9, fed.elapsed_s)
    made = max(1, _made(fed))
    busy_s = fed.meters["busy_ns"] / 1e9
    waited_s = fed.meters["waited_ns"] / 1e9 if workers else busy_s

    costs = {name: spent / made for name, spent in fed.stages_s().items()}
    if "redone_images" in loader.stats():
        costs.pop("decode", None)  # a GPU decodes, driven by the training process
    # A stage's time is the sum over a worker's threads, which run at the same time.
    known = sum(costs.values())
    busy = busy_s / made
    if known > busy > 0:
        costs = {name: cost * busy / known for name, cost in costs.items()}
    elif busy > known:
        costs["other"] = busy - known

    return Fit(
        step_rate=alone,
        fed_rate=fed.images_per_s,
        loader_rate=loader_rate,
        workers=workers,
        costs_s=costs,
        step_s=fed.step_s / samples,
        hand_out_s=max(0.0, fed.next_s - waited_s) / samples,
        waited_share=min(1.0, waited_s / elapsed_s),
        busy_share=min(1.0, busy_s / (elapsed_s * max(1, workers))),
        cpu_s=fed.cpu_s / samples,
        cores=cores().usable,
    )


def _made(sums: RunSums) -> float:
    """Returns the samples that the workers made in a run, which differ from those that were handed out."""
    if made := sums.meters["transform count"]:
        return made
    if (fetched := sums.meters["fetch count"]) and sums.batches:
        return fetched * sums.samples / sums.batches
    return sums.samples


def _judged(loader: DataLoader[Any], fit: Fit) -> Headroom:
    path_reason = loader.stats()["path_reason"]
    bound = max(0.0, 1 - fit.fed_rate / fit.step_rate)
    if fit.waited_share < NOTICEABLE_WAIT or bound < NOTICEABLE_WAIT:
        is_handing_out = bound >= NOTICEABLE_WAIT and fit.hand_out_s > _HAND_OUT_SHARE * fit.step_s
        return Headroom(fit, bound, "hand out" if is_handing_out else "step", path_reason=path_reason)

    slowest = max(fit.costs_s, key=lambda name: fit.costs_s[name], default="other")
    idle = fit.workers > 0 and fit.busy_share < 0.5
    worth = [remedy for remedy in _remedies(loader, fit) if remedy.rate > (1 + NOTICEABLE_WAIT) * fit.fed_rate]
    best_first = tuple(sorted(worth, key=lambda remedy: -remedy.rate))
    return Headroom(fit, bound, "prefetch" if idle else slowest, best_first, path_reason)


@dataclass(frozen=True)
class Remedy:
    """A change that would make the loop faster.

    Attributes:
        text: The change in words: "7 workers".
        rate: Predicted samples/s.
        closes: True if the step would then hardly wait.
        setting: The loader's argument and its value, if the change is one.
    """

    text: str
    rate: float
    closes: bool
    setting: tuple[str, int] | None = None


def _remedies(loader: DataLoader[Any], fit: Fit) -> Iterator[Remedy]:
    """Yields the changes to try, each with its predicted rate.

    Args:
        loader: The loader.
        fit: The fitted model.
    """

    def remedy(text: str, rate: float, setting: tuple[str, int] | None = None) -> Remedy:
        return Remedy(text, rate, rate >= (1 - NOTICEABLE_WAIT) * fit.step_rate, setting)

    best = _workers_needed(fit)
    if best is not None:
        yield remedy(count(best, "worker"), fit.predict(workers=best), ("num_workers", best))
    for gain in _encoding_gains(loader):
        bytes_too = f" ({gain.size:.2f} times the bytes)" if gain.encoding == "packed" else ""
        yield remedy(f"{gain.encoding} shards{bytes_too}", fit.predict(scale={"decode": gain.decode}))
    total = sum(fit.costs_s.values())
    if fit.costs_s.get("read", 0.0) >= _SHARE_WORTH_A_TRY * total:
        yield remedy("faster storage", fit.predict(scale={"read": 0.0}))
    if fit.workers and fit.busy_share < 0.9:
        prefetch = 2 * (loader.prefetch_factor or 2)
        yield remedy(f"prefetch_factor={prefetch}", fit.steady_rate(), ("prefetch_factor", prefetch))


def _workers_needed(fit: Fit) -> int | None:
    """Returns the fewest workers with which the step hardly waits, or beyond which more workers gain nothing."""
    best, rate = None, fit.fed_rate
    for workers in range(fit.workers + 1, _MOST_WORKERS + 1):
        predicted = fit.predict(workers=workers)
        if predicted <= 1.01 * rate and best is not None:
            break
        if predicted > rate:
            best, rate = workers, predicted
        if rate >= (1 - NOTICEABLE_GAIN) * fit.ceiling:
            break
    return best


def _encoding_gains(loader: DataLoader[Any]) -> list[EncodingGain]:
    dataset = as_feeder(loader.dataset)
    if dataset is None or loader.stats().get("backend") != "cpu":
        return []
    return encoding_gains(dataset, seed=loader.seed or 0, fidelity=loader.fidelity, on_device=loader.device is not None)

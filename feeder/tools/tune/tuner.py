"""``feeder tune`` and :func:`feeder.tune`: find a loader's setting by measurement, within a budget."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from feeder.dataset.subset import as_feeder
from feeder.decoders.registry import Dali, available_decoders
from feeder.errors import ArgumentError
from feeder.loader.dataloader import DataLoader
from feeder.loader.options import WorkerOptions
from feeder.system.checks import check_int, check_positive
from feeder.system.cores import cores
from feeder.tools.thresholds import NOTICEABLE_GAIN
from feeder.tools.trial import run, step_rate
from feeder.tools.tune.report import Budget, Tuning
from feeder.tools.tune.search import MARGIN, Outcome, Search, Space
from feeder.tools.tune.setting import Setting

_TUNED = ("backend", "num_workers", "persistent_workers")


@dataclass(frozen=True)
class _Source:
    """A source of loaders.

    Attributes:
        make: Makes a loader from a setting's arguments.
        arguments: The caller's own arguments for the call to paste.
        backends: Decode backends to try; empty where feeder's fast path does not run.
    """

    make: Callable[..., Any]
    arguments: dict[str, Any]
    backends: tuple[str, ...]

    def keywords(self, setting: Setting) -> dict[str, Any]:
        """Returns a setting as arguments of the loader."""
        keywords: dict[str, Any] = {"num_workers": setting.num_workers}
        if setting.num_workers:
            keywords["persistent_workers"] = True
        if self.backends:
            workers = self.arguments.get("worker_options") or WorkerOptions()
            if setting.worker_threads > 1 or workers.threads is not None:
                keywords["worker_options"] = dataclasses.replace(workers, threads=setting.worker_threads)
            if "backend" not in self.arguments:  # else it has options
                keywords["backend"] = setting.backend
        return keywords

    def loader(self, setting: Setting) -> Any:
        """Returns the loader of a setting."""
        keywords = self.keywords(setting)
        if self.backends:
            # Bad samples are counted here, and reported by training.
            keywords["on_error"] = self.arguments.get("on_error", "skip")
        return self.make(**keywords)


@torch.random.fork_rng(devices=[])  # loaders draw their seeds without a change to the caller's generator
def tune(
    dataset: Any,
    *,
    step: Callable[[Any], Any] | None = None,
    target: float | None = None,
    cpus: int | None = None,
    seconds: float = 60.0,
    note: Callable[[str], None] = lambda line: None,
    **arguments: Any,
) -> Tuning:
    """Finds num_workers, the workers' threads and the backend.

    Settings are measured one by one, in the order that the rate of one core suggests. The best are measured again in
    turn, and differences within the noise are ignored. Of the settings that reach the target, or are as fast as the
    fastest, the cheapest is chosen: cores first, then CPU time and memory.

    Args:
        dataset: The dataset.
        step: Called with each batch, as in the training loop; 0 workers are then tried too. Without a target, the
            step's own rate is the target. The step really trains: pass one with a copy of the model if the model must
            not change.
        target: Images/s that are enough.
        cpus: Upper limit of workers times threads; None: the cores that this process may use.
        seconds: Time limit.
        note: Called with a line about each run.
        arguments: Arguments of :class:`feeder.DataLoader`. The tuned ones among them are the present
            setting, with which the result is compared; the default is torch's, no workers. A ``backend`` other than
            "auto" is kept, as another one may change pixels.

    Raises:
        ArgumentError: for an argument out of range, more cpus than the process may use, or a dataset without a batch.
        FeederError: if loading fails.
    """
    started = time.monotonic()
    budget = _budget(target, cpus, seconds)
    origin, baseline = _source(dataset, arguments)
    alone = None if step is None else step_rate(step, origin.loader(baseline), 1.0)
    if alone is not None:
        note(f"the step alone: {alone:,.0f} images/s")

    goal = target if target is not None or alone is None else alone * (1 - NOTICEABLE_GAIN) / MARGIN
    left = seconds - (time.monotonic() - started)
    outcome = _search(origin, baseline, budget, goal, left, step, note)
    return Tuning(
        outcome=outcome,
        budget=budget,
        target=target,
        step_images_per_s=alone,
        keywords=None if outcome.chosen is None else origin.keywords(outcome.chosen.setting),
        arguments=origin.arguments,
        seconds=time.monotonic() - started,
    )


def _search(
    origin: _Source,
    baseline: Setting,
    budget: Budget,
    goal: float | None,
    seconds: float,
    step: Callable[[Any], Any] | None,
    note: Callable[[str], None],
) -> Outcome:
    """Measures settings until one is chosen.

    Raises:
        ArgumentError: if none can be run.
    """
    space = Space(
        cores=budget.cpus,
        baseline=baseline,
        backends=origin.backends,
        threads=bool(origin.backends),
        in_caller=step is not None,
    )
    outcome = Search(
        lambda setting, run_s: run(origin.loader(setting), run_s, step),
        space,
        goal,
        seconds,
        time.monotonic,
        lambda stage, point: note(f"{stage}: {point.setting}: {point.runs[-1].images_per_s:,.0f} images/s"),
    ).run()

    if outcome.chosen is None:
        problems = "; ".join(dict.fromkeys(point.problem or "" for point in outcome.points))
        raise ArgumentError(f"no setting can be run: {problems}; use smaller batches")
    return outcome


def _budget(target: float | None, cpus: int | None, seconds: float) -> Budget:
    machine = cores()
    check_positive("target", target, or_none=True)
    if cpus is not None and not 1 <= cpus <= machine.usable:
        raise ArgumentError(
            f"cpus must be 1 to {machine.usable}, got {cpus}: this process may use {machine.describe()}; more "
            "can't be measured"
        )
    check_positive("seconds", seconds)
    return Budget(machine.usable if cpus is None else cpus, machine, seconds)


def _source(data: Any, arguments: dict[str, Any]) -> tuple[_Source, Setting]:
    """Returns the source of loaders and the present setting."""
    if not (hasattr(data, "__getitem__") or hasattr(data, "__iter__")):
        raise ArgumentError(f"tune() takes a dataset, and the loader's other arguments; got {type(data).__name__}")
    if "service" in arguments:
        raise ArgumentError("tune() measures this machine's workers, and no input service; leave service= out")

    unless_given: dict[str, Any] = {}
    rest = {name: value for name, value in arguments.items() if name not in _TUNED or isinstance(value, Dali)}

    def make(**keywords: Any) -> Any:
        own = {**unless_given, **rest, **keywords}
        if not own["num_workers"]:
            own.pop("prefetch_factor", None)  # torch refuses it
        return DataLoader(data, **own)

    wanted = arguments.get("backend", "auto")
    with torch.random.fork_rng(devices=[]):  # a seed is drawn
        probe = make(num_workers=0, backend=wanted)
    backend = probe.stats().get("backend")
    probe.close()
    if backend is not None:  # else it takes torch's path
        unless_given["seed"] = 0

    dataset: Any = as_feeder(probe.dataset) or probe.dataset
    backends = () if backend is None else (backend,) if wanted != "auto" else available_decoders(dataset.recipe)
    given: dict[str, Any] = {}
    if isinstance(arguments.get("num_workers"), int):
        given["num_workers"] = arguments["num_workers"]
    threads = getattr(arguments.get("worker_options"), "threads", None)
    if isinstance(threads, int):
        given["worker_threads"] = threads

    baseline = Setting(**{"num_workers": 0, **given}, backend=backend)
    check_int("num_workers", baseline.num_workers, 0)
    return _Source(make, rest, backends), baseline

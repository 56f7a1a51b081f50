"""The result of tuning, as text and as JSON."""

from __future__ import annotations

import dataclasses
import json
import textwrap
from dataclasses import dataclass
from typing import Any

from feeder.loader.options import WorkerOptions
from feeder.system.cores import Cores
from feeder.system.text import count
from feeder.tools.bench.result_file import spread
from feeder.tools.terminal import WIDTH, table, wrap
from feeder.tools.tune.search import Outcome
from feeder.tools.tune.setting import ROUNDS_TO_TELL, TriedSetting

_READING = 0.5
_IDLE = 0.8


@dataclass(frozen=True)
class Budget:
    """Limits of a search.

    Attributes:
        cpus: Upper limit of workers times threads.
        machine: The machine's cores.
        seconds: Time limit of the search.
    """

    cpus: int
    machine: Cores
    seconds: float


@dataclass(frozen=True)
class Tuning:
    """The result of :func:`feeder.tune`.

    Attributes:
        outcome: The search's outcome.
        budget: The search's limits.
        target: Requested images/s, or None.
        step_images_per_s: Rate of the step on one repeated batch; None without a step.
        keywords: The setting as arguments of :class:`feeder.DataLoader`; None if nothing could be measured.
        arguments: The caller's other arguments.
        seconds: Duration of the search.
    """

    outcome: Outcome
    budget: Budget
    target: float | None
    step_images_per_s: float | None
    keywords: dict[str, Any] | None
    arguments: dict[str, Any]
    seconds: float

    @property
    def call(self) -> str | None:
        """Code that makes the loader with this setting."""
        if self.keywords is None:
            return None
        given = {**self.arguments, **self.keywords}
        refused = () if self.keywords["num_workers"] else ("prefetch_factor",)  # by torch, without workers
        named = [f"{name}={_literal(value)}" for name, value in given.items() if name not in refused]
        parts = ", ".join(["dataset", *named])
        if len(f"feeder.DataLoader({parts})") <= WIDTH - 8:
            return f"feeder.DataLoader({parts})"
        return "\n".join(["feeder.DataLoader(", *wrap(f"{parts},", WIDTH - 8, first="    ", indent="    "), ")"])

    def to_json(self) -> dict[str, Any]:
        """Returns everything, every run included, as JSON values."""
        outcome = self.outcome
        gain = outcome.gain
        return {
            "target_images_per_s": self.target,
            "step_images_per_s": self.step_images_per_s,
            "reached": outcome.reached,
            "chosen": None if outcome.chosen is None else _point(outcome.chosen),
            "call": self.call,
            "baseline": _point(outcome.baseline),
            "gain": None if gain is None else {**spread(gain.ratios), "certain": gain.certain},
            "rounds": outcome.rounds,
            "verdict": self.verdict(),
            "points": [_point(point) for point in outcome.points],
            "notes": list(outcome.notes),
            "budget": dataclasses.asdict(self.budget),
            "seconds": round(self.seconds, 3),
        }

    def render(self) -> str:
        """Returns the search as a table of 80 columns, with the choice and its reason."""
        budget = self.budget
        whole = budget.cpus == budget.machine.usable
        head = f"budget: {budget.machine.describe() if whole else count(budget.cpus, 'core')}"
        head += f", {budget.seconds:g} s"
        if self.target is not None:
            head += f"; target: {self.target:,.0f} images/s"
        if self.step_images_per_s:
            head += f"; the step alone: {self.step_images_per_s:,.0f} images/s"

        lines = [head, "", self._table(), ""]
        problems = [f"{point.setting}: {point.problem}" for point in self.outcome.points if point.problem is not None]
        for line in (*problems, *self.outcome.notes, *self.verdict()):
            lines += wrap(line, indent="  ")
        if self.call is not None:
            lines += ["", textwrap.indent(self.call, "    ")]
        return "\n".join(lines)

    def verdict(self) -> list[str]:
        """Returns the findings as sentences."""
        outcome = self.outcome
        chosen = outcome.chosen
        if chosen is None:
            return ["no setting could be measured"]

        found = []
        if self.target is not None:
            rates = f"{chosen.rate:,.0f} images/s"
            if outcome.reached:
                found.append(f"the target of {self.target:,.0f} images/s is reached at the least cost: {rates}")
            else:
                found.append(f"the target of {self.target:,.0f} images/s is not reached; the best is {rates}")
            found[-1] += f" ({min(chosen.rates):,.0f}-{max(chosen.rates):,.0f})"
        if self.step_images_per_s:
            share = min(1.0, chosen.rate / self.step_images_per_s)
            found.append(f"the step gets {share:.0%} of the images/s that it could take")

        found.append(self._against_baseline(chosen))
        if not outcome.reached:
            found.append(self._limit(chosen))
        if skipped := max((trial.skipped for point in outcome.points for trial in point.runs), default=0):
            found.append(
                f"up to {count(skipped, 'sample')} of a run could not be decoded: `feeder inspect --verify` names "
                "those of a shard set"
            )
        return found

    def _against_baseline(self, chosen: TriedSetting) -> str:
        baseline = self.outcome.baseline
        gain = self.outcome.gain
        if chosen is baseline:
            if not chosen.turns:
                return "nothing else could be measured in the time limit: raise it"
            sure = "" if self.outcome.rounds >= ROUNDS_TO_TELL else "; too little time to be sure of small differences"
            return f"nothing is better than the present setting beyond the noise{sure}"
        if gain is None:
            ratio = f"{chosen.rate / baseline.rate:.2f}" if baseline.trials else "?"
            return f"about {ratio} times the baseline, from single runs: too little time to be sure"

        text = f"{gain.median:.2f} times the baseline ({min(gain.ratios):.2f}-{max(gain.ratios):.2f}"
        text += f" in {count(len(gain.ratios), 'round')})"
        if len(gain.ratios) < ROUNDS_TO_TELL:
            return f"{text}: too little time to be sure"
        if not gain.certain and max(gain.ratios) >= 1:
            text += ", which is within the noise"
        return text

    def _limit(self, chosen: TriedSetting) -> str:
        """Returns what limits the rate, as a sentence."""
        setting = chosen.setting
        if self.step_images_per_s is not None and chosen.rate > 0.95 * self.step_images_per_s:
            return "the step is the limit"
        reading = chosen.median("read_share")
        if reading is not None and reading > _READING:
            return f"reading is the limit: {reading:.0%} of the workers' time; a faster disk, or shards, would help"

        cpu_ms = chosen.median("cpu_ms")
        takes = f"an image takes {cpu_ms:.2f} ms"
        if self.target:
            takes += f", so {self.target:,.0f} images/s need {self.target * cpu_ms / 1000:.1f} cores"
        if setting.cores >= self.budget.cpus:
            return f"CPU time is the limit: {takes}; the budget is {count(self.budget.cpus, 'core')}"
        busy = chosen.median("busy_share")
        if busy is not None and busy < _IDLE and setting.num_workers:
            return f"the caller is the limit: workers are idle {1 - busy:.0%} of the time"
        if any(point.problem is not None and point.setting.cores > setting.cores for point in self.outcome.points):
            return "more workers could not be run"
        return f"more workers were not faster; {takes} of CPU time"

    def _table(self) -> str:
        rows = [["workers", "backend", "images/s", "min-max", "CPU ms", "MiB", "runs", ""]]
        for point in self.outcome.points:
            setting = point.setting
            threads = f"x{setting.worker_threads}" if setting.worker_threads > 1 else ""
            figures = ["-"] * 4
            if point.runs:
                spread_of_runs = f"{min(point.rates):.0f}-{max(point.rates):.0f}"
                memory_mib = f"{point.median('memory_bytes') / 2**20:.0f}"
                figures = [f"{point.rate:,.0f}", spread_of_runs, f"{point.median('cpu_ms'):.2f}", memory_mib]
            mark = "take" if point is self.outcome.chosen else "base" if point is self.outcome.baseline else ""
            workers = f"{setting.num_workers}{threads}"
            rows.append([workers, setting.backend or "-", *figures, str(len(point.runs)), mark])
        return table(rows)


def _point(point: TriedSetting) -> dict[str, Any]:
    return {
        **dataclasses.asdict(point.setting),
        "why": point.why,
        "problem": point.problem,
        "images_per_s": spread(point.rates) if point.runs else None,
        "search": [dataclasses.asdict(trial) for trial in point.trials],
        "in_turn": [dataclasses.asdict(trial) for trial in point.turns],
    }


def _literal(value: Any) -> str:
    text = repr(value)
    if text.startswith(("Window(", "Lanes(")):
        return f"feeder.{text}"
    if isinstance(value, str):
        return json.dumps(value)
    if isinstance(value, WorkerOptions):
        fields = [(each.name, getattr(value, each.name), each.default) for each in dataclasses.fields(value)]
        given = ", ".join(f"{name}={_literal(of)}" for name, of, default in fields if of != default)
        return f"feeder.WorkerOptions({given})"
    return text if isinstance(value, (bool, int, float, type(None))) else "..."

"""The result of tuning, as text and as JSON."""

from __future__ import annotations

import dataclasses
import json
import textwrap
from dataclasses import dataclass
from typing import Any

from feeder.loader.trial import Trial
from feeder.system.cores import Cores
from feeder.system.text import count
from feeder.tools.bench.result_file import spread
from feeder.tools.terminal import WIDTH, size, table, wrap
from feeder.tools.tune.nodes import NodeAdvice
from feeder.tools.tune.search import Outcome
from feeder.tools.tune.setting import ROUNDS_TO_TELL, Setting, TriedSetting

__all__ = ["Budget", "Tuning"]

_READING = 0.5
_IDLE = 0.8


@dataclass(frozen=True)
class Budget:
    """Limits of a search.

    Attributes:
        cpus: Upper limit of workers times threads.
        machine: The machine's cores.
        memory_bytes: Upper limit of the memory of workers and batches.
        seconds: Time limit of the search.
    """

    cpus: int
    machine: Cores
    memory_bytes: int
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
        arguments: The caller's other arguments; None where the caller makes the loader.
        seconds: Duration of the search.
        window_score: Score of the chosen windowed shuffle, 1 for a full shuffle; None without one.
        nodes: Advice on the nodes of an input service; None without one.
    """

    outcome: Outcome
    budget: Budget
    target: float | None
    step_images_per_s: float | None
    keywords: dict[str, Any] | None
    arguments: dict[str, Any] | None
    seconds: float
    window_score: float | None = None
    nodes: NodeAdvice | None = None

    @property
    def call(self) -> str | None:
        """Code that makes the loader with this setting."""
        if self.keywords is None:
            return None
        given = {} if self.arguments is None else self.arguments
        parts = ["dataset"] if self.arguments is not None else ["..."]
        defaults = {("worker_threads", 1), ("prefetch_factor", 2)}
        setting = {name: value for name, value in self.keywords.items() if (name, value) not in defaults}
        parts += [f"{name}={_literal(value)}" for name, value in {**given, **setting}.items()]
        return "\n".join(_filled("feeder.DataLoader(", parts, ")"))

    def to_json(self) -> dict[str, Any]:
        """Returns everything, every run included, as JSON values."""
        outcome, chosen = self.outcome, self.outcome.chosen
        gain = outcome.gain
        return {
            "target_images_per_s": self.target,
            "step_images_per_s": self.step_images_per_s,
            "reached": outcome.reached,
            "chosen": None if chosen is None else _point(chosen),
            "call": self.call,
            "baseline": _point(outcome.baseline),
            "gain": None if gain is None else {**spread(gain.ratios), "certain": gain.certain},
            "rounds": outcome.rounds,
            "nodes": None if self.nodes is None else dataclasses.asdict(self.nodes),
            "verdict": self.verdict(),
            "points": [_point(point) for point in outcome.points],
            "notes": list(outcome.notes),
            "budget": {
                "cpus": self.budget.cpus,
                "cores": dataclasses.asdict(self.budget.machine),
                "memory_bytes": self.budget.memory_bytes,
                "seconds": self.budget.seconds,
            },
            "seconds": round(self.seconds, 3),
            "interrupted": outcome.interrupted,
        }

    def render(self) -> str:
        """Returns the search as a table of 80 columns, with the choice and its reason."""
        budget = self.budget
        all_of_it = budget.cpus == budget.machine.usable
        given = budget.machine.describe() if all_of_it else count(budget.cpus, "core")
        lines = [
            f"budget: {given}, {size(budget.memory_bytes)}, {budget.seconds:g} s"
            + (f"; target: {self.target:,.0f} images/s" if self.target is not None else "")
            + (f"; the step alone: {self.step_images_per_s:,.0f} images/s" if self.step_images_per_s else ""),
            "",
            self._table(),
            "",
        ]
        problems = [f"{_short(p.setting)}: {p.problem}" for p in self.outcome.points if p.problem is not None]
        for line in (*problems, *self.outcome.notes, *self.verdict()):
            lines += wrap(line, indent="  ")
        if self.call is not None:
            lines += ["", textwrap.indent(self.call, "    ")]
        return "\n".join(lines)

    def verdict(self) -> list[str]:
        """Returns the findings as sentences."""
        outcome, chosen = self.outcome, self.outcome.chosen
        if chosen is None:
            return ["no setting could be measured" + (" before it was interrupted" if outcome.interrupted else "")]
        found = []
        if outcome.interrupted:
            found.append("interrupted: this is the best so far")
        if self.target is not None:
            found.append(self._against_target(chosen, self.target))
        if self.step_images_per_s:
            share = min(1.0, chosen.rate / self.step_images_per_s)
            found.append(f"the step gets {share:.0%} of the images/s that it could take")
        found.append(self._against_baseline(chosen))
        if not outcome.reached:
            found.append(self._limit(chosen))
        if self.window_score is not None:
            found.append(
                f"a windowed shuffle mixes less than a full one: it scores {self.window_score:.2f}, a full shuffle 1"
            )
        if self.nodes is not None:
            found.append(self.nodes.reason)
        if skipped := max((trial.skipped for point in outcome.points for trial in point.runs), default=0):
            found.append(
                f"up to {count(skipped, 'sample')} of a run could not be decoded: `feeder inspect --verify` names "
                "those of a shard set"
            )
        return found

    def _against_target(self, chosen: TriedSetting, target: float) -> str:
        rates = f"{chosen.rate:,.0f} images/s ({min(chosen.rates):,.0f}-{max(chosen.rates):,.0f})"
        if self.outcome.reached:
            return f"the target of {target:,.0f} images/s is reached at the least cost: {rates}"
        return f"the target of {target:,.0f} images/s is not reached; the best is {rates}"

    def _against_baseline(self, chosen: TriedSetting) -> str:
        outcome = self.outcome
        if chosen is outcome.baseline and not chosen.turns:
            return "nothing else could be measured in the time limit: raise it"
        if chosen is outcome.baseline:
            sure = "" if outcome.rounds >= ROUNDS_TO_TELL else "; too little time to be sure of small differences"
            return f"nothing is better than the present setting beyond the noise{sure}"
        gain = outcome.gain
        if gain is None:
            ratio = f"{chosen.rate / outcome.baseline.rate:.2f}" if outcome.baseline.trials else "?"
            return f"about {ratio} times the baseline, from single runs: too little time to be sure"
        ratio = f"{gain.median:.2f} times the baseline ({min(gain.ratios):.2f}-{max(gain.ratios):.2f}"
        ratio += f" in {count(len(gain.ratios), 'round')})"
        if len(gain.ratios) < ROUNDS_TO_TELL:
            return ratio + ": too little time to be sure"
        if not gain.certain and max(gain.ratios) >= 1:
            ratio += ", which is within the noise"
        if chosen.setting.cores < outcome.baseline.setting.cores:
            ratio += f", with {chosen.setting.cores} cores in place of {outcome.baseline.setting.cores}"
        if chosen.setting.num_workers and not outcome.baseline.setting.num_workers and self.step_images_per_s is None:
            ratio += "; the baseline, without workers, would also keep every training step waiting"
        return ratio

    def _limit(self, chosen: TriedSetting) -> str:
        """Returns what limits the rate, as a sentence."""
        step, cpu_ms, setting = self.step_images_per_s, chosen.median("cpu_ms"), chosen.setting
        if step is not None and chosen.rate > 0.95 * step:
            return "the step is the limit"
        reading, busy = chosen.median("read_share"), chosen.median("busy_share")
        if reading is not None and reading > _READING:
            return f"reading is the limit: {reading:.0%} of the workers' time; a faster disk, or shards, would help"
        takes = f"an image takes {cpu_ms:.2f} ms"
        if self.target:
            takes += f", so {self.target:,.0f} images/s need {self.target * cpu_ms / 1000:.1f} cores"
        if setting.cores >= self.budget.cpus:
            return f"CPU time is the limit: {takes}; the budget is {count(self.budget.cpus, 'core')}"
        if busy is not None and busy < _IDLE and setting.num_workers:
            return f"the caller is the limit: workers are idle {1 - busy:.0%} of the time"
        if any(p.problem is not None and p.setting.cores > setting.cores for p in self.outcome.points):
            return "memory is the limit: more workers were not allowed"
        return f"more workers were not faster; {takes} of CPU time"

    def _table(self) -> str:
        rows = [["workers", "ahead", "backend", "images/s", "min-max", "CPU ms", "MiB", "runs", ""]]
        for point in self.outcome.points:
            setting = point.setting
            threads = f"x{setting.worker_threads}" if setting.worker_threads > 1 else ""
            cells = [f"{setting.num_workers}{threads}", str(setting.prefetch_factor) if setting.num_workers else "-"]
            cells.append((setting.backend or "-") + (f" w{setting.window}" if setting.window else ""))
            if point.runs:
                cells += [f"{point.rate:,.0f}", f"{min(point.rates):.0f}-{max(point.rates):.0f}"]
                cells += [f"{point.median('cpu_ms'):.2f}", f"{point.median('memory_bytes') / 2**20:.0f}"]
            else:
                cells += ["-"] * 4
            mark = "take" if point is self.outcome.chosen else "base" if point is self.outcome.baseline else ""
            rows.append([*cells, str(len(point.runs)), mark])
        return table(rows)


def _point(point: TriedSetting) -> dict[str, Any]:
    def runs(trials: list[Trial]) -> list[dict[str, Any]]:
        return [dataclasses.asdict(trial) for trial in trials]

    return {
        **dataclasses.asdict(point.setting),
        "why": point.why,
        "problem": point.problem,
        "images_per_s": spread(point.rates) if point.runs else None,
        "search": runs(point.trials),
        "in_turn": runs(point.turns),
    }


def _short(setting: Setting) -> str:
    return f"{setting.num_workers} x {setting.worker_threads}, prefetch {setting.prefetch_factor}"


def _literal(value: Any) -> str:
    text = repr(value)
    if text.startswith(("Window(", "Lanes(")):
        return f"feeder.{text}"
    if isinstance(value, str):
        return json.dumps(value)
    return text if isinstance(value, (bool, int, float, type(None))) else "..."


def _filled(head: str, parts: list[str], tail: str) -> list[str]:
    """Returns a call as one line, or with its arguments on lines below."""
    one = head + ", ".join(parts) + tail
    if len(one) <= WIDTH - 8:
        return [one]
    return [head, *wrap(", ".join(parts) + ",", WIDTH - 8, first="    ", indent="    "), tail]

"""The comparison of two results: measures that got faster or slower beyond noise.

Note [Beyond noise]
    A measure has changed if the repeats of A and of B do not overlap, and if their medians differ noticeably. Rates and
    times must also differ by more than those of peers whose versions are the same in both, as such a difference is the
    machine's. With five repeats on either side, chance alone separates A from B in 0.8 % of all cases, whatever the
    distribution; with fewer repeats there is no verdict.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from feeder.errors import ArgumentError
from feeder.system.text import count
from feeder.tools.html import page as report
from feeder.tools.html.charts import Bar, bar_chart
from feeder.tools.html.page import number
from feeder.tools.terminal import table, wrap
from feeder.tools.thresholds import NOTICEABLE_GAIN

__all__ = ["RULE", "Change", "Comparison", "compare", "comparison_page", "load"]

_FEWEST_REPEATS = 5
RULE = (
    f"changed: the repeats of A and B do not overlap, the medians differ by more than {100 * NOTICEABLE_GAIN:.0f} %, "
    "and times and rates by more than those of peers that stayed the same"
)
# Figures that do not depend on the machine's load.
_STEADY = ("ratio", "pss_mib", "peak_rss_mib")
# By the suffix of a measure's name: True if more is better.
_BETTER = (
    ("_per_s", True),
    ("_per_cpu_s", True),
    ("ratio", True),
    ("_s", False),
    ("_ms", False),
    ("_us", False),
    ("_ns", False),
    ("_mib", False),
    ("_kib", False),
    ("_bytes", False),
    ("_per_image", False),
)
# Packages that a peer's speed depends on.
_PEERS = {"torch": ("torch", "pillow"), "webdataset": ("webdataset", "pillow"), "DALI": ("dali",)}


@dataclass(frozen=True)
class Change:
    """One measure in both results.

    Attributes:
        name: Its place in the results, as names with blanks between.
        a: Median in the first.
        b: Median in the second.
        low: Least ratio of a repeat of B to one of A; None with too few repeats.
        high: Greatest ratio.
        verdict: "faster", "slower", "less", "more", "same", or "?" with too few repeats.
    """

    name: str
    a: float
    b: float
    low: float | None
    high: float | None
    verdict: str

    @property
    def ratio(self) -> float:
        """B's median divided by A's."""
        return self.b / self.a if self.a else math.nan


@dataclass(frozen=True)
class Comparison:
    """Two results side by side.

    Attributes:
        changes: The measures that both have.
        warnings: Other differences between the two: machine, options, versions, commit.
        drift: Largest change of a peer that stayed the same, as a ratio of at least 1; None without such a peer.
        only_one: Names of measures that one of the two lacks.
    """

    changes: tuple[Change, ...]
    warnings: tuple[str, ...]
    drift: float | None
    only_one: tuple[str, ...]

    def render(self) -> str:
        """Returns the changes as text for a terminal of 80 columns."""
        rows = [["", "A", "B", "B/A", "range", ""]]
        shown = [change for change in self.changes if change.verdict != "same"]
        for change in shown:
            interval = "" if change.low is None else f"{number(change.low)}-{number(change.high)}"
            name = change.name if len(change.name) <= 34 else f"{change.name[:33]}…"
            rows.append([name, number(change.a), number(change.b), number(change.ratio), interval, change.verdict])
        lines = [f"note: {warning}" for warning in self.warnings]
        if self.drift is not None:
            lines.append(f"note: peers that stayed the same changed by up to {100 * (self.drift - 1):.0f} %")
        if self.only_one:
            lines.append(f"note: {count(len(self.only_one), 'measure')} in only one of the two")
        if any(change.verdict == "?" for change in shown):
            lines.append(f"note: '?' has too few repeats to tell; {_FEWEST_REPEATS} on either side are enough")
        same = len(self.changes) - len(shown)
        found = [table(rows), ""] if shown else []
        found.append(f"{same} of {len(self.changes)} measures are the same within noise")
        notes = [part for line in lines for part in wrap(line)]
        return "\n".join([*notes, *[""] * bool(notes), *found, "", *wrap(RULE)])


def load(path: str) -> dict[str, Any]:
    """Reads a benchmark's result.

    Raises:
        ArgumentError: if it can't be read, or is not a benchmark's result.
    """
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
    except OSError as error:
        raise ArgumentError(f"{path}: can't be read: {error.strerror}") from None
    except ValueError as error:
        raise ArgumentError(f"{path}: expected a benchmark's result as JSON, found damage: {error}") from None
    if not isinstance(found, dict) or not isinstance(found.get("benchmark"), str):
        raise ArgumentError(f'{path}: expected a benchmark\'s result, found other JSON: it has no "benchmark"')
    return found


def compare(a: Mapping[str, Any], b: Mapping[str, Any]) -> Comparison:
    """Compares two results of one benchmark.

    Args:
        a: The earlier result, from :func:`load`.
        b: The later one.

    Raises:
        ArgumentError: if they are of different benchmarks, or have no measure in common.
    """
    if a["benchmark"] != b["benchmark"]:
        raise ArgumentError(f"A is of benchmark {a['benchmark']!r}, B of {b['benchmark']!r}: nothing to compare")
    ours, theirs = dict(_measures(a, ())), dict(_measures(b, ()))
    common = [path for path in ours if path in theirs]
    if not common:
        raise ArgumentError(f"these results of {a['benchmark']!r} have no measure in common; run both the same way")
    drift = _drift(a, b, {path: _median(theirs[path]) / m for path in common if (m := _median(ours[path])) > 0})
    return Comparison(
        tuple(_change(path, ours[path], theirs[path], drift) for path in common),
        tuple(_warnings(a, b)),
        drift,
        tuple(" ".join(path) for path in {**ours, **theirs} if path not in common),
    )


def comparison_page(comparison: Comparison, a: str, b: str) -> str:
    """Returns a comparison as an HTML page.

    Args:
        comparison: The comparison.
        a: Name of the first result.
        b: Name of the second.
    """
    rows: list[list[object]] = [["measure", "A", "B", "B/A", "from", "to", "verdict"]]
    for c in comparison.changes:
        rows.append([c.name, *map(number, (c.a, c.b, c.ratio, c.low, c.high)), c.verdict])
    changed = [c for c in comparison.changes if c.verdict not in ("same", "?")]
    slower = [c for c in changed if c.verdict == "slower"]
    faster = sum(c.verdict == "faster" for c in changed)
    said = f"{faster} faster, {len(slower)} slower, of {len(comparison.changes)} measures"
    notes = [report.text(warning) for warning in comparison.warnings]
    if comparison.drift is not None:
        notes.append(report.text(f"Peers that stayed the same changed by up to {100 * (comparison.drift - 1):.0f} %."))
    if comparison.only_one:
        notes.append(report.text(f"In only one of the two: {', '.join(comparison.only_one)}"))
    bars = [Bar(c.name, c.ratio, c.low, c.high, note=c.verdict) for c in changed]
    sections = [report.Section("Changed", [bar_chart("B beside A", bars, unit="x")])] if bars else []
    sections.append(report.Section("All measures", [report.table(rows), report.text(f"{RULE[0].upper()}{RULE[1:]}.")]))
    if notes:
        sections.append(report.Section("What else differs", notes))
    tone: report.Tone = "bad" if slower else "good" if faster else "note"
    return report.page(
        "feeder bench: comparison", sections, lead=f"A: {a}. B: {b}.", top=[report.callout(said, tone=tone)]
    )


def _measures(value: Any, path: tuple[str, ...]) -> list[tuple[tuple[str, ...], list[float]]]:
    """Returns the repeats of every measure, by its place."""
    if not isinstance(value, Mapping):
        return []
    repeats = value.get("all")
    if "median" in value and isinstance(repeats, list) and repeats:
        good = all(isinstance(x, (int, float)) and math.isfinite(x) for x in repeats)
        return [(path, [float(x) for x in repeats])] if good else []
    return [found for name, inner in value.items() for found in _measures(inner, (*path, str(name)))]


def _change(path: tuple[str, ...], a: list[float], b: list[float], drift: float | None) -> Change:
    before, after, name = _median(a), _median(b), " ".join(path)
    if min(len(a), len(b)) < _FEWEST_REPEATS or min(*a, *b) <= 0:
        return Change(name, before, after, None, None, "?" if before != after else "same")
    low, high, ratio = min(b) / max(a), max(b) / min(a), after / before
    enough = 1 + NOTICEABLE_GAIN
    if drift is not None and path[0] not in _STEADY:
        enough = max(enough, drift)
    changed = not low <= 1 <= high and max(ratio, 1 / ratio) > enough
    return Change(name, before, after, low, high, _verdict(path, ratio) if changed else "same")


def _verdict(path: tuple[str, ...], ratio: float) -> str:
    """Returns the verdict for a ratio other than 1 of a measure of that name."""
    for name in reversed(path):
        for end, more_is_better in _BETTER:
            if name.endswith(end):
                if end in ("_mib", "_kib", "_bytes"):
                    return "more" if ratio > 1 else "less"
                return "faster" if (ratio > 1) == more_is_better else "slower"
    return "more" if ratio > 1 else "less"


def _drift(a: Mapping[str, Any], b: Mapping[str, Any], ratios: Mapping[tuple[str, ...], float]) -> float | None:
    """Returns the largest change in rate of peers whose versions are the same."""
    versions = [_section(_section(result, "machine"), "versions") for result in (a, b)]
    found = []
    for path, ratio in ratios.items():
        packages = next((p for peer, p in _PEERS.items() if len(path) > 1 and path[1].startswith(peer)), ())
        same = packages and all(versions[0].get(p) == versions[1].get(p) for p in packages)
        if path[0] == "images_per_s" and same and ratio > 0:
            found.append(max(ratio, 1 / ratio))
    return max(found, default=None)


def _warnings(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[str]:
    found = []
    machines = [_section(result, "machine") for result in (a, b)]
    for name in ("processor", "cores", "memory_gib", "kernel", "commit"):
        found += _differ(name, machines[0].get(name), machines[1].get(name))
    cpus = [_section(machine, "cpu") for machine in machines]
    if all(cpus):  # earlier results have none
        for name, pair in _both(*cpus).items():
            found += _differ(f"processor's {name}", *pair)
    for name, pair in _both(*(_section(machine, "versions") for machine in machines)).items():
        found += _differ(f"{name}'s version", *pair)
    for name in ("dataset", "kind", "images"):
        found += _differ(name, a.get(name), b.get(name))
    for name, pair in _both(_section(a, "options"), _section(b, "options")).items():
        found += _differ(f"option {name}", *pair)
    return found


def _both(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    return {name: (a.get(name), b.get(name)) for name in {**a, **b}}


def _differ(name: str, a: Any, b: Any) -> list[str]:
    return [f"{name} differs: {_short(a)} in A, {_short(b)} in B"] if a != b else []


def _short(value: Any) -> str:
    if isinstance(value, Mapping) and "version" in value:
        value = f"{value.get('distribution', '')} {value['version']}".strip()
    text = "none" if value is None else str(value)
    return text if len(text) <= 48 else f"{text[:47]}…"


def _section(value: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = value.get(name)
    return found if isinstance(found, Mapping) else {}


def _median(values: list[float]) -> float:
    return float(statistics.median(values))

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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from feeder.errors import ArgumentError
from feeder.system.text import count
from feeder.tools.html.page import number
from feeder.tools.terminal import shortened, table, wrap
from feeder.tools.thresholds import NOTICEABLE_GAIN

__all__ = ["Change", "Comparison", "compare", "load"]

_FEWEST_REPEATS = 5
_RULE = (
    f"changed: the repeats of A and B do not overlap, the medians differ by more than {100 * NOTICEABLE_GAIN:.0f} %, "
    "and times and rates by more than those of peers that stayed the same"
)
# Figures that do not depend on the machine's load.
_STEADY = ("ratio", "pss_mib", "peak_rss_mib")
# Ends of names of measures: more is better, less is better.
_RATES = ("_per_s", "_per_cpu_s", "ratio")
_COSTS = ("_s", "_ms", "_us", "_ns", "_per_image")
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
        shown = [change for change in self.changes if change.verdict != "same"]
        rows = [["", "A", "B", "B/A", "range", ""]]
        for change in shown:
            interval = "" if change.low is None else f"{number(change.low)}-{number(change.high)}"
            figures = map(number, (change.a, change.b, change.ratio))
            rows.append([shortened(change.name, 34), *figures, interval, change.verdict])

        notes = list(self.warnings)
        if self.drift is not None:
            notes.append(f"peers that stayed the same changed by up to {100 * (self.drift - 1):.0f} %")
        if self.only_one:
            notes.append(f"{count(len(self.only_one), 'measure')} in only one of the two")
        if any(change.verdict == "?" for change in shown):
            notes.append(f"'?' has too few repeats to tell; {_FEWEST_REPEATS} on either side are enough")

        lines = [part for note in notes for part in wrap(f"note: {note}")]
        lines += [""] * bool(notes)
        lines += [table(rows), ""] if shown else []
        same = len(self.changes) - len(shown)
        lines += [f"{same} of {len(self.changes)} measures are the same within noise", "", *wrap(_RULE)]
        return "\n".join(lines)


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
    ours = dict(_measures(a, ()))
    theirs = dict(_measures(b, ()))
    common = [path for path in ours if path in theirs]
    if not common:
        raise ArgumentError(f"these results of {a['benchmark']!r} have no measure in common; run both the same way")

    drift = _drift(a, b, {path: median(theirs[path]) / m for path in common if (m := median(ours[path])) > 0})
    return Comparison(
        tuple(_change(path, ours[path], theirs[path], drift) for path in common),
        tuple(_warnings(_conditions(a), _conditions(b))),
        drift,
        tuple(" ".join(path) for path in {**ours, **theirs} if path not in common),
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
    before = median(a)
    after = median(b)
    name = " ".join(path)
    if min(len(a), len(b)) < _FEWEST_REPEATS or min(*a, *b) <= 0:
        return Change(name, before, after, None, None, "?" if before != after else "same")

    low = min(b) / max(a)
    high = max(b) / min(a)
    ratio = after / before
    noise = 1.0 if drift is None or path[0] in _STEADY else drift
    changed = not low <= 1 <= high and max(ratio, 1 / ratio) > max(1 + NOTICEABLE_GAIN, noise)
    return Change(name, before, after, low, high, _verdict(path, ratio) if changed else "same")


def _verdict(path: tuple[str, ...], ratio: float) -> str:
    """Returns the verdict for a ratio other than 1 of a measure of that name."""
    for name in reversed(path):
        if name.endswith(_RATES):
            return "faster" if ratio > 1 else "slower"
        if name.endswith(_COSTS):
            return "slower" if ratio > 1 else "faster"
    return "more" if ratio > 1 else "less"


def _drift(a: Mapping[str, Any], b: Mapping[str, Any], ratios: Mapping[tuple[str, ...], float]) -> float | None:
    """Returns the largest change in rate of peers whose versions are the same."""
    ours, theirs = (_section(_section(result, "machine"), "versions") for result in (a, b))
    unchanged = tuple(
        peer for peer, packages in _PEERS.items() if all(ours.get(name) == theirs.get(name) for name in packages)
    )
    rates = [
        ratio
        for path, ratio in ratios.items()
        if path[0] == "images_per_s" and path[1:] and path[1].startswith(unchanged)
    ]
    return max((max(ratio, 1 / ratio) for ratio in rates if ratio > 0), default=None)


def _conditions(result: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the conditions of a result by name, apart from its measures."""
    machine = _section(result, "machine")
    return {
        **{name: machine.get(name) for name in ("processor", "cores", "memory_gib", "kernel", "commit")},
        **{f"processor's {name}": value for name, value in _section(machine, "cpu").items()},
        **{f"{name}'s version": value for name, value in _section(machine, "versions").items()},
        **{name: result.get(name) for name in ("dataset", "kind", "images")},
        **{f"option {name}": value for name, value in _section(result, "options").items()},
    }


def _warnings(a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[str]:
    for name in {**a, **b}:
        untold = name.startswith("processor's") and not (name in a and name in b)  # an earlier result does not tell it
        if a.get(name) != b.get(name) and not untold:
            yield f"{name} differs: {_short(a.get(name))} in A, {_short(b.get(name))} in B"


def _short(value: Any) -> str:
    if isinstance(value, Mapping) and "version" in value:
        value = f"{value.get('distribution', '')} {value['version']}".strip()
    return shortened("none" if value is None else str(value), 48)


def _section(value: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = value.get(name)
    return found if isinstance(found, Mapping) else {}

"""Compares two checkouts: has a change made something slower?

Each checkout runs ``bench.loader``, ``bench.decode``, ``bench.remote`` and ``bench.service`` with its own .venv, and
what ``make demo`` does before it measures, in turn, the first one alternating. Figures are ratios of after to before
within a turn, so that a slow spell of the machine affects both. The 95 % interval is that of their median, by ranks:
it holds for every distribution, and needs six turns.

    python -m bench.revisions --before DIR --shards SHARDS --images IMAGES [--after .] [--turns 15] [--json OUT]
"""

from __future__ import annotations

import json
import math
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.smoke import ROOT, arguments
from feeder.tools.bench.result_file import save, spread
from feeder.tools.terminal import table

# Benchmark, its options, and the figures to compare; True: more is better. The trainer's CPU time of a repeat is a few
# milliseconds.
_RUNS: tuple[tuple[str, str, dict[str, bool]], ...] = (
    (
        "loader",
        "--shards {shards} --only decode,outside,first --repeats 1",
        {
            "decode/images_per_s/loader": True,
            "outside/outside_decode": False,
            "first/fast path, forkserver/s/feeder": False,
            "first/generic, fork/s/feeder": False,
        },
    ),
    ("loader", "--shards {shards} --only trainer --repeats 25", {"trainer/cpu_ms_per_batch_of_256": False}),
    (
        "decode",
        "--images {images} --only feeder-seekable,feeder-keep,feeder-raw --repeats 1",
        {f"images_per_cpu_s/feeder-{name}": True for name in ("seekable", "keep", "raw")},
    ),
    (
        "remote",
        "--shards {shards} --only first-epoch --rate 2000 --repeats 1",
        {f"first-epoch/cpu_ms_per_image/{way}": False for way in ("local", "http")},
    ),
    (
        "service",
        "--shards {shards} --rivals= --trials 1 --repeats 1",
        {f"{way}{side}_cpu_ms": False for way in ("", "same_host/") for side in ("host", "server")},
    ),
)


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Returns the 95 % interval of the median, by ranks; of fewer than six values the extremes, which are less sure."""
    count, ordered = len(values), sorted(values)
    below = [sum(math.comb(count, k) for k in range(rank + 1)) / 2**count for rank in range(count // 2)]
    rank = max(0, sum(chance <= 0.025 for chance in below) - 1)
    return ordered[rank], ordered[-1 - rank]


def measure(checkout: Path, options: Any) -> Iterator[tuple[str, float]]:
    """Yields the figures of one checkout, by name."""
    python = checkout / ".venv/bin/python"
    command = [str(python if python.exists() else sys.executable)]
    started = time.perf_counter()
    subprocess.run([*command, "-c", "import feeder"], cwd=checkout, check=True)
    yield "import feeder, s", time.perf_counter() - started
    yield "shard and load an epoch, CPU s", _demo_cpu_s(checkout, command, options.images)
    for name, given, figures in _RUNS[:1] if options.smoke else _RUNS:  # the smoke test runs the others by themselves
        with tempfile.NamedTemporaryFile(suffix=".json") as file:
            further = ["--smoke", options.smoke, "--only", "decode"] if options.smoke else _filled(given, options)
            run = [*command, "-m", f"bench.{name}", *further, "--json", file.name]
            subprocess.run(run, cwd=checkout, check=True, stdout=subprocess.DEVNULL)
            result = json.loads(Path(file.name).read_text())
        for path in figures:
            found = result
            for key in path.split("/"):
                found = found.get(key, {})
            if found:  # a smoke run may leave a contestant out
                yield path, statistics.median(found["all"])


def _filled(given: str, options: Any) -> list[str]:
    """Returns options with the paths of the data, in a checkout's folder as in this one."""
    paths = {name: Path(getattr(options, name)).resolve() for name in ("shards", "images")}
    return [each.format(**paths) for each in given.split()]


def _demo_cpu_s(checkout: Path, command: list[str], images: str) -> float:
    """Returns the CPU seconds of ``make demo`` before its benchmark, whose length is a number of seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.TemporaryDirectory() as folder:
        shard = ["-m", "feeder", "shard", str(Path(images).resolve()), "--out", f"{folder}/set", "-q"]
        for each in (shard, ["examples/load_epoch.py", f"{folder}/set"]):
            subprocess.run([*command, *each], cwd=checkout, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    smoke = {"before": str(ROOT), "turns": 1}
    options = arguments(__doc__, "revisions", smoke, before=None, after=str(ROOT), shards=None, images=None, turns=15)
    checkouts = {name: Path(getattr(options, name)).resolve() for name in ("before", "after")}
    ratios: dict[str, list[float]] = {}
    for turn in range(options.turns):
        found: dict[str, dict[str, float]] = {}
        for name in sorted(checkouts, reverse=turn % 2 == 0):
            found[name] = dict(measure(checkouts[name], options))
        for path, before in found["before"].items():
            ratios.setdefault(path, []).append(found["after"][path] / before)
        print(f"turn {turn + 1} of {options.turns}", file=sys.stderr)
    commits = {
        name: subprocess.run(["git", "rev-parse", "HEAD"], cwd=checkout, text=True, capture_output=True).stdout.strip()
        for name, checkout in checkouts.items()
    }
    is_rate = {path: up for *_, figures in _RUNS for path, up in figures.items()}
    rows = [["after / before", "median", "95 %", "", "better"]]
    for path, values in ratios.items():
        figures = [f"{x:.3f}" for x in (statistics.median(values), *interval(values))]
        rows.append([path, *figures, "more" if is_rate.get(path) else "less"])
    print(table(rows))
    of = {path: {**spread(values), "interval": interval(values)} for path, values in ratios.items()}
    print(f"\nwritten to {save('revisions', {'commits': commits, 'ratios': of}, options.json)}")


if __name__ == "__main__":
    main()

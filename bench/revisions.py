"""Compares two checkouts: has a change made something slower?

Each checkout runs ``bench.loader``, ``bench.decode``, ``bench.remote`` and ``bench.service`` with its own .venv, and
what ``make demo`` does before it measures, in turn, the first one alternating. Figures are ratios of after to before
within a turn, so that a slow spell of the machine affects both. The 95 % interval is that of their median, by ranks:
it holds for every distribution, and needs six turns. Each checkout reads the set that it has made of the images.

    python -m bench.revisions --before DIR --images IMAGES [--after .] [--turns 15] [--json OUT]
"""

from __future__ import annotations

import json
import math
import resource
import shutil
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
    ("loader", "--shards {shards} --only decode --repeats 3", {"decode/images_per_s/loader": True}),
    ("loader", "--shards {shards} --only trainer --repeats 15", {"trainer/cpu_ms_per_batch_of_256": False}),
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
        "--shards {shards} --rivals= --trials 1 --epochs 4 --repeats 1",
        {f"{way}{side}_cpu_ms": False for way in ("", "same_host/") for side in ("host", "server")},
    ),
)


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Returns the 95 % interval of the median, by ranks; of fewer than six values the extremes, which are less sure."""
    count, ordered = len(values), sorted(values)
    below = [sum(math.comb(count, k) for k in range(rank + 1)) / 2**count for rank in range(count // 2)]
    rank = max(0, sum(chance <= 0.025 for chance in below) - 1)
    return ordered[rank], ordered[-1 - rank]


def measure(checkout: Path, shards: str, options: Any) -> Iterator[tuple[str, float]]:
    """Yields the figures of one checkout, by name; first it makes its set again."""
    python = checkout / ".venv/bin/python"
    command = [str(python if python.exists() else sys.executable)]
    images = str(Path(options.images).resolve())
    started = time.perf_counter()
    subprocess.run([*command, "-c", "import feeder"], cwd=checkout, check=True)
    yield "import feeder, s", time.perf_counter() - started

    # What make demo does before its benchmark, whose length is a number of seconds.
    shutil.rmtree(shards, ignore_errors=True)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    for step in (["-m", "feeder", "shard", images, "--out", shards, "-q"], ["examples/load_epoch.py", shards]):
        subprocess.run([*command, *step], cwd=checkout, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    yield "shard and load an epoch, CPU s", after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    for name, given, figures in _RUNS[:1] if options.smoke else _RUNS:  # the smoke test runs the others by themselves
        with tempfile.NamedTemporaryFile(suffix=".json") as file:
            further = [each.format(shards=shards, images=images) for each in given.split()]
            if options.smoke:
                further = ["--smoke", options.smoke, "--only", "decode"]
            run = [*command, "-m", f"bench.{name}", *further, "--json", file.name]
            subprocess.run(run, cwd=checkout, stdout=subprocess.DEVNULL)  # it fails where a target is missed, too
            result = json.loads(Path(file.name).read_text())
        for path in figures:
            found = result
            for key in path.split("/"):
                found = found.get(key, {})
            if found:  # a smoke run may leave a contestant out
                yield path, statistics.median(found["all"])


def main() -> None:
    smoke = {"before": str(ROOT), "turns": 1}
    options = arguments(__doc__, "revisions", smoke, before=None, after=str(ROOT), images=None, turns=15)
    checkouts = {name: Path(getattr(options, name)).resolve() for name in ("before", "after")}
    ratios: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(options.turns):
            found: dict[str, dict[str, float]] = {}
            for name in sorted(checkouts, reverse=turn % 2 == 0):
                found[name] = dict(measure(checkouts[name], str(Path(folder, name)), options))
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

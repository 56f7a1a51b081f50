"""Compares two checkouts: has a change made the loader, the decoder or an import slower?

Each checkout runs ``bench.loader`` and ``bench.decode`` with its own .venv, in turn, the first one alternating. Figures
are ratios of after to before within a turn, so that a slow spell of the machine affects both.

    python -m bench.revisions --before DIR --shards SHARDS --images IMAGES [--after .] [--turns 5] [--json OUT]
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.smoke import ROOT, arguments
from feeder.tools.bench.result_file import save, spread
from feeder.tools.terminal import table

# Benchmark, its parts, how often they are repeated, and the figures to compare; True: more is better. The trainer's CPU
# time of a repeat is a few milliseconds.
_RUNS: tuple[tuple[str, str, int, dict[str, bool]], ...] = (
    (
        "loader",
        "decode,outside,first",
        1,
        {
            "decode/images_per_s/loader": True,
            "outside/outside_decode": False,
            "first/fast path, forkserver/s/feeder": False,
            "first/generic, fork/s/feeder": False,
        },
    ),
    ("loader", "trainer", 25, {"trainer/cpu_ms_per_batch_of_256": False}),
    (
        "decode",
        "feeder-seekable,feeder-keep,feeder-raw",
        1,
        {f"images_per_cpu_s/feeder-{name}": True for name in ("seekable", "keep", "raw")},
    ),
)


def measure(checkout: Path, options: Any) -> Iterator[tuple[str, float]]:
    """Yields the figures of one checkout, by name."""
    python = checkout / ".venv/bin/python"
    command = [str(python if python.exists() else sys.executable)]
    started = time.perf_counter()
    subprocess.run([*command, "-c", "import feeder"], cwd=checkout, check=True)
    yield "import feeder, s", time.perf_counter() - started
    for name, parts, repeats, figures in _RUNS:
        if options.smoke:  # the smoke test runs these benchmarks separately
            parts = parts.partition(",")[0]
        with tempfile.NamedTemporaryFile(suffix=".json") as file:
            data = {"loader": ["--shards", options.shards], "decode": ["--images", options.images]}[name]
            further = ["--smoke", options.smoke] if options.smoke else [*data, "--repeats", str(repeats)]
            run = [*command, "-m", f"bench.{name}", *further, "--only", parts, "--json", file.name]
            subprocess.run(run, cwd=checkout, check=True, stdout=subprocess.DEVNULL)
            result = json.loads(Path(file.name).read_text())
        for path in figures:
            found = result
            for key in path.split("/"):
                found = found.get(key, {})
            if found:  # a smoke run may leave a contestant out
                yield path, statistics.median(found["all"])


def main() -> None:
    smoke = {"before": str(ROOT), "turns": 1}
    options = arguments(__doc__, "revisions", smoke, before=None, after=str(ROOT), shards=None, images=None, turns=5)
    checkouts = {name: Path(getattr(options, name)).resolve() for name in ("before", "after")}
    ratios: dict[str, list[float]] = {}
    for turn in range(options.turns):
        found: dict[str, dict[str, float]] = {}
        for name in sorted(checkouts, reverse=turn % 2 == 0):
            found[name] = dict(measure(checkouts[name], options))
        for path, before in found["before"].items():
            ratios.setdefault(path, []).append(found["after"][path] / before)
    commits = {
        name: subprocess.run(["git", "rev-parse", "HEAD"], cwd=checkout, text=True, capture_output=True).stdout.strip()
        for name, checkout in checkouts.items()
    }
    is_rate = {path: up for *_, figures in _RUNS for path, up in figures.items()}
    rows = [["after / before", "median", "least", "most", "better"]]
    for path, values in ratios.items():
        figures = [f"{x:.3f}" for x in (statistics.median(values), min(values), max(values))]
        rows.append([path, *figures, "more" if is_rate.get(path) else "less"])
    print(table(rows))
    result = {"commits": commits, "ratios": {path: spread(values) for path, values in ratios.items()}}
    print(f"\nwritten to {save('revisions', result, options.json)}")


if __name__ == "__main__":
    main()

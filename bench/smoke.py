"""Checks that all benchmarks run and give well-formed results. Run it for every change; it does not measure speed.

Every ``bench/*.py`` with a ``--smoke`` option runs as ``python -m bench.NAME --smoke DIR --json OUT``. DIR holds
``images/`` (class folders, small JPEGs) and ``shards/`` (the same, sharded). The script measures everything at the
smallest size and writes OUT with :func:`feeder.tools.bench.result_file.save`, with ``{"skipped": reason}`` if a device
is missing. ``feeder bench`` runs too, with a report and a comparison of the result with itself.

    python -m bench.smoke [NAME...]
"""

from __future__ import annotations

import argparse
import json
import math
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["arguments", "check", "main", "scripts"]

FLAG = "--smoke"
ROOT = Path(__file__).resolve().parent.parent
IMAGES, CLASSES = 64, 4
_DIFFERENCES = re.compile(r"above|further")  # in the names of figures that can be below 0
_LIMIT_S = 600.0  # several times the slowest benchmark's time: only hangs reach it
# Arguments for a run of the command itself at its smallest size.
_COMMAND = ("--no-peers", "--workers", "0,1", "--image-size", "32", "--seconds", "0.05", "--repeats", "1", "-q")


def arguments(doc: str | None, name: str, smoke: Mapping[str, Any], **options: Any) -> argparse.Namespace:
    """Parses --json, --smoke and, by keyword, options with their defaults (None: required).

    Args:
        doc: The script's docstring.
        name: Name of the result, bench/results/NAME.json.
        smoke: Values of options with --smoke; ``images`` and ``shards`` name its folders.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    for option, default in options.items():
        kind = str if default is None else type(default)
        parser.add_argument(f"--{option.replace('_', '-')}", default=default, type=kind)
    parser.add_argument("--json", default=f"bench/results/{name}.json", metavar="OUT", help="default: %(default)s")
    parser.add_argument(FLAG, metavar="DIR", help="run at the smallest size, on the data that bench.smoke made in DIR")
    found = parser.parse_args()
    if found.smoke is not None:
        made = {place: str(Path(found.smoke) / place) for place in ("images", "shards") if place in options}
        vars(found).update(made | dict(smoke))
    missing = [option for option, default in options.items() if default is None and getattr(found, option) is None]
    if missing:
        parser.error(f"expected --{missing[0].replace('_', '-')}")
    return found


def scripts(folder: Path = ROOT / "bench") -> list[str]:
    """Returns the names of the benchmarks with the option."""
    here = Path(__file__).name
    mark = re.compile(rf"{FLAG}|from bench\.smoke import .*\barguments\b")
    texts = {path.stem: path.read_text() for path in folder.glob("*.py") if path.name != here}
    return sorted(name for name, text in texts.items() if mark.search(text))


def check(result: Any) -> list[str]:
    """Lists the faults of a result: missing keys of the machine, empty or impossible figures."""
    if not isinstance(result, dict) or not isinstance(result.get("benchmark"), str):
        return ['expected an object with "benchmark"']
    machine = result.get("machine")
    wanted = ("processor", "cpu", "cores", "memory_gib", "kernel", "commit", "versions", "arguments", "date")
    wrong = [f"machine lacks {key!r}" for key in wanted if not isinstance(machine, dict) or key not in machine]
    if "skipped" in result:
        return wrong
    found = _figures(result, ())
    if not found:
        wrong.append("no figure with its repeats")
    for path, figure in found:
        values = figure["all"]
        where = " ".join(path)
        if not isinstance(values, list) or not values or not all(isinstance(v, (int, float)) for v in values):
            wrong.append(f"{where}: no repeats")
        elif not all(math.isfinite(v) and (v >= 0 or any(map(_DIFFERENCES.search, path))) for v in values):
            wrong.append(f"{where}: not finite and positive: {values}")
        elif any("_per_s" in name or "_per_cpu_s" in name for name in path) and min(values) <= 0:
            wrong.append(f"{where}: a rate of 0: {values}")
        elif not min(values) == figure.get("min") <= figure["median"] <= figure.get("max") == max(values):
            wrong.append(f"{where}: median and extremes are not those of the repeats")
    return wrong


def _figures(value: Any, path: tuple[str, ...]) -> list[tuple[tuple[str, ...], dict[str, Any]]]:
    if isinstance(value, list):
        value = {str(i): inner for i, inner in enumerate(value)}
    if not isinstance(value, dict):
        return []
    if "median" in value and "all" in value:
        return [(path, value)]
    return [found for name, inner in value.items() for found in _figures(inner, (*path, str(name)))]


def _run(name: str, command: list[str], out: Path) -> list[str]:
    """Runs one benchmark and returns its faults."""
    began = time.perf_counter()
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=_LIMIT_S)
    except subprocess.TimeoutExpired as expired:
        captured = expired.stderr or expired.stdout or b""
        said = captured.decode(errors="replace") if isinstance(captured, bytes) else captured
        return [f"did not end in {_LIMIT_S:.0f} s: {said.strip()[-2000:]}"]
    print(f"  {name}: {time.perf_counter() - began:.1f} s", flush=True)
    if done.returncode:
        return [f"exit code {done.returncode}: {(done.stderr or done.stdout).strip()[-2000:]}"]
    if not done.stdout.strip():
        return ["prints no table"]
    return check(json.loads(out.read_text())) if out.exists() else ["wrote no result"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="benchmarks to run (default: all, and feeder bench)")
    options = parser.parse_args()
    began = time.perf_counter()
    wrong: dict[str, list[str]] = {}
    with tempfile.TemporaryDirectory(prefix="feeder-smoke-") as work:
        made = Path(work)
        python = [sys.executable, "-m"]
        size = ["--count", str(IMAGES), "--classes", str(CLASSES)]
        once: dict[str, Any] = {"cwd": ROOT, "check": True, "timeout": _LIMIT_S}
        subprocess.run([*python, "bench.make_images", str(made / "images"), *size], **once)
        shard = [*python, "feeder", "shard", str(made / "images"), "--out", str(made / "shards"), "-q"]
        subprocess.run(shard, **once)
        for name in options.names or scripts():
            out = made / f"{name}.json"
            wrong[name] = _run(name, [*python, f"bench.{name}", FLAG, work, "--json", str(out)], out)
        if not options.names:
            out = made / "command.json"
            command = [*python, "feeder", "bench", str(made / "images"), *_COMMAND]
            wrong["feeder bench"] = _run("feeder bench", [*command, "--json", str(out)], out)
    took = time.perf_counter() - began
    for name, found in wrong.items():
        for what in found:
            print(f"{name}: {what}")
    bad = sum(map(bool, wrong.values()))
    print(f"{len(wrong)} benchmarks in {took:.0f} s: {f'{bad} are wrong' if bad else 'all run and give sane results'}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())

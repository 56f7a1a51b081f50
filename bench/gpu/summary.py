"""Gathers the results of bench/gpu.sh into one readable file.

python -m bench.gpu.summary OUTDIR

Where it runs on the GPU, the reports that other programs wrote get the machine, too: those of ``feeder parity`` in the
same files, those of pytest as JSON beside them.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import torch

from bench.gpu.common import gpu
from feeder.tools.bench.result_file import save

__all__ = ["complete", "summarize"]


def complete(folder: Path) -> None:
    """Adds machine and GPU to the parity reports that lack them, and writes JSON for each JUnit file that has none.

    Args:
        folder: Has both; the JSON beside a JUnit file has passed, failed, skipped and names_of_failed.
    """
    for path in sorted(folder.glob("parity-*.json")):
        report = _read(path)
        if report and "machine" not in report:
            save(f"gpu-{path.stem}", {"gpu": gpu(), **report}, str(path))
    for path in sorted(folder.glob("*.xml")):
        result = path.with_suffix(".json")
        counts = _counts(path)
        if isinstance(counts, dict) and not result.exists():
            failed, skipped = counts["failures"] + counts["errors"], counts["skipped"]
            found = {"passed": counts["tests"] - failed - skipped, "failed": failed, "skipped": skipped}
            save("gpu-tests", {"gpu": gpu(), **found, "names_of_failed": _failed(path)}, str(result))


def summarize(folder: Path) -> str:
    """Summarizes the JUnit file, the logs and the JSON files of a run."""
    lines: list[str] = []
    for path in sorted(folder.glob("*.xml")):
        lines += [f"{path.stem}: {_tests(path)}"]
    status = folder / "status.txt"
    for line in _text(status).splitlines() if status.exists() else []:
        lines.append(line)
    for path in sorted(folder.glob("parity-*.json")):
        report = _read(path)
        verdict = "passed" if report.get("passed") else "NOT PASSED"
        figures = ", ".join(f"{each['percentile_999']:g}" for each in report.get("buckets", []))
        lines += ["", f"{path.stem} ({report.get('device')}): {verdict}; 99.9th percentile by bucket: {figures}"]
        if "views_differing" in report:
            lines.append(f"  off: {report['views_differing']} views")
    for path in sorted(folder.glob("gpu-*.json")):
        result = _read(path)
        lines += ["", path.stem]
        if "skipped" in result:
            lines.append(f"  skipped: {result['skipped']}")
            continue
        machine, gpu = result.get("machine", {}), result.get("gpu", {})
        commit = f", commit {machine['commit']}" if machine.get("commit") else ""
        lines.append(f"  on {gpu.get('name')}, {machine.get('cores')} cores{commit}")
        triton = gpu.get("triton", {})
        if "runs" in triton:
            runs = f"run, by {triton.get('version')}" if triton["runs"] else f"DON'T RUN: {triton.get('lacks')}"
            lines.append(f"  Triton's kernels {runs}; driver {gpu.get('driver')}")
        lines += [f"  {what} FAILED: {error}" for what, error in result.get("errors", {}).items()]
        log = path.with_suffix(".log")
        tail = [line for line in _text(log).splitlines() if line.strip()] if log.exists() else []
        lines += [f"  {line}" for line in tail[-16:]]
        for name, value in _goals(result):
            lines.append(f"  {name}: {value:.3f}")
    return "\n".join(lines) + "\n"


def _read(path: Path) -> dict[str, Any]:
    """Reads a JSON file; returns an empty dict if a step ended before it wrote one."""
    try:
        found = json.loads(_text(path))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _text(path: Path) -> str:
    """Reads the output of a process that may have been killed in the middle of a character."""
    return path.read_text(encoding="utf-8", errors="replace")


def _tests(path: Path) -> str:
    counts = _counts(path)
    return counts if isinstance(counts, str) else ", ".join(f"{count} {name}" for name, count in counts.items())


def _counts(path: Path) -> dict[str, int] | str:
    """Returns the counts of a JUnit file, or why it can't be read."""
    try:
        suites = ElementTree.parse(path).getroot().iter("testsuite")
    except ElementTree.ParseError as error:
        return f"unreadable: {error}"
    counts = dict.fromkeys(("tests", "failures", "errors", "skipped"), 0)
    for suite in suites:
        for name in counts:
            counts[name] += int(suite.get(name, "0"))
    return counts


def _failed(path: Path) -> list[str]:
    """Names of the tests of a JUnit file that failed, or whose setup or end did."""
    cases = ElementTree.parse(path).getroot().iter("testcase")
    failed = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    return [f"{case.get('classname')}::{case.get('name')}" for case in failed]


def _goals(result: Any, prefix: str = "") -> list[tuple[str, float]]:
    """Returns every number under "goals", and those whose name ends with the goal in parentheses."""
    found: list[tuple[str, float]] = []
    if isinstance(result, dict):
        for name, value in result.items():
            if isinstance(value, float) and str(name).endswith(")"):
                found.append((f"{prefix}{name}", value))
            elif isinstance(value, dict):
                found += _goals(value, f"{name} workers, " if str(name).isdigit() else prefix)
    return found


if __name__ == "__main__":
    target = Path(sys.argv[1])
    text = summarize(target)
    (target / "summary.txt").write_text(text, encoding="utf-8")
    print(text, end="")
    if torch.cuda.is_available():
        complete(target)

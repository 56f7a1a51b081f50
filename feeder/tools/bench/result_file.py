"""The result file of a benchmark: the machine, the versions, every repeat."""

from __future__ import annotations

import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import feeder
from feeder.system.cores import cores
from feeder.system.files import write_text
from feeder.system.processor import processor


def machine() -> dict[str, Any]:
    """Returns processor, cores, memory, kernel, commit and package versions.

    ``cpu`` has the processor's microarchitecture, family, model and stepping, each None where it isn't known.
    ``memory_free_gib`` is free now: where there is little, the kernel takes CPU time for each page that is written.
    """
    from feeder.system.versions import versions

    cpu = processor()
    return {
        "processor": cpu.name or platform.machine(),
        "cpu": {name: getattr(cpu, name) for name in ("microarchitecture", "family", "model", "stepping")},
        "cores": cores().usable,
        "memory_gib": _memory_gib("SC_PHYS_PAGES"),
        "memory_free_gib": _memory_gib("SC_AVPHYS_PAGES"),
        "kernel": platform.release().partition("-")[0],
        "commit": _commit(),
        "versions": _without_paths(versions()),
        "arguments": [os.path.basename(a) if os.path.isabs(a) else a for a in sys.argv[1:]],
        "date": time.strftime("%Y-%m-%d"),
    }


def _memory_gib(pages: str) -> float:
    return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf(pages) / 2**30, 1)


def processor_name(machine: Mapping[str, Any]) -> str:
    """Returns the name of a result's processor, with its microarchitecture: "AMD EPYC (Zen 4)".

    Args:
        machine: As of :func:`machine`; earlier results have no ``cpu`` in it.
    """
    known = machine.get("cpu", {}).get("microarchitecture")
    return f"{machine['processor']} ({known})" if known else str(machine["processor"])


def interleave(
    rivals: Mapping[str, Callable[[], float]], repeats: int, note: Callable[[str], None] = print
) -> dict[str, list[float]]:
    """Runs the rivals in turn, ``repeats`` times, so that a slow spell of the machine affects all of them."""
    found: dict[str, list[float]] = {name: [] for name in rivals}
    for turn in range(repeats):
        for name, run in rivals.items():
            found[name].append(run())
            note(f"  {turn + 1}/{repeats} {name}: {found[name][-1]:.4g}")
    return found


def spread(values: Sequence[float]) -> dict[str, Any]:
    """Returns median, extremes and every value."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values), "all": list(values)}


def save(name: str, results: Mapping[str, Any], path: str) -> str:
    """Writes a result and its machine as JSON, and returns the path.

    Raises:
        ArgumentError: if it can't be written there.
    """
    return write_text(path, json.dumps({"benchmark": name, "machine": machine(), **results}, indent=1) + "\n")


def _without_paths(value: Any) -> Any:
    """Returns a value without the paths in it, which mean nothing on other machines."""
    if isinstance(value, dict):
        found = {k: _without_paths(v) for k, v in value.items()}
        return {k: v for k, v in found.items() if not (isinstance(v, str) and os.path.isabs(v))}
    return value


def _commit() -> str | None:
    """Returns the commit of feeder's checkout, with "+changes" if it has changes.

    An installed feeder has no checkout: its commit is that of FEEDER_COMMIT, which bench/gpu.sh and scripts/bare.sh
    set; else None.
    """
    root = Path(feeder.__file__).resolve().parent.parent
    if not (root / ".git").exists():
        return os.environ.get("FEEDER_COMMIT") or None
    if shutil.which("git") is None:
        return None

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(root), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()

    changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!bench/results")
    return git("rev-parse", "HEAD") + ("+changes" if changed else "")

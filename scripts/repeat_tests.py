"""Runs the whole test suite again and again, and notes each run's counts in tests/runs.jsonl.

    python scripts/repeat_tests.py TIMES [--busy]

With --busy two loops and a writer to the disk take what they can of the machine meanwhile. A run's load is the average
number of processes that ran or waited for a core in its last 15 minutes, whatever they belong to.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WRITE = """
import os, sys
while True:
    with open(sys.argv[1], "wb") as file:
        for _ in range(256):
            file.write(bytes(1 << 20))
        os.fsync(file.fileno())
"""


@contextlib.contextmanager
def other_work() -> Iterator[None]:
    """Keeps two cores and the disk busy."""
    with tempfile.TemporaryDirectory(dir=ROOT / "build") as folder:
        loops = [[sys.executable, "-c", "while True: pass"]] * 2
        running = [subprocess.Popen(each) for each in (*loops, [sys.executable, "-c", WRITE, f"{folder}/file"])]
        try:
            yield
        finally:
            for each in running:
                each.kill()
                each.wait()


def run(target: str, log: Path) -> dict[str, object]:
    """Runs one of the Makefile's targets; returns its counts and seconds."""
    began = time.monotonic()
    with open(log, "w") as file:
        subprocess.run(["make", target], cwd=ROOT, stdout=file, stderr=subprocess.STDOUT, check=False)
    last = re.findall(r"^=*.* in [\d.]+s.*$", log.read_text(), re.MULTILINE)[-1]
    counts = {word: int(number) for number, word in re.findall(r"(\d+) (passed|failed|errors?|skipped)", last)}
    return {"target": target, **counts, "seconds": round(time.monotonic() - began)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("times", type=int)
    parser.add_argument("--busy", action="store_true")
    arguments = parser.parse_args()
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for number in range(arguments.times):
        for target in ("test", "test-slow"):
            with other_work() if arguments.busy else contextlib.nullcontext():
                found = run(target, ROOT / "build" / f"{target}-{number}.log")
            when = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
            line = {
                "commit": commit.stdout.strip(),
                "date": when,
                "cores": os.cpu_count(),
                "busy": arguments.busy,
                "load": round(os.getloadavg()[2], 1),
                **found,
            }
            with open(ROOT / "tests/runs.jsonl", "a") as file:
                print(json.dumps(line), file=file)
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()

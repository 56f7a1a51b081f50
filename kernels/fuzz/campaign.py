"""Runs a fuzz target for a number of executions on one core, and writes the result: a campaign that is committed.

The target must be built: ``kernels/fuzz/run.sh 1 TARGET`` builds it and makes the starting corpus. A campaign goes on
with the corpus that it finds, in legs, so that one that was interrupted loses one leg at most: it counts what it has
done in its result, by the kernels' tree (``git rev-parse HEAD:kernels/cpu``). Only new inputs count, not the corpus
that every leg starts with. It ends with code 1 at the first finding, whose input is beside the corpus.

    python kernels/fuzz/campaign.py packed 10000000 [--leg 250000] [--dir build/fuzz] [--json bench/results/NAME.json]
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from feeder.tools.bench.result_file import save

__all__ = ["main"]

ROOT = Path(__file__).resolve().parent.parent.parent
_STAT = re.compile(r"^stat::(\w+):\s+(\d+)$", re.MULTILINE)


def leg(target: str, folder: Path, executions: int) -> tuple[dict[str, int], int]:
    """Runs a number of executions of new inputs; returns libFuzzer's statistics, of these alone, and the exit code."""
    replayed = 1 + len(list((folder / f"corpus_{target}").iterdir()))  # the empty input, and then the corpus
    command = [
        str(folder / "build" / "kernels" / "fuzz" / f"fuzz_{target}"),
        *(
            f"-runs={replayed + executions}",
            "-max_len=2048",
            "-timeout=60",
            "-rss_limit_mb=2048",
            "-print_final_stats=1",
        ),
        # Without weights of inputs by the rarity of what they reach, which take half of the time.
        *("-entropic=0", f"-artifact_prefix={folder}/findings/{target}-", "-verbosity=0"),
        str(folder / f"corpus_{target}"),
    ]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        print(done.stderr[-4000:], file=sys.stderr)
    stats = {name: int(value) for name, value in _STAT.findall(done.stderr)}
    stats["number_of_executed_units"] = max(0, stats.get("number_of_executed_units", 0) - replayed)
    return stats, done.returncode


def tree() -> str:
    """Returns the git tree of the kernels in this checkout, with "+changes" if they have changes."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(ROOT), *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    changed = git("status", "--porcelain", "--", "kernels/cpu")
    return git("rev-parse", "HEAD:kernels/cpu") + ("+changes" if changed else "")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target")
    parser.add_argument("executions", type=int)
    parser.add_argument("--leg", type=int, default=250_000)
    parser.add_argument("--dir", type=Path, default=ROOT / "build" / "fuzz")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    out = args.json or ROOT / "bench" / "results" / f"fuzz_{args.target}.json"
    (args.dir / "findings").mkdir(parents=True, exist_ok=True)
    done: dict[str, Any] = {"executions": 0, "by_tree": {}, "findings": 0, "seconds": 0.0, "peak_rss_mb": 0}
    if out.exists():
        done |= {name: value for name, value in json.loads(out.read_text()).items() if name in done}
    code, kernels = 0, tree()
    while done["executions"] < args.executions and not code:
        began = time.monotonic()
        stats, code = leg(args.target, args.dir, min(args.leg, args.executions - int(done["executions"])))
        executed = stats["number_of_executed_units"]
        done["executions"] += executed
        done["by_tree"][kernels] = done["by_tree"].get(kernels, 0) + executed
        done["findings"] += bool(code)
        done["seconds"] = round(done["seconds"] + time.monotonic() - began, 1)
        done["peak_rss_mb"] = max(done["peak_rss_mb"], stats.get("peak_rss_mb", 0))
        corpus = len(list((args.dir / f"corpus_{args.target}").iterdir()))
        save(f"fuzz_{args.target}", {**done, "corpus": corpus, "sanitizers": "address, undefined"}, str(out))
        rate = done["executions"] / max(done["seconds"], 1e-9)
        print(
            f"{done['executions']:,} of {args.executions:,} executions, {rate:,.0f} a second, corpus {corpus:,}",
            flush=True,
        )
    return 1 if done["findings"] else 0


if __name__ == "__main__":
    sys.exit(main())

"""``feeder profile``: how long a training script waits for its data, why, and what would help."""

from __future__ import annotations

import argparse
from typing import Any

__all__ = ["add", "run"]


def add(commands: Any) -> None:
    command = commands.add_parser(
        "profile",
        help="run a training script and say how long it waits for data, and why",
        description="Runs a script as it is, with torch's or feeder's DataLoader, and meters its loaders, its steps, "
        "the processors and the GPU. A summary goes to stderr, an HTML report to --out. Options for feeder come "
        "before the script, those after it are the script's. Ctrl-C ends the script and reports what there is. Under "
        "torchrun each rank writes a report: torchrun --nproc-per-node 2 -m feeder profile train.py",
        epilog="exit codes: the script's own; 1 if there is no such script, 2 wrong usage",
    )
    command.add_argument(
        "--out", default="feeder-profile.html", metavar="FILE", help="the report (default: %(default)s)"
    )
    command.add_argument(
        "--trace", metavar="FILE", help="also write a Chrome trace: the loader's stages and torch's profiler"
    )
    command.add_argument(
        "--trace-steps",
        type=int,
        default=20,
        metavar="N",
        help="batches that torch's profiler looks at for the trace (default: %(default)s)",
    )
    command.add_argument("script", metavar="SCRIPT", help="the training script")
    command.add_argument("arguments", metavar="...", nargs=argparse.REMAINDER, help="the script's own arguments")
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from feeder.tools.profile import ProfileOptions, profile

    options = ProfileOptions(out=arguments.out, trace=arguments.trace, trace_steps=arguments.trace_steps)
    return profile(arguments.script, arguments.arguments, options)

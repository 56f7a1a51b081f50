"""``feeder profile``: shows how long a training script waits for data, why, and what would help."""

from __future__ import annotations

import argparse
from typing import Any


def add(commands: Any) -> None:
    command = commands.add_parser(
        "profile",
        examples=(
            "feeder profile train.py --epochs 1           # its own arguments come last",
            "feeder profile examples/train.py images-shards",
        ),
        help="run a training script and tell how long it waits for data, and why",
        description="Runs a script as it is, with torch's or feeder's DataLoader, measures its loaders and steps, the "
        "processors and the GPU, and prints a summary to stderr. When the script has ended, what can be tried of the "
        "advice is tried for seconds. Options after the script are its own. Ctrl-C ends the script and reports the "
        "measurements so far. Other processes that the script starts are not measured: under torchrun each rank prints "
        "its own summary (torchrun --nproc-per-node 2 -m feeder profile train.py).",
        epilog="exit codes: the script's own; 1 if there is no such script, 2 wrong usage",
    )

    command.add_argument("script", metavar="SCRIPT", help="the training script")
    command.add_argument("arguments", metavar="...", nargs=argparse.REMAINDER, help="the script's own arguments")


def run(arguments: argparse.Namespace) -> int:
    from feeder.tools.profile import profile

    return profile(arguments.script, arguments.arguments)

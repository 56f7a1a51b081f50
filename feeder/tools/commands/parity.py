"""``feeder parity``: compares pixels with the Pillow reference."""

from __future__ import annotations

import argparse
from typing import Any

from feeder.system.text import say
from feeder.tools.commands.common import EXIT_ERROR, add_output, say_json

__all__ = ["add", "run"]


def add(commands: Any) -> None:
    command = commands.add_parser(
        "parity",
        examples=(
            "feeder parity images-shards",
            "feeder parity ./images --backend cpu --fidelity exact",
        ),
        help="compare a decode backend's pixels with the Pillow reference",
        description="Decodes your own images by a backend and by Pillow, and compares the pixels. The report has a row "
        "for each range of reductions: how much larger the crop is than its output.",
        epilog="exit codes: 0 within the bounds, 1 outside or error, 2 wrong usage",
    )

    command.add_argument("dir", metavar="DIR", help="shard set, or folder with a subfolder for each class")
    command.add_argument("--backend", default="auto", help="backend to compare (default: %(default)s)")
    command.add_argument(
        "--fidelity",
        choices=("fast", "exact", "draft"),
        default="fast",
        help="fidelity of the backend (default: %(default)s)",
    )
    command.add_argument(
        "--device", default="cpu", help="cpu, or cuda if the backend decodes on the GPU (default: cpu)"
    )

    command.add_argument(
        "--images", type=int, default=250, metavar="N", help="images to compare (default: %(default)s)"
    )
    command.add_argument(
        "--seed", type=int, default=0, help="seed that chooses images and crops (default: %(default)s)"
    )

    add_output(command)


def run(arguments: argparse.Namespace) -> int:
    from feeder.system.progress import terminal_progress
    from feeder.tools.parity.comparison import parity

    report = parity(
        arguments.dir,
        backend=arguments.backend,
        fidelity=arguments.fidelity,
        device=arguments.device,
        images=arguments.images,
        seed=arguments.seed,
        progress=terminal_progress(arguments.quiet),
    )
    if arguments.json:
        say_json(report.to_json())
    elif not arguments.quiet:
        say(report.render())
    return 0 if report.passed else EXIT_ERROR

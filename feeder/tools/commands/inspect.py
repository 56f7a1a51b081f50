"""``feeder inspect``: shows the contents of a shard set, and verifies them."""

from __future__ import annotations

import argparse
from typing import Any

from feeder.errors import ArgumentError, FeederError
from feeder.system.text import count, printable, say
from feeder.tools.commands.common import EXIT_ERROR, say_json


def add(commands: Any) -> None:
    command = commands.add_parser(
        "inspect",
        examples=(
            "feeder inspect images-shards",
            "feeder inspect images-shards --verify        # compares every byte",
        ),
        help="show or verify the contents of a shard set",
        description="Shows counts, classes, sizes and settings of a shard set. With --verify, reads everything again "
        "and names each damaged shard and sample.",
        epilog="exit codes: 0 no damage found, 1 error or damage found, 2 wrong usage",
    )
    command.add_argument(
        "dir", metavar="DIR", help="folder of a shard set, an index file, or a URL such as s3://bucket/set"
    )
    command.add_argument("--verify", action="store_true", help="compare every byte with the checksums")
    command.add_argument(
        "--deep",
        action="store_true",
        help="with --verify: also unpack every packed image, and check its JPEG's SHA-256",
    )
    command.add_argument("--workers", type=int, metavar="N", help="threads for --verify (default: one per core)")
    command.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    from feeder.shard.write.set_copy import SetCopy
    from feeder.system.progress import terminal_progress
    from feeder.tools.set_report import inspect, render
    from feeder.tools.verify import verify

    if arguments.deep and not arguments.verify:
        raise ArgumentError("--deep needs --verify")
    with SetCopy.of(arguments.dir) as copy:
        # Verified first: even if a damaged index allows no report, its damage can be listed.
        damages = (
            verify(copy, deep=arguments.deep, workers=arguments.workers, progress=terminal_progress(arguments.json))
            if arguments.verify
            else None
        )
        try:
            report = inspect(copy)
        except FeederError:
            for damage in damages or ():
                say(_line(damage))
            raise
    if arguments.json:
        found = None if damages is None else [damage._asdict() for damage in damages]
        say_json(vars(report) | {"damages": found})
    else:
        say(render(report))
        if damages is not None:
            say(f"\n  verified: {count(len(damages), 'problem')}")
            for damage in damages:
                say(f"    {_line(damage)}")
    return EXIT_ERROR if damages else 0


def _line(damage: Any) -> str:
    where = damage.shard if damage.sample is None else f"{damage.shard} {damage.sample}"
    return printable(f"{where}: {damage.reason}")

"""``feeder bench``: compares feeder with other loaders."""

from __future__ import annotations

import argparse
from dataclasses import fields
from typing import Any

from feeder.system.text import say
from feeder.tools.commands.common import add_work, noting


def add(commands: Any) -> None:
    command = commands.add_parser(
        "bench",
        examples=(
            "feeder bench images-shards --folder ./images",
            "feeder bench images-shards --workers 4,8 --json bench.json",
        ),
        help="compare feeder with torch's DataLoader, webdataset and DALI",
        description="Measures feeder and, where they are installed, torch's DataLoader with Pillow, webdataset and "
        "DALI in turn, on the same images with the same preprocessing, after checking that their pixels agree.",
    )

    command.add_argument("dir", metavar="DIR", help="shard set, or folder with a subfolder for each class")
    command.add_argument(
        "--folder",
        metavar="DIR",
        help="the same images as single files, for torch's loader, and for DALI in place of packed ones (default: DIR)",
    )
    add_work(command)

    command.add_argument(
        "--workers",
        type=_numbers,
        default=(),
        metavar="N[,N...]",
        help="worker processes; each number is measured (default: 1, 2, 4, ... up to the number of cores)",
    )
    command.add_argument("--seconds", type=float, default=2.0, help="duration of a run (default: %(default)s)")
    command.add_argument(
        "--repeats", type=int, default=5, metavar="N", help="runs of each loader (default: %(default)s)"
    )
    command.add_argument("--backend", default="auto", help="feeder's decode backend (default: %(default)s)")
    command.add_argument("--no-peers", action="store_true", help="measure feeder only")

    command.add_argument("--json", metavar="FILE", help="also write the result and the machine to this file")
    command.add_argument("-q", "--quiet", action="store_true", help="print only the tables, not each run")


def run(arguments: argparse.Namespace) -> int:
    from feeder.system.files import check_writable
    from feeder.tools.bench.bench_options import BenchOptions
    from feeder.tools.bench.bench_run import throughput
    from feeder.tools.bench.result_file import save
    from feeder.tools.bench.show import render

    if arguments.json:
        check_writable(arguments.json)  # before minutes of measuring
    given = {field.name: getattr(arguments, field.name) for field in fields(BenchOptions) if field.name != "peers"}
    options = BenchOptions(**given, peers=not arguments.no_peers)

    note = noting(arguments.quiet)
    result = throughput(arguments.dir, options, folder=arguments.folder, note=note)
    note("")
    say(render(result))
    if arguments.json:
        say(f"\nwritten to {save('throughput', result, arguments.json)}")
    return 0


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a list of numbers; expected one such as 4 or 1,2,4"
        ) from None

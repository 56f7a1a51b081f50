"""``feeder append``: adds samples to a shard set."""

from __future__ import annotations

import argparse
from typing import Any

from feeder.tools.commands.common import add_output
from feeder.tools.commands.shard import add_source, report, source_options


def add(commands: Any) -> None:
    command = commands.add_parser(
        "append",
        examples=(
            "feeder append ./images-shards ./more-images",
            "feeder append s3://my-bucket/train more.csv --label-column class",
        ),
        help="add samples to a shard set",
        description="Adds the samples of a source to a shard set, with the set's settings, as a new version of it. "
        "Runs that use the set go on with the version that they were started with. New classes are numbered after "
        "the set's. An interrupted run leaves the set as it was, and resumes when it is started again.",
        epilog="exit codes: 0 done, 1 error, 2 wrong usage, 3 done, more bad images than --max-bad, 130 interrupted",
    )
    command.add_argument("dir", metavar="DIR", help="folder of a shard set, or s3://bucket/set, gs:// or az://")
    command.add_argument("src", metavar="MORE", nargs="?", help="a source, as for feeder shard")
    add_source(command)
    add_output(command)
    command.set_defaults(on_interrupt="the set is as it was; the same command resumes")


def run(arguments: argparse.Namespace) -> int:
    from feeder.shard.write.set_append import append
    from feeder.shard.write.shard_options import ShardOptions
    from feeder.system.progress import terminal_progress

    source, reading = source_options(arguments)
    summary = append(arguments.dir, source, ShardOptions(**reading), progress=terminal_progress(arguments.quiet))
    return report(summary, arguments)

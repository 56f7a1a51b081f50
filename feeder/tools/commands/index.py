"""``feeder index``: makes WebDataset tars from elsewhere loadable."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from feeder.system.text import count, printable, say
from feeder.tools.commands.common import EXIT_TOO_MANY_BAD, IMAGE_FIELD_HELP, add_labels, add_output, say_json, share


def add(commands: Any) -> None:
    command = commands.add_parser(
        "index",
        examples=(
            "feeder index 'train-{000..009}.tar'",
            "feeder index ./tars --label-column label --out ./tars/index.bin",
            "feeder index s3://my-bucket/tars",
        ),
        help="make WebDataset tars from elsewhere loadable",
        description="Builds index.bin, and an index beside each tar, for existing WebDataset tars, so that they load "
        "without being rewritten.",
    )
    command.add_argument(
        "src",
        metavar="TARS",
        help="folder of tars, a tar, or a pattern ('train-{000..009}.tar'); all also as URLs of a store",
    )
    command.add_argument("--out", metavar="FILE", help="index file (default: index.bin in the tars' folder)")
    command.add_argument(
        "--max-bad", type=share, default=0.01, metavar="SHARE", help="tolerated share of bad samples (default: 1%%)"
    )
    command.add_argument("--image-field", metavar="NAME", help=IMAGE_FIELD_HELP)
    add_labels(command, "key of the samples' json")
    add_output(command)


def run(arguments: argparse.Namespace) -> int:
    from feeder.shard.source.table_file import ManifestColumns
    from feeder.shard.write.index_tars import index_tars
    from feeder.system.progress import terminal_progress

    summary = index_tars(
        arguments.src,
        arguments.out,
        columns=ManifestColumns(
            label=arguments.label_column,
            targets=tuple(arguments.target_column),
            has_labels=not arguments.no_labels,
        ),
        image_field=arguments.image_field,
        progress=terminal_progress(arguments.quiet),
    )
    rejected = [rejection._asdict() for rejection in summary.rejected]
    if arguments.json:
        say_json(vars(summary) | {"rejected": rejected})
    elif not arguments.quiet:
        say(f"{count(summary.samples, 'sample')} in {count(summary.shards, 'tar')}")
        say(f"  index     {printable(summary.path)}")
        for rejection in summary.rejected:
            say("  rejected  " + printable(f"{rejection.path}: {rejection.reason}"))
    bad = sum(rejection.bad for rejection in summary.rejected)
    if bad and arguments.quiet and not arguments.json:
        say(f"feeder: {bad:,} of {count(summary.samples + bad, 'sample')} left out of the index", file=sys.stderr)
    return EXIT_TOO_MANY_BAD if bad > arguments.max_bad * (summary.samples + bad) else 0

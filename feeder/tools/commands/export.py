"""``feeder export``: writes the original files of a shard set."""

from __future__ import annotations

import argparse
from typing import Any

from feeder.system.text import count, printable, say
from feeder.tools.commands.common import add_output, say_json


def add(commands: Any) -> None:
    command = commands.add_parser(
        "export",
        examples=(
            "feeder export ./images-shards --out ./images",
            "feeder export s3://my-bucket/set --out ./images",
        ),
        help="write the images of a shard set as files",
        description="Writes each image of a shard set to its original path below a folder. Packed images become the "
        "original files, and are compared with their SHA-256. If the set was made with --progressive sequential, "
        "progressive files become sequential copies. Other images are written as they are stored: seekable JPEGs have "
        "the original pixels, but other bytes. If two images have one path, the later one gets its key into its name. "
        "For a shard set of the original files, with labels and fields: feeder shard DIR --out DIR2 --encode keep.",
    )
    command.add_argument(
        "dir", metavar="DIR", help="folder of a shard set, an index file, or a URL such as s3://bucket/set"
    )
    command.add_argument("--out", metavar="DIR", required=True, help="new or empty folder, also in a store")
    add_output(command)


def run(arguments: argparse.Namespace) -> int:
    from feeder.system.progress import terminal_progress
    from feeder.tools.exported_images import export

    summary = export(arguments.dir, arguments.out, progress=terminal_progress(arguments.quiet))
    if arguments.json:
        say_json(summary)
    elif not arguments.quiet:
        images = summary.unpacked + summary.copies + summary.stored
        say(f"{count(images, 'image')}\n  to        {printable(summary.out)}")
        if summary.unpacked:
            say(f"  unpacked  {summary.unpacked:,}, equal to the original files")
        if summary.copies:
            say(f"  copies    {summary.copies:,}, sequential ones of progressive files, with the same pixels")
        if summary.stored:
            say(f"  stored    {summary.stored:,}, as the set has them")
        if summary.renamed:
            say(f"  renamed   {summary.renamed:,} of these, by their keys: earlier images have their paths")
    return 0

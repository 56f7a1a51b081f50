"""``feeder takedown``: takes samples out of a shard set for good."""

from __future__ import annotations

import argparse
from typing import Any

from feeder.errors import ArgumentError
from feeder.system.text import count, printable, say
from feeder.tools.commands.common import add_output, say_json

_SHOWN = 10


def add(commands: Any) -> None:
    command = commands.add_parser(
        "takedown",
        help="take samples out of a shard set for good",
        description="Removes samples from a shard set for good. Their bytes, keys, paths and fields are overwritten in "
        "all versions of the set. Their ids stay: each gets another sample of the same shard, so orders, lengths and "
        "saved states stay valid. If a takedown is interrupted, run it again to finish it, with or without keys.",
        examples=(
            "feeder takedown ./shards 00001234 00040012",
            "feeder takedown s3://my-bucket/train --from keys.txt",
        ),
        epilog="exit codes: 0 done, 1 error, 2 wrong usage or a key that the set does not have, 130 interrupted",
    )
    command.add_argument("set", metavar="SET", help="folder or URL (s3://, gs://, az://) of a shard set")
    command.add_argument("keys", metavar="KEY", nargs="*", help="key of a sample, as browse and replay show it")
    command.add_argument("--from", dest="file", metavar="FILE", help="file with further keys, one on each line")
    add_output(command)
    command.set_defaults(on_interrupt="run `feeder takedown SET` to finish it, or the same command again")


def run(arguments: argparse.Namespace) -> int:
    from feeder.shard.write.set_takedown import takedown
    from feeder.system.progress import terminal_progress

    keys = [*arguments.keys, *_read_keys(arguments.file)]
    summary = takedown(arguments.set, keys, progress=terminal_progress(arguments.quiet))
    if arguments.json:
        say_json(summary)
    elif not arguments.quiet:
        shards = count(summary.shards, "shard")
        say(f"{summary.set}: took down {count(summary.samples, 'sample')}, in {shards}")
        if summary.already:
            say(f"  {count(summary.already, 'key')} had been taken down before")
        if summary.duplicates:
            more = ", ..." if len(summary.duplicates) > _SHOWN else ""
            say("  left, with the checksum and size of one that went:")
            say(printable(f"    {', '.join(summary.duplicates[:_SHOWN])}{more}"))
        if summary.left:
            say("  out of reach of this command:")
            for line in summary.left:
                say(f"    - {line}")
    return 0


def _read_keys(path: str | None) -> list[str]:
    if path is None:
        return []
    try:
        with open(path, encoding="utf-8-sig", errors="surrogateescape") as file:
            return [line.rstrip("\r\n") for line in file if line.strip()]
    except OSError as error:
        raise ArgumentError(f"{path}: can't be read: {error.strerror}") from None

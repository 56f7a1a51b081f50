"""``feeder cache``: shows and trims the cache of remote sets."""

from __future__ import annotations

import argparse
from typing import Any

from feeder.system.text import count, printable, say
from feeder.tools.commands.common import EXIT_ERROR, add_output, say_json, size_bytes


def add(commands: Any) -> None:
    command = commands.add_parser(
        "cache",
        examples=(
            "feeder cache",
            "feeder cache /scratch/feeder --trim 500GB",
        ),
        help="show and trim the cache of remote sets",
        description="Shows the remote sets in a cache folder, the one used longest ago first.",
    )
    command.add_argument("cache", metavar="DIR", nargs="?", help="cache folder (default: that of cache_dir=None)")
    command.add_argument(
        "--trim",
        type=size_bytes,
        metavar="SIZE",
        help="drop shards, those used longest ago first, until the cache has this size; 0 empties it. Sets that are in "
        "use stay",
    )
    add_output(command)


def run(arguments: argparse.Namespace) -> int:
    from feeder.shard.cache.cached_sets import cached_sets, trim
    from feeder.system.files import default_cache

    cache = arguments.cache or default_cache()
    freed = None if arguments.trim is None else trim(cache, arguments.trim)
    sets = cached_sets(cache)
    total = sum(each.size_bytes for each in sets)
    if arguments.json:
        extra = {} if freed is None else {"freed_bytes": freed}
        say_json({"cache": cache, "size_bytes": total, "sets": [each._asdict() for each in sets], **extra})
    elif not arguments.quiet:
        held = f"{total / 1e9:,.3f} GB of {count(len(sets), 'remote set', 'remote sets')}" if sets else "nothing cached"
        say(f"{cache}: {held}")
        for each in sets:
            use = ", in use" if each.is_used else ""
            say(printable(f"  {each.size_bytes / 1e9:9,.3f} GB  {each.url}{use}"))
        if freed is not None:
            say(f"  {freed / 1e9:9,.3f} GB  freed")
    return EXIT_ERROR if arguments.trim is not None and total > arguments.trim else 0

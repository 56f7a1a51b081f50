"""All ranges of a set's shards, as the fetcher asks for them: ``python -m bench.remote_runs.ranges JSON``.

Prints a line of JSON with the number of bytes and the CPU time of this process.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import obstore

from feeder.shard.store.client import make_client
from feeder.shard.store.open_store import open_store
from feeder.shard.store.store import PIECE_BYTES, RANGE_BYTES, Bytes
from feeder.shard.store.url import Url

_AT_ONCE = 4


@dataclass(frozen=True)
class Ranges:
    """A set's ranges.

    Attributes:
        url: URL of the set.
        shards: The same set on the local disk, which names the shards.
        is_obstore: True to get them by obstore alone.
    """

    url: str
    shards: str
    is_obstore: bool = False


def _main(ranges: Ranges) -> None:
    store, client = open_store(ranges.url), make_client(Url.parse(ranges.url), allow_http=True, writing=False)

    def pieces(name: str, start: int, end: int) -> Iterable[Bytes]:
        if ranges.is_obstore:
            return obstore.get(client, name, options={"range": (start, end)}).stream(PIECE_BYTES)
        return store.pieces(name, start, end)

    sizes = {path.name: path.stat().st_size for path in sorted(Path(ranges.shards).glob("*.tar"))}
    wanted = [
        (name, start, min(start + RANGE_BYTES, size))
        for name, size in sizes.items()
        for start in range(0, size, RANGE_BYTES)
    ]
    started = time.process_time()
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        got = sum(pool.map(lambda each: sum(map(len, pieces(*each))), wanted))
    print(json.dumps({"bytes": got, "cpu_s": time.process_time() - started}), flush=True)


if __name__ == "__main__":
    _main(Ranges(**json.loads(sys.argv[1])))

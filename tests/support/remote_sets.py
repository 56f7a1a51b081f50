"""Shard sets in a bucket, and the processes that fetch them."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import feeder
from feeder.shard.write.encode import EncodeOptions
from feeder.shard.write.shard_options import ShardOptions
from feeder.shard.write.sharding import shard
from tests.support.images import encode, pixels
from tests.support.processes import all_ended
from tests.support.remote import Bucket

__all__ = ["asked_bytes", "end_fetchers", "make_set", "upload"]


@functools.cache
def _photo(seed: int) -> bytes:
    return encode(pixels(seed, 400, 300), quality=97)


def make_set(folder: Path, *, shards: int = 16, samples: int = 4, first: int = 0, encoding: str = "seekable") -> Path:
    """Makes shards of large JPEGs, each of about 0.2 MB with 4 samples; another ``first`` gives other pixels."""
    for number in range(shards * samples):
        path = folder / "images" / f"class-{number % 4}" / f"{number:03d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(_photo(first + number))
    shard(
        str(folder / "images"),
        str(folder / "set"),
        ShardOptions(samples_per_shard=samples, encode=EncodeOptions(encoding)),
    )
    return folder / "set"


def upload(bucket: Bucket, folder: Path, prefix: str = "set") -> str:
    """Copies a set into a bucket; returns its URL."""
    for path in sorted(folder.iterdir()):
        if path.is_file():
            bucket.put(f"{prefix}/{path.name}", path.read_bytes())
    return f"{bucket.url}/{prefix}"


def asked_bytes(loader: feeder.DataLoader) -> int:
    """Returns the bytes that came from the store, but for ranges that were asked for again because they were slow."""
    counts = loader.stats()["remote"]
    return counts["bytes"] - counts["hedged_bytes"]


@contextlib.contextmanager
def end_fetchers(folder: Path) -> Iterator[None]:
    """Ends the fetchers of all caches below a folder."""
    try:
        yield
    finally:
        for lock in folder.rglob("fetcher.lock"):
            with contextlib.suppress(ProcessLookupError, ValueError):
                pid = int(lock.read_text())
                os.kill(pid, signal.SIGKILL)
                assert all_ended([pid])

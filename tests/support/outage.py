"""A network that is gone for a while in the middle of an epoch, for every way to load a remote set."""

from __future__ import annotations

import hashlib
import itertools
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch.utils.data

from feeder.dataset.shards import ShardDataset
from feeder.loader.dataloader import DataLoader
from feeder.order.lanes import Lanes
from feeder.transforms import CenterCrop, Compose
from tests.support.fault_proxy import FaultProxy, Faults

__all__ = ["Survived", "run_outage"]


class Survived(NamedTuple):
    """An epoch of one way to load with an outage in it.

    Attributes:
        batches: Number of batches that were compared with those of the local copy.
        wrong: Number of those that differed or were missing.
        longest_wait_s: Longest time between two batches.
        retries: Number of requests that were repeated.
        replaced_workers: Number of workers that were taken for ones that hang.
    """

    batches: int
    wrong: int
    longest_wait_s: float
    retries: int
    replaced_workers: int


def run_outage(
    local: Path,
    url: str,
    proxy: FaultProxy,
    cache: Path,
    *,
    seconds: float,
    batch_size: int = 8,
    lanes: Lanes | None = None,
    **options: Any,
) -> dict[str, Survived]:
    """Loads a remote set in every way at once, each with a cache of its own, and ends all connections for a while.

    Args:
        local: A local copy of the set.
        url: The set, to which the environment leads by way of the proxy.
        proxy: The proxy.
        cache: An empty folder.
        seconds: Length of the outage.
        batch_size: Of all loaders.
        lanes: Of feeder's own order.
        options: Further options of feeder's loaders.
    """
    lanes = lanes or Lanes(2, 8)

    def loaders(path: str, *, is_remote: bool) -> Iterator[tuple[str, ShardDataset, Any]]:
        for name in ("fast", "generic", "in the trainer", "torch's"):
            place = cache / name.replace(" ", "-") if is_remote else None
            data = ShardDataset(path, Compose([CenterCrop(32)]), ["key"], cache_dir=place)
            yield name, data, _loader(name, data, batch_size, lanes, options)

    expected = {name: list(_digests(loader)) for name, _, loader in loaders(str(local), is_remote=False)}
    sets: dict[str, ShardDataset] = {}
    iterators: dict[str, Iterator[Any]] = {}
    made: dict[str, Any] = {}
    found: dict[str, list[str]] = {}
    for name, data, loader in loaders(url, is_remote=True):
        sets[name], made[name] = data, loader
        iterators[name] = iter(loader)
        found[name] = list(_digests(itertools.islice(iterators[name], 1)))
    for path in cache.glob("*/*/*.tar"):
        path.unlink()  # what was cached has to come again
    proxy.set(Faults(offline=True))
    began = time.monotonic()
    with ThreadPoolExecutor() as threads:
        rests = {name: threads.submit(_timed, iterator) for name, iterator in iterators.items()}
        while time.monotonic() - began < seconds:
            time.sleep(0.1)
        proxy.set(Faults())
        outcomes = {}
        for name, rest in rests.items():
            digests, longest_s = rest.result()
            counts = sets[name].reader.mirror.counts()  # type: ignore[attr-defined]
            outcomes[name] = Survived(
                len(expected[name]),
                sum(a != b for a, b in itertools.zip_longest(expected[name], found[name] + digests)),
                longest_s,
                counts["retries"],
                len(made[name].stats()["replaced_workers"]) if hasattr(made[name], "stats") else 0,
            )
    for loader in made.values():
        if isinstance(loader, DataLoader):
            loader.close()
    return outcomes


def _loader(name: str, data: ShardDataset, batch_size: int, lanes: Lanes, options: dict[str, Any]) -> Any:
    """Returns a loader of a kind."""
    if name == "torch's":
        return torch.utils.data.DataLoader(data, batch_size, num_workers=2)
    if name == "generic":
        loader = DataLoader(_Plain(data), batch_size, num_workers=2, **options)
        assert loader.path == "generic"
        return loader
    options = options | {"shuffle": lanes, "seed": 1}  # the caller's go to the generic loader as they are
    if name == "fast":
        return DataLoader(data, batch_size, num_workers=2, **options)
    return DataLoader(data, batch_size, num_workers=0, **options | {"worker_options": None})


class _Plain(torch.utils.data.Dataset[Any]):
    """A dataset of the caller's own, which reads from feeder's."""

    def __init__(self, data: ShardDataset) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, i: int) -> Any:
        return self.data[i]


def _digests(batches: Iterable[Any]) -> Iterator[str]:
    for images, labels, keys in batches:
        data = np.ascontiguousarray(images).tobytes() + np.ascontiguousarray(labels).tobytes()
        yield hashlib.sha256(data + repr(list(keys)).encode()).hexdigest()


def _timed(batches: Iterator[Any]) -> tuple[list[str], float]:
    """Returns the digests of batches, and the longest time that one took."""
    found, longest_s, last = [], 0.0, time.monotonic()
    for digest in _digests(batches):
        now = time.monotonic()
        longest_s, last = max(longest_s, now - last), now
        found.append(digest)
    return found, longest_s

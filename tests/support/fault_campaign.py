"""Epochs of a remote set behind a proxy that spoils answers, each batch compared with the local copy's."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from feeder.dataset.shards import ShardDataset
from feeder.loader.dataloader import DataLoader
from feeder.order.lanes import Lanes
from feeder.transforms import Compose, RandomHorizontalFlip, RandomResizedCrop
from tests.support.batches import same_batches
from tests.support.fault_proxy import FaultProxy, Faults

__all__ = ["KINDS", "Outcome", "run_campaign"]

KINDS = ("503", "reset", "drop", "cut", "stall", "flip")


class Outcome(NamedTuple):
    """The result of a campaign.

    Attributes:
        batches: Number of batches that were compared.
        wrong: Number of those that differed.
        requests: Number of requests to the proxy.
        faults: Number of its faults, by kind.
        seconds: Time of each epoch.
        counts: The loader's counts of the store.
    """

    batches: int
    wrong: int
    requests: int
    faults: dict[str, int]
    seconds: list[float]
    counts: dict[str, Any]


def run_campaign(
    local: Path,
    url: str,
    proxy: FaultProxy,
    cache: Path,
    *,
    epochs: int,
    rate: float,
    seed: int,
    cache_bytes: int | None,
    workers: int,
    batch_size: int,
    lanes: Lanes,
    image_size: int = 64,
    note: Callable[[str], object] = lambda text: None,
) -> Outcome:
    """Loads a remote set and its local copy side by side.

    Args:
        local: The copy.
        url: The set, to which the environment leads by way of the proxy.
        proxy: The proxy.
        cache: An empty folder.
        epochs: Number of epochs.
        rate: Share of the requests that fails by each kind.
        seed: Of order and faults.
        cache_bytes: Most that the cache may hold; with less than the set every epoch downloads.
        workers, batch_size, lanes, image_size: Of both loaders.
        note: Gets a line for each epoch.
    """
    recipe = Compose([RandomResizedCrop(image_size), RandomHorizontalFlip()])
    proxy.set(Faults(dict.fromkeys(KINDS, rate), seed=seed))
    options: dict[str, Any] = {"shuffle": lanes, "num_workers": workers, "seed": seed, "persistent_workers": True}
    here = DataLoader(ShardDataset(local, recipe, fields=("index",)), batch_size, **options)
    remote = ShardDataset(url, recipe, fields=("index",), cache_dir=cache, cache_bytes=cache_bytes)
    there = DataLoader(remote, batch_size, **options)
    batches, wrong, seconds = 0, 0, []
    for epoch in range(epochs):
        started = time.perf_counter()
        for expected, found in zip(here, there, strict=True):
            batches += 1
            wrong += not same_batches([expected], [found])
        seconds.append(time.perf_counter() - started)
        note(f"epoch {epoch + 1}: {batches} batches, {wrong} wrong, {seconds[-1]:.1f} s, faults {proxy.counts()}")
    counts = there.stats().get("remote", {})
    for loader in (here, there):
        loader.close()
    return Outcome(batches, wrong, len(proxy.requests()), proxy.counts(), seconds, counts)

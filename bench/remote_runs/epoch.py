"""Epochs of feeder over one set, for a consumer of a fixed rate: ``python -m bench.remote_runs.epoch JSON``.

Prints a line of JSON for each epoch, and begins the next one when a line comes on its standard input.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import signal
import sys
import time
from dataclasses import dataclass
from typing import Any

import torch

from bench.standin import StandIn
from feeder.dataset.shards import ShardDataset
from feeder.loader.dataloader import DataLoader
from feeder.order.lanes import Lanes
from feeder.system.process_usage import cpu_seconds, process_tree
from feeder.transforms import Compose, RandomHorizontalFlip, RandomResizedCrop

SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER


@dataclass(frozen=True)
class Run:
    """A job of one rank.

    Attributes:
        place: URL or path of the set.
        cache: The cache folder of a remote set; "" for a local one.
        cache_bytes: Most that the cache may hold; None: what the disk has.
        batch_size, workers: Of the loader.
        image_size: Of the images of a batch, px.
        rate: Images a second that the consumer takes.
        lanes, window: Of the order.
        rank, world_size: As the loader's.
        epochs: Number of epochs.
        start: Share of the first epoch that is left out, as by a run that was interrupted.
        checked: True to give a digest of all pixels and labels.
    """

    place: str
    cache: str = ""
    cache_bytes: int | None = None
    batch_size: int = 64
    workers: int = 2
    image_size: int = 224
    rate: float = 500.0
    lanes: int = 4
    window: int = 256
    rank: int = 0
    world_size: int = 1
    epochs: int = 1
    start: float = 0.0
    checked: bool = False


def epochs(run: Run) -> None:
    recipe = Compose([RandomResizedCrop(run.image_size), RandomHorizontalFlip()])
    options: dict[str, Any] = {"cache_dir": run.cache, "cache_bytes": run.cache_bytes} if run.cache else {}
    dataset = ShardDataset(run.place, recipe, **options)
    loader = DataLoader(
        dataset,
        run.batch_size,
        shuffle=Lanes(run.lanes, run.window),
        num_workers=run.workers,
        persistent_workers=True,
        seed=1,
        rank=run.rank,
        world_size=run.world_size,
    )
    if run.start:
        state = loader.state_dict()
        batches = int(run.start * len(loader)) * run.world_size
        loader.load_state_dict(state | {"consumed": batches * run.batch_size})
    for _ in range(run.epochs):
        sys.stdin.readline()
        print(json.dumps(epoch(run, loader)), flush=True)
    loader.close()
    for pid in process_tree()[1:]:  # the fetcher would wait for others a while
        os.kill(pid, signal.SIGKILL)


def epoch(run: Run, loader: DataLoader[Any]) -> dict[str, Any]:
    consumer = StandIn()
    consumer.scale *= run.rate / consumer.images_per_s(run.batch_size)
    digest, images, first_s = hashlib.blake2b(digest_size=16), 0, 0.0
    started, cpu_s = time.perf_counter(), cpu_seconds()
    for pixels, labels in loader:
        first_s = first_s or time.perf_counter() - started
        images += len(pixels)
        if run.checked:
            digest.update(pixels.numpy().data)
            digest.update(labels.numpy().data)
        consumer.step(len(pixels))
    consumer.wait()
    return {
        "images": images,
        "seconds": time.perf_counter() - started,
        "cpu_s": cpu_seconds() - cpu_s,
        "first_batch_s": first_s,
        "digest": digest.hexdigest(),
        "remote": loader.stats().get("remote"),
    }


if __name__ == "__main__":
    # The process that fetches is nobody's child. Here it becomes this one's, and its CPU time is counted.
    ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)
    torch.set_num_threads(1)
    epochs(Run(**json.loads(sys.argv[1])))

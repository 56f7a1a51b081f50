"""The same batches through Ray: by tasks whose results lie in its object store, or by Ray Data.

    python -m bench.service_runs.ray_batches (store|data) ADDRESS SHARDS SIZE BATCH EPOCHS

Each node makes the parts that the input service makes, with the same native call. Prints a JSON object: images,
seconds, and a digest of the batches' first images.
"""

from __future__ import annotations

import hashlib
import json
import logging
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import ray

import feeder
from feeder import transforms as T
from feeder.loader.fast.sample_maker import Work
from feeder.loader.slots.image_slots import Samples, SlotView

_PART = 64
_AHEAD = 8


def make_part(shards: str, size: int, seed: int, epoch: int, ids: Any, works: dict[str, Work] = {}) -> Any:  # noqa: B006
    """Returns uint8 [N, 3, size, size]. A node's process opens the set once."""
    if shards not in works:
        recipe = T.Compose([T.RandomResizedCrop(size), T.RandomHorizontalFlip()])
        dataset = feeder.ShardDataset(shards, transform=recipe)
        works[shards] = Work(dataset.reader, dataset.recipe, "cpu", seed=seed)
    work = works[shards]
    view = SlotView.new(work.layout(len(ids)), Samples.of(ids, ids))
    work.run(epoch, view)
    return view.images[0]


def by_store(shards: str, size: int, samples: int, batch: int, epochs: int) -> Iterator[Any]:
    task = ray.remote(num_cpus=1)(make_part)
    starts = [(epoch, first) for epoch in range(epochs) for first in range(0, samples, batch)]
    waiting: list[list[Any]] = []
    for epoch, first in starts:
        ids = np.arange(first, min(samples, first + batch))
        parts = [ids[k : k + _PART] for k in range(0, len(ids), _PART)]
        waiting.append([task.remote(shards, size, 0, epoch, part) for part in parts])
        if len(waiting) == _AHEAD:
            yield np.concatenate(ray.get(waiting.pop(0)))
    for refs in waiting:
        yield np.concatenate(ray.get(refs))


def by_data(shards: str, size: int, samples: int, batch: int, epochs: int) -> Iterator[Any]:
    import ray.data

    context = ray.data.DataContext.get_current()
    context.execution_options.preserve_order = True
    context.enable_progress_bars = False
    for epoch in range(epochs):

        def make(rows: dict[str, Any], epoch: int = epoch) -> dict[str, Any]:
            return {"image": make_part(shards, size, 0, epoch, rows["id"])}

        dataset = ray.data.range(samples, override_num_blocks=max(1, samples // _PART))
        for found in dataset.map_batches(make, batch_size=_PART).iter_torch_batches(batch_size=batch):
            yield found["image"].numpy()


def main() -> None:
    way, address, shards, size, batch, epochs = sys.argv[1], sys.argv[2], sys.argv[3], *map(int, sys.argv[4:7])
    ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    samples = len(feeder.ShardDataset(shards))
    run = {"store": by_store, "data": by_data}[way]
    for _ in run(shards, size, min(samples, 2 * _PART), batch, 1):  # the nodes' processes have started
        pass
    digest, images, began = hashlib.sha256(), 0, time.perf_counter()
    for found in run(shards, size, samples, batch, epochs):
        digest.update(found[0].tobytes())
        images += len(found)
    print(json.dumps({"images": images, "seconds": time.perf_counter() - began, "digest": digest.hexdigest()}))


if __name__ == "__main__":
    main()

"""Measures the time to resume in the middle of an epoch.

Measured is the time from loading the state to the first batch, in a new loader, at several places of an epoch. With
torch's DataLoader, users have to start the epoch again and discard the batches already seen. Both load the same images
with the same work, with two workers by default. feeder's first batch after the resume is checked.

    python -m bench.resume --shards SHARDS [--places 0,0.5,0.9] [--workers 2] [--repeats 5] [--json OUT]
"""

from __future__ import annotations

import time
from typing import Any

import torch

from bench.smoke import arguments
from feeder.dataset.shards import ShardDataset
from feeder.loader.dataloader import DataLoader
from feeder.tools.bench.bench_options import BenchOptions
from feeder.tools.bench.pillow import PillowDataset
from feeder.tools.bench.result_file import interleave, save, spread
from feeder.tools.presets import preset
from feeder.tools.terminal import table

BATCH = 16


def feeder_loader(shards: str, workers: int) -> DataLoader[Any]:
    dataset = ShardDataset(shards, preset("train", "uint8", 224), ("index",))
    return DataLoader(dataset, BATCH, shuffle=True, num_workers=workers, seed=1)


def resumed(shards: str, workers: int, state: dict[str, Any], expected: torch.Tensor) -> float:
    """Returns the seconds from loading a state to the next batch."""
    loader = feeder_loader(shards, workers)
    began = time.perf_counter()
    loader.load_state_dict(state)
    images, *_ = next(iter(loader))
    took = time.perf_counter() - began
    loader.close()
    if not torch.equal(images, expected):
        raise SystemExit("the batch after the resume is not the one that would have followed")
    return took


def skipped(shards: str, workers: int, batches: int) -> float:
    """Returns the seconds that torch's loader takes to reach the same place."""
    dataset = PillowDataset(shards, BenchOptions(dtype="uint8", batch_size=BATCH))
    loader = torch.utils.data.DataLoader(dataset, BATCH, shuffle=True, num_workers=workers)
    began = time.perf_counter()
    iterator = iter(loader)
    for _ in range(batches + 1):
        next(iterator)
    return time.perf_counter() - began


def main() -> None:
    options = arguments(
        __doc__, "resume", smoke={"places": "0,0.5", "workers": 1, "repeats": 1},
        shards=None, places="0,0.5,0.9", workers=2, repeats=5,
    )  # fmt: skip
    loader = feeder_loader(options.shards, options.workers)
    steps = {float(place): int(float(place) * len(loader)) for place in options.places.split(",")}
    states: dict[int, tuple[dict[str, Any], torch.Tensor]] = {}
    state = loader.state_dict()
    for step, (images, *_) in enumerate(loader):
        if step in steps.values():
            states[step] = state, images.clone()
        state = loader.state_dict()
    loader.close()
    results: dict[str, Any] = {"first_batch_s": {"feeder": {}, "torch": {}}, "batches": len(loader)}
    for place, step in steps.items():
        rivals = {
            "feeder": lambda step=step: resumed(options.shards, options.workers, *states[step]),
            "torch": lambda step=step: skipped(options.shards, options.workers, step),
        }
        for name, values in interleave(rivals, options.repeats).items():
            results["first_batch_s"][name][f"at {place:g}"] = spread(values)
    lines = [["seconds to the next batch", *(f"at {place:g}" for place in steps)]]
    for name, cells in results["first_batch_s"].items():
        lines.append([name, *(f"{cell['median']:.3f}" for cell in cells.values())])
    print(table(lines))
    print(f"written to {save('resume', results, options.json)}")


if __name__ == "__main__":
    main()

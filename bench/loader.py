"""Is the loader itself out of the way?

generic    Batches/s and CPU time of feeder beside torch's DataLoader for a dataset of ready float tensors
           [3, 224, 224], batch 256, 2 workers. Equal: dataset, collate function, workers, one epoch to warm up.
decode     Images/s of 2 workers beside 2 processes that each run a plain decode loop over half of the samples, without
           a loader. Equal: samples, recipe, backend, reader, part size.
outside    Share of a worker's busy time that is neither drawing nor decoding.
trainer    CPU time of the trainer's process for a batch of 256 (fast path).
soak       Epochs of a small set with workers killed at random moments: memory and descriptors at the start and the end,
           and whether every epoch was exact.

    python bench/loader.py --shards SHARDS [--repeats 7] [--only generic,decode,outside,trainer,soak] [--json OUT]
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import random
import resource
import signal
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from feeder.dataset import ShardDataset
from feeder.loader import DataLoader
from feeder.measure import interleave, save, spread
from feeder.transforms import Compose, RandomHorizontalFlip, RandomResizedCrop

RECIPE = Compose([RandomResizedCrop(224), RandomHorizontalFlip()])

# A run goes over the samples so often: the start and the end of an epoch must not decide.
_PASSES = 12


class Ready(Dataset[Any]):
    """Float tensors that are there already."""

    def __init__(self, count: int) -> None:
        self.tensors = torch.randn(32, 3, 224, 224)
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        return self.tensors[i % 32], i


def generic(repeats: int) -> dict[str, Any]:
    dataset = Ready(256 * 12)
    loaders: dict[str, Any] = {
        "torch": torch.utils.data.DataLoader(dataset, 256, num_workers=2, persistent_workers=True),
        "feeder": DataLoader(dataset, 256, num_workers=2, persistent_workers=True),
    }
    for loader in loaders.values():
        for _ in loader:
            pass
    cpu: dict[str, list[float]] = {name: [] for name in loaders}

    def run(name: str) -> float:
        loader = loaders[name]
        before, started = _loader_cpu_s(loader), time.perf_counter()
        count = sum(1 for _ in loader)
        seconds = time.perf_counter() - started
        cpu[name].append((_loader_cpu_s(loader) - before) / count)
        return count / seconds

    found = interleave({name: lambda name=name: run(name) for name in loaders}, repeats)  # type: ignore[misc]
    return {
        "batches_per_s": {name: spread(values) for name, values in found.items()},
        "cpu_s_per_batch": {name: spread(values) for name, values in cpu.items()},
        "speed_ratio": statistics.median(found["feeder"]) / statistics.median(found["torch"]),
        "cpu_ratio": statistics.median(cpu["feeder"]) / statistics.median(cpu["torch"]),
    }


def _loader_cpu_s(loader: Any) -> float:
    """CPU time of this process and of the loader's running workers."""
    ticks = 0
    for worker in loader._iterator._workers:
        fields = Path(f"/proc/{worker.pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")


def _decode_loop(path: str, half: int, start: Any, done: Any) -> None:
    dataset = ShardDataset(path, RECIPE)
    work = dataset.work()
    ids = np.tile(np.arange(half, len(dataset), 2), _PASSES)
    images = np.empty((32, 3, 224, 224), np.uint8)
    labels = np.empty(32, np.int64)
    while start.recv():
        for first in range(0, len(ids), 32):
            part = ids[first : first + 32]
            work.run(0, part, part, images[: len(part)], labels[: len(part)])
        done.send(len(ids))


def decode(path: str, repeats: int) -> dict[str, Any]:
    context = multiprocessing.get_context("forkserver")
    ends = []
    for half in range(2):
        start_read, start_write = context.Pipe(False)
        done_read, done_write = context.Pipe(False)
        context.Process(target=_decode_loop, args=(path, half, start_read, done_write), daemon=True).start()
        ends.append((start_write, done_read))

    def loops() -> float:
        started = time.perf_counter()
        for start, _ in ends:
            start.send(True)
        count = sum(done.recv() for _, done in ends)
        return count / (time.perf_counter() - started)

    dataset = ShardDataset(path, RECIPE)
    sampler = list(range(len(dataset))) * _PASSES
    loader = DataLoader(dataset, batch_size=64, sampler=sampler, num_workers=2, persistent_workers=True)

    def through_loader() -> float:
        started = time.perf_counter()
        count = sum(len(labels) for _, labels in loader)
        return count / (time.perf_counter() - started)

    loops()
    through_loader()
    found = interleave({"loops": loops, "loader": through_loader}, repeats)
    for start, _ in ends:
        start.send(False)
    ratios = [b / a for a, b in zip(found["loops"], found["loader"], strict=True)]
    return {"images_per_s": {n: spread(v) for n, v in found.items()}, "ratio": spread(ratios)}


def outside(path: str) -> dict[str, Any]:
    loader = DataLoader(ShardDataset(path, RECIPE), batch_size=64, num_workers=1, persistent_workers=True)
    for _ in loader:  # opens the shards, and takes the memory that is used from then on
        pass
    before = loader.stats()
    for _ in range(8):
        for _ in loader:
            pass
    after = loader.stats()
    spent = {name: after[name] - before[name] for name in ("busy_ns", "decode_ns", "read_ns", "parts")}
    return {
        "backend": after["backend"],
        "outside_decode": (spent["busy_ns"] - spent["decode_ns"]) / spent["busy_ns"],
        "reading": spent["read_ns"] / spent["busy_ns"],
        "ms_per_part": spent["busy_ns"] / spent["parts"] / 1e6,
    }


def trainer(path: str, repeats: int) -> dict[str, Any]:
    sampler = [i % len(ShardDataset(path)) for i in range(256 * 8)]
    loader = DataLoader(ShardDataset(path, RECIPE), 256, sampler=sampler, num_workers=2, persistent_workers=True)
    for _ in loader:
        pass
    values = []
    for _ in range(repeats):
        iterator = iter(loader)
        before = time.process_time()
        count = sum(1 for _ in iterator)
        values.append(1000 * (time.process_time() - before) / count)
    return {"cpu_ms_per_batch_of_256": spread(values)}


def soak(path: str, epochs: int) -> dict[str, Any]:
    dataset = ShardDataset(path, Compose([RandomResizedCrop(32)]), fields=("index",))
    loader = DataLoader(dataset, batch_size=16, shuffle=True, num_workers=2)
    chance = random.Random(0)
    exact = killed = 0
    marks = []
    for epoch in range(epochs):
        at = chance.randrange(len(loader))
        seen: list[int] = []
        for step, (_, _, index) in enumerate(loader):
            seen += index.tolist()
            pids = loader.worker_pids()
            if step == at and pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(chance.choice(pids), signal.SIGKILL)
                    killed += 1
        exact += sorted(seen) == list(range(len(dataset)))
        if epoch in (epochs // 10, epochs - 1):
            status = Path("/proc/self/status").read_text().splitlines()
            rss = next(int(line.split()[1]) for line in status if line.startswith("RssAnon"))
            marks.append({"epoch": epoch, "anonymous_kib": rss, "descriptors": len(os.listdir("/proc/self/fd"))})
    return {"epochs": epochs, "exact": exact, "killed": killed, "marks": marks}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--shards", required=True)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--only", default="generic,decode,outside,trainer,soak")
    parser.add_argument("--json", default="bench/results/loader.json")
    args = parser.parse_args()
    runs = {
        "generic": lambda: generic(args.repeats),
        "decode": lambda: decode(args.shards, args.repeats),
        "outside": lambda: outside(args.shards),
        "trainer": lambda: trainer(args.shards, args.repeats),
        "soak": lambda: soak(args.shards, args.epochs),
    }
    results: dict[str, Any] = {}
    for name in args.only.split(","):
        results[name] = runs[name]()
        print(name, results[name])
    results["peak_kib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(save("loader", results, args.json))


if __name__ == "__main__":
    main()

"""Measures the cost of the loader itself.

generic    Batches/s and CPU time of feeder beside torch's DataLoader for a dataset of ready float tensors
           [3, 224, 224], batch 256, 2 workers. Equal: dataset, collate function, workers, one epoch to warm up.
decode     Images/s of 2 workers beside 2 processes that each run a plain decode loop over half of the samples, without
           a loader. Equal: samples, recipe, backend, reader, part size.
outside    Share of a worker's busy time outside of drawing and decoding; the part of it spent reading; and, for
           comparison, the time of plain copies of as many bytes from memory in no cache.
rows       A worker's time and bytes read per sample with an index that has the places of rows, beside the same shards
           with an index without them, where files are read whole; and the same for reading with an empty page cache.
runner     Microseconds an image that a worker takes to make parts of 64 and of 4 images of the same set, packed, beside
           decoding and transforming them, as its meters count these, and beside a bare loop of preadv for the same
           ranges. Goals: 6 us with parts of 64, 10 us with parts of 4.
trainer    CPU time of the trainer's process for a batch of 256 (fast path), with the order from a sampler; and CPU time
           of such a batch's ids in the loader's own order of 1,281,167 shuffled samples.
order      CPU time per sample of each way to shuffle 10**10 samples in shards of 2,400 and in shards of 2,000 to 2,800,
           batch 256, and memory of their tables. Warm: each lane of the order has been used in the epoch.
first      Seconds from iter() to the first batch, beside torch's loader with the same start method: small tensors for
           the generic path, images by torch's forkserver for the fast path. Every server is stopped before each
           measurement, so that its start counts. And for many workers and large batches, of float32: with as many slots
           as work and memory need (the default), beside the two for each worker that prefetch_factor=2 asks for.
soak       Epochs of a small set with workers killed at random moments: memory and descriptors at the start and the end,
           and the number of exact epochs.

    python bench/loader.py --shards SHARDS [--repeats 7] [--only generic,decode,...] [--json OUT]
    python -m bench.loader --smoke DIR [--json OUT]    every question once, on DIR/shards, in a few seconds
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import multiprocessing
import os
import random
import resource
import shutil
import signal
import statistics
import sys
import tempfile
import time
import tracemalloc
from dataclasses import dataclass
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from feeder.dataset.base import FeederDataset
from feeder.dataset.shards import ShardDataset
from feeder.decoders.registry import get_decoder
from feeder.decoders.stored_boxes import stored_rows
from feeder.loader.dataloader import DataLoader
from feeder.loader.fast.batch_queue import requests
from feeder.loader.fast.position import EpochProgress, Place
from feeder.loader.fast.sample_maker import Work
from feeder.loader.observe.meter import part_sums
from feeder.loader.observe.stats import stage_table
from feeder.loader.slots.image_slots import Samples, SlotView
from feeder.loader.workers.fork_server import ForkServer
from feeder.order.lanes import Lanes
from feeder.order.sample_order import Order, Window
from feeder.order.split import Split
from feeder.shard.format.index_file import INDEX_NAME
from feeder.shard.format.open_index import open_index
from feeder.shard.format.set_index import SetIndex
from feeder.shard.write.encode import EncodeOptions
from feeder.shard.write.shard_options import ShardOptions
from feeder.shard.write.sharding import shard
from feeder.tools.bench.result_file import interleave, save, spread
from feeder.transforms import Compose, Normalize, RandomHorizontalFlip, RandomResizedCrop, ToDtype
from tests.support.shard_sets import change_samples

RECIPE = Compose([RandomResizedCrop(224), RandomHorizontalFlip()])
_COPY_BYTES = 1 << 30
_IMAGENET = 1_281_167
_RUNNER_GOALS_US = {"64": 6.0, "4": 10.0}  # by the size of a part


@dataclass(frozen=True)
class Extent:
    """Size of the measurement.

    Args:
        repeats: Repeats of every measurement.
        batch_size: Size of the batches of ready tensors and of the trainer's.
        batches: Number of batches in a run.
        passes: Passes over the samples in a run, so that the start and the end of an epoch do not dominate.
        epochs: Epochs of the soak.
        shards: Number of shards of the order.
        methods: Start methods of processes to compare.
        ring_workers: Workers of the loader whose number of slots is compared.
    """

    repeats: int = 7
    batch_size: int = 256
    batches: int = 12
    passes: int = 12
    epochs: int = 200
    shards: int = 4_166_667
    methods: tuple[str, ...] = ("fork", "forkserver", "spawn")
    ring_workers: int = 8


SMOKE = Extent(repeats=1, batch_size=8, batches=2, passes=1, epochs=2, shards=1000, methods=("fork",), ring_workers=2)


class Ready(Dataset[Any]):
    """A dataset of float tensors that are in memory."""

    def __init__(self, count: int) -> None:
        self.tensors = torch.randn(32, 3, 224, 224)
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        return self.tensors[i % 32], i


def generic(extent: Extent) -> dict[str, Any]:
    size = extent.batch_size
    dataset = Ready(size * extent.batches)
    loaders: dict[str, Any] = {
        "torch": torch.utils.data.DataLoader(dataset, size, num_workers=2, persistent_workers=True),
        "feeder": DataLoader(dataset, size, num_workers=2, persistent_workers=True),
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

    found = interleave({name: lambda name=name: run(name) for name in loaders}, extent.repeats)  # type: ignore[misc]
    return {
        "batches_per_s": {name: spread(values) for name, values in found.items()},
        "cpu_s_per_batch": {name: spread(values) for name, values in cpu.items()},
        "speed_ratio": statistics.median(found["feeder"]) / statistics.median(found["torch"]),
        "cpu_ratio": statistics.median(cpu["feeder"]) / statistics.median(cpu["torch"]),
    }


def _loader_cpu_s(loader: Any) -> float:
    """Returns the CPU time of this process and of the loader's running workers."""
    ticks = 0
    for worker in loader._iterator._workers:
        fields = Path(f"/proc/{worker.pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")


def make_work(dataset: FeederDataset) -> Work:
    """Returns the work of a dataset with the backend that "auto" chooses."""
    return Work(dataset.reader, dataset.recipe, get_decoder("auto", dataset.recipe).name, dataset.extras)


def _decode_loop(path: str, half: int, passes: int, start: Any, done: Any) -> None:
    dataset = ShardDataset(path, RECIPE)
    work = make_work(dataset)
    ids = np.tile(np.arange(half, len(dataset), 2), passes)
    images = np.empty((32, 3, 224, 224), np.uint8)
    labels = np.empty(32, np.int64)
    while start.recv():
        for first in range(0, len(ids), 32):
            part = ids[first : first + 32]
            work.run(0, SlotView(Samples.of(part, part), labels[: len(part)], (images[: len(part)],)))
        done.send(len(ids))


def decode(path: str, extent: Extent) -> dict[str, Any]:
    context = multiprocessing.get_context("forkserver")
    ends = []
    for half in range(2):
        start_read, start_write = context.Pipe(False)
        done_read, done_write = context.Pipe(False)
        context.Process(
            target=_decode_loop, args=(path, half, extent.passes, start_read, done_write), daemon=True
        ).start()
        ends.append((start_write, done_read))

    def loops() -> float:
        started = time.perf_counter()
        for start, _ in ends:
            start.send(True)
        count = sum(done.recv() for _, done in ends)
        return count / (time.perf_counter() - started)

    dataset = ShardDataset(path, RECIPE)
    sampler = list(range(len(dataset))) * extent.passes
    loader = DataLoader(dataset, batch_size=64, sampler=sampler, num_workers=2, persistent_workers=True)

    def through_loader() -> float:
        started = time.perf_counter()
        count = sum(len(labels) for _, labels in loader)
        return count / (time.perf_counter() - started)

    loops()
    through_loader()
    found = interleave({"loops": loops, "loader": through_loader}, extent.repeats)
    for start, _ in ends:
        start.send(False)
    ratios = [b / a for a, b in zip(found["loops"], found["loader"], strict=True)]
    return {"images_per_s": {n: spread(v) for n, v in found.items()}, "ratio": spread(ratios)}


def outside(path: str, extent: Extent) -> dict[str, Any]:
    loader = DataLoader(ShardDataset(path, RECIPE), batch_size=64, num_workers=1, persistent_workers=True)
    names = ("busy_ns", "decode_ns", "read_ns", "parts", "encoded_bytes", "samples")
    found: dict[str, list[float]] = {"outside_decode": [], "reading": [], "plain_copy": [], "ms_per_part": []}
    memory = np.ones(_COPY_BYTES, np.uint8)
    for repeat in range(extent.repeats + 1):
        before = loader.stats()
        for _ in range(2):
            for _ in loader:
                pass
        after = loader.stats()
        if repeat == 0:  # opens the shards and allocates the memory
            continue
        spent = {name: after[name] - before[name] for name in names}
        copy_ns = spent["samples"] * _copy_ns(memory, spent["encoded_bytes"] // spent["samples"])
        found["outside_decode"].append((spent["busy_ns"] - spent["decode_ns"]) / spent["busy_ns"])
        found["reading"].append(spent["read_ns"] / spent["busy_ns"])
        found["plain_copy"].append(copy_ns / spent["busy_ns"])
        found["ms_per_part"].append(spent["busy_ns"] / spent["parts"] / 1e6)
    return {"backend": after["backend"]} | {name: spread(values) for name, values in found.items()}


def rows(path: str, extent: Extent) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        for file in Path(path).glob("*.tar"):
            os.symlink(file.resolve(), Path(folder) / file.name)
        for file in (*Path(path).glob("*.fidx"), Path(path) / INDEX_NAME):
            shutil.copy(file, folder)
        index_without_rows(Path(folder) / INDEX_NAME)
        options: dict[str, Any] = {"batch_size": 64, "num_workers": 1, "persistent_workers": True}
        paths = {"rows": path, "whole": folder}
        loaders = {name: DataLoader(ShardDataset(where, RECIPE), **options) for name, where in paths.items()}
        read_bytes: dict[str, float] = {}

        def us_a_sample(name: str) -> float:
            loader = loaders[name]
            before = loader.stats()
            for _ in range(2):
                for _ in loader:
                    pass
            after = loader.stats()
            samples = after["samples"] - before["samples"]
            read_bytes[name] = (after["encoded_bytes"] - before["encoded_bytes"]) / samples
            return float(after["busy_ns"] - before["busy_ns"]) / samples / 1000

        for name in loaders:
            us_a_sample(name)
        found = interleave({name: functools.partial(us_a_sample, name) for name in loaders}, extent.repeats)
        ratios = [whole / needed for whole, needed in zip(found["whole"], found["rows"], strict=True)]
        for loader in loaders.values():
            loader.close()
        cold = {name: functools.partial(_cold_read_us, where, extent.passes) for name, where in paths.items()}
        reads = interleave(cold, extent.repeats)
        disk_bytes = {name: _cold_read(where, extent.passes)[1] for name, where in paths.items()}
    return {
        "us_a_sample": {name: spread(values) for name, values in found.items()},
        "ratio": spread(ratios),
        "read_bytes": read_bytes,
        "cold": {
            "read_us_a_sample": {name: spread(values) for name, values in reads.items()},
            "ratio": spread([whole / needed for whole, needed in zip(reads["whole"], reads["rows"], strict=True)]),
            "disk_bytes": disk_bytes,
        },
    }


def _cold_read(path: str, passes: int) -> tuple[float, float]:
    """Returns microseconds and bytes of reading per sample, with the shards dropped from the page cache."""
    work = make_work(ShardDataset(path, RECIPE))
    count = len(work.reader)
    images, labels = np.empty((64, 3, 224, 224), np.uint8), np.empty(64, np.int64)
    before = _disk_bytes()
    for seed in range(passes):
        for tar in Path(path).glob("*.tar"):
            with open(tar, "rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        ids = np.random.default_rng(seed).permutation(count)
        for part in np.array_split(ids, -(-count // 64)):
            view = SlotView(Samples.of(part, part), labels[: len(part)], (images[: len(part)],))
            work.run(0, view)
    spent_ns = part_sums(work.meter.words)["read_ns"]
    return spent_ns / count / passes / 1000, (_disk_bytes() - before) / count / passes


def _cold_read_us(path: str, passes: int) -> float:
    return _cold_read(path, passes)[0]


def _disk_bytes() -> int:
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("read_bytes"))


def index_without_rows(path: Path) -> None:
    """Takes the places of rows in images out of the indexes of a set."""

    change_samples(path, lambda _, samples: [sample._replace(row_data=b"") for sample in samples])


def _copy_ns(memory: np.ndarray[Any, Any], size: int) -> float:
    """Returns the nanoseconds to copy that many bytes from memory that is in no CPU cache."""
    target = np.empty(size, np.uint8)
    places = np.random.default_rng(0).permutation(len(memory) // size - 1)[:500] * size
    started = time.perf_counter_ns()
    for place in places.tolist():
        target[:] = memory[place : place + size]
    return (time.perf_counter_ns() - started) / len(places)


def runner(path: str, extent: Extent) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        packed = str(Path(folder) / "packed")
        shard(path, packed, ShardOptions(encode=EncodeOptions("packed")))
        work, index = make_work(ShardDataset(packed, RECIPE)), open_index(Path(packed) / INDEX_NAME)
        sizes = {name: int(name) for name in _RUNNER_GOALS_US}
        for size in sizes.values():  # opens the shards and allocates the memory
            _runner_us(work, index, size, 0, 1)
        epochs = itertools.count(1)
        found: dict[str, dict[str, list[float]]] = {name: {} for name in sizes}
        for _ in range(extent.repeats):
            epoch = next(epochs)
            for name, size in sizes.items():
                for what, value in _runner_us(work, index, size, epoch, extent.passes).items():
                    found[name].setdefault(what, []).append(value)
        results = {name: {what: spread(values) for what, values in figures.items()} for name, figures in found.items()}
    missed = [
        f"parts of {name}: {results[name]['above_decoding_and_preadv']['median']:.1f} us, the goal is {goal:g} at most"
        for name, goal in _RUNNER_GOALS_US.items()
        if results[name]["above_decoding_and_preadv"]["median"] > goal
    ]
    return {"us_an_image": results, "goals": _RUNNER_GOALS_US, "missed": missed}


def _runner_us(work: Work, index: SetIndex, size: int, epoch: int, passes: int) -> dict[str, float]:
    """Returns microseconds an image of making parts of that size in random order, of what is in it, and of the rest."""
    rng = np.random.default_rng(epoch)
    ids = np.concatenate([rng.permutation(len(index)) for _ in range(passes)])
    images, labels = np.empty((size, 3, 224, 224), np.uint8), np.empty(size, np.int64)
    parts = [part for first in range(0, len(ids), size) if len(part := ids[first : first + size]) == size]
    views = [SlotView(Samples.of(part, part), labels, (images,)) for part in parts]
    before = _made_ns(work)
    started = time.perf_counter_ns()
    for view in views:
        work.run(epoch, view)
    taken_ns = time.perf_counter_ns() - started
    decoded_ns = _made_ns(work) - before
    read_ns = sum(_preadv_ns(_ranges(work, index, part, epoch)) for part in parts)
    us = {"made": taken_ns, "decoded": decoded_ns, "preadv": read_ns}
    us["above_decoding_and_preadv"] = taken_ns - decoded_ns - read_ns
    return {name: value / 1000 / (len(parts) * size) for name, value in us.items()}


def _made_ns(work: Work) -> int:
    """Returns the time that a worker's meters have counted for decoding and transforming."""
    table = stage_table(work.meter.words)
    return sum(table[stage]["total_ns"] for stage in ("decode", "transform") if stage in table)


def _ranges(work: Work, index: SetIndex, ids: np.ndarray[Any, Any], epoch: int) -> list[tuple[str, int, int]]:
    """Returns the (shard, offset, length) of what a part's crops need, in stored order."""
    stored = index.rows(ids)
    known = work.reader.stored(ids)
    assert known is not None
    orientations, sizes = known
    draws = work.recipe.views[0].draw(work.seed, epoch, ids, sizes)
    extents = stored.extents(stored_rows([draws], orientations))
    lengths = stored.length.tolist()
    needed = [(0, 0, length) for length in lengths] if extents is None else extents[:, 1:].tolist()
    ranges = []
    for number, at, (head, begin, end) in zip(stored.shard.tolist(), stored.offset.tolist(), needed, strict=True):
        path = index.shard_path(number)
        ranges += [(path, at, head)] * (head > 0) + [(path, at + begin, end - begin)]
    return sorted(ranges)


def _preadv_ns(ranges: list[tuple[str, int, int]]) -> int:
    """Returns the time of reading ranges of files one after the other into one buffer, in as few instructions."""
    with contextlib.ExitStack() as stack:
        files = {path: stack.enter_context(open(path, "rb")) for path in {path for path, _, _ in ranges}}
        memory, at = memoryview(bytearray(sum(length for _, _, length in ranges))), 0
        reads = []
        for path, offset, length in ranges:
            reads.append((files[path].fileno(), (memory[at : at + length],), offset))
            at += length
        preadv = os.preadv
        started = time.perf_counter_ns()
        for descriptor, buffers, offset in reads:
            preadv(descriptor, buffers, offset)
        return time.perf_counter_ns() - started


def trainer(path: str, extent: Extent) -> dict[str, Any]:
    samples, size = len(ShardDataset(path)), extent.batch_size
    sampler = [i % samples for i in range(size * 8)]
    loader = DataLoader(ShardDataset(path, RECIPE), size, sampler=sampler, num_workers=2, persistent_workers=True)
    for _ in loader:
        pass
    values = []
    for _ in range(extent.repeats):
        iterator = iter(loader)
        before = time.process_time()
        count = sum(1 for _ in iterator)
        values.append(1000 * (time.process_time() - before) / count)
    order_ms = [_order_ms(size) for _ in range(extent.repeats)]
    return {f"cpu_ms_per_batch_of_{size}": spread(values), f"order_ms_per_batch_of_{size}": spread(order_ms)}


def _order_ms(size: int) -> float:
    """Returns the CPU time of a batch's ids, in a shuffled order of as many samples as ImageNet has."""
    batches = requests(EpochProgress(Place(), Split(_IMAGENET, size), order=Order(_IMAGENET, 0, True)))
    before = time.process_time()
    count = sum(1 for _ in itertools.islice(batches, 512))
    return 1000 * (time.process_time() - before) / count


def order(extent: Extent) -> dict[str, Any]:
    """Returns microseconds of CPU time per sample, and MiB."""
    equal = np.full(extent.shards, 2400)
    unequal = np.random.default_rng(0).integers(2000, 2800, extent.shards)
    ways: list[tuple[str, bool | Window | Lanes, np.ndarray[Any, Any]]] = [
        ("full", True, equal),
        ("window", Window(), equal),
        ("lanes", Lanes(block=256), equal),
        ("lanes_unequal_shards", Lanes(block=256), unequal),
    ]
    results: dict[str, Any] = {}
    for name, shuffle, sizes in ways:
        tracemalloc.start()
        whole = Order(int(sizes.sum()), 0, shuffle, sizes)
        batches = requests(EpochProgress(Place(), Split(whole.samples, 256), order=whole))
        for _ in itertools.islice(batches, 64):
            pass
        tables_mib = tracemalloc.get_traced_memory()[0] / 2**20
        tracemalloc.stop()
        values = []
        for _ in range(extent.repeats):
            before = time.process_time()
            count = sum(256 for _ in itertools.islice(batches, 256))
            values.append(1e6 * (time.process_time() - before) / count)
        results[name] = {"us_per_sample": spread(values), "tables_mib": tables_mib}
    return results


class Small(Dataset[Any]):
    """A dataset of samples that cost nothing."""

    def __len__(self) -> int:
        return 1024

    def __getitem__(self, i: int) -> torch.Tensor:
        return torch.full((16,), float(i))


def first(path: str, extent: Extent) -> dict[str, Any]:
    def seconds(cls: Any, dataset: Any, method: str | None, size: int = 16, workers: int = 2, **options: Any) -> float:
        # With a server already running, the wait of a script's first loader would not be measured.
        forkserver._forkserver._stop()  # type: ignore[attr-defined]
        ForkServer._close_shared()
        loader = cls(dataset, batch_size=size, num_workers=workers, multiprocessing_context=method, **options)
        started = time.perf_counter()
        iterator = iter(loader)
        next(iterator)
        taken = time.perf_counter() - started
        del iterator
        return taken

    results: dict[str, Any] = {}
    cases: list[tuple[str, Any, str, str | None]] = [
        (f"generic, {method}", Small(), method, method) for method in extent.methods
    ]
    torchs = "forkserver" if "forkserver" in extent.methods else extent.methods[0]
    cases.append((f"fast path, {torchs}", ShardDataset(path, RECIPE), torchs, None))
    for name, dataset, theirs, ours in cases:
        rivals = {
            "torch": lambda: seconds(torch.utils.data.DataLoader, dataset, theirs),  # noqa: B023
            "feeder": lambda: seconds(DataLoader, dataset, ours),  # noqa: B023
        }
        found = interleave(rivals, extent.repeats)
        results[name] = _beside(found, "torch", "feeder")
    large = ShardDataset(path, Compose([RECIPE, ToDtype("float32"), Normalize((0.5,) * 3, (0.5,) * 3)]))
    options = {"size": extent.batch_size, "workers": extent.ring_workers}
    rings = {
        "two slots for each worker": lambda: seconds(DataLoader, large, None, prefetch_factor=2, **options),
        "slots as needed": lambda: seconds(DataLoader, large, None, **options),
    }
    name = f"fast path, {extent.ring_workers} workers, batches of {extent.batch_size}"
    results[name] = _beside(interleave(rings, extent.repeats), *rings)
    return results


def _beside(found: dict[str, list[float]], rival: str, ours: str) -> dict[str, Any]:
    ratios = [b / a for a, b in zip(found[rival], found[ours], strict=True)]
    return {"s": {name: spread(values) for name, values in found.items()}, "ratio": spread(ratios)}


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
    parser.add_argument("--shards")
    parser.add_argument("--repeats", type=int, default=Extent.repeats)
    parser.add_argument("--epochs", type=int, default=Extent.epochs)
    parser.add_argument("--only", default="generic,decode,outside,rows,runner,trainer,order,first,soak")
    parser.add_argument("--smoke", metavar="DIR", help="everything once, at the smallest size, on DIR/shards")
    parser.add_argument("--json", default="bench/results/loader.json")
    args = parser.parse_args()
    if (args.shards is None) == (args.smoke is None):
        parser.error("one of --shards and --smoke is needed")
    shards = args.shards or str(Path(args.smoke) / "shards")
    extent = SMOKE if args.smoke else Extent(repeats=args.repeats, epochs=args.epochs)
    runs = {
        "generic": lambda: generic(extent),
        "decode": lambda: decode(shards, extent),
        "outside": lambda: outside(shards, extent),
        "rows": lambda: rows(shards, extent),
        "runner": lambda: runner(shards, extent),
        "trainer": lambda: trainer(shards, extent),
        "order": lambda: order(extent),
        "first": lambda: first(shards, extent),
        "soak": lambda: soak(shards, extent.epochs),
    }
    results: dict[str, Any] = {}
    for name in args.only.split(","):
        results[name] = runs[name]()
        print(name, results[name])
    results["peak_kib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(save("loader", results, args.json))


if __name__ == "__main__":
    main()

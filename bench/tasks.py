"""Measures whole tasks beside the pipelines that people have for them, on one core and on two.

webdataset     A webdataset pipeline with feeder.wds.decoder behind ``.listed(64)``, or on single samples, beside one
               with Pillow: tars of the images as they are, RandomResizedCrop(224), flip, normalize to float32, batches
               of 64.

Equal in each task: the files (in the page cache), the ops, the batches, the worker processes: none on one core, two on
two cores, to which the whole process tree is held. The rivals run in turn, and each figure is of the time between two
batches, behind the start. Ratios are of samples per CPU-second, within a turn; on an otherwise idle machine these are
samples per second.

    python -m bench.tasks --images IMAGES [--only NAMES] [--repeats 5] [--seconds 5] [--json OUT]

--images is a folder of class folders of JPEGs. --only names tasks, separated by commas.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import tempfile
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

import feeder
from bench.smoke import arguments
from feeder.shard.write.encode import EncodeOptions
from feeder.shard.write.options import ShardOptions
from feeder.shard.write.sharding import shard
from feeder.system.process_usage import cpu_seconds
from feeder.tools.bench.options import BenchOptions
from feeder.tools.bench.pillow import preprocess
from feeder.tools.bench.result_file import save, spread
from feeder.tools.presets import preset
from feeder.tools.terminal import table

CORES = (1, 2)
_SHARDS = 8  # plenty for two workers
_WARM_BATCHES = 4  # behind them a loader's workers are at work, and what it has ready is what it makes

# Yields the number of samples of each batch, without end; closing it ends what it started.
Feed = Callable[[], Generator[int]]


class Setting(NamedTuple):
    """The conditions of a measurement.

    Attributes:
        images: The folder of images.
        made: A folder for what is made of them, kept until the end.
        workers: Worker processes.
        image_size: Height and width of a sample, pixels.
        batch_size: Samples in a batch.
    """

    images: str
    made: Path
    workers: int
    image_size: int
    batch_size: int

    def tars(self) -> list[str]:
        """WebDataset tars of the images as they are."""
        out = self.made / "tars"
        if not out.exists():
            count = sum(path.is_file() for path in Path(self.images).rglob("*"))
            shard(
                self.images,
                str(out),
                ShardOptions(encode=EncodeOptions("keep"), samples_per_shard=-(-count // _SHARDS)),
            )
        return sorted(map(str, out.glob("*.tar")))


class Task(NamedTuple):
    """A task.

    Attributes:
        feeds: Returns the rivals by name; feeder's comes first.
        goals: The least ratio of feeder's samples per CPU-second to those of some others.
    """

    feeds: Callable[[Setting], dict[str, Feed]]
    goals: dict[str, float]


def webdataset(setting: Setting) -> dict[str, Feed]:
    import webdataset as wds

    size = setting.image_size
    pillow = functools.partial(preprocess, options=BenchOptions(image_size=size, preset="train", dtype="float32"))

    def feed(name: str) -> Generator[int]:
        source = wds.WebDataset(setting.tars(), shardshuffle=False)
        decoder = feeder.wds.decoder(preset("train", "float32", size))
        if name == "feeder":
            batches = source.listed(setting.batch_size).map(decoder).to_tuple("jpg")
        else:
            source = source.map_dict(jpg=pillow) if name == "Pillow" else source.map(decoder)
            batches = source.to_tuple("jpg").batched(setting.batch_size)
        for (images,) in wds.WebLoader(batches.repeat(), batch_size=None, num_workers=setting.workers):
            if images.shape[1:] != (3, size, size) or images.dtype != torch.float32:
                raise SystemExit(f"{name}: a batch is {images.dtype} {list(images.shape)}")
            yield len(images)

    return {name: functools.partial(feed, name) for name in ("feeder", "feeder, one by one", "Pillow")}


TASKS = {"webdataset": Task(webdataset, {"Pillow": 3.0})}


@contextlib.contextmanager
def held_to(cores: int) -> Iterator[None]:
    """Holds this process and those that it starts to the first of its cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(before)[:cores])
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def rates(feed: Feed, seconds: float) -> tuple[float, float]:
    """Returns samples per second and per CPU-second."""
    batches = feed()
    try:
        for _ in range(_WARM_BATCHES):
            next(batches)
        samples, started, started_cpu = 0, time.perf_counter(), cpu_seconds()
        while (took := time.perf_counter() - started) < seconds or not samples:
            samples += next(batches)
        took_cpu = max(cpu_seconds() - started_cpu, 0.01)
        return samples / took, samples / took_cpu
    finally:
        batches.close()
        gc.collect()  # webdataset leaves its files and workers to the garbage collector


def measure(task: Task, setting: Setting, repeats: int, seconds: float) -> dict[str, Any]:
    feeds = task.feeds(setting)
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in feeds}
    for turn in range(repeats):
        for name, feed in feeds.items():
            found[name].append(rates(feed, seconds))
            print(f"  {turn + 1}/{repeats} {name}: {found[name][-1][1]:.0f} samples/CPU-s", flush=True)
    ours, *others = feeds
    per_cpu_s = {name: [each for _, each in pairs] for name, pairs in found.items()}
    ratios = {name: [a / b for a, b in zip(per_cpu_s[ours], per_cpu_s[name], strict=True)] for name in others}
    return {
        "samples_per_s": {name: spread([each for each, _ in pairs]) for name, pairs in found.items()},
        "samples_per_cpu_s": {name: spread(values) for name, values in per_cpu_s.items()},
        "ratio": {name: spread(values) for name, values in ratios.items()},
        "goals": task.goals,
    }


def main() -> None:
    smoke = {"repeats": 1, "seconds": 0.01, "image_size": 32, "batch_size": 4}
    sizes: dict[str, Any] = {"image_size": 224, "batch_size": 64}
    options = arguments(__doc__, "tasks", smoke, images=None, only="", repeats=5, seconds=5.0, **sizes)
    names = options.only.split(",") if options.only else list(TASKS)
    torch.set_num_threads(1)
    result: dict[str, Any] = {}
    rows = [["task", "cores", "rival", "samples/CPU-s", "ratio", "goal"]]
    with tempfile.TemporaryDirectory(prefix="feeder-tasks-") as made:
        for name in names:
            result[name] = {}
            for cores in CORES[: len(os.sched_getaffinity(0))]:
                print(f"{name}, cores: {cores}", flush=True)
                workers = 0 if cores == 1 else cores
                setting = Setting(options.images, Path(made), workers, options.image_size, options.batch_size)
                with held_to(cores):
                    found = measure(TASKS[name], setting, options.repeats, options.seconds)
                result[name][f"cores_{cores}"] = found
                for rival, rate in found["samples_per_cpu_s"].items():
                    ratio = found["ratio"].get(rival)
                    text = "" if ratio is None else f"{ratio['median']:.2f} ({ratio['min']:.2f} to {ratio['max']:.2f})"
                    rows.append(
                        [name, str(cores), rival, f"{rate['median']:.0f}", text, str(found["goals"].get(rival, ""))]
                    )
    print(table(rows))
    print(f"written to {save('tasks', result, options.json)}")


if __name__ == "__main__":
    main()

"""Measures whole tasks beside the pipelines that people have for them, on one core and on two.

webdataset     A webdataset pipeline with feeder.wds.decoder behind ``.listed(64)``, or on single samples, beside one
               with Pillow: tars of the images as they are, RandomResizedCrop(224), flip, normalize to float32, batches
               of 64.
clip           Images and captions of 4 to 40 words, whose 77 token ids a byte-level BPE of the ``tokenizers`` library
               makes, trained here: fields.Tokens on seekable shards, beside webdataset with Pillow and the same
               tokenizer on tars of the images as they are. RandomResizedCrop(224, scale=(0.9, 1)), as open_clip has it,
               normalize. The share of CPU time that the tokenizer alone takes is reported.
clip-crops     The same with RandomResizedCrop's own scale, (0.08, 1).
segmentation   Images and palette PNG masks of their size, from feeder.ShardDataset with T.Mask, beside torch's loader
               with torchvision's v2 on tensors, if it is installed, and with Pillow, which does the same:
               RandomResizedCrop(224) and flip of both, normalize. Inflating the PNGs' zlib streams alone is measured
               too, and its share of the CPU time reported.
views          Two views of 224 and six of 96 pixels of each image by T.Views, RandomResizedCrop, flip, normalize, from
               seekable shards: beside a loader for each size whose sampler names each sample once for each view, and
               beside torch's loader with Pillow, which decodes an image once and crops eight times.
views-files    The same from the images as they are.
dino           The same views by DINO's recipe, with color, blur and solarize, beside torch's loader with
               torchvision's v2 on Pillow's images, if it is installed.
buckets        Batches of five aspect ratios and about 224x224 pixels, beside batches of that fixed size.
dali-views     The views by backend="dali" on the CPU, beside its samples named eight times. Left out without DALI.
dali-buckets   The buckets by it, beside its fixed size, sizes by epoch, and padded images whose shorter side is 224.

Equal in each task: the files (in the page cache), the ops, the batches, the worker processes: none on one core, two on
two cores, to which the whole process tree is held. The rivals run in turn, and each figure is of the time between two
batches, behind the start. Ratios are of samples per CPU-second, within a turn; on an otherwise idle machine these are
samples per second.

    python -m bench.tasks --images IMAGES [--only NAMES] [--repeats 5] [--seconds 5] [--json OUT]

--images is a folder of class folders of JPEGs. --only names tasks, separated by commas.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from bench.smoke import arguments
from bench.task_feeds import buckets, clip, segmentation, views, webdataset
from bench.task_feeds.setting import Feed, Setting, Task
from feeder.decoders.registry import dali_is_installed
from feeder.system.process_usage import cpu_seconds
from feeder.tools.bench.result_file import save, spread
from feeder.tools.terminal import table

CORES = (1, 2)
_WARM_BATCHES = 4  # behind them a loader's workers are at work, and what it has ready is what it makes

TASKS = {
    "webdataset": Task(webdataset.feeds, {"Pillow": 3.0}),
    "clip": Task(clip.feeds, {"webdataset, Pillow": 4.0}, clip.PARTS),
    "clip-crops": Task(clip.crop_feeds, {"webdataset, Pillow": 4.0}, clip.PARTS),
    "segmentation": Task(
        segmentation.feeds, {"torch and torchvision v2": 4.0, "torch and Pillow": 4.0}, segmentation.PARTS
    ),
    "views": Task(views.feeds, {views.NAMED: 2.0, "torch and Pillow": 3.5}),
    "views-files": Task(views.feeds_of_files, {views.NAMED: 2.0, "torch and Pillow": 3.5}),
    "dino": Task(views.dino, {}),
    "buckets": Task(buckets.feeds, {"fixed size": 0.95}),
}
if dali_is_installed():
    TASKS |= {"dali-views": Task(views.dali_feeds, {}), "dali-buckets": Task(buckets.dali_feeds, {})}


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
            # Workers finish their batches at about the same time, so the clock stops after one of each, or two.
            samples += sum(itertools.islice(batches, _WARM_BATCHES))
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
    ours, *others = rivals = [name for name in feeds if name not in task.parts]
    per_cpu_s = {name: [each for _, each in pairs] for name, pairs in found.items()}

    def ratio(a: str, b: str) -> dict[str, Any]:
        return spread([x / y for x, y in zip(per_cpu_s[a], per_cpu_s[b], strict=True)])

    return {
        "samples_per_s": {name: spread([each for each, _ in pairs]) for name, pairs in found.items()},
        "samples_per_cpu_s": {name: spread(values) for name, values in per_cpu_s.items()},
        "ratio": {name: ratio(ours, name) for name in others},
        "share_of_cpu_time": {part: {name: ratio(name, part) for name in rivals} for part in task.parts},
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
                for part, shares in found["share_of_cpu_time"].items():
                    text = ", ".join(f"{share['median']:.1%} of {rival}" for rival, share in shares.items())
                    print(f"  {part}: {text}")
    print(table(rows))
    print(f"written to {save('tasks', result, options.json)}")


if __name__ == "__main__":
    main()

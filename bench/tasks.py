"""Measures whole tasks beside the pipelines that people have for them, on one core and on two.

webdataset     A webdataset pipeline with feeder.wds.decoder behind ``.listed(64)``, or on single samples, beside one
               with Pillow: tars of the images as they are, RandomResizedCrop(224), flip, normalize to float32, batches
               of 64.
clip           Images and captions of 4 to 40 words, whose 77 token ids a byte-level BPE of the ``tokenizers`` library
               makes, trained here: fields.Tokens on shards, beside webdataset with Pillow and the same
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

clip, clip-crops, segmentation and views are measured on shards of both encodings, seekable (the default) and packed,
which hold the same JPEGs; the bytes of each set are in the result.

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
from bench.task_feeds.setting import PACKED, Feed, Setting, Task
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
    "segmentation": Task(segmentation.feeds, {"torch and torchvision v2": 4.0}, segmentation.PARTS),
    "views": Task(views.feeds, {views.NAMED: 2.0, "torch and Pillow": 3.5}),
    "views-files": Task(views.feeds_of_files, {views.NAMED: 2.0, "torch and Pillow": 3.5}),
    "dino": Task(views.dino, {}),
    "buckets": Task(buckets.feeds, {"fixed size": 0.95}),
}
if dali_is_installed():
    TASKS |= {"dali-views": Task(views.dali_feeds, {}), "dali-buckets": Task(buckets.dali_feeds, {})}

# The table of docs/performance.md: (task, rival) -> its words for both.
_DOCUMENTED = {
    ("clip", "webdataset, Pillow"): (
        "captions and 77 tokens, nearly whole images",
        "webdataset, Pillow, the same tokenizer",
    ),
    ("clip-crops", "webdataset, Pillow"): (
        "the same, with RandomResizedCrop's own scale",
        "webdataset, Pillow, the same tokenizer",
    ),
    ("segmentation", "torch and torchvision v2"): (
        "segmentation, palette masks",
        "torch DataLoader, torchvision v2",
    ),
    ("segmentation", "torch and Pillow"): ("segmentation, palette masks", "torch DataLoader, Pillow"),
    ("views", "torch and Pillow"): ("two views of 224 and six of 96", "torch DataLoader, Pillow, one decode for all"),
    ("views", views.NAMED): ("two views of 224 and six of 96", "feeder, seekable, each sample named eight times"),
    ("views-files", "torch and Pillow"): (
        "the same views, from the images as they are (no shards)",
        "torch DataLoader, Pillow, one decode for all",
    ),
    ("dino", "torch and torchvision v2"): (
        "the same views by DINO's recipe, with color, blur and solarize",
        "torch DataLoader, torchvision v2",
    ),
    ("webdataset", "Pillow"): ("`feeder.wds.decoder` behind `.listed(64)`, from tars of JPEGs", "webdataset, Pillow"),
    ("buckets", "fixed size"): ("buckets of five aspect ratios", "feeder, one size of the same pixels"),
    ("dali-views", views.NAMED): ('the views by `backend="dali"` on the CPU', "each sample named eight times"),
}


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
    rivals = [name for name in feeds if name not in task.parts]
    ours, *others = (name for name in rivals if name != PACKED)
    per_cpu_s = {name: [each for _, each in pairs] for name, pairs in found.items()}

    def ratio(a: str, b: str) -> dict[str, Any]:
        return spread([x / y for x, y in zip(per_cpu_s[a], per_cpu_s[b], strict=True)])

    return {
        "samples_per_s": {name: spread([each for each, _ in pairs]) for name, pairs in found.items()},
        "samples_per_cpu_s": {name: spread(values) for name, values in per_cpu_s.items()},
        "ratio": {name: ratio(ours, name) for name in others},
        "ratio_packed": {name: ratio(PACKED, name) for name in others if PACKED in feeds},
        "share_of_cpu_time": {part: {name: ratio(name, part) for name in rivals} for part in task.parts},
        "goals": task.goals,
    }


def _shown(ratio: dict[str, Any] | None) -> str:
    return "" if ratio is None else f"{ratio['median']:.2f} ({ratio['min']:.2f} to {ratio['max']:.2f})"


def markdown(result: dict[str, Any]) -> str:
    """Returns the table of docs/performance.md, of the tasks that a result has: ratios on one core, and sets' bytes."""
    lines = ["| task | beside | seekable shards | packed shards |", "|---|---|---:|---:|"]
    for (task, rival), (label, beside) in _DOCUMENTED.items():
        found = result.get(task, {}).get("cores_1", {})
        ratio, packed = (found.get(kind, {}).get(rival) for kind in ("ratio", "ratio_packed"))
        if ratio is not None:
            medians = (each and each["median"] for each in (ratio, packed))
            shown = [
                label,
                beside,
                *("–" if each is None else f"{each:.{1 if each > 1.5 else 2}f}" for each in medians),
            ]
            lines.append(f"| {' | '.join(shown)} |")
    sizes = result.get("shard_bytes", {})
    if {"captions-keep", "captions-seekable", "captions-packed"} <= sizes.keys():
        seekable, packed = (sizes[f"captions-{encode}"] / sizes["captions-keep"] for encode in ("seekable", "packed"))
        lines += [
            "",
            f"Seekable shards of these photos take {seekable:.2f} times the bytes of the files, packed {packed:.2f}.",
        ]
    return "\n".join(lines)


def main() -> None:
    smoke = {"repeats": 1, "seconds": 0.01, "image_size": 32, "batch_size": 4}
    sizes: dict[str, Any] = {"image_size": 224, "batch_size": 64}
    options = arguments(__doc__, "tasks", smoke, images=None, only="", repeats=5, seconds=5.0, **sizes)
    names = options.only.split(",") if options.only else list(TASKS)
    torch.set_num_threads(1)
    result: dict[str, Any] = {}
    rows = [["task", "cores", "rival", "samples/CPU-s", "ratio", "packed", "goal"]]
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
                    ratios = [_shown(found[kind].get(rival)) for kind in ("ratio", "ratio_packed")]
                    goal = str(found["goals"].get(rival, ""))
                    rows.append([name, str(cores), rival, f"{rate['median']:.0f}", *ratios, goal])
                for part, shares in found["share_of_cpu_time"].items():
                    text = ", ".join(f"{share['median']:.1%} of {rival}" for rival, share in shares.items())
                    print(f"  {part}: {text}")
        result["shard_bytes"] = setting.shard_bytes()
    print(table(rows))
    print(markdown(result))
    print(f"written to {save('tasks', result, options.json)}")


if __name__ == "__main__":
    main()

"""Measures what a mixture of datasets costs.

cpu   CPU time of all processes for an image of a mixture of three sets, beside a single set of the same photos. Each of
      the three has every third photo of IMAGES. Equal: photos, recipe, shuffle, batches, workers, size of a shard.
      Goal: at most 1.03 times as much.
many  A mixture of --sources weighted sources of 10**10 samples in all: seconds and memory to open it once its sources
      are open, up to its order, and CPU time of a sample's id in that order, in batches of 256. There is one header of
      such a source only, opened again and again. Every repeat is a process of its own. Goals: 1 s, 64 MiB, 1 us.

Rivals take turns, and a ratio is that of one turn. CPU time and such ratios hold on a busy machine, too: the result has
the load of the machine before and after.

    python -m bench.mixture --images IMAGES [--passes 20] [--workers 2] [--repeats 9] [--json OUT]
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bench.remote_runs.opening import make_header
from bench.smoke import ROOT, arguments
from feeder.dataset.mixture import Mixture
from feeder.dataset.shards import ShardDataset
from feeder.loader.dataloader import DataLoader
from feeder.loader.fast.batch_queue import requests
from feeder.loader.fast.position import EpochProgress, Place
from feeder.order.split import Split
from feeder.shard.write.shard_options import ShardOptions
from feeder.shard.write.sharding import shard
from feeder.system.process_usage import cpu_seconds, status_bytes
from feeder.tools.bench.result_file import interleave, save, spread
from feeder.tools.terminal import table
from feeder.transforms import Compose, RandomHorizontalFlip, RandomResizedCrop

SAMPLES = 10**10
GOALS = {"ratio": 1.03, "open_s": 1.0, "memory_mib": 64.0, "us_per_sample": 1.0}


def loaders(options: Any, folder: Path) -> dict[str, DataLoader[Any]]:
    """Writes the sets, and returns a loader of each rival."""
    sources = {"whole": Path(options.images)}
    for k, path in enumerate(sorted(path for path in sources["whole"].glob("*/*") if path.is_file())):
        third = sources.setdefault("abc"[k % 3], folder / "images" / "abc"[k % 3])
        (third / path.parent.name).mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, third / path.parent.name / path.name)

    recipe = Compose([RandomResizedCrop(options.image_size), RandomHorizontalFlip()])
    sets: dict[str, Any] = {}
    for name, source in sources.items():
        shard(str(source), str(folder / name), ShardOptions(samples_per_shard=options.samples_per_shard))
        sets[name] = ShardDataset(folder / name, recipe)
    single = sets.pop("whole")
    mixture = Mixture(sets, stop="all_exhausted_without_replacement", labels="merge")
    rest: dict[str, Any] = {"shuffle": True, "num_workers": options.workers, "persistent_workers": True, "seed": 1}
    return {
        "single": DataLoader(single, options.batch_size, **rest),
        "mixture": DataLoader(mixture, options.batch_size, **rest),
    }


def cpu(options: Any, folder: Path) -> dict[str, Any]:
    made = loaders(options, folder)
    seen = {name: Counter(label for batch in loader for label in batch[1].tolist()) for name, loader in made.items()}
    if seen["mixture"] != seen["single"]:
        raise SystemExit("the mixture's samples are not those of the single set")

    def run(loader: DataLoader[Any]) -> float:
        before = cpu_seconds()
        images = sum(len(batch[0]) for _ in range(options.passes) for batch in loader)
        return 1000 * (cpu_seconds() - before) / images

    found = interleave({name: partial(run, loader) for name, loader in made.items()}, options.repeats)
    for loader in made.values():
        loader.close()
    ratios = [a / b for a, b in zip(found["mixture"], found["single"], strict=True)]
    ms = {name: spread(values) for name, values in found.items()}
    return {"cpu_ms_per_image": ms, "ratio": spread(ratios)}


def many(folder: str, sources: int) -> dict[str, float]:
    """Opens the mixture and draws from its order; in a process of its own."""
    sets = {f"source {k}": ShardDataset(folder, Compose([RandomResizedCrop(224)])) for k in range(sources)}
    weights = dict(zip(sets, np.random.default_rng(0).pareto(1.2, sources) + 1e-3, strict=True))
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    resident, began = status_bytes("VmRSS"), time.perf_counter()
    mixture = Mixture(sets, weights, samples=SAMPLES)
    order = mixture.order(1, True, 256)
    opened = time.perf_counter() - began
    batches = requests(EpochProgress(Place(), Split(SAMPLES, 256), order=order))
    for _ in itertools.islice(batches, 64):
        pass
    cpu_s = time.process_time()
    count = sum(len(batch.samples.ids) for batch in itertools.islice(batches, 256))
    us = 1e6 * (time.process_time() - cpu_s) / count
    return {
        "open_s": opened,
        "memory_mib": (status_bytes("VmHWM") - resident) / 2**20,
        "us_per_sample": us,
    }


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        print(json.dumps(many(*json.loads(sys.argv[2]))))
        return
    options = arguments(
        __doc__, "mixture",
        smoke={"sources": 10, "passes": 1, "workers": 1, "image_size": 32, "batch_size": 8, "repeats": 1},
        images=None, sources=1000, passes=20, workers=2, image_size=224, batch_size=64, samples_per_shard=100,
        repeats=9,
    )  # fmt: skip
    load = [os.getloadavg()[0]]
    with tempfile.TemporaryDirectory(prefix="feeder-mixture-") as name:
        results = cpu(options, Path(name))
        header = Path(name, "header")
        header.mkdir()
        make_header(header, SAMPLES // options.sources)
        child = [sys.executable, "-m", "bench.mixture", "--child", json.dumps([str(header), options.sources])]
        rows = [json.loads(subprocess.check_output(child, cwd=ROOT, text=True)) for _ in range(options.repeats)]
    results |= {figure: spread([row[figure] for row in rows]) for figure in rows[0]}
    load.append(os.getloadavg()[0])
    lines = [["", "median", "least", "most", "goal"]]
    for figure, goal in GOALS.items():
        found = results[figure]
        lines.append([figure, *(f"{found[each]:.3f}" for each in ("median", "min", "max")), f"{goal:g}"])
    print(table(lines))
    print(f"written to {save('mixture', {**results, 'goals': GOALS, 'load': load}, options.json)}")


if __name__ == "__main__":
    main()

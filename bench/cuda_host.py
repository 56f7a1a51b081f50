"""Measures the host's share of decoding on a GPU with ``backend="cuda"``; needs no GPU.

A worker's share is what it does for each image: read the index and the rows of the crop, draw, plan, and write the
plan to the slot. The trainer's is to find the plans in the slot, lay out the copies that the GPU makes of them, and
write the tables of a batch; it does not touch compressed bytes. Held equal: the images, in a seekable and a packed
set, random resized crops to 224 with flips, parts of 16, as 16 workers get of batches of 256, one thread. Files are in
the page cache. Sets take turns.

worker_us, trainer_us   CPU time
of_it_*_us              the worker's stages, by the wall clock: mean only what they say on an idle machine
decoded_by_workers      the share of images that the GPU does not decode: crops of at most 1,024 pixels
upload_bytes            what the GPU gets of an image, plans and tables, and read_bytes what was read of it

    python -m bench.cuda_host --images IMAGES [--passes 9] [--part 16] [--json OUT]
"""

from __future__ import annotations

import math
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bench.smoke import arguments
from feeder import _native
from feeder.dataset.shards import ShardDataset
from feeder.decoders.cuda.plan_stager import PlanStager
from feeder.decoders.staged.capacity import plan_capacity, planning_sample
from feeder.decoders.staged.staged import RowKind, Staged
from feeder.loader.fast.sample_maker import Work
from feeder.loader.observe.stats import stage_table
from feeder.loader.slots.image_slots import Samples, SlotView
from feeder.shard.write.encode import EncodeOptions
from feeder.shard.write.shard_options import ShardOptions
from feeder.shard.write.sharding import shard
from feeder.tools.bench.result_file import save, spread
from feeder.tools.terminal import table
from feeder.transforms import Normalize, RandomHorizontalFlip, RandomResizedCrop, ToDtype

SIZE = (224, 224)
RECIPE = (
    RandomResizedCrop(SIZE),
    RandomHorizontalFlip(),
    ToDtype("float16", scale=True),
    Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
)


class Host:
    """Work of a worker and of the trainer on the images of a set."""

    def __init__(self, folder: Path, part: int) -> None:
        self._part = part
        dataset = ShardDataset(folder, RECIPE)
        reader = dataset.reader
        self._work = Work(reader, dataset.recipe, "cuda")
        self._work.stager = PlanStager()
        known = reader.peek(planning_sample(len(reader), in_shards=True))
        self._work.share_bytes = plan_capacity(known, [SIZE], part, plans=True).share_bytes
        self._tables = np.zeros(0, np.uint8)

    def run(self, epoch: int) -> dict[str, float]:
        """Makes the samples of an epoch; returns sums of CPU time, microseconds, and bytes, for an image."""
        work, count = self._work, len(self._work.reader)
        work.meter.words[:] = 0
        spent_ns = [0, 0]
        plans_bytes = planned = 0
        for ids in _parts(np.random.default_rng(epoch).permutation(count), self._part):
            view = SlotView.new(work.layout(len(ids)), Samples.of(ids, ids))
            began = time.thread_time_ns()
            report = work.run(epoch, view)
            spent_ns[0] += time.thread_time_ns() - began
            left_over = {row: data for (_, row, _), data in report.left_over.items()}
            began = time.thread_time_ns()
            staged = Staged.unpack(view.images[0].reshape(-1), len(ids), left_over)
            plans: list[Any] = [
                staged.payloads[row] for row in np.flatnonzero(staged.rows["kind"] == RowKind.PLAN).tolist()
            ]
            places, _, size_bytes = _native.upload_runs(plans)
            own = np.arange(len(plans))
            batch = _native.CudaBatch(plans, places, own, np.array([0, len(plans)]))
            if len(self._tables) < batch.tables_bytes:  # as torch's allocator of page-locked memory does it
                self._tables = np.zeros(2 * batch.tables_bytes, np.uint8)
            batch.write(self._tables)
            spent_ns[1] += time.thread_time_ns() - began
            planned += len(plans)
            plans_bytes += size_bytes + batch.tables_bytes
        if planned < 0.9 * count:
            raise SystemExit(f"the GPU would get {planned} of {count} images only; give larger photos")
        stages = stage_table(work.meter.words)
        return {
            "worker_us": spent_ns[0] / count / 1e3,
            "of_it_read_us": stages["read"]["total_ns"] / count / 1e3,
            "of_it_draw_us": stages["draw"]["total_ns"] / count / 1e3,
            "of_it_plan_us": stages["cut"]["total_ns"] / count / 1e3,
            "of_it_write_us": stages["write"]["total_ns"] / count / 1e3,
            "trainer_us": spent_ns[1] / count / 1e3,
            "decoded_by_workers": (count - planned) / count,
            "upload_bytes": plans_bytes / count,
            "read_bytes": stages["read"]["bytes"] / count,
        }


def _parts(ids: np.ndarray, size: int) -> Iterator[np.ndarray]:
    for part in range(math.ceil(len(ids) / size)):
        yield ids[size * part : size * (part + 1)]


def measure(images: str, passes: int, part: int) -> dict[str, Any]:
    """Returns the figures of both sets."""
    with tempfile.TemporaryDirectory(prefix="feeder-cuda-") as folder:
        root = Path(folder)
        shard(images, str(root / "seekable"), ShardOptions())
        shard(images, str(root / "packed"), ShardOptions(encode=EncodeOptions("packed")))
        hosts = {name: Host(root / name, part) for name in ("seekable", "packed")}
        found: dict[str, list[dict[str, float]]] = {name: [] for name in hosts}
        for each in range(passes + 1):
            for name, host in hosts.items():
                figures = host.run(each)
                if each:  # the first one warms up
                    found[name].append(figures)
    return {name: {key: spread([run[key] for run in runs]) for key in runs[0]} for name, runs in found.items()}


def main() -> int:
    options = arguments(__doc__, "cuda_host", {"passes": 1}, images=None, passes=9, part=16)
    found = measure(options.images, options.passes, options.part)
    keys = list(found["seekable"])
    rows = [["an image", *found]]
    rows += [[key, *(f"{sets[key]['median']:,.1f}" for sets in found.values())] for key in keys]
    print(table(rows))
    print(save("cuda_host", {"part": options.part, "sets": found}, options.json))
    return 0


if __name__ == "__main__":
    sys.exit(main())

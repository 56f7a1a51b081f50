"""The utilisation ladder, from a naive loop to a busy accelerator: each row adds one change to the row before.

Rows: a naive loop (no workers, float32, a folder of files, the loss read at every step); workers; pinned memory,
copies without waits and feeder.DeviceLog; pre-shuffled shards; feeder's decoding; a batch size that fills the device
(``--right-batch-size``); autocast. The last row uses the loader of the fourth, to show the gain of autocast without
feeder's decoding. Equal in all rows: the images, RandomResizedCrop(224), flip and normalize to float32, a random
order. Each row is measured after its first batches, for at least two batches of each worker. The rows run in turn,
`--repeats` times. The result is saved after every run; it names rows that failed, and the others continue.

The ladder does not show the cost of storage. After the first pass the images are in the page cache, both the 250 photos
of the documented table and the 2,000 that are made here. So the fourth row, pre-shuffled shards, gains nothing here; it
pays if a data set does not fit into memory.

On a GPU this trains ResNet-50 and reads the utilisation from NVML. Without a GPU the device is bench/standin.py, whose
rates are fixed from published figures, and every output says "simulated accelerator".

    python -m bench.ladder --images FOLDER [--shards DIR] [--seconds 15] [--repeats 3] [--json OUT]
    python -m bench.ladder --render bench/results/ladder.json    # the table as markdown
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import gc
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import feeder
from bench import standin
from bench.gpu.common import Result, current_gpu_busy, gpu, images_of, is_over, warm_up
from bench.gpu.resnet import resnet50
from bench.gpu.train import Utilisation
from bench.make_images import make_images
from bench.standin import StandIn
from feeder.system.cores import cores as given_cores
from feeder.system.process_usage import cpu_seconds
from feeder.tools.bench.bench_options import BenchOptions
from feeder.tools.bench.pillow import PillowDataset
from feeder.tools.bench.result_file import processor_name, spread
from feeder.tools.cli import main as shard
from feeder.tools.presets import preset
from feeder.tools.terminal import table

IMAGENET = 1_281_167


@dataclass(frozen=True)
class Setup:
    """One row of the ladder.

    Attributes:
        name: The change.
        workers: Number of worker processes.
        waiting: True if each step waits for its copy, and reads its loss.
        sharded: True for shards, False for a folder of files.
        native: True for feeder's loader, False for torch's with Pillow.
        batch_size: Images in a batch; 0 for the right number of them.
        precision: "float32" (TF32 on a GPU) or "amp".
    """

    name: str
    workers: int
    waiting: bool = True
    sharded: bool = False
    native: bool = False
    batch_size: int = 64
    precision: str = "float32"


def ladder(workers: int, batch_size: int) -> list[Setup]:
    """Returns the rows, and autocast without feeder's decoding."""
    first = Setup("naive loop", 0, batch_size=batch_size)
    changes: list[tuple[str, dict[str, Any]]] = [
        (f"{workers} worker{'s' if workers > 1 else ''}", {"workers": workers}),
        ("pinned, nothing waits", {"waiting": False}),
        ("pre-shuffled shards", {"sharded": True}),
        ("feeder's decoding", {"native": True}),
        ("right batch size", {"batch_size": 0}),
        ("autocast", {"precision": "amp"}),
    ]
    rows = [first]
    for name, change in changes:
        rows.append(dataclasses.replace(rows[-1], name=name, **change))
    return [*rows, dataclasses.replace(rows[-1], name="(autocast with Pillow)", native=False)]


class Gpu:
    """ResNet-50 on the GPU, with the stand-in's methods."""

    def __init__(self, precision: str) -> None:
        torch.backends.cudnn.benchmark = True
        torch.set_float32_matmul_precision("high")
        self.precision = precision
        self.model = resnet50().cuda()
        self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # missing in torch's stubs
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        self.images = torch.empty(0, 3, 224, 224, device="cuda")
        self.labels = torch.randint(0, 1000, (4096,), device="cuda")
        self.loss = torch.zeros((), device="cuda")

    def copy(self, images: torch.Tensor, *, blocking: bool) -> None:
        self.images = images.to("cuda", non_blocking=not blocking)

    def step(self, batch_size: int) -> None:
        if len(self.images) != batch_size:
            self.images = torch.zeros(batch_size, 3, 224, 224, device="cuda")
        images = self.images.to(memory_format=torch.channels_last)
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16, enabled=self.precision == "amp"):
            logits = self.model(images)
        self.loss = torch.nn.functional.cross_entropy(logits.float(), self.labels[:batch_size])
        self.loss.backward()
        self.optimizer.step()

    def wait(self) -> None:
        self.loss.item()


def make_device(precision: str) -> StandIn | Gpu:
    return Gpu(precision) if torch.cuda.is_available() else StandIn(precision)


def make_loader(setup: Setup, batch_size: int, images: str, shards: str) -> Any:
    """Returns torch's DataLoader with Pillow, or feeder's."""
    dataset: Any
    if setup.native:
        dataset = feeder.ShardDataset(shards, preset("train", "float32", 224))
    else:
        path = shards if setup.sharded else images
        dataset = PillowDataset(path, BenchOptions(image_size=224, batch_size=batch_size))
    options: dict[str, Any] = {
        # Several permutations in one epoch, as the ends of short epochs would count too much.
        "sampler": torch.utils.data.RandomSampler(dataset, num_samples=IMAGENET),
        "num_workers": setup.workers,
        "pin_memory": not setup.waiting and torch.cuda.is_available(),
    }
    if setup.native:
        device = "cuda" if torch.cuda.is_available() else None
        return feeder.DataLoader(dataset, batch_size, device=device, **options)
    return torch.utils.data.DataLoader(dataset, batch_size, **options)


def climb(setup: Setup, batch_size: int, images: str, shards: str, seconds: float) -> dict[str, float]:
    """Trains for some seconds and returns the row's columns."""
    loader = make_loader(setup, batch_size, images, shards)
    try:
        return _train(setup, loader, batch_size, seconds)
    finally:
        if isinstance(loader, feeder.DataLoader):
            loader.close()


def _train(setup: Setup, loader: Any, batch_size: int, seconds: float) -> dict[str, float]:
    device = make_device(setup.precision)
    batches = iter(loader)
    log = feeder.DeviceLog(every=50)

    def step(number: int) -> float:
        began = time.perf_counter()
        batch, *_ = next(batches)
        waited = time.perf_counter() - began
        device.copy(batch, blocking=setup.waiting)
        device.step(batch_size)
        if setup.waiting:
            device.wait()  # loss.item()
        else:
            log.write(number, loss=device.loss if isinstance(device, Gpu) else torch.zeros(()))
        return waited

    before = warm_up(setup.workers, loader.prefetch_factor or 0)
    for number in range(before):
        step(number)
    device.wait()
    busy = device.busy_s if isinstance(device, StandIn) else 0.0
    with Utilisation() if isinstance(device, Gpu) else contextlib.nullcontext() as utilisation:
        cpu, began, steps, waits = cpu_seconds(), time.perf_counter(), 0, 0.0
        while not is_over(steps, setup.workers, began, seconds):
            waits += step(before + steps)
            steps += 1
        device.wait()
        took = time.perf_counter() - began
        cpu = cpu_seconds() - cpu
    log.close()
    rate = steps * batch_size / took
    mean = None if utilisation is None else utilisation.mean
    if isinstance(device, StandIn):
        used = (device.busy_s - busy) / took
    elif mean is not None:
        used = mean / 100
    else:
        raise RuntimeError("NVML did not report the GPU's utilisation")
    return {
        "images_per_s": rate,
        "epoch_min": IMAGENET / rate / 60,
        "utilisation": used,
        "cpu_cores": cpu / took,
        "wait_ms_per_step": 1000 * waits / steps,
    }


def measure(images: str, shards: str, options: argparse.Namespace, result: Result) -> None:
    """Adds the rows to the result after every run; a row that fails is left out from then on.

    Raises:
        SystemExit: if NVML does not report the GPU's utilisation.
    """
    simulated = not torch.cuda.is_available()
    if not simulated:
        torch.cuda.init()
        if current_gpu_busy()() is None:
            raise SystemExit(
                "the ladder needs the GPU's utilisation, which NVML does not report: pip install nvidia-ml-py"
            )
    result.part("images", lambda: images_of(shards))
    result.add(
        **({standin.NAME: _arithmetic()} if simulated else {"gpu": gpu()}),
        load_before=os.getloadavg()[0],  # of others, where this machine has others
        right_batch_size=options.right_batch_size,
    )
    setups = [
        dataclasses.replace(setup, batch_size=setup.batch_size or options.right_batch_size)
        for setup in ladder(given_cores().usable, options.batch_size)
    ]
    runs: dict[str, list[dict[str, float]]] = {setup.name: [] for setup in setups}
    for turn in range(options.repeats):
        for setup in setups:
            if setup.name in result.errors:
                continue
            try:
                runs[setup.name].append(climb(setup, setup.batch_size, images, shards, options.seconds))
                print(f"  {turn + 1}/{options.repeats} {setup.name}: {runs[setup.name][-1]['images_per_s']:.4g}")
            except Exception as error:
                result.failed(setup.name, error)
            if setup.name in result.errors:  # freed here, as the error kept the run's memory on the GPU
                gc.collect()
                torch.cuda.empty_cache()
            result.add(rows=[_row(each, runs[each.name], result.errors.get(each.name)) for each in setups])


def _row(setup: Setup, runs: list[dict[str, float]], error: str | None) -> dict[str, Any]:
    figures = {name: spread([each[name] for each in runs]) for name in runs[0]} if runs else {}
    return {**dataclasses.asdict(setup), **figures, **({"error": error} if error else {})}


def _arithmetic() -> dict[str, Any]:
    cores = standin.physical_cores()
    text = {
        name: f"{rate:,.0f} images/s of an A100 / {standin.GPU_CORES:g} cores of its instance * {cores:g} cores here"
        f" = {rate / standin.GPU_CORES * cores:,.0f} images/s"
        for name, rate in standin.RATES.items()
    }
    return {"source": (standin.__doc__ or "").strip(), "arithmetic": text}


def render(result: dict[str, Any], *, markdown: bool = False) -> str:
    """Returns the table with its title."""
    machine, simulated = result["machine"], standin.NAME in result
    where = f"{processor_name(machine)}, {machine['cores']} cores"
    title = "Simulated accelerator: an A100, scaled to these cores" if simulated else result["gpu"]["name"]
    heading = ["", "batch", "images/s", "epoch min", "busy", "cores", "wait ms"]
    rows = [heading]
    for row in result["rows"]:
        if "images_per_s" not in row:
            rows.append([row["name"], str(row["batch_size"]), "failed", *[""] * (len(heading) - 3)])
            continue
        values = {name: row[name]["median"] for name in row if isinstance(row[name], dict)}
        rows.append(
            [
                row["name"],
                str(row["batch_size"]),
                f"{values['images_per_s']:,.0f}",
                f"{values['epoch_min']:,.0f}",
                f"{values['utilisation']:.0%}",
                f"{values['cpu_cores']:.1f}",
                f"{values['wait_ms_per_step']:,.0f}",
            ]
        )
    if not markdown:
        notes = "epoch: of ImageNet; busy: the accelerator; cores: CPU in use;\nwait: for data, each step; medians"
        return f"{title}\n{where}\n\n{table(rows)}\n\n{notes}"
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    names = {
        "epoch min": "ImageNet epoch, min",
        "busy": "accelerator busy",
        "cores": "CPU cores",
        "wait ms": "wait, ms/step",
    }
    lines[0] = "| " + " | ".join(names.get(name, name) for name in heading) + " |"
    return "\n".join([f"**{title}; {where}**", "", lines[0], "|---|" + "---:|" * (len(heading) - 1), *lines[1:]])


@contextlib.contextmanager
def _data(options: argparse.Namespace) -> Iterator[tuple[str, str]]:
    """Returns images and shards, and makes those that were not given."""
    with tempfile.TemporaryDirectory() as folder:
        images = options.images or os.path.join(folder, "images")
        if not options.images:
            make_images(Path(images), count=2000)
        shards = options.shards or os.path.join(folder, "shards")
        if not options.shards:
            shard(["shard", images, "--out", shards, "-q"])
        yield images, shards


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--images", help="photos in class folders; without it, made here")
    parser.add_argument("--shards", help="the same, sharded; without it, made here")
    parser.add_argument("--seconds", type=float, default=15.0, help="of a row's run")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=64, help="of the rows before the right one")
    parser.add_argument("--right-batch-size", type=int, default=256, help="of the rows from the right one on")
    parser.add_argument("--json", default="bench/results/ladder.json")
    parser.add_argument("--smoke", metavar="DIR", help="once through, on DIR/images and DIR/shards")
    parser.add_argument("--render", metavar="JSON", help="print a result as markdown, and measure nothing")
    options = parser.parse_args()
    if options.render:
        with open(options.render, encoding="utf-8") as file:
            print(render(json.load(file), markdown=True))
        return 0
    if options.smoke:
        options.images, options.shards = (os.path.join(options.smoke, name) for name in ("images", "shards"))
        options.seconds, options.repeats, options.batch_size, options.right_batch_size = 0.1, 1, 4, 8
    result = Result("ladder", options.json)
    with _data(options) as (images, shards):
        measure(images, shards, options, result)
    with open(options.json, encoding="utf-8") as file:
        print(f"\n{render(json.load(file))}\n\n{options.json}")
    return 1 if result.errors else 0


if __name__ == "__main__":
    sys.exit(main())

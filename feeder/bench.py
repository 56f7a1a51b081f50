"""Throughput of feeder beside torch's DataLoader with Pillow, on the same images and the same preprocessing.

Held equal: the images, batch size, number of workers, random resized crop, flip, output (float32 normalized, or
uint8), persistent workers, one epoch to warm up. Runs take turns, so that a slow spell of the machine hits both.
"""

from __future__ import annotations

import io
import json
import math
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from feeder.dataset import FolderDataset, ShardDataset
from feeder.errors import ArgumentError
from feeder.index import INDEX_NAME
from feeder.loader import DataLoader
from feeder.read import Reader
from feeder.transforms import Compose, Normalize, RandomHorizontalFlip, RandomResizedCrop, ToDtype
from feeder.versions import versions

__all__ = ["BenchOptions", "BenchReport", "run"]

_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_RIVAL = "torch DataLoader + Pillow"


@dataclass(frozen=True)
class BenchOptions:
    """What to measure.

    Args:
        batch_size: Images in a batch.
        num_workers: Worker processes; None: one for each core.
        size: Height and width of the output, pixels.
        dtype: "float32" (normalized) or "uint8".
        repeats: Timed runs of each loader.
        seconds: A run is as many whole epochs as take at least this long.
        max_samples: Use at most the first so many samples; None: all.
        backend: feeder's decode backend.
    """

    batch_size: int = 64
    num_workers: int | None = None
    size: int = 224
    dtype: str = "float32"
    repeats: int = 5
    seconds: float = 3.0
    max_samples: int | None = None
    backend: str = "auto"

    def __post_init__(self) -> None:
        if min(self.batch_size, self.size, self.repeats) < 1 or (self.max_samples is not None and self.max_samples < 1):
            raise ArgumentError("batch_size, size, repeats and max_samples must be 1 or more")
        if self.num_workers is not None and self.num_workers < 0:
            raise ArgumentError(f"num_workers must be 0 or more, got {self.num_workers}")
        if self.dtype not in ("float32", "uint8"):
            raise ArgumentError(f"dtype must be 'float32' or 'uint8', got {self.dtype!r}")


@dataclass(frozen=True)
class BenchReport:
    """What was measured.

    Attributes:
        path: The dataset.
        samples: How many samples an epoch had.
        options: What was asked for, as a dict, with the number of workers and the backend that were used.
        images_per_s: Throughput of every run, by loader.
        first_batch_s: From making the iterator to its first batch, by loader, workers not yet started.
        cpu_s_per_image: CPU time of all processes for an image, by loader, every run.
        machine: Processor, cores, kernel, commit, versions.
    """

    path: str
    samples: int
    options: dict[str, Any]
    images_per_s: dict[str, list[float]]
    first_batch_s: dict[str, float]
    cpu_s_per_image: dict[str, list[float]]
    machine: dict[str, Any]

    @property
    def ratio(self) -> float:
        """feeder's median throughput divided by torch's."""
        return statistics.median(self.images_per_s["feeder"]) / statistics.median(self.images_per_s[_RIVAL])

    def table(self) -> str:
        """The figures as text, at most 80 columns wide."""
        options = self.options
        lines = [
            f"{self.samples:,} images, batch {options['batch_size']}, {options['num_workers']} workers on "
            f"{self.machine['cores']} cores, {options['size']}x{options['size']} {options['dtype']}",
            "",
            f"{'loader':<26} {'images/s':>9} {'min - max':>17} {'CPU ms':>7} {'first batch':>12}",
        ]
        lines.append("-" * len(lines[2]))
        for name, values in self.images_per_s.items():
            span = f"{min(values):,.0f} - {max(values):,.0f}"
            cpu_ms = 1000 * statistics.median(self.cpu_s_per_image[name])
            label = f"feeder ({options['backend']})" if name == "feeder" else name
            lines.append(
                f"{label:<26} {statistics.median(values):>9,.0f} {span:>17} {cpu_ms:>7.2f} "
                f"{self.first_batch_s[name]:>10.2f} s"
            )
        lines += ["", f"feeder / torch: {self.ratio:.2f}x (medians of {options['repeats']} runs in turn)"]
        return "\n".join(lines)

    def to_json(self) -> str:
        """Everything, every run included, as JSON."""
        return json.dumps({"benchmark": "loader", "ratio": self.ratio, **asdict(self)}, indent=1)


def run(
    path: str | os.PathLike[str],
    options: BenchOptions | None = None,
    note: Callable[[str], None] = lambda text: None,
) -> BenchReport:
    """Measures both loaders on a shard set, or on a folder of class folders.

    Args:
        path: The dataset.
        options: What to measure.
        note: Called with a line of progress after each run.

    Raises:
        FormatError, SourceError: if there is no dataset.
    """
    options = options or BenchOptions()
    workers = len(os.sched_getaffinity(0)) if options.num_workers is None else options.num_workers
    steps: list[Any] = [RandomResizedCrop(options.size), RandomHorizontalFlip()]
    if options.dtype == "float32":
        steps += [ToDtype("float32", scale=True), Normalize(_MEAN, _STD)]
    folder = os.fspath(path)
    is_sharded = os.path.isfile(folder) or os.path.exists(os.path.join(folder, INDEX_NAME))
    dataset = (ShardDataset if is_sharded else FolderDataset)(folder, Compose(steps))
    samples = min(len(dataset), options.max_samples or len(dataset))
    common: dict[str, Any] = {"batch_size": options.batch_size, "num_workers": workers, "pin_memory": False}
    common["persistent_workers"] = workers > 0
    sampler = _Shuffled(samples)
    plain = _PillowDataset(dataset.reader, options.size, options.dtype)
    feeder = DataLoader(dataset, sampler=sampler, backend=options.backend, **common)
    loaders: dict[str, Any] = {
        "feeder": feeder,
        _RIVAL: torch.utils.data.DataLoader(plain, sampler=sampler, **common),
    }
    first: dict[str, float] = {}
    for name, loader in loaders.items():
        started = time.perf_counter()
        for number, _ in enumerate(loader):
            if number == 0:
                first[name] = time.perf_counter() - started
        note(f"{name}: warmed up, first batch after {first[name]:.2f} s")
    throughput: dict[str, list[float]] = {name: [] for name in loaders}
    cpu: dict[str, list[float]] = {name: [] for name in loaders}
    for repeat in range(options.repeats):
        for name, loader in loaders.items():
            images, seconds, cpu_s = _timed(loader, options.seconds)
            throughput[name].append(images / seconds)
            cpu[name].append(cpu_s / images)
            note(f"run {repeat + 1} of {options.repeats}, {name}: {images / seconds:,.0f} images/s")
    used = asdict(options) | {"num_workers": workers, "backend": feeder.stats()["backend"]}
    feeder.close()
    return BenchReport(os.path.abspath(folder), samples, used, throughput, first, cpu, _machine())


class _Shuffled:
    """A new permutation of 0..n-1 for each epoch."""

    def __init__(self, samples: int) -> None:
        self._samples = samples

    def __len__(self) -> int:
        return self._samples

    def __iter__(self) -> Iterator[int]:
        return iter(torch.randperm(self._samples).tolist())


class _PillowDataset(Dataset[tuple[torch.Tensor, int]]):
    """What a training script does with torch and Pillow, as torchvision's RandomResizedCrop, RandomHorizontalFlip,
    ToTensor and Normalize do it. The bytes come through feeder's reader, which is no slower than opening files."""

    def __init__(self, reader: Reader, size: int, dtype: str) -> None:
        self._reader, self._size, self._dtype = reader, size, dtype

    def __len__(self) -> int:
        return len(self._reader)

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        from PIL import Image

        encoded = self._reader.read(np.array([i]))
        if encoded.errors[0] is not None:
            raise encoded.errors[0]
        image = Image.open(io.BytesIO(encoded.buffers[0])).convert("RGB")
        left, top, width, height = _crop(image.width, image.height)
        box = (left, top, left + width, top + height)
        image = image.crop(box).resize((self._size, self._size), Image.Resampling.BILINEAR)
        if torch.rand(1) < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()
        if self._dtype == "uint8":
            return pixels, int(encoded.labels[0])
        mean, std = (torch.tensor(values)[:, None, None] for values in (_MEAN, _STD))
        return pixels.to(torch.float32).div_(255).sub_(mean).div_(std), int(encoded.labels[0])


def _crop(width: int, height: int) -> tuple[int, int, int, int]:
    """torchvision's RandomResizedCrop.get_params with scale (0.08, 1) and ratio (3/4, 4/3)."""
    for _ in range(10):
        area = width * height * torch.empty(1).uniform_(0.08, 1.0).item()
        ratio = math.exp(torch.empty(1).uniform_(math.log(3 / 4), math.log(4 / 3)).item())
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            top = int(torch.randint(0, height - h + 1, ()))
            return int(torch.randint(0, width - w + 1, ())), top, w, h
    w = min(width, round(height * 4 / 3))
    h = min(height, round(width * 4 / 3))
    return (width - w) // 2, (height - h) // 2, w, h


def _timed(loader: Any, seconds: float) -> tuple[int, float, float]:
    """Whole epochs until so many seconds have passed: images, seconds, CPU seconds of all processes."""
    images, cpu_before = 0, _cpu_s(loader)
    started = time.perf_counter()
    while True:
        for batch in loader:
            images += len(batch[1])
        elapsed = time.perf_counter() - started
        if elapsed >= seconds:
            return images, elapsed, _cpu_s(loader) - cpu_before


def _cpu_s(loader: Any) -> float:
    """CPU time of this process and of a loader's running workers."""
    ticks = 0
    if isinstance(loader, DataLoader):
        pids = loader.worker_pids()
    else:
        pids = [worker.pid for worker in getattr(loader._iterator, "_workers", [])]
    for pid in pids:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")


def _machine() -> dict[str, Any]:
    with open("/proc/cpuinfo") as file:
        models = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    git = ["git", "-C", os.path.dirname(os.path.abspath(__file__)), "rev-parse", "HEAD"]
    try:
        commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:
        commit = ""  # git is not installed
    return {
        "processor": models[0] if models else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "commit": commit or None,
        "versions": versions(),
    }

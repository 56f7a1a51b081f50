"""``feeder bench``: images/s of feeder and of torch's DataLoader with Pillow, on the same images and the same work."""

from __future__ import annotations

import io
import os
import time
from collections.abc import Callable, Generator
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset

from feeder.errors import ArgumentError
from feeder.index import INDEX_NAME, Index
from feeder.loader import DataLoader
from feeder.measure import interleave, spread, table
from feeder.presets import MEAN, STD, describe, is_shards, open_dataset, preset, val_resize
from feeder.source.base import looks_like_image
from feeder.source.folder import class_names
from feeder.versions import pillow_info

__all__ = ["BenchOptions", "render", "throughput"]


@dataclass(frozen=True)
class BenchOptions:
    """What to measure.

    Attributes:
        preset: "train": RandomResizedCrop and horizontal flip; "val": Resize and CenterCrop.
        dtype: "float32", normalized, or "uint8".
        image_size: Height and width of the output, pixels.
        batch_size: Images in a batch.
        workers: Worker processes; None for one a core.
        seconds: How long a run measures, from its first batch on.
        repeats: Runs of each rival, in turn.
        backend: Decode backend of feeder.
    """

    preset: str = "train"
    dtype: str = "float32"
    image_size: int = 224
    batch_size: int = 64
    workers: int | None = None
    seconds: float = 5.0
    repeats: int = 3
    backend: str = "auto"

    def __post_init__(self) -> None:
        preset(self.preset, self.dtype, self.image_size)  # checks them
        for name in ("batch_size", "repeats"):
            if getattr(self, name) < 1:
                raise ArgumentError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.workers is not None and self.workers < 0:
            raise ArgumentError(f"workers must be at least 0, got {self.workers}")
        if self.seconds <= 0:
            raise ArgumentError(f"seconds must be more than 0, got {self.seconds}")


def throughput(
    path: str, options: BenchOptions, *, folder: str | None = None, note: Callable[[str], None] = print
) -> dict[str, Any]:
    """Measures the rivals in turn.

    Args:
        path: A shard set, or a class-per-folder tree.
        options: What to measure.
        folder: Where torch's loader reads the same images as single files; None for the same place as feeder.
        note: Hears about each run.

    Returns:
        JSON values: what was held equal, and for each rival images/s, the time to the first batch, and the CPU time
        that all processes spend on an image, every repeat.

    Raises:
        ArgumentError: if there are fewer images than a batch.
        FormatError, SourceError: if the images can't be opened.
    """
    workers = len(os.sched_getaffinity(0)) if options.workers is None else options.workers
    ours = open_dataset(path, preset(options.preset, options.dtype, options.image_size))
    if len(ours) < options.batch_size:
        raise ArgumentError(f"{path}: holds {len(ours)} images, fewer than a batch of {options.batch_size}")
    pillow = pillow_info()
    rival = f"torch+{pillow.distribution if pillow else 'Pillow'}"  # pillow or pillow-simd, whichever is imported
    loaders: dict[str, Callable[[], TorchDataLoader[Any]]] = {
        "feeder": lambda: DataLoader(
            ours,
            options.batch_size,
            shuffle=True,
            num_workers=workers,
            drop_last=True,
            persistent_workers=workers > 0,
            backend=options.backend,
        ),
        rival: lambda: TorchDataLoader(
            _PillowDataset(folder or path, options),
            options.batch_size,
            shuffle=True,
            num_workers=workers,
            drop_last=True,
            persistent_workers=workers > 0,
        ),
    }
    first: dict[str, list[float]] = {name: [] for name in loaders}
    cpu: dict[str, list[float]] = {name: [] for name in loaders}

    def run(name: str) -> float:
        timing = _timed(loaders[name](), options)
        first[name].append(timing.first_batch_s)
        cpu[name].append(timing.cpu_ms)
        return timing.images_per_s

    rates = interleave({name: (lambda name=name: run(name)) for name in loaders}, options.repeats, note)  # type: ignore[misc]
    baseline = rates[rival]
    return {
        "dataset": os.path.basename(os.path.normpath(path)),
        "images": len(ours),
        "options": asdict(options) | {"workers": workers},
        "images_per_s": {name: spread(values) for name, values in rates.items()},
        "first_batch_s": {name: spread(values) for name, values in first.items()},
        "cpu_ms_per_image": {name: spread(values) for name, values in cpu.items()},
        "ratio": {
            name: spread([ours / theirs for ours, theirs in zip(values, baseline, strict=True)])
            for name, values in rates.items()
        },
    }


def render(result: dict[str, Any]) -> str:
    """The result of :func:`throughput` as a table for a terminal of 80 columns."""
    options = result["options"]
    rows = [["", "images/s", "min", "max", "ratio", "min", "max", "CPU ms", "first s"]]
    for name, rates in result["images_per_s"].items():
        ratio = result["ratio"][name]
        cells = [f"{rates[k]:,.0f}" for k in ("median", "min", "max")]
        cells += [f"{ratio[k]:.2f}" for k in ("median", "min", "max")]
        cells.append(f"{result['cpu_ms_per_image'][name]['median']:.2f}")
        rows.append([name, *cells, f"{result['first_batch_s'][name]['median']:.2f}"])
    work = describe(options["preset"], options["dtype"], options["image_size"])
    head = f"{work}\n{result['images']:,} images, batch {options['batch_size']}, {options['workers']} workers, "
    head += f"{options['repeats']} runs of {options['seconds']:g} s in turn; medians"
    return f"{head}\n\n{table(rows)}"


class _Timing(NamedTuple):
    first_batch_s: float
    images_per_s: float
    cpu_ms: float


def _timed(loader: TorchDataLoader[Any], options: BenchOptions) -> _Timing:
    """Time to the first batch; images/s and CPU time an image from then on."""
    expected = (options.batch_size, 3, options.image_size, options.image_size)
    start = time.perf_counter()
    batches = _forever(loader)
    images, _ = next(batches)
    began = time.perf_counter()
    if tuple(images.shape) != expected or str(images.dtype) != f"torch.{options.dtype}":
        raise AssertionError(f"expected {options.dtype} {expected}, got {images.dtype} {tuple(images.shape)}")
    cpu_before = _cpu_s(loader)
    count = 0
    while (elapsed := time.perf_counter() - began) < options.seconds:
        count += len(next(batches)[0])
    cpu_s = _cpu_s(loader) - cpu_before
    batches.close()
    return _Timing(began - start, count / elapsed, 1000 * cpu_s / max(count, 1))


def _cpu_s(loader: TorchDataLoader[Any]) -> float:
    """CPU time of this process and of a loader's running workers."""
    if isinstance(loader, DataLoader):
        pids = loader.worker_pids()
    else:
        pids = [worker.pid for worker in getattr(loader._iterator, "_workers", [])]
    ticks = 0
    for pid in pids:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")


def _forever(loader: TorchDataLoader[Any]) -> Generator[Any, None, None]:
    """Epoch after epoch; closing it closes the loader, where it can be closed."""
    try:
        while True:
            yield from loader
    finally:
        if isinstance(loader, DataLoader):
            loader.close()


class _PillowDataset(Dataset[tuple[torch.Tensor, int]]):
    """What people write today: Pillow and torchvision's ops, one image at a time; written out here with torch alone."""

    def __init__(self, path: str, options: BenchOptions) -> None:
        self._options = options
        self._index: Index | None = None
        self._files: list[tuple[str, int]] = []
        if is_shards(path):
            self._index = Index(path if os.path.isfile(path) else os.path.join(path, INDEX_NAME))
        else:
            for label, name in enumerate(class_names(path)):
                for folder, _, files in os.walk(os.path.join(path, name), followlinks=True):
                    self._files += [(os.path.join(folder, file), label) for file in files if looks_like_image(file)]

    def __len__(self) -> int:
        return len(self._files) if self._index is None else len(self._index)

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        from PIL import Image

        data, label = self._read(i)
        with Image.open(io.BytesIO(data)) as opened:
            image = opened.convert("RGB")
        size = self._options.image_size
        if self._options.preset == "train":
            box = _random_resized_crop(*image.size)
            image = image.crop(box).resize((size, size), Image.Resampling.BILINEAR)
            if torch.rand(1) < 0.5:
                image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        else:
            image = _resize_and_center_crop(image, val_resize(size), size)
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()
        if self._options.dtype == "uint8":
            return pixels, label
        floats = pixels.to(torch.float32).div_(255)
        return floats.sub_(torch.tensor(MEAN).view(3, 1, 1)).div_(torch.tensor(STD).view(3, 1, 1)), label

    def _read(self, i: int) -> tuple[bytes, int]:
        if self._index is None:
            path, label = self._files[i]
            with open(path, "rb") as file:
                return file.read(), label
        index = self._index
        with open(index.shard_path(int(index.shard[i])), "rb") as file:
            return os.pread(file.fileno(), int(index.length[i]), int(index.offset[i])), int(index.label[i])


def _random_resized_crop(width: int, height: int) -> tuple[int, int, int, int]:
    """torchvision's RandomResizedCrop.get_params with its defaults, as a box."""
    area = width * height
    for _ in range(10):
        target = area * torch.empty(1).uniform_(0.08, 1.0).item()
        ratio = torch.exp(torch.empty(1).uniform_(float(np.log(3 / 4)), float(np.log(4 / 3)))).item()
        w, h = round((target * ratio) ** 0.5), round((target / ratio) ** 0.5)
        if 0 < w <= width and 0 < h <= height:
            top = int(torch.randint(0, height - h + 1, (1,)).item())
            left = int(torch.randint(0, width - w + 1, (1,)).item())
            return left, top, left + w, top + h
    ratio = min(max(width / height, 3 / 4), 4 / 3)
    w, h = (width, round(width / ratio)) if width / height < 3 / 4 else (round(height * ratio), height)
    w, h = min(w, width), min(h, height)
    left, top = (width - w) // 2, (height - h) // 2
    return left, top, left + w, top + h


def _resize_and_center_crop(image: Any, short_side: int, size: int) -> Any:
    """torchvision's Resize and CenterCrop."""
    from PIL import Image

    width, height = image.size
    if width <= height:
        scaled = short_side, int(short_side * height / width)
    else:
        scaled = int(short_side * width / height), short_side
    left, top = round((scaled[0] - size) / 2), round((scaled[1] - size) / 2)
    return image.resize(scaled, Image.Resampling.BILINEAR).crop((left, top, left + size, top + size))

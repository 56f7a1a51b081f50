"""Parts that the GPU benchmarks share: arguments, results saved as they come, timing, and the feeds compared."""

from __future__ import annotations

import argparse
import functools
import importlib.metadata
import os
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import ConcatDataset

import feeder
from feeder import transforms as T
from feeder.decoders import gpu as kernels
from feeder.decoders.gpu.dispatch import runs_triton
from feeder.system.nvml import Gpu, Nvml, gpu_of, open_nvml
from feeder.system.process_usage import cpu_seconds
from feeder.tools.bench.result_file import save, spread
from feeder.tools.set_report import open_set
from feeder.tools.terminal import table

__all__ = [
    "BATCH",
    "DEVICE",
    "IS_DRY_RUN",
    "MEAN",
    "STD",
    "Feed",
    "Result",
    "Row",
    "arguments",
    "compared",
    "current_gpu_busy",
    "endless",
    "first_batch",
    "first_loader_batch",
    "gpu",
    "images_of",
    "interleaved",
    "is_over",
    "loader_feed",
    "on_gpu",
    "rate",
    "recipe",
    "repeated",
    "survives",
    "synchronize",
    "triton_lacks",
    "warm_up",
]

# In a dry run everything takes place on the CPU: feeder's kernels in the tests' emulator, DALI without a GPU. It shows
# that the steps run, and nothing of their speed.
IS_DRY_RUN = os.environ.get("GPU_DRY_RUN") == "1"
DEVICE = "cpu" if IS_DRY_RUN else "cuda"
BATCH = 8 if IS_DRY_RUN else 256
EPOCH = 60_000  # samples: between epochs loaders drain and fill again, which takes some percent of a short one
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
Row = dict[str, Any]
Feed = Callable[[], Generator[torch.Tensor, None, None]]


def arguments(doc: str | None, **more: Any) -> argparse.Namespace:
    """Parses --json OUT and, by keyword, further options with their defaults (None: required)."""
    parser = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    parser.add_argument("--json", required=True, metavar="OUT", help="file for the result")
    for name, default in more.items():
        kind = str if default is None else type(default)
        parser.add_argument(f"--{name.replace('_', '-')}", default=default, type=kind, required=default is None)
    return parser.parse_args()


def gpu() -> dict[str, Any]:
    """Returns name, memory and driver of the GPU, and whether Triton's kernels run there."""
    if IS_DRY_RUN:
        return {"name": "none, a dry run"}
    properties = torch.cuda.get_device_properties(0)
    lacking, nvml = triton_lacks(), open_nvml()
    triton = importlib.metadata.version("triton") if kernels.has_triton() else None
    return {
        "name": properties.name,
        "memory_gib": round(properties.total_memory / 2**30, 1),
        "multiprocessors": properties.multi_processor_count,
        "driver": None if isinstance(nvml, str) else nvml.driver,
        "torch_cuda": torch.version.cuda,
        "triton": {"version": triton, "runs": lacking is None, "lacks": lacking},
    }


@functools.lru_cache(maxsize=1)
def triton_lacks() -> str | None:
    """Runs one of Triton's kernels on the GPU, and returns the reason if it fails; None if it runs.

    Without the kernels the loader runs the torch references, which are slower.
    """
    if IS_DRY_RUN:
        return None
    try:
        device = torch.device("cuda")
        runs_triton(device, "triton")
        ones = torch.ones(3, device=device)
        image = torch.zeros((1, 3), dtype=torch.uint8, device=device)
        kernels.normalize(image, (1, 1), affine=(ones, ones), dtype=torch.float16, channels_last=True, using="triton")
        torch.cuda.synchronize()
    except Exception as error:  # compilers and drivers raise errors of any class
        return (str(error).strip() or type(error).__name__).splitlines()[0]
    return None


def images_of(shards: str) -> dict[str, Any]:
    """Returns the number of a seekable set's samples and of the distinct files among them, and these files' means.

    Links to one file are one: their images have the same sizes and places of rows in the index. Files are not read.

    Returns:
        samples, distinct, mean_bytes (of a file before it was rewritten) and mean_pixels.
    """
    index = open_set(shards)
    names = ("width", "height", "source_bytes", "length")
    columns = zip(*(index.column(name).tolist() for name in names), strict=True)
    distinct = {(*sizes, index.row_data(i)) for i, sizes in enumerate(columns)}
    return {
        "samples": len(index),
        "distinct": len(distinct),
        "mean_bytes": round(statistics.mean(size for _, _, size, _, _ in distinct)),
        "mean_pixels": round(statistics.mean(width * height for width, height, *_ in distinct)),
    }


class Result:
    """A benchmark's findings, saved at each addition, so that a run that ends early keeps those made so far.

    Args:
        name: The benchmark's name.
        path: File for the result, JSON.
    """

    def __init__(self, name: str, path: str) -> None:
        self._name, self._path = name, path
        self._values: dict[str, Any] = {}
        self.errors: dict[str, str] = {}

    def add(self, **values: Any) -> None:
        """Adds values, or replaces earlier ones."""
        self._values |= values
        errors = {"errors": self.errors} if self.errors else {}
        save(self._name, {**self._values, **errors}, self._path)

    def failed(self, what: str, error: Exception) -> None:
        """Records and prints that a part could not be measured."""
        self.errors[what] = f"{type(error).__name__}: {error}".splitlines()[0]
        print(f"  {what} FAILED")
        traceback.print_exception(error, file=sys.stdout)
        self.add()

    def part(self, what: str, measure: Callable[[], Any]) -> None:
        """Measures a part and adds it under its name; an error does not prevent the next part."""
        try:
            self.add(**{what: measure()})
        except Exception as error:
            self.failed(what, error)


def on_gpu(name: str, path: str, measure: Callable[[Result], None]) -> int:
    """Measures, or without a GPU saves the reason for skipping. Returns the exit code: 1 if any part failed."""
    result = Result(name, path)
    if IS_DRY_RUN:
        import pytest

        from tests.support import cuda_driver

        cuda_driver.install(pytest.MonkeyPatch(), Path(tempfile.mkdtemp()))
    elif not torch.cuda.is_available():
        result.add(skipped="no CUDA device")
        print(f"{name}: skipped, no CUDA device")
        return 0
    result.add(gpu=gpu())
    try:
        measure(result)
    except Exception as error:
        result.failed(name, error)
    return 1 if result.errors else 0


def survives(what: str, statement: str, result: Result) -> bool:
    """Returns True if a statement runs without an error in a separate process, as a decoder may crash its process.

    Args:
        what: Name of the part that can't be measured if it fails.
        statement: The Python statement.
        result: Gets the reason if it fails.
    """
    try:
        done = subprocess.run([sys.executable, "-c", statement], capture_output=True, text=True, timeout=90)
    except subprocess.TimeoutExpired as error:
        result.failed(what, error)
        return False
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["nothing"])[-1]
        result.failed(what, RuntimeError(f"a first try ended with exit status {done.returncode}, and said: {said}"))
    return done.returncode == 0


def synchronize() -> None:
    """Waits for all that is queued on the GPU."""
    if not IS_DRY_RUN:
        torch.cuda.synchronize()


def first_batch(feed: Generator[torch.Tensor, None, None]) -> None:
    """Takes a batch of a feed and ends it, as DALI may crash where the interpreter's end finds a pipeline running."""
    next(feed)
    synchronize()
    feed.close()


def first_loader_batch(shards: str, batch_size: int) -> str:
    """Returns the statement for :func:`survives` that takes a batch of feeder's loader with DALI."""
    feed = f"loader_feed({shards!r}, 'dali', 2, {batch_size})"
    return f"from bench.gpu.common import first_batch, loader_feed; first_batch({feed})"


def interleaved(
    rivals: Mapping[str, Callable[[], Row]],
    repeats: int,
    result: Result,
    goals: Callable[[dict[str, dict[str, float]]], Mapping[str, Any]] | None = None,
) -> dict[str, dict[str, float]]:
    """Runs each rival in turn, ``repeats`` times round; one that fails is left out from then on.

    Args:
        rivals: Functions by name, each of which returns a row of numbers.
        repeats: Number of rounds.
        result: Gets every row so far, after each run.
        goals: Computes the goals from the medians; the result gets them after each round.

    Returns:
        The medians of each rival that was measured.
    """
    found: dict[str, dict[str, list[float]]] = {}
    lost: set[str] = set()

    def medians() -> dict[str, dict[str, float]]:
        return {name: {key: statistics.median(values) for key, values in row.items()} for name, row in found.items()}

    for turn in range(repeats):
        for name, run in rivals.items():
            if name in lost:
                continue
            try:
                row = run()
            except Exception as error:
                lost.add(name)
                result.failed(name, error)
                continue
            for key, value in row.items():
                found.setdefault(name, {}).setdefault(key, []).append(value)
            print(f"  {turn + 1}/{repeats} {name}: " + ", ".join(f"{key} {value:.4g}" for key, value in row.items()))
            result.add(rows={rival: {k: spread(v) for k, v in each.items()} for rival, each in found.items()})
        if goals is not None:
            result.add(**goals(medians()))
    return medians()


def recipe(dtype: str = "float16") -> T.Recipe:
    """Returns the recipe of all throughput rows."""
    ops: list[T.Op] = [T.RandomResizedCrop(224), T.RandomHorizontalFlip()]
    if dtype != "uint8":
        ops += [T.Normalize(MEAN, STD), T.ToDtype(dtype)]
    return T.Recipe.of(ops)


def warm_up(workers: int, prefetch_factor: int = 2) -> int:
    """Returns the number of batches before a window: start-up, autotuning, and batches that workers had ready.

    torch's workers make a whole batch each, so batches come in bursts of as many as there are workers.
    """
    return max(5, workers * (prefetch_factor + 1))


def is_over(batches: int, workers: int, began: float, seconds: float) -> bool:
    """Returns True if a window may end: after its seconds, and at least two whole bursts of the workers' batches."""
    bursts, rest = divmod(batches, max(1, workers))
    return not rest and bursts >= 2 and time.perf_counter() - began >= seconds


def rate(batches: Generator[torch.Tensor, None, None], seconds: float, workers: int) -> Row:
    """Returns images/s of a feed whose batches end up on the GPU, and the CPU cores that 1,000 images/s take."""
    for _ in range(warm_up(workers)):
        next(batches)
    synchronize()
    count, images, began, cpu = 0, 0, time.perf_counter(), cpu_seconds()
    while not is_over(count, workers, began, seconds):
        images += len(next(batches))
        count += 1
    synchronize()
    took = time.perf_counter() - began
    used = cpu_seconds() - cpu
    batches.close()
    return {"images_per_s": images / took, "cores_per_1000_images_per_s": used / images * 1000}


def compared(
    feeds: Mapping[str, tuple[int, Feed]],
    options: argparse.Namespace,
    result: Result,
    goals: Callable[[dict[str, dict[str, float]]], Mapping[str, Any]] | None = None,
) -> None:
    """Measures feeds in turn, and prints a table of them.

    Args:
        feeds: By name the number of workers and the feed.
        options: With ``seconds`` and ``repeats``.
        result: See :func:`interleaved`, as for ``goals``.
        goals: Computes the goals.
    """

    def run(name: str) -> Row:
        workers, feed = feeds[name]
        return rate(feed(), options.seconds, workers)

    rivals = {name: functools.partial(run, name) for name in feeds}
    middle = interleaved(rivals, options.repeats, result, goals)
    rows = [["", "images/s", "CPU us an image"]]
    for name, row in middle.items():
        rows.append([name, f"{row['images_per_s']:,.0f}", f"{1000 * row['cores_per_1000_images_per_s']:.0f}"])
    print(table(rows))


def endless(loader: Any) -> Generator[Any, None, None]:
    """Yields epoch after epoch of a loader.

    Raises:
        ValueError: if an epoch has no batch.
    """
    if len(loader) == 0:
        raise ValueError("there are fewer images than a batch takes; give more")
    while True:
        yield from loader


def repeated(dataset: Any) -> Any:
    """Repeats a dataset of few samples, so that an epoch has 60,000 of them."""
    return dataset if len(dataset) >= EPOCH else ConcatDataset([dataset] * -(-EPOCH // len(dataset)))


def loader_feed(
    shards: str, backend: str | feeder.Dali, workers: int, batch_size: int, **options: Any
) -> Generator[torch.Tensor, None, None]:
    """Yields endless batches of a feeder.DataLoader on the GPU, float16 and channels_last.

    Raises:
        RuntimeError: if Triton's kernels don't run; when it ends, if the CPU decoded images in the GPU's place.
    """
    lacking = triton_lacks()
    if lacking is not None and backend != "cuda":  # which needs none of them for this recipe
        raise RuntimeError(f"Triton's kernels don't run here, and their references aren't worth timing: {lacking}")
    loader = feeder.DataLoader(
        repeated(feeder.ShardDataset(shards, transform=recipe())),
        batch_size,
        shuffle=True,
        num_workers=workers,
        drop_last=True,
        persistent_workers=True,
        backend=backend,
        device=None if IS_DRY_RUN else DEVICE,
        memory_format=torch.channels_last,
        **options,
    )
    try:
        yield from (images for images, _ in endless(loader))
    finally:
        redone = loader.stats().get("redone_images", 0)
        loader.close()
        if redone:
            raise RuntimeError(f"{backend!r} failed on batches of {redone} images, which the CPU decoded in its place")


if __name__ == "__main__":
    sys.exit("this is not a benchmark; run bench/gpu.sh")


def current_gpu_busy() -> Callable[[], float | None]:
    """Returns a function that returns :meth:`feeder.system.nvml.Nvml.busy` of the current GPU; None without one, and
    before CUDA is initialized."""
    found: list[tuple[Nvml, Gpu] | None] = []

    def look() -> float | None:
        if not torch.cuda.is_initialized():
            return None
        if not found:
            found.append(gpu_of(torch, torch.cuda.current_device()))
        return found[0][0].busy(found[0][1]) if found[0] is not None else None

    return look

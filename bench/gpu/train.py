"""Measures ResNet-50 training (AMP, channels_last, batch 256) fed by each backend, and from one resident batch.

Goals: the best backend at least 0.98 of the resident batch's images/s; GPU utilisation at least 97 %. Equal: the model,
the step, the batch. GPU utilisation is read from NVML ten times a second.

    python -m bench.gpu.train --seekable SHARDS --json OUT [--workers 8] [--steps 100] [--repeats 3]
        [--backends cpu,cuda,dali]
"""

from __future__ import annotations

import statistics
import sys
import threading
import time
from collections.abc import Callable, Generator, Mapping
from typing import Any

import torch

from bench.gpu.common import (
    BATCH,
    DEVICE,
    IS_DRY_RUN,
    Result,
    Row,
    arguments,
    current_gpu_busy,
    first_loader_batch,
    images_of,
    interleaved,
    loader_feed,
    on_gpu,
    survives,
    synchronize,
    warm_up,
)
from bench.gpu.resnet import resnet50
from feeder.system.process_usage import cpu_seconds
from feeder.tools.terminal import table

RESIDENT = "resident batch"
NAMES = {"cpu": "feeder cpu + kernel 1", "cuda": "feeder cuda", "dali": "feeder dali"}


def _small() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(4), torch.nn.Flatten(), torch.nn.Linear(48, 1000))


class Utilisation:
    """The GPU's utilisation while the context is open, percent; None if NVML does not report it."""

    def __enter__(self) -> Utilisation:
        self.mean: float | None = None
        self._found: list[float] = []
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()
        self.mean = statistics.mean(self._found) if self._found else None

    def _look(self) -> None:
        busy = current_gpu_busy()
        while not self._end.wait(0.1):
            share = busy()
            if share is not None:
                self._found.append(100 * share)


class Trainer:
    """A model and its step."""

    def __init__(self) -> None:
        torch.backends.cudnn.benchmark = True
        self.model: torch.nn.Module = resnet50().cuda() if not IS_DRY_RUN else _small()
        self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # missing in torch's stubs
        # Fused: otherwise GradScaler would wait for the GPU at each step, and the GPU then for Python's next batch.
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9, fused=not IS_DRY_RUN)
        self.scaler = torch.amp.GradScaler("cuda", enabled=not IS_DRY_RUN)
        self.labels = torch.randint(0, 1000, (BATCH,), device=DEVICE)

    def step(self, images: torch.Tensor) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast(DEVICE, torch.bfloat16 if IS_DRY_RUN else torch.float16):
            loss = torch.nn.functional.cross_entropy(self.model(images), self.labels)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def run(self, batches: Generator[torch.Tensor, None, None], before: int, steps: int) -> Row:
        """Returns images/s, CPU cores for 1,000 images/s and utilisation over some steps, after a warm-up."""
        for _ in range(before):
            self.step(next(batches))
        synchronize()
        with Utilisation() as utilisation:
            cpu, began = cpu_seconds(), time.perf_counter()
            for _ in range(steps):
                self.step(next(batches))
            synchronize()
            took, used = time.perf_counter() - began, cpu_seconds() - cpu
        batches.close()
        images = BATCH * steps
        known = {} if utilisation.mean is None else {"gpu_utilisation_percent": utilisation.mean}
        return {"images_per_s": images / took, "cores_per_1000_images_per_s": used / images * 1000, **known}


def resident() -> Generator[torch.Tensor, None, None]:
    """Yields one batch again and again."""
    shape = (BATCH, 3, 224, 224)
    images = torch.randn(shape, device=DEVICE).to(torch.float16, memory_format=torch.channels_last)
    while True:
        yield images


def measure(options: Any, result: Result) -> None:
    trainer = Trainer()
    feeds: dict[str, Callable[[], Generator[torch.Tensor, None, None]]] = {RESIDENT: resident}
    for backend in options.backends.split(","):
        name = NAMES[backend]
        if backend != "dali" or survives(name, first_loader_batch(options.seekable, BATCH), result):
            feeds[name] = lambda backend=backend: loader_feed(  # type: ignore[misc]
                options.seekable, backend, options.workers, BATCH
            )

    def run(name: str) -> Row:
        return trainer.run(feeds[name](), max(10, warm_up(options.workers)), options.steps)

    result.add(batch=BATCH, workers=options.workers, steps=options.steps)
    result.part("images", lambda: images_of(options.seekable))
    rivals = {name: (lambda name=name: run(name)) for name in feeds}
    middle = interleaved(rivals, options.repeats, result, reached)
    if RESIDENT not in middle:
        return
    whole = middle[RESIDENT]["images_per_s"]
    rows = [["ResNet-50", "images/s", "of resident", "GPU used", "CPU cores for 1,000 images/s"]]
    for name, row in middle.items():
        share = f"{row['gpu_utilisation_percent']:.0f} %" if "gpu_utilisation_percent" in row else "unknown"
        cores = f"{row['cores_per_1000_images_per_s']:.2f}"
        rows.append([name, f"{row['images_per_s']:,.0f}", f"{row['images_per_s'] / whole:.3f}", share, cores])
    print(table(rows))


def reached(middle: Mapping[str, Row]) -> Row:
    """Returns the figures of the fastest fed row that have goals; empty if there is no such row."""
    fed = {name: row for name, row in middle.items() if name != RESIDENT}
    if not fed or RESIDENT not in middle:
        return {}
    best = max(fed, key=lambda name: fed[name]["images_per_s"])
    goals = {f"{best}, of a resident batch (0.98)": fed[best]["images_per_s"] / middle[RESIDENT]["images_per_s"]}
    if "gpu_utilisation_percent" in fed[best]:
        goals[f"{best}, GPU utilisation in percent (97)"] = fed[best]["gpu_utilisation_percent"]
    return {"best": best, "goals": goals}


def main() -> int:
    options = arguments(__doc__, seekable=None, workers=8, steps=100, repeats=3, backends=",".join(NAMES))
    return on_gpu("gpu-train", options.json, lambda result: measure(options, result))


if __name__ == "__main__":
    sys.exit(main())

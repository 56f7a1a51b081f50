"""ResNet-50 training, AMP, channels_last, batch 256: fed by each backend against fed from one resident batch.

Goals: the best backend at least 0.98 of the resident batch's images/s; GPU utilisation at least 97 %. Equal: the model,
the step, the batch. GPU utilisation is NVML's, looked at ten times a second.

    python -m bench.gpu.train --seekable SHARDS --json OUT [--workers 16] [--steps 100] [--repeats 3]
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Generator
from typing import Any

import torch

from bench.gpu.common import arguments, loader_feed, on_gpu
from bench.gpu.feed import BATCH
from bench.gpu.resnet import resnet50
from feeder.measure import interleave, spread, table
from feeder.nvml import current_gpu_busy


class Utilisation:
    """The GPU's utilisation while the context is open, percent; None where NVML does not tell."""

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
        self.model = resnet50().cuda().to(memory_format=torch.channels_last)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        self.scaler = torch.amp.GradScaler("cuda")
        self.labels = torch.randint(0, 1000, (BATCH,), device="cuda")

    def step(self, images: torch.Tensor) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.float16):
            loss = torch.nn.functional.cross_entropy(self.model(images), self.labels)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def run(self, batches: Generator[torch.Tensor, None, None], steps: int) -> tuple[float, float | None]:
        """images/s and utilisation."""
        for _ in range(10):
            self.step(next(batches))
        torch.cuda.synchronize()
        with Utilisation() as utilisation:
            began = time.perf_counter()
            for _ in range(steps):
                self.step(next(batches))
            torch.cuda.synchronize()
            took = time.perf_counter() - began
        batches.close()
        return BATCH * steps / took, utilisation.mean


def resident() -> Generator[torch.Tensor, None, None]:
    """One batch, again and again."""
    shape = (BATCH, 3, 224, 224)
    images = torch.randn(shape, device="cuda").to(torch.float16, memory_format=torch.channels_last)
    while True:
        yield images


def measure(options: Any) -> dict[str, Any]:
    trainer = Trainer()
    feeds: dict[str, Callable[[], Generator[torch.Tensor, None, None]]] = {
        "resident batch": resident,
        "feeder dali": lambda: loader_feed(options.seekable, "dali", options.workers, BATCH),
        "feeder cpu + kernel 1": lambda: loader_feed(options.seekable, "cpu", options.workers, BATCH),
    }
    used: dict[str, list[float | None]] = {name: [] for name in feeds}

    def run(name: str) -> float:
        images_per_s, utilisation = trainer.run(feeds[name](), options.steps)
        used[name].append(utilisation)
        return images_per_s

    rates = interleave({name: (lambda name=name: run(name)) for name in feeds}, options.repeats)
    middle = {name: statistics.median(values) for name, values in rates.items()}
    rows = [["ResNet-50", "images/s", "of resident", "GPU used"]]
    for name, value in middle.items():
        known = [each for each in used[name] if each is not None]
        share = f"{statistics.mean(known):.0f} %" if known else "unknown"
        rows.append([name, f"{value:,.0f}", f"{value / middle['resident batch']:.3f}", share])
    print(table(rows))
    best = max((name for name in middle if name.startswith("feeder")), key=lambda name: middle[name])
    known = [each for each in used[best] if each is not None]
    goals = {"best of resident (0.98)": middle[best] / middle["resident batch"]}
    if known:
        goals["GPU utilisation with the best, percent (97)"] = statistics.mean(known)
    return {
        "batch": BATCH,
        "workers": options.workers,
        "best": best,
        "goals": goals,
        "images_per_s": {name: spread(values) for name, values in rates.items()},
        "gpu_utilisation_percent": used,
    }


def main() -> None:
    options = arguments(__doc__, seekable=None, workers=16, steps=100, repeats=3)
    on_gpu("gpu-train", options.json, lambda: measure(options))


if __name__ == "__main__":
    main()

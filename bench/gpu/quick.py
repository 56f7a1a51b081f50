"""The rows of ``bench/gpu.sh --quick``, each of which is a process of its own with a limit of time.

    python -m bench.gpu.quick STEP --json OUT [--seekable SHARDS] [--packed SHARDS] [--keep SHARDS] [--images FOLDER]

STEP is ``decoder``: the time of each kernel, and of the trainer's thread; ``rates``: images/s without DALI; ``plain``:
plain DALI at its best; ``dali``: feeder's DALI backend beside it, with the settings that ``plain`` found, of the file
gpu-quick-plain.json beside its own. The task is that of bench.gpu.feed. A set of few photos is repeated until an epoch
has 60,000. Plain DALI has at most as many threads as feeder has processes and threads together.
"""

from __future__ import annotations

import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import Any

import torch

import feeder
from bench.gpu.common import (
    BATCH,
    DEVICE,
    Feed,
    Result,
    arguments,
    compared,
    images_of,
    loader_feed,
    on_gpu,
    rate,
    synchronize,
)
from bench.gpu.cuda import check
from bench.gpu.feed import Settings, plain_dali, torch_feed
from feeder.decoders.cuda import cuda_decoder, driver
from feeder.tools.terminal import table

__all__ = ["best_settings", "kernel_times"]

# What DALI advises against allocations while it runs, bytes: planes of the largest photo, and its file.
HINTS = {"device_memory_padding": 16 << 20, "host_memory_padding": 8 << 20}
FOUND = "gpu-quick-plain.json"


class _Clock:
    """Times what is queued between two of its marks: by CUDA's events, in a dry run by the wall clock."""

    def __init__(self) -> None:
        self._spans: dict[str, list[tuple[Any, Any]]] = {}

    def timed(self, name: str, call: Callable[..., Any], *arguments: Any) -> Any:
        began = self._mark()
        answer = call(*arguments)
        self._spans.setdefault(name, []).append((began, self._mark()))
        return answer

    def milliseconds(self) -> dict[str, list[float]]:
        synchronize()
        if DEVICE == "cpu":
            return {name: [1000 * (end - began) for began, end in spans] for name, spans in self._spans.items()}
        return {name: [began.elapsed_time(end) for began, end in spans] for name, spans in self._spans.items()}

    @staticmethod
    def _mark() -> Any:
        if DEVICE == "cpu":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


def kernel_times(batches: Generator[torch.Tensor, None, None], count: int) -> dict[str, float]:
    """Returns the milliseconds of each kernel, and of the upload, in a batch: medians over ``count`` of them."""
    clock = _Clock()
    launch, names = driver.Kernels.launch, vars(cuda_decoder)
    upload = names["upload"]

    def timed_launch(self: Any, launches: Any, stream: int) -> None:
        for each in launches:
            clock.timed(each[0], launch, self, [each], stream)

    driver.Kernels.launch = timed_launch  # type: ignore[method-assign]
    names["upload"] = lambda *args: clock.timed("upload", upload, *args)
    try:
        for _ in range(count):
            next(batches)
        found = clock.milliseconds()
    finally:
        driver.Kernels.launch = launch  # type: ignore[method-assign]
        names["upload"] = upload
    return {name: statistics.median(values) for name, values in found.items()}


def decoder(options: Any, result: Result) -> None:
    """Times the kernels, and what the trainer's thread and the workers take of the CPU."""
    for kind, shards in (("seekable", options.seekable), ("packed", options.packed)):
        batches = loader_feed(shards, "cuda", options.workers, BATCH)
        try:
            for _ in range(5):
                next(batches)
            synchronize()
            own, began = time.thread_time(), time.perf_counter()
            for _ in range(options.batches):
                next(batches)
            synchronize()
            own, took = time.thread_time() - own, time.perf_counter() - began
            found = {
                "trainer_us_an_image": 1e6 * own / options.batches / BATCH,
                "images_per_s": BATCH * options.batches / took,
                "ms_a_batch": kernel_times(batches, options.batches),
            }
        finally:
            batches.close()
        result.add(**{kind: found})
        rows = [[f"{kind}, of a batch of {BATCH}", "ms"], *([k, f"{v:.3f}"] for k, v in found["ms_a_batch"].items())]
        print(table(rows))
        print(f"{kind}: the trainer's thread takes {found['trainer_us_an_image']:.1f} us of CPU an image")


def rates(options: Any, result: Result) -> None:
    """Measures feeder's own decoder with half and all of the workers, the CPU kernels and torch with all."""
    result.part("images", lambda: images_of(options.seekable))
    feeds: dict[str, tuple[int, Feed]] = {}
    for kind, shards in (("seekable", options.seekable), ("packed", options.packed)):
        try:
            check(shards, options.workers)
        except Exception as error:
            result.failed(f"feeder cuda, {kind}", error)
            continue
        for workers in dict.fromkeys((options.workers, max(1, options.workers // 2))):
            feeds[f"feeder cuda, {kind}, {workers} workers"] = (
                workers,
                lambda shards=shards, workers=workers: loader_feed(shards, "cuda", workers, BATCH),  # type: ignore[misc]
            )
    every = options.workers
    feeds[f"feeder cpu + kernel 1, {every} workers"] = (
        every,
        lambda: loader_feed(options.seekable, "cpu", every, BATCH),
    )
    feeds[f"torch + Pillow, {every} workers"] = (every, lambda: torch_feed(options.images, every))
    compared(feeds, options, result)


def best_settings(
    try_out: Callable[[Settings, Mapping[str, Any]], float],
    threads: int,
    like: tuple[Settings, dict[str, Any]] | None = None,
) -> tuple[Settings, dict[str, Any], float]:
    """Finds plain DALI's best settings one after the other, each with the best of those before it.

    Args:
        try_out: Returns images/s with settings and with further options of :func:`plain_dali`; 0 where they fail.
        threads: The number of CPU threads to begin with; at most twice as many are tried.
        like: The best for another set or number of threads, of which only what may differ is tried.

    Returns:
        The settings, the further options, and images/s.
    """
    best: tuple[float, Settings, dict[str, Any]] = (0.0, Settings(True, 0.9, 2, threads), {})

    def look(found: list[tuple[Settings, dict[str, Any]]]) -> None:
        nonlocal best
        for settings, further in found:
            best = max(best, (try_out(settings, further), settings, further), key=lambda each: each[0])

    if like is not None:
        settings, further = like
        look([(settings._replace(num_threads=number), further) for number in (threads, 2 * threads)])
        loads = {0.65, 0.9} - {settings.hw_decoder_load}
        look([(best[1]._replace(hw_decoder_load=load), best[2]) for load in sorted(loads)])
        return best[1], best[2], best[0]
    look([(Settings(fused, 0.9, 2, threads), {}) for fused in (True, False)])
    look([(best[1]._replace(hw_decoder_load=load), {}) for load in (0.65, 0.8, 1.0)])
    look([(best[1]._replace(prefetch_queue_depth=depth), {}) for depth in (3, 4)])
    look([(best[1], {"pipelines": number}) for number in (2, 4)])
    look([(best[1], best[2] | {"hints": HINTS})])
    look([(best[1]._replace(num_threads=number), best[2]) for number in (max(1, threads // 2), 2 * threads)])
    return best[1], best[2], best[0]


def plain(options: Any, result: Result) -> None:
    """Finds the best settings for each number of workers, on original files and on seekable ones."""
    tried: list[dict[str, Any]] = []
    like: tuple[Settings, dict[str, Any]] | None = None
    for threads in dict.fromkeys((options.workers, max(1, options.workers // 4))):
        for kind, shards in (("keep", options.keep), ("seekable", options.seekable)):

            def try_out(settings: Settings, further: Mapping[str, Any], shards: str = shards) -> float:
                try:
                    found = rate(plain_dali(shards, *settings, **further), options.seconds, 1)["images_per_s"]
                except Exception as error:
                    result.failed(f"plain DALI, {settings}, {further}", error)
                    found = 0.0
                tried.append({"set": Path(shards).name, **settings._asdict(), **further, "images_per_s": found})
                result.add(tried=tried)
                return found

            settings, further, images_per_s = best_settings(try_out, threads, like)
            like = like or ((settings, further) if images_per_s else None)
            found = {**settings._asdict(), **further, "images_per_s": images_per_s}
            result.add(**{f"{kind}, {threads} workers": found})
            print(f"plain DALI, {kind}, at most {2 * threads} threads: {images_per_s:,.0f} images/s with {found}")


def dali(options: Any, result: Result) -> None:
    """Measures feeder's DALI backend beside plain DALI at its best, and feeder's own decoder on the same card."""
    known = json.loads((Path(options.json).parent / FOUND).read_text())
    feeds: dict[str, tuple[int, Feed]] = {}
    for workers, (kind, shards) in itertools.product(
        dict.fromkeys((options.workers, max(1, options.workers // 4))),
        (("keep", options.keep), ("seekable", options.seekable)),
    ):
        for fidelity in ("draft", "fast"):
            feeds[f"feeder dali, {kind}, {fidelity}, {workers} workers"] = (
                workers,
                lambda shards=shards, workers=workers, fidelity=fidelity: loader_feed(  # type: ignore[misc]
                    shards, feeder.Dali(hw_decoder_load=0.9), workers, BATCH, fidelity=fidelity
                ),
            )
        found = dict(known.get(f"{kind}, {workers} workers", {"images_per_s": 0}))
        if found.pop("images_per_s"):
            settings = Settings(*(found.pop(name) for name in Settings._fields))
            feeds[f"plain DALI, {kind}, {workers} workers"] = (
                1,
                lambda shards=shards, settings=settings, further=found: plain_dali(  # type: ignore[misc]
                    shards, *settings, **further
                ),
            )
    every = options.workers
    feeds[f"feeder cuda, seekable, {every} workers"] = (
        every,
        lambda: loader_feed(options.seekable, "cuda", every, BATCH),
    )
    compared(feeds, options, result)


STEPS: dict[str, tuple[Callable[[Any, Result], None], dict[str, Any]]] = {
    "decoder": (decoder, {"seekable": None, "packed": None, "batches": 40}),
    "rates": (rates, {"seekable": None, "packed": None, "images": None, "seconds": 3.0, "repeats": 2}),
    "plain": (plain, {"seekable": None, "keep": None, "seconds": 0.7}),
    "dali": (dali, {"seekable": None, "keep": None, "seconds": 2.0, "repeats": 1}),
}


def main() -> int:
    name = sys.argv.pop(1)
    measure, further = STEPS[name]
    options = arguments(__doc__, workers=16, **further)

    def begin(result: Result) -> None:
        result.add(batch=BATCH, workers=options.workers)
        measure(options, result)

    return on_gpu(f"gpu-quick-{name}", options.json, begin)


if __name__ == "__main__":
    sys.exit(main())

"""The process of one rival of ``feeder bench``, so that start-up and memory are that rival's alone.

It answers a job (rival, task) with the first batch if the task is in order, else with the figures of a run, and a job
that fails with ``{"failed": reason}``.
"""

from __future__ import annotations

import contextlib
import gc
import time
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from feeder.system.process_usage import memory
from feeder.tools.bench.bench_options import SETTLE, RivalTask
from feeder.tools.bench.rivals import RIVALS
from feeder.tools.trial import consume


def main(channel: int) -> None:
    """Answers jobs until there are no more.

    Args:
        channel: Descriptor of the connection.
    """
    with Connection(channel) as jobs, contextlib.suppress(EOFError):
        while True:
            rival, task = jobs.recv()
            try:
                found = first_batch(rival, task) if task.in_order else _run(rival, task)
            except Exception as error:
                found = {"failed": reason_of(error)}
            jobs.send(found)
            gc.collect()


def reason_of(error: Exception) -> str:
    """Returns an error as one line; for an error that torch's loader passes on from a worker, the original one."""
    lines = f"{type(error).__name__}: {error}".strip().splitlines()
    frames = [number for number, line in enumerate(lines) if line.startswith(" ")]
    if frames and any(line.startswith("Original Traceback") for line in lines):
        lines = lines[frames[-1] + 1 :] or lines
    return lines[0]


def first_batch(rival: str, task: RivalTask) -> dict[str, Any]:
    """Returns the first batch of the validation recipe, which is not random: images as uint8, and labels if any."""
    task = replace(task, options=replace(task.options, preset="val", dtype="uint8"), workers=0)
    feed = RIVALS[rival].open(task)
    images, labels = next(feed.batches)
    feed.batches.close()
    found: dict[str, Any] = {"images": np.asarray(images)}
    if labels is not None and np.asarray(labels).dtype.kind != "f":  # targets are feeder's alone
        found["labels"] = np.asarray(labels).astype(np.int64)
    return found


def _run(rival: str, task: RivalTask) -> dict[str, Any]:
    """Measures the time to the first batch, then the settled rate and CPU time per image."""
    options = task.options
    expected = (options.batch_size, 3, options.image_size, options.image_size)
    asked = time.perf_counter()
    feed = RIVALS[rival].open(task)
    images, _ = next(feed.batches)
    first_batch_s = time.perf_counter() - asked
    if tuple(images.shape) != expected or str(images.dtype) != f"torch.{options.dtype}":
        raise RuntimeError(f"expected batches of {options.dtype} {expected}, got {images.dtype} {tuple(images.shape)}")

    consume(feed.batches, feed.stats, options.seconds * SETTLE)
    sums = consume(feed.batches, feed.stats, options.seconds)
    bottleneck = feed.stats().get("bottleneck")
    pss_mib = memory().pss
    feed.batches.close()
    return {
        "first_batch_s": first_batch_s,
        "images_per_s": sums.images_per_s,
        "cpu_ms_per_image": sums.cpu_ms,
        "pss_mib": pss_mib,
        "stages_ms": {name: 1000 * spent / sums.samples for name, spent in sums.stages_s().items()},
        "bottleneck": bottleneck,
    }

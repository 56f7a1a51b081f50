"""The process of one rival of ``feeder bench``, so that start-up and memory are that rival's alone.

It reads jobs from standard input, one JSON object per line, and answers each with another one: ``{"do": "check", "out":
FILE}`` writes the first batch in order, ``{"do": "run", "workers": N}`` measures, and a job that fails is answered by
``{"failed": reason}``.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from dataclasses import replace
from typing import Any

import numpy as np

from feeder.loader.trial import consume
from feeder.system.process_usage import forget_peak, memory
from feeder.tools.bench.options import SETTLE, BenchOptions, RivalTask
from feeder.tools.bench.rivals import RIVALS

__all__ = ["main"]


def main() -> int:
    # Libraries may print, so only the answers go to the real standard output.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        try:
            found = _do(json.loads(line))
        except Exception as error:
            found = {"failed": reason_of(error)}
        answers.write(json.dumps(found) + "\n")
        answers.flush()
        gc.collect()
    return 0


def reason_of(error: Exception) -> str:
    """Returns an error as one line; for an error that torch's loader passes on from a worker, the original one."""
    lines = f"{type(error).__name__}: {error}".strip().splitlines()
    frames = [number for number, line in enumerate(lines) if line.startswith(" ")]
    if frames and any(line.startswith("Original Traceback") for line in lines):
        lines = lines[frames[-1] + 1 :] or lines
    return lines[0]


def _do(job: dict[str, Any]) -> dict[str, Any]:
    options = BenchOptions(**job["options"] | {"workers": tuple(job["options"]["workers"])})
    task = RivalTask(job["path"], job["folder"], options, job["workers"], job["do"] == "check")
    return check_rival(job["rival"], task, job["out"]) if task.in_order else _run(job["rival"], task)


def check_rival(rival: str, task: RivalTask, out: str) -> dict[str, Any]:
    """Writes the first batch of the validation recipe, which is not random, as uint8."""
    task = replace(task, options=replace(task.options, preset="val", dtype="uint8"), workers=0)
    feed = RIVALS[rival].open(task)
    images, labels = next(feed.batches)
    feed.batches.close()
    arrays: dict[str, Any] = {"images": np.asarray(images)}
    if labels is not None and np.asarray(labels).dtype.kind != "f":  # targets are feeder's alone
        arrays["labels"] = np.asarray(labels).astype(np.int64)
    np.savez(out, **arrays)
    return {"images": len(images)}


def _run(rival: str, task: RivalTask) -> dict[str, Any]:
    """Measures the time to the first batch, then the settled rate and CPU time per image."""
    options = task.options
    expected = (options.batch_size, 3, options.image_size, options.image_size)
    forget_peak()
    asked = time.perf_counter()
    feed = RIVALS[rival].open(task)
    images, _ = next(feed.batches)
    first_at = time.monotonic()
    first_batch_s = time.perf_counter() - asked
    if tuple(images.shape) != expected or str(images.dtype) != f"torch.{options.dtype}":
        raise RuntimeError(f"expected batches of {options.dtype} {expected}, got {images.dtype} {tuple(images.shape)}")

    consume(feed.batches, feed.stats, options.seconds * SETTLE)
    sums = consume(feed.batches, feed.stats, options.seconds)
    bottleneck = feed.stats().get("bottleneck")
    used = memory()
    feed.batches.close()
    return {
        "first_batch_at": first_at,
        "first_batch_s": first_batch_s,
        "images_per_s": sums.images_per_s,
        "cpu_ms_per_image": sums.cpu_ms,
        "peak_rss_mib": used.peak_rss,
        "pss_mib": used.pss,
        "stages_ms": {name: 1000 * spent / sums.samples for name, spent in sums.stages_s().items()},
        "bottleneck": bottleneck,
    }


if __name__ == "__main__":
    sys.exit(main())

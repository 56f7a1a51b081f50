"""Host to device: bandwidth from a page-locked slot beside a plain pinned copy, and the share hidden by computation.

Bandwidth: the same bytes from memory that feeder maps (memfd) and page-locks like a slot, and from torch's own pinned
memory, in turn. Goal: at least 0.95. Overlap: the loader's device feed runs under the profiler while the default stream
computes matrix products for longer than a batch takes. Hidden is the share of the copies' time during which the GPU ran
any kernel, feeder's own included. Goal: at least 0.95. Beside it stands the share that the products alone hide, as
``hidden_by_products``.

    python -m bench.gpu.transfer --seekable SHARDS --json OUT [--workers 8] [--repeats 10]
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

from bench.gpu.common import Result, arguments, images_of, loader_feed, on_gpu
from feeder.loader.slots.region import Region
from feeder.tools.bench.result_file import interleave, spread

SIZE_BYTES = 256 * 3 * 224 * 224
ROUNDS = 20
# How the profiler names what a GPU does besides running kernels.
_NO_KERNELS = ("Memcpy", "Memset", "Event Sync", "Stream Sync", "Stream Wait", "Context Sync")

Span = tuple[float, float]


def bandwidth(repeats: int) -> dict[str, Any]:
    region = Region(SIZE_BYTES)
    slot = torch.from_numpy(region.array(np.uint8, (SIZE_BYTES,)))
    status = torch.cuda.cudart().cudaHostRegister(slot.data_ptr(), SIZE_BYTES, 0)
    if int(status) != 0:
        raise RuntimeError(f"cudaHostRegister gives {status}")
    pinned = torch.empty(SIZE_BYTES, dtype=torch.uint8, pin_memory=True)
    target = torch.empty(SIZE_BYTES, dtype=torch.uint8, device="cuda")

    def timed(source: torch.Tensor) -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(ROUNDS):
            target.copy_(source, non_blocking=True)
        end.record()
        end.synchronize()
        return SIZE_BYTES * ROUNDS / begin.elapsed_time(end) / 1e6

    for each in (slot, pinned):
        timed(each)
    slot.random_(0, 256)
    pinned.copy_(slot)  # both were written last by this process, and may be in its caches
    target.copy_(slot, non_blocking=True)
    torch.cuda.synchronize()
    assert torch.equal(target.cpu(), slot)
    found = interleave({"slot": lambda: timed(slot), "pinned": lambda: timed(pinned)}, repeats)
    torch.cuda.cudart().cudaHostUnregister(slot.data_ptr())
    ratio = statistics.median(found["slot"]) / statistics.median(found["pinned"])
    print(f"host to device: {statistics.median(found['slot']):.1f} GB/s from a slot, {ratio:.3f} of a pinned copy")
    return {"gb_per_s": {name: spread(values) for name, values in found.items()}, "slot_of_pinned (0.95)": ratio}


def overlap(shards: str, workers: int) -> dict[str, Any]:
    """Runs the loader beside a busy default stream and returns what :func:`overlap_of` finds."""
    feed = loader_feed(shards, "cpu", workers, 256)
    matrix = torch.randn(4096, 4096, device="cuda", dtype=torch.float16) / 64
    product = torch.empty_like(matrix)

    def products(count: int) -> float:
        """Returns the seconds that a number of products take."""
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(count):
            torch.mm(matrix, matrix, out=product)
        torch.cuda.synchronize()
        return time.perf_counter() - began

    for _ in range(5):
        next(feed)
    began = time.perf_counter()
    for _ in range(15):
        next(feed)
    batch_s = (time.perf_counter() - began) / 15
    products(20)
    count = 1 + int(1.5 * batch_s / (products(50) / 50))

    def step() -> None:
        images = next(feed)
        for _ in range(count):
            torch.mm(matrix, matrix, out=product)
        images.float().mean()
        done.append(torch.cuda.current_stream().record_event())
        if len(done) > 2:  # like a training loop, not far ahead of the GPU
            done.pop(0).synchronize()

    done: list[Any] = []
    for _ in range(10):
        step()
    activities = [torch.profiler.ProfilerActivity.CUDA, torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities) as profile:
        for _ in range(30):
            step()
        torch.cuda.synchronize()
    feed.close()
    found = overlap_of(profile.events())
    print(f"host to device: {found['hidden (0.95)']:.3f} of the copies' time is hidden behind kernels")
    return found


def overlap_of(events: Iterable[Any]) -> dict[str, Any]:
    """Returns the shares of the copies' time that kernels hide, and of all the time that they run.

    Args:
        events: The profiler's events; of these on the GPU, all but copies, fills, waits and annotations are kernels.

    Raises:
        RuntimeError: if there are no copies to the GPU, or no matrix products.
    """
    copies, kernels, products = [], [], []
    names = set()
    for event in events:
        if event.device_type != torch.autograd.DeviceType.CUDA:
            continue
        names.add(event.name)
        span = (event.time_range.start, event.time_range.end)
        if "Memcpy HtoD" in event.name:
            copies.append(span)
        if event.name.startswith(_NO_KERNELS) or getattr(event, "is_user_annotation", False):
            continue
        kernels.append(span)
        if any(word in event.name.lower() for word in ("gemm", "nvjet", "cutlass")):
            products.append(span)
    total = sum(end - start for start, end in copies)
    if not total or not products:
        raise RuntimeError(
            f"the profiler saw {len(copies)} copies and {len(products)} matrix products, of {sorted(names)[:20]}"
        )
    kernels, products = _merged(kernels), _merged(products)
    return {
        "copies": len(copies),
        "copy_us": total,
        "kernels_busy_share": _busy(kernels),
        "products_busy_share": _busy(products),
        "hidden_by_products": _covered(copies, products) / total,
        "hidden (0.95)": _covered(copies, kernels) / total,
    }


def _busy(spans: list[Span]) -> float:
    return sum(last - first for first, last in spans) / (spans[-1][1] - spans[0][0])


def _covered(copies: list[Span], spans: list[Span]) -> float:
    return sum(max(0.0, min(end, last) - max(start, first)) for start, end in copies for first, last in spans)


def _merged(spans: list[Span]) -> list[Span]:
    """Returns the time that spans cover, in order, without overlaps."""
    merged: list[Span] = []
    for first, last in sorted(spans):
        if merged and first <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
        else:
            merged.append((first, last))
    return merged


def measure(options: Any, result: Result) -> None:
    result.part("images", lambda: images_of(options.seekable))
    result.part("bandwidth", lambda: bandwidth(options.repeats))
    result.part("overlap", lambda: overlap(options.seekable, options.workers))


def main() -> int:
    options = arguments(__doc__, seekable=None, workers=8, repeats=10)
    return on_gpu("gpu-transfer", options.json, lambda result: measure(options, result))


if __name__ == "__main__":
    sys.exit(main())

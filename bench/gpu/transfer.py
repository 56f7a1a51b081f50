"""Host to device: bandwidth from a page-locked slot beside a plain pinned copy, and how much of it compute hides.

Bandwidth: the same bytes from memory that feeder maps (memfd) and page-locks as it does a slot, and from torch's own
pinned memory, in turn. Goal: at least 0.95. Overlap: the loader's device feed runs under the profiler beside a default
stream that is kept busy; the share of the copies' time that lies within the compute kernels' time. Goal: at least 0.95.

    python -m bench.gpu.transfer --seekable SHARDS --json OUT [--workers 8] [--repeats 10]
"""

from __future__ import annotations

import statistics
from typing import Any

import numpy as np
import torch

from bench.gpu.common import arguments, loader_feed, on_gpu
from feeder.batch import Region
from feeder.measure import interleave, spread

SIZE_BYTES = 256 * 3 * 224 * 224
ROUNDS = 20


def bandwidth(repeats: int) -> dict[str, Any]:
    region = Region(SIZE_BYTES)
    slot = torch.from_numpy(region.array(np.uint8, (SIZE_BYTES,)))
    status = torch.cuda.cudart().cudaHostRegister(slot.data_ptr(), SIZE_BYTES, 0)
    if int(status) != 0:
        return {"skipped": f"cudaHostRegister gives {status}"}
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
    target.copy_(slot, non_blocking=True)
    torch.cuda.synchronize()
    assert torch.equal(target.cpu(), slot)
    found = interleave({"slot": lambda: timed(slot), "pinned": lambda: timed(pinned)}, repeats)
    torch.cuda.cudart().cudaHostUnregister(slot.data_ptr())
    ratio = statistics.median(found["slot"]) / statistics.median(found["pinned"])
    print(f"host to device: {statistics.median(found['slot']):.1f} GB/s from a slot, {ratio:.3f} of a pinned copy")
    return {"gb_per_s": {name: spread(values) for name, values in found.items()}, "slot_of_pinned (0.95)": ratio}


def overlap(shards: str, workers: int) -> dict[str, Any]:
    """The share of host-to-device copy time that a busy default stream hides."""
    feed = loader_feed(shards, "cpu", workers, 256)
    matrix = torch.randn(4096, 4096, device="cuda", dtype=torch.float16)

    def step() -> None:
        images = next(feed)
        for _ in range(40):
            torch.mm(matrix, matrix)
        images.float().mean()

    for _ in range(10):
        step()
    torch.cuda.synchronize()
    activities = [torch.profiler.ProfilerActivity.CUDA, torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities) as profile:
        for _ in range(30):
            step()
        torch.cuda.synchronize()
    copies, kernels = [], []
    for event in profile.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            span = (event.time_range.start, event.time_range.end)
            (copies if "Memcpy HtoD" in event.name else kernels).append(span)
    kernels.sort()
    hidden = total = 0.0
    for start, end in copies:
        total += end - start
        hidden += sum(max(0.0, min(end, last) - max(start, first)) for first, last in _merged(kernels))
    if not total:
        return {"skipped": "the profiler saw no copy"}
    print(f"host to device: {hidden / total:.3f} of the copies' time is hidden behind compute")
    return {"copies": len(copies), "copy_us": total, "hidden (0.95)": hidden / total}


def _merged(spans: list[tuple[float, float]]) -> list[tuple[float, float]]:
    merged: list[tuple[float, float]] = []
    for first, last in spans:
        if merged and first <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
        else:
            merged.append((first, last))
    return merged


def measure(options: Any) -> dict[str, Any]:
    return {"bandwidth": bandwidth(options.repeats), "overlap": overlap(options.seekable, options.workers)}


def main() -> None:
    options = arguments(__doc__, seekable=None, workers=8, repeats=10)
    on_gpu("gpu-transfer", options.json, lambda: measure(options))


if __name__ == "__main__":
    main()

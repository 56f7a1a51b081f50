"""Measures the fused kernels.

Kernel 1: bytes read and written per second, beside a plain device-to-device copy of as many bytes in the same run, on
buffers that rotate through several times the L2. Both are replayed from CUDA graphs, so that neither includes Python's
launch time. Goal: at least 0.8 of the copy. Kernel 2: images/s for crops of 320x320 and 640x480 to 224x224, launches
included. First both kernels are compared with their torch references.

    python -m bench.gpu.kernels --json OUT [--batch 256] [--repeats 20]
"""

from __future__ import annotations

import itertools
import statistics
import sys
from collections.abc import Callable
from typing import Any

import torch

from bench.gpu.common import Result, arguments, on_gpu
from feeder.decoders import gpu
from feeder.tools.bench.result_file import spread
from feeder.tools.terminal import table

SIZE = (224, 224)
ROTATE_BYTES = 1 << 30


def timed(run: Callable[[int], object], repeats: int, rounds: int, graph: bool) -> list[float]:
    """Returns seconds per call, from events around ``rounds`` of them, optionally replayed from a CUDA graph."""
    found = []
    for number in range(3):
        run(number)
    torch.cuda.synchronize()

    def calls() -> None:
        for number in range(rounds):
            run(number)

    replay = calls
    if graph:
        recorded = torch.cuda.CUDAGraph()
        with torch.cuda.graph(recorded):
            calls()
        replay = recorded.replay
    replay()
    for _ in range(repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        replay()
        end.record()
        end.synchronize()
        found.append(begin.elapsed_time(end) / 1000 / rounds)
    return found


def parameters() -> tuple[torch.Tensor, torch.Tensor]:
    """scale and bias."""
    values = [0.017, 0.0175, 0.0174], [-2.1, -2.0, -1.8]
    return tuple(torch.tensor(each, device="cuda") for each in values)  # type: ignore[return-value]


def normalize(batch: int, repeats: int) -> list[dict[str, Any]]:
    from feeder.decoders.gpu.normalize_kernel import launch  # which needs Triton

    device = torch.device("cuda")
    affine = parameters()
    pixels = SIZE[0] * SIZE[1]
    count = max(2, ROTATE_BYTES // (batch * pixels * 3))
    images = [torch.randint(0, 256, (batch, pixels * 3), dtype=torch.uint8, device=device) for _ in range(count)]
    turns = torch.randint(0, 2, (batch,), device=device, dtype=torch.int32)
    rows: list[dict[str, Any]] = []
    # From NHWC, as DALI's batches come, and from NCHW, as those of the CPU kernels do.
    for dtype, channels_last, layout in itertools.product(
        (torch.float16, torch.bfloat16, torch.float32), (True, False), ("nhwc", "nchw")
    ):
        options: dict[str, Any] = {"affine": affine, "dtype": dtype, "channels_last": channels_last}
        options["layout"] = layout
        found = gpu.normalize(images[0], SIZE, turn=turns, using="triton", **options)
        expected = gpu.normalize(images[0], SIZE, turn=turns, using="torch", **options)
        torch.testing.assert_close(found, expected, rtol=2.0**-7 if dtype == torch.bfloat16 else 2.0**-10, atol=1e-5)
        outputs = [torch.empty_like(found) for _ in range(count)]
        moved = images[0].numel() + found.numel() * found.element_size()
        # A copy reads half of the bytes and writes the other half.
        plain = [torch.empty(moved // 2, dtype=torch.uint8, device=device) for _ in range(2 * count)]

        def ours(k: int, outputs: list[torch.Tensor] = outputs, layout: str = layout) -> torch.Tensor:
            launch(images[k % count], SIZE, outputs[k % count], affine, layout, turns, None, None)
            return outputs[k % count]

        def copy(k: int, plain: list[torch.Tensor] = plain) -> torch.Tensor:
            return plain[2 * (k % count)].copy_(plain[2 * (k % count) + 1])

        took, copied = timed(ours, repeats, count, graph=True), timed(copy, repeats, count, graph=True)
        ratio = statistics.median(copied) / statistics.median(took)
        name = f"{layout} to {str(dtype).removeprefix('torch.')} {'channels_last' if channels_last else 'nchw'}"
        rows.append(
            {
                "kernel": f"normalize {name}",
                "gb_per_s": moved / statistics.median(took) / 1e9,
                "copy_gb_per_s": moved / statistics.median(copied) / 1e9,
                "of_copy": ratio,
                "seconds": spread(took),
                "copy_seconds": spread(copied),
            }
        )
        del outputs, plain
    return rows


def resize(batch: int, repeats: int) -> list[dict[str, Any]]:
    rows = []
    for height, width in ((320, 320), (480, 640)):
        sources = [torch.randint(0, 256, (height, width, 3), dtype=torch.uint8, device="cuda") for _ in range(batch)]
        images = gpu.Ragged.of(sources)
        box = torch.tensor([[0, 0, width, height]] * batch)
        found = gpu.crop_resize(images, box.double(), box, SIZE, using="triton", channels_last=True)
        expected = gpu.crop_resize(images, box.double(), box, SIZE, using="torch", channels_last=True)
        torch.testing.assert_close(found.int(), expected.int(), rtol=0, atol=1)

        def run(_: int, images: gpu.Ragged = images, box: torch.Tensor = box) -> torch.Tensor:
            return gpu.crop_resize(images, box.double(), box, SIZE, using="triton", channels_last=True)

        seconds = timed(run, repeats, 5, graph=False)
        rate = batch / statistics.median(seconds)
        rows.append({"crop": f"{width}x{height}", "images_per_s": rate, "seconds": spread(seconds)})
    return rows


def measure(options: Any, result: Result) -> None:
    def kernel_1() -> list[dict[str, Any]]:
        found = normalize(options.batch, options.repeats)
        lines = [["kernel 1", "GB/s", "copy GB/s", "of copy"]]
        for row in found:
            lines.append(
                [row["kernel"], f"{row['gb_per_s']:.0f}", f"{row['copy_gb_per_s']:.0f}", f"{row['of_copy']:.2f}"]
            )
        print(table(lines))
        result.add(goals={f"{row['kernel']}, of a copy (0.8)": row["of_copy"] for row in found})
        return found

    def kernel_2() -> list[dict[str, Any]]:
        found = resize(options.batch, options.repeats)
        for row in found:
            print(f"kernel 2, {row['crop']} to 224x224: {row['images_per_s']:,.0f} images/s")
        return found

    result.add(batch=options.batch)
    result.part("normalize", kernel_1)
    result.part("crop_resize", kernel_2)


def main() -> int:
    options = arguments(__doc__, batch=256, repeats=20)
    return on_gpu("gpu-kernels", options.json, lambda result: measure(options, result))


if __name__ == "__main__":
    sys.exit(main())

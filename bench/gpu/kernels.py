"""How fast are the fused kernels?

Kernel 1: bytes read and written a second, beside a plain device-to-device copy of as many bytes in the same run, on
buffers that rotate through several times the L2. Goal: at least 0.8 of the copy. Kernel 2: images/s for crops of
320x320 and 640x480 to 224x224. Checked first: both kernels against their torch references.

    python -m bench.gpu.kernels --json OUT [--batch 256] [--repeats 20]
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Iterator
from typing import Any

import torch

from bench.gpu.common import arguments, on_gpu
from feeder import _gpu
from feeder.measure import spread, table

SIZE = (224, 224)
ROTATE_BYTES = 1 << 30


def timed(run: Callable[[int], object], repeats: int, rounds: int) -> list[float]:
    """Seconds of one call, from events around ``rounds`` of them."""
    found = []
    numbers: Iterator[int] = itertools.count()
    for _ in range(3):
        run(next(numbers))
    for _ in range(repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(rounds):
            run(next(numbers))
        end.record()
        end.synchronize()
        found.append(begin.elapsed_time(end) / 1000 / rounds)
    return found


def measure(batch: int, repeats: int) -> dict[str, Any]:
    device = torch.device("cuda")
    pixels = SIZE[0] * SIZE[1]
    scale, bias = torch.tensor([0.017, 0.0175, 0.0174], device=device), torch.tensor([-2.1, -2.0, -1.8], device=device)
    count = max(2, ROTATE_BYTES // (batch * pixels * 3))
    images = [torch.randint(0, 256, (batch, pixels * 3), dtype=torch.uint8, device=device) for _ in range(count)]
    turns = torch.randint(0, 2, (batch,), device=device, dtype=torch.int32)
    rows: list[dict[str, Any]] = []
    for dtype, channels_last in itertools.product((torch.float16, torch.bfloat16, torch.float32), (True, False)):
        options: dict[str, Any] = {"scale": scale, "bias": bias, "dtype": dtype, "channels_last": channels_last}
        found = _gpu.normalize(images[0], SIZE, turn=turns, using="triton", **options)
        expected = _gpu.normalize(images[0], SIZE, turn=turns, using="torch", **options)
        torch.testing.assert_close(found, expected, rtol=2.0**-7 if dtype == torch.bfloat16 else 2.0**-10, atol=1e-5)
        outputs = [torch.empty_like(found) for _ in range(count)]
        moved = images[0].numel() + found.numel() * found.element_size()
        # A copy reads and writes half of the same bytes each.
        plain = [torch.empty(moved // 2, dtype=torch.uint8, device=device) for _ in range(2 * count)]

        def normalize(k: int, outputs: list[torch.Tensor] = outputs, options: dict[str, Any] = options) -> torch.Tensor:
            return _gpu.normalize(
                images[k % count], SIZE, turn=turns, using="triton", out=outputs[k % count], **options
            )

        def copy(k: int, plain: list[torch.Tensor] = plain) -> torch.Tensor:
            return plain[2 * (k % count)].copy_(plain[2 * (k % count) + 1])

        ours, theirs = timed(normalize, repeats, count), timed(copy, repeats, count)
        ratio = statistics.median(theirs) / statistics.median(ours)
        name = str(dtype).removeprefix("torch.") + (" channels_last" if channels_last else "")
        rows.append(
            {
                "kernel": f"normalize to {name}",
                "gb_per_s": moved / statistics.median(ours) / 1e9,
                "copy_gb_per_s": moved / statistics.median(theirs) / 1e9,
                "of_copy": ratio,
                "seconds": spread(ours),
                "copy_seconds": spread(theirs),
            }
        )
        del outputs, plain
    return {"goal_of_copy": 0.8, "batch": batch, "normalize": rows, "crop_resize": resize(batch, repeats, scale, bias)}


def resize(batch: int, repeats: int, scale: torch.Tensor, bias: torch.Tensor) -> list[dict[str, Any]]:
    rows = []
    for height, width in ((320, 320), (480, 640)):
        sources = [torch.randint(0, 256, (height, width, 3), dtype=torch.uint8, device="cuda") for _ in range(batch)]
        images = _gpu.Ragged.of(sources)
        box = torch.tensor([[0, 0, width, height]] * batch, device="cuda")
        options: dict[str, Any] = {"scale": scale, "bias": bias, "dtype": torch.float16, "channels_last": True}
        found = _gpu.crop_resize(images, box.double(), box, SIZE, using="triton", **options)
        expected = _gpu.crop_resize(images, box.double(), box, SIZE, using="torch", **options)
        torch.testing.assert_close(found, expected, rtol=2.0**-9, atol=1e-3)

        def run(_: int, images: _gpu.Ragged = images, box: torch.Tensor = box) -> torch.Tensor:
            return _gpu.crop_resize(images, box.double(), box, SIZE, using="triton", **options)  # noqa: B023

        seconds = timed(run, repeats, 5)
        rate = batch / statistics.median(seconds)
        rows.append({"crop": f"{width}x{height}", "images_per_s": rate, "seconds": spread(seconds)})
    return rows


def main() -> None:
    options = arguments(__doc__, batch=256, repeats=20)

    def run() -> dict[str, Any]:
        found = measure(options.batch, options.repeats)
        lines = [["kernel 1", "GB/s", "copy GB/s", "of copy"]]
        for row in found["normalize"]:
            lines.append(
                [row["kernel"], f"{row['gb_per_s']:.0f}", f"{row['copy_gb_per_s']:.0f}", f"{row['of_copy']:.2f}"]
            )
        print(table(lines))
        for row in found["crop_resize"]:
            print(f"kernel 2, {row['crop']} to 224x224: {row['images_per_s']:,.0f} images/s")
        return found

    on_gpu("gpu-kernels", options.json, run)


if __name__ == "__main__":
    main()

"""images/s on one GPU: RandomResizedCrop(224), flip and normalize to float16 channels_last, batch 256.

Rows, each with 4, 8 and 16 CPU workers or threads: feeder.DataLoader with DALI on seekable shards and on kept ones,
and with feeder's CPU kernels (uint8 to the GPU, then kernel 1); a plain DALI pipeline at the best of several settings;
torch's DataLoader with Pillow. Equal: the images, the work, the batch, that it ends on the GPU in memory of its own.
Goals at each number of workers: DALI on seekable shards at least 1.3 times plain DALI, on kept ones at least 1.0; at
4 workers 4 times torch's DataLoader.

    python -m bench.gpu.feed --images FOLDER --seekable SHARDS --keep SHARDS --json OUT [--seconds 10] [--repeats 3]
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Generator
from typing import Any

import torch

from bench.gpu.common import MEAN, STD, arguments, loader_feed, on_gpu, rate
from feeder.bench.options import BenchOptions
from feeder.bench.pillow import PillowDataset
from feeder.measure import interleave, spread, table

BATCH = 256
WORKERS = (4, 8, 16)


def torch_feed(folder: str, workers: int) -> Generator[torch.Tensor, None, None]:
    """torch's DataLoader, Pillow, pinned."""
    dataset = PillowDataset(folder, BenchOptions(image_size=224, batch_size=BATCH))
    loader = torch.utils.data.DataLoader(
        dataset, BATCH, shuffle=True, num_workers=workers, drop_last=True, pin_memory=True, persistent_workers=True
    )
    while True:
        for images, *_ in loader:
            yield images.to("cuda", non_blocking=True).to(torch.float16, memory_format=torch.channels_last)


def plain_dali(shards: str, load: float, depth: int, threads: int) -> Generator[torch.Tensor, None, None]:
    """DALI as its documentation has it."""
    from nvidia.dali import fn, pipeline_def, types

    @pipeline_def(batch_size=BATCH, num_threads=threads, device_id=0, prefetch_queue_depth=depth)  # type: ignore[misc]
    def pipeline() -> Any:
        tars = sorted(os.path.join(shards, name) for name in os.listdir(shards) if name.endswith(".tar"))
        encoded, label = fn.readers.webdataset(
            paths=tars, ext=["jpg", "cls"], random_shuffle=True, initial_fill=4 * BATCH, name="reader"
        )
        images = fn.decoders.image_random_crop(encoded, device="mixed", output_type=types.RGB, hw_decoder_load=load)
        images = fn.resize(images, resize_x=224, resize_y=224)
        images = fn.crop_mirror_normalize(
            images,
            dtype=types.FLOAT16,
            output_layout="HWC",
            mean=[255 * each for each in MEAN],
            std=[255 * each for each in STD],
            mirror=fn.random.coin_flip(),
        )
        return images, label

    built = pipeline()
    built.build()
    while True:
        images, _ = built.run()
        # Owned, as every other row's batches are.
        yield torch.utils.dlpack.from_dlpack(images.as_tensor()).clone().permute(0, 3, 1, 2)


def best_plain(shards: str, most_threads: int, seconds: float) -> tuple[float, int, int]:
    """The fastest hw_decoder_load, prefetch depth and number of threads, by short runs: one after the other."""

    def fastest(settings: list[tuple[float, int, int]]) -> tuple[float, int, int]:
        rates = {each: rate(plain_dali(shards, *each), seconds)["images_per_s"] for each in settings}
        return max(rates, key=lambda each: rates[each])

    load, depth, _ = fastest([(load, depth, most_threads) for load in (0.0, 0.5, 0.65, 0.8, 0.9) for depth in (2, 3)])
    return fastest([(load, depth, max(1, most_threads // part)) for part in (1, 2, 4)])


def measure(options: Any) -> dict[str, Any]:
    result: dict[str, Any] = {"batch": BATCH, "seconds": options.seconds, "workers": {}, "goals": {}}
    for workers in WORKERS:
        best = best_plain(options.keep, workers, min(3.0, options.seconds))
        details: dict[str, list[dict[str, float]]] = {}

        feeds: dict[str, Callable[[], Generator[torch.Tensor, None, None]]] = {
            "feeder dali, seekable": lambda w=workers: loader_feed(options.seekable, "dali", w, BATCH),
            "feeder dali, keep": lambda w=workers: loader_feed(options.keep, "dali", w, BATCH),
            "feeder cpu + kernel 1": lambda w=workers: loader_feed(options.seekable, "cpu", w, BATCH),
            "plain DALI": lambda best=best: plain_dali(options.keep, *best),
            "torch + Pillow": lambda w=workers: torch_feed(options.images, w),
        }

        def run(name: str, feeds: dict[str, Any] = feeds, details: dict[str, Any] = details) -> float:
            found = rate(feeds[name](), options.seconds)
            details.setdefault(name, []).append(found)
            return found["images_per_s"]

        rates = interleave({name: (lambda name=name, run=run: run(name)) for name in feeds}, options.repeats)
        middle = {name: statistics.median(values) for name, values in rates.items()}
        result["workers"][workers] = {
            "images_per_s": {name: spread(values) for name, values in rates.items()},
            "cores_per_1000_images_per_s": {
                name: spread([each["cores_per_1000_images_per_s"] for each in found]) for name, found in details.items()
            },
            "plain_dali": dict(zip(("hw_decoder_load", "prefetch_queue_depth", "num_threads"), best, strict=True)),
        }
        result["goals"][workers] = {
            "seekable / plain DALI (1.3)": middle["feeder dali, seekable"] / middle["plain DALI"],
            "keep / plain DALI (1.0)": middle["feeder dali, keep"] / middle["plain DALI"],
            "best feeder / torch (4.0 at 4)": max(middle["feeder dali, seekable"], middle["feeder cpu + kernel 1"])
            / middle["torch + Pillow"],
        }
    names = list(result["workers"][WORKERS[0]]["images_per_s"])
    rows = [["images/s", *(f"{workers} workers" for workers in WORKERS)]]
    for name in names:
        rows.append([name, *(f"{result['workers'][w]['images_per_s'][name]['median']:,.0f}" for w in WORKERS)])
    print(table(rows))
    rows = [["CPU cores for 1,000 images/s", *(f"{workers} workers" for workers in WORKERS)]]
    for name in names:
        cores = [result["workers"][w]["cores_per_1000_images_per_s"][name]["median"] for w in WORKERS]
        rows.append([name, *(f"{each:.2f}" for each in cores)])
    print(table(rows))
    return result


def main() -> None:
    options = arguments(__doc__, images=None, seekable=None, keep=None, seconds=10.0, repeats=3)
    on_gpu("gpu-feed", options.json, lambda: measure(options))


if __name__ == "__main__":
    main()

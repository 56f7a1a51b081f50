"""images/s on one GPU: RandomResizedCrop(224), flip and normalize to float16 channels_last, batch 256.

Rows, each with N CPU workers or threads: feeder.DataLoader with DALI on seekable and on kept shards, and with feeder's
CPU kernels (uint8 to the GPU, then kernel 1); a plain DALI pipeline at the best of several settings; torch's DataLoader
with Pillow. Equal: the images, the work, the batch, and that each batch ends up in its own memory on the GPU without
making the host wait.
Chroma is repeated in DALI's rows, as is DALI's default: fidelity="draft".
Not equal: feeder's DALI rows have N worker processes and N DALI threads, the other loaders N processes. Plain DALI has
only threads: at most N in one row, and, if that is faster, at most 2 N in another row, as many as feeder's processes
and threads together. The table shows this, and the CPU time of each. Settings are found by short runs: for plain DALI
the decoder, hw_decoder_load, prefetch and threads; for feeder, on each shard set, hw_decoder_load.
Goals: DALI on seekable shards at least 1.3 times either plain DALI, on kept shards at least 1.0 times; with 4 workers
the best of feeder's rows 4 times torch's DataLoader.

    python -m bench.gpu.feed --images FOLDER --seekable SHARDS --keep SHARDS --json OUT [--workers 4] [--seconds 5]
"""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable, Generator, Mapping
from typing import Any, NamedTuple

import torch

import feeder
from bench.gpu.common import (
    BATCH,
    DEVICE,
    IS_DRY_RUN,
    MEAN,
    STD,
    Result,
    Row,
    arguments,
    endless,
    first_loader_batch,
    images_of,
    interleaved,
    loader_feed,
    on_gpu,
    rate,
    repeated,
    survives,
)
from feeder.tools.bench.bench_options import BenchOptions
from feeder.tools.bench.images import image_fields, tars
from feeder.tools.bench.pillow import PillowDataset
from feeder.tools.terminal import table


class Settings(NamedTuple):
    """Settings of the plain DALI pipeline."""

    image_random_crop: bool
    hw_decoder_load: float
    prefetch_queue_depth: int
    num_threads: int


# Values of hw_decoder_load; the first is DALI's default, and feeder's.
LOADS = (0.65, 0.85, 1.0)


def torch_feed(folder: str, workers: int) -> Generator[torch.Tensor, None, None]:
    """Yields batches of torch's DataLoader with Pillow, pinned."""
    dataset = repeated(PillowDataset(folder, BenchOptions(image_size=224, batch_size=BATCH)))
    options: dict[str, Any] = {"shuffle": True, "drop_last": True, "persistent_workers": True}
    loader = torch.utils.data.DataLoader(dataset, BATCH, num_workers=workers, pin_memory=not IS_DRY_RUN, **options)
    for images, *_ in endless(loader):
        yield images.to(DEVICE, non_blocking=True).to(torch.float16, memory_format=torch.channels_last)


def plain_dali(
    shards: str,
    fused: bool,
    load: float,
    depth: int,
    threads: int,
    *,
    pipelines: int = 1,
    hints: Mapping[str, int] | None = None,
) -> Generator[torch.Tensor, None, None]:
    """Builds DALI as its documentation shows it: with image_random_crop, or whole images and random_resized_crop.

    Args:
        shards: The set.
        fused: True for image_random_crop.
        load: hw_decoder_load.
        depth: Prefetch depth.
        threads: CPU threads of all pipelines together.
        pipelines: Pipelines that take turns, each with its part of the shards and the threads.
        hints: Further arguments of the decoder, about memory.
    """
    from nvidia.dali import fn, pipeline_def, types

    indexes = [os.path.splitext(path)[0] + ".idx" for path in tars(shards)]
    reader = {"index_paths": indexes} if all(map(os.path.exists, indexes)) else {}

    @pipeline_def(
        batch_size=BATCH,
        num_threads=max(1, threads // pipelines),
        device_id=None if IS_DRY_RUN else 0,
        prefetch_queue_depth=depth,
        exec_dynamic=True,
    )
    def pipeline(number: int) -> Any:
        encoded, _ = fn.readers.webdataset(
            paths=tars(shards), ext=[";".join(image_fields(shards)), "cls"], random_shuffle=True,
            initial_fill=4 * BATCH, name="reader", shard_id=number, num_shards=pipelines, **reader,
        )  # fmt: skip
        decoder = {"device": "mixed", "output_type": types.RGB, "hw_decoder_load": load, **(hints or {})}
        if IS_DRY_RUN:
            decoder = {"device": "cpu", "output_type": types.RGB}
        crop = {"random_area": [0.08, 1.0], "random_aspect_ratio": [3 / 4, 4 / 3], "num_attempts": 10}
        resize = {"size": (224, 224), "interp_type": types.INTERP_LINEAR, "antialias": True}
        if fused:
            images = fn.resize(fn.decoders.image_random_crop(encoded, **decoder, **crop), **resize)
        else:
            images = fn.random_resized_crop(fn.decoders.image(encoded, **decoder), **crop, **resize)
        return fn.crop_mirror_normalize(
            images,
            dtype=types.FLOAT16,
            output_layout="HWC",
            mean=[255 * each for each in MEAN],
            std=[255 * each for each in STD],
            mirror=fn.random.coin_flip(),
        )

    built = [pipeline(number) for number in range(pipelines)]
    for each in built:
        each.build()
    feeds = [owned(each, depth) for each in built]
    while True:
        for feed in feeds:
            yield next(feed)


def owned(pipeline: Any, ahead: int) -> Generator[torch.Tensor, None, None]:
    """Yields copies of a DALI pipeline's batches, owned and in the stream's order like those of the other rows.

    Args:
        pipeline: A built pipeline of the dynamic executor, with one output [N, H, W, C]; with another executor the host
            would wait for each batch.
        ahead: Number of batches that the host may be ahead of the GPU.
    """
    held: deque[tuple[Any, torch.cuda.Event]] = deque()
    while IS_DRY_RUN:
        yield torch.from_numpy(pipeline.run()[0].as_array().copy()).permute(0, 3, 1, 2)
    while True:
        stream = torch.cuda.current_stream()
        (images,) = pipeline.run(stream)
        batch = torch.utils.dlpack.from_dlpack(images.as_tensor()).clone().permute(0, 3, 1, 2)
        # DALI's memory has to stay until it is copied.
        held.append((images, stream.record_event()))
        if len(held) > ahead:
            held[0][1].synchronize()
        while held and held[0][1].query():
            held.popleft()
        yield batch


def best_plain(shards: str, threads: int, seconds: float, result: Result) -> dict[str, Settings]:
    """Finds the fastest decoder, hw_decoder_load, prefetch depth and number of threads, by short runs of each.

    Returns:
        The best of at most ``threads`` and of at most twice as many, or one if it is the same, by the row's name.

    Raises:
        RuntimeError: if none runs.
    """
    rates: dict[Settings, float] = {}

    def try_out(settings: list[Settings]) -> Settings:
        for each in settings:
            if each not in rates:
                try:
                    # Its threads share each batch, so there are no bursts to wait for.
                    rates[each] = rate(plain_dali(shards, *each), seconds, 1)["images_per_s"]
                except Exception as error:
                    result.failed(f"plain DALI, {each}", error)
                    rates[each] = 0.0
                result.add(plain_dali_tried=[{**each._asdict(), "images_per_s": rates[each]} for each in rates])
        return max(rates, key=lambda each: rates[each])

    whole = [Settings(False, load, 2, threads) for load in LOADS]
    settings = [Settings(True, LOADS[0], 2, threads), *whole]
    first = (
        "from bench.gpu.common import first_batch; from bench.gpu.feed import plain_dali; "
        "first_batch(plain_dali({!r}, {}, 0.65, 2, 2))"
    )
    found = {
        fused: survives(f"plain DALI, {name}", first.format(shards, fused), result)
        for fused, name in ((True, "image_random_crop"), (False, "random_resized_crop"))
    }
    settings = [each for each in settings if found[each.image_random_crop]]
    if not settings:
        raise RuntimeError("it runs with neither decoder")
    best = try_out(settings)
    if not rates[best]:
        raise RuntimeError("it runs with no settings")
    best = try_out([best._replace(prefetch_queue_depth=depth) for depth in (3, 4)])
    best = try_out([best._replace(num_threads=max(1, threads // 2))])
    # With more threads another share of the hardware engine may be the best one.
    more = try_out(
        [each._replace(prefetch_queue_depth=best.prefetch_queue_depth, num_threads=2 * threads) for each in settings]
    )
    more = try_out([more._replace(num_threads=threads + (threads + 1) // 2)])
    return plain_rows(best, more, threads, found[True])


def plain_rows(best: Settings, more: Settings, threads: int, fused_runs: bool) -> dict[str, Settings]:
    """Returns the plain rows by name, made of the decoder and the largest number of threads allowed.

    Args:
        best: Best settings with at most ``threads`` threads.
        more: Best settings with at most twice as many.
        threads: Number of threads.
        fused_runs: True if image_random_crop could be tried.
    """

    def name(settings: Settings, limits: str) -> str:
        whole = "whole images" if fused_runs else "whole images, as image_random_crop fails"
        return f"plain DALI ({'image_random_crop' if settings.image_random_crop else whole}, up to {limits} threads)"

    if best == more:
        return {name(best, f"{threads} or {2 * threads}"): best}
    return {name(best, str(threads)): best, name(more, str(2 * threads)): more}


def best_load(name: str, shards: str, workers: int, seconds: float, result: Result) -> float:
    """Finds the fastest hw_decoder_load of one of feeder's rows, by short runs.

    Raises:
        RuntimeError: if none runs.
    """
    rates: dict[float, float] = {}
    for load in LOADS:
        try:
            feed = loader_feed(shards, feeder.Dali(hw_decoder_load=load), workers, BATCH, fidelity="draft")
            rates[load] = rate(feed, seconds, workers)["images_per_s"]
        except Exception as error:
            result.failed(f"{name}, hw_decoder_load {load}", error)
        result.add(**{f"{name}, tried": [{"hw_decoder_load": key, "images_per_s": rates[key]} for key in rates]})
    if not rates:
        raise RuntimeError("it runs with no hw_decoder_load")
    return max(rates, key=lambda load: rates[load])


def measure(options: Any, result: Result) -> None:
    workers = options.workers
    short = min(2.0, options.seconds)
    result.add(batch=BATCH, seconds=options.seconds, workers=workers)
    result.part("images", lambda: images_of(options.seekable))
    feeds: dict[str, Callable[[], Generator[torch.Tensor, None, None]]] = {
        "feeder cpu + kernel 1": lambda: loader_feed(options.seekable, "cpu", workers, BATCH),
        "torch + Pillow": lambda: torch_feed(options.images, workers),
    }
    loads: dict[str, float] = {}
    for name, shards in (("feeder dali, seekable", options.seekable), ("feeder dali, keep", options.keep)):
        if not survives(name, first_loader_batch(shards, BATCH), result):
            continue
        try:
            loads[name] = best_load(name, shards, workers, short, result)
        except Exception as error:
            result.failed(name, error)
            continue
        feeds[name] = lambda shards=shards, load=loads[name]: loader_feed(  # type: ignore[misc]
            shards, feeder.Dali(hw_decoder_load=load), workers, BATCH, fidelity="draft"
        )
    result.add(feeder_hw_decoder_load=loads)
    plain: dict[str, Settings] = {}
    try:
        plain = best_plain(options.keep, workers, short, result)
        result.add(plain_dali={name: settings._asdict() for name, settings in plain.items()})
    except Exception as error:
        result.failed("plain DALI", error)
    for name, settings in plain.items():
        feeds[name] = lambda settings=settings: plain_dali(options.keep, *settings)  # type: ignore[misc]

    def run(name: str) -> Row:
        return rate(feeds[name](), options.seconds, workers)

    def reached(middle: Mapping[str, Row]) -> Row:
        return {"goals": goals({name: row["images_per_s"] for name, row in middle.items()}, workers)}

    rivals = {name: (lambda name=name: run(name)) for name in feeds}
    middle = interleaved(rivals, options.repeats, result, reached)
    given = {name: f"{workers} + {workers if name.startswith('feeder dali') else 0}" for name in feeds}
    given |= {name: f"0 + {settings.num_threads}" for name, settings in plain.items()}
    result.add(processes_and_dali_threads=given)
    rows = [[f"{workers} workers", "processes + DALI threads", "images/s", "CPU cores for 1,000 images/s"]]
    for name, row in middle.items():
        rate_and_cores = f"{row['images_per_s']:,.0f}", f"{row['cores_per_1000_images_per_s']:.2f}"
        rows.append([name, given[name], *rate_and_cores])
    print(table(rows))
    for name, load in loads.items():
        print(f"{name}: hw_decoder_load {load}")
    for name, settings in plain.items():
        print(f"{name}: hw_decoder_load {settings.hw_decoder_load}, prefetch {settings.prefetch_queue_depth}")


def goals(rates: Mapping[str, float], workers: int) -> dict[str, float]:
    """Returns the ratios with goals, of the rows that could be measured."""
    found = {}
    ours = [value for name, value in rates.items() if name.startswith("feeder")]
    for name, goal in (("feeder dali, seekable", "1.3"), ("feeder dali, keep", "1.0")):
        for plain in rates:
            if name in rates and plain.startswith("plain DALI"):
                found[f"{name} / {plain} ({goal})"] = rates[name] / rates[plain]
    if ours and "torch + Pillow" in rates:
        goal = " (4.0)" if workers == 4 else " (no goal)"
        found[f"best of feeder / torch + Pillow{goal}"] = max(ours) / rates["torch + Pillow"]
    return found


def main() -> int:
    options = arguments(__doc__, images=None, seekable=None, keep=None, workers=4, seconds=5.0, repeats=3)
    return on_gpu("gpu-feed", options.json, lambda result: measure(options, result))


if __name__ == "__main__":
    sys.exit(main())

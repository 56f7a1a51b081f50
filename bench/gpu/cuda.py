"""images/s of feeder's own JPEG decoder on one GPU: the task of bench.gpu.feed, RandomResizedCrop(224) to float16.

Nothing is timed unless the batches of ``backend="cuda"`` are those of ``backend="cpu"``, on the seekable and on the
packed set: to the bit but for images that a worker decoded, which may differ by one level. Rows: both sets with N
worker processes; and a plain DALI pipeline on ordinary JPEGs, at the best of several settings, of at most 2 N threads.
Equal: the images, the work, the batch, float16 channels_last, and that each batch ends up in its own memory on the GPU.
Goals: on seekable shards 50,000 images/s, 4 times plain DALI, and at most 60 us of CPU an image; on packed ones more.

    python -m bench.gpu.cuda --seekable SHARDS --packed SHARDS --keep SHARDS --json OUT [--workers 16] [--seconds 5]
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Mapping
from typing import Any

import feeder
from bench.gpu.common import (
    BATCH,
    IS_DRY_RUN,
    STD,
    Feed,
    Result,
    arguments,
    compared,
    images_of,
    loader_feed,
    on_gpu,
    recipe,
    repeated,
)
from bench.gpu.feed import best_plain, plain_dali

CHECKED = 4  # batches
LEVEL = 1 / 255 / min(STD) + 2**-9  # of normalized pixels, and float16's rounding


def check(shards: str, workers: int) -> None:
    """Compares batches with the CPU backend's, to the bit.

    Images that a worker decoded are normalized on the GPU as DALI's are, whose floats are rounded otherwise: as many
    images may differ, by one level.

    Raises:
        RuntimeError: if others differ, or if the CPU made more than a few in the GPU's place.
    """
    dataset = repeated(feeder.ShardDataset(shards, transform=recipe()))
    options: dict[str, Any] = {"batch_size": BATCH, "shuffle": True, "seed": 0, "num_workers": workers}
    ours = feeder.DataLoader(dataset, backend="cuda", device=None if IS_DRY_RUN else "cuda", **options)
    theirs = feeder.DataLoader(dataset, backend="cpu", **options)
    try:
        rounded = 0
        for step, ((found, _), (expected, _)) in enumerate(itertools.islice(zip(ours, theirs, strict=True), CHECKED)):
            difference = (found.cpu().float() - expected.float()).abs().flatten(1).amax(1)
            # Written so that a NaN is wrong.
            wrong = int((~(difference <= LEVEL)).sum())
            if wrong:
                raise RuntimeError(f"{wrong} of {len(found)} images of batch {step} of {shards} are not the CPU's")
            rounded += int((difference > 0).sum())
        stats = ours.stats()
        if rounded > stats["cpu_images"]:
            raise RuntimeError(
                f"{rounded} images of {shards} are the CPU's but for their last bits, and workers decoded "
                f"{stats['cpu_images']} only"
            )
        if stats["redone_images"] or stats["cuda_images"] < 0.9 * stats["samples"]:
            raise RuntimeError(f"the GPU decoded {stats['cuda_images']} of {stats['samples']} images of {shards}")
    finally:
        ours.close()
        theirs.close()


def goals(rows: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Returns the figures with goals, of the rows that could be measured."""
    found = {}
    plain = [row["images_per_s"] for name, row in rows.items() if name.startswith("plain DALI")]
    seekable, packed = (rows.get(f"feeder cuda, {kind}") for kind in ("seekable", "packed"))
    if seekable:
        found["seekable, images/s (50000)"] = seekable["images_per_s"]
        if plain:
            found["seekable / plain DALI (4.0)"] = seekable["images_per_s"] / max(plain)
    for kind, row in (("seekable", seekable), ("packed", packed)):
        if row:
            found[f"{kind}, CPU us an image, at most (60)"] = 1000 * row["cores_per_1000_images_per_s"]
    if seekable and packed:
        found["packed / seekable (1.0)"] = packed["images_per_s"] / seekable["images_per_s"]
    return found


def measure(options: Any, result: Result) -> None:
    workers = options.workers
    result.add(batch=BATCH, seconds=options.seconds, workers=workers)
    result.part("images", lambda: images_of(options.seekable))
    feeds: dict[str, Feed] = {}
    for kind, shards in (("seekable", options.seekable), ("packed", options.packed)):
        try:
            check(shards, workers)
        except Exception as error:
            result.failed(f"feeder cuda, {kind}", error)
            continue
        feeds[f"feeder cuda, {kind}"] = lambda shards=shards: loader_feed(  # type: ignore[misc]
            shards, "cuda", workers, BATCH
        )
    result.add(pixels="those of the CPU backend, to the bit where the GPU decoded", checked=[*feeds])
    try:
        plain = best_plain(options.keep, workers, min(1.0, options.seconds), result)
    except Exception as error:
        result.failed("plain DALI", error)
        plain = {}
    for name, settings in plain.items():
        feeds[name] = lambda settings=settings: plain_dali(options.keep, *settings)  # type: ignore[misc]

    compared(
        {name: (workers, feed) for name, feed in feeds.items()}, options, result, lambda rows: {"goals": goals(rows)}
    )


def main() -> int:
    options = arguments(__doc__, seekable=None, packed=None, keep=None, workers=16, seconds=5.0, repeats=3)
    return on_gpu("gpu-cuda", options.json, lambda result: measure(options, result))


if __name__ == "__main__":
    sys.exit(main())

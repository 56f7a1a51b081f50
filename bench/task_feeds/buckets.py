"""Batches of aspect-ratio buckets, of padded images and of sizes by epoch, and of one fixed size of as many pixels."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import feeder
from bench.task_feeds.setting import Feed, Setting, checked, epochs
from feeder import transforms as T
from feeder.tools.presets import MEAN, STD

__all__ = ["dali_feeds", "feeds"]

_ASPECTS = (0.5, 0.75, 1.0, 4 / 3, 2.0)


def feeds(setting: Setting) -> dict[str, Feed]:
    """Returns buckets and the fixed size."""
    return _feeds(setting, "cpu")


def dali_feeds(setting: Setting) -> dict[str, Feed]:
    """Returns buckets and the fixed size with DALI, on the CPU, and its other batches of several sizes."""
    side = setting.image_size
    values = [T.RandomHorizontalFlip(), T.ToDtype("float32", scale=True), T.Normalize(MEAN, STD)]

    def by_epoch() -> Generator[int]:
        recipe = T.Compose([T.RandomResizedCrop(T.ByEpoch({0: side, 1000: 2 * side})), *values])
        for images, _ in epochs(setting.dataset(setting.shards(), recipe), setting, backend="dali"):
            yield checked("sizes by epoch", images, side, side)

    def padded() -> Generator[int]:
        recipe = T.Compose([T.RandomShortestSize([side], max_size=2 * side), *values])
        dataset = setting.dataset(setting.shards(), recipe)
        for images, *_ in epochs(dataset, setting, backend="dali", sizes=feeder.PadToBatch(multiple=8)):
            yield len(images)

    return _feeds(setting, "dali") | {"sizes by epoch": by_epoch, "padded, shorter side of that size": padded}


def _feeds(setting: Setting, backend: str) -> dict[str, Feed]:
    side = setting.image_size
    heights = [round(side * aspect**0.5) for aspect in _ASPECTS]
    sizes = [(height, round(side**2 / height)) for height in heights]

    def recipe(size: Any) -> T.Compose:
        values = [T.ToDtype("float32", scale=True), T.Normalize(MEAN, STD)]
        return T.Compose([T.RandomResizedCrop(size), T.RandomHorizontalFlip(), *values])

    def buckets() -> Generator[int]:
        dataset = setting.dataset(setting.shards(), recipe(T.BUCKET))
        for images, _ in epochs(dataset, setting, backend=backend, sizes=feeder.Buckets(sizes=sizes)):
            height, width = images.shape[2:]
            if (height, width) not in sizes:
                raise SystemExit(f"a batch of buckets is {list(images.shape)}")
            yield checked("buckets", images, height, width)

    def fixed() -> Generator[int]:
        for images, _ in epochs(setting.dataset(setting.shards(), recipe(side)), setting, backend=backend):
            yield checked("fixed size", images, side, side)

    return {"feeder": buckets, "fixed size": fixed}

"""Batches of aspect-ratio buckets, and of one fixed size of as many pixels."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import feeder
from bench.task_feeds.setting import Feed, Setting, checked, epochs
from feeder import transforms as T
from feeder.tools.presets import MEAN, STD

__all__ = ["feeds"]

_ASPECTS = (0.5, 0.75, 1.0, 4 / 3, 2.0)


def feeds(setting: Setting) -> dict[str, Feed]:
    side = setting.image_size
    heights = [round(side * aspect**0.5) for aspect in _ASPECTS]
    sizes = [(height, round(side**2 / height)) for height in heights]

    def recipe(size: Any) -> T.Compose:
        values = [T.ToDtype("float32", scale=True), T.Normalize(MEAN, STD)]
        return T.Compose([T.RandomResizedCrop(size), T.RandomHorizontalFlip(), *values])

    def buckets() -> Generator[int]:
        dataset = setting.dataset(setting.shards(), recipe(T.BUCKET))
        for images, _ in epochs(dataset, setting, buckets=feeder.Buckets(sizes=sizes)):
            height, width = images.shape[2:]
            if (height, width) not in sizes:
                raise SystemExit(f"a batch of buckets is {list(images.shape)}")
            yield checked("buckets", images, height, width)

    def fixed() -> Generator[int]:
        for images, _ in epochs(setting.dataset(setting.shards(), recipe(side)), setting):
            yield checked("fixed size", images, side, side)

    return {"feeder": buckets, "fixed size": fixed}

"""A webdataset pipeline with feeder's decoder, and with Pillow."""

from __future__ import annotations

import functools
from collections.abc import Generator

import feeder
from bench.task_feeds.setting import Feed, Setting, checked
from feeder.tools.bench.bench_options import BenchOptions
from feeder.tools.bench.pillow import preprocess
from feeder.tools.presets import preset

__all__ = ["feeds"]


def feeds(setting: Setting) -> dict[str, Feed]:
    import webdataset as wds

    size = setting.image_size
    pillow = functools.partial(preprocess, options=BenchOptions(image_size=size, preset="train", dtype="float32"))

    def feed(name: str) -> Generator[int]:
        source = wds.WebDataset(setting.tars(), shardshuffle=False)
        decoder = feeder.wds.decoder(preset("train", "float32", size))
        if name == "feeder":
            batches = source.listed(setting.batch_size).map(decoder).to_tuple("jpg")
        else:
            source = source.map_dict(jpg=pillow) if name == "Pillow" else source.map(decoder)
            batches = source.to_tuple("jpg").batched(setting.batch_size)
        for (images,) in wds.WebLoader(batches.repeat(), batch_size=None, num_workers=setting.workers):
            yield checked(name, images, size, size)

    return {name: functools.partial(feed, name) for name in ("feeder", "feeder, one by one", "Pillow")}

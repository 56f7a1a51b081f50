"""Two large and six small views of each image, by a recipe of crops alone and by DINO's."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Generator, Iterator
from typing import Any

import numpy as np
import torch
from PIL import Image

from bench.task_feeds.setting import Feed, Setting, checked, epochs, torch_batches
from feeder import transforms as T
from feeder.tools.bench.pillow import random_resized_crop
from feeder.tools.presets import MEAN, STD

__all__ = ["dino_feeds", "feeds"]

_LARGE, _SMALL = 2, 6  # views


def _crops(size: int) -> T.Compose:
    values = [T.ToDtype("float32", scale=True), T.Normalize(MEAN, STD)]
    return T.Compose([T.RandomResizedCrop(size), T.RandomHorizontalFlip(), *values])


def _sizes(setting: Setting) -> tuple[int, int]:
    """Sides of a large and a small view: 224 and 96 pixels."""
    return setting.image_size, setting.image_size * 3 // 7


class _PillowViews(torch.utils.data.Dataset):
    """Eight views of each image, which is decoded once."""

    def __init__(self, setting: Setting) -> None:
        self.paths = setting.paths()
        large, small = _sizes(setting)
        self.sizes = [large] * _LARGE + [small] * _SMALL
        self.mean, self.std = torch.tensor(MEAN).view(3, 1, 1), torch.tensor(STD).view(3, 1, 1)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, i: int) -> list[torch.Tensor]:
        with Image.open(self.paths[i]) as file:
            image = file.convert("RGB")
        return [self._view(image, size) for size in self.sizes]

    def _view(self, image: Image.Image, size: int) -> torch.Tensor:
        box = random_resized_crop(*image.size)
        view = image.resize((size, size), Image.Resampling.BILINEAR, box)
        if torch.rand(1) < 0.5:
            view = view.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        pixels = torch.from_numpy(np.array(view)).permute(2, 0, 1).contiguous()
        return pixels.to(torch.float32).div_(255).sub_(self.mean).div_(self.std)


def _counted(name: str, batches: Iterator[list[torch.Tensor]], setting: Setting) -> Generator[int]:
    large, small = _sizes(setting)
    for views in batches:
        if len(views) != _LARGE + _SMALL:
            raise SystemExit(f"{name}: a batch has {len(views)} views")
        counts = {checked(name, view, size, size) for view, size in zip(views, [large] * 2 + [small] * 6, strict=True)}
        yield counts.pop()


def feeds(setting: Setting) -> dict[str, Feed]:
    large, small = _sizes(setting)

    def views() -> Generator[int]:
        recipe = T.Views([_crops(large)] * _LARGE + [_crops(small)] * _SMALL)
        batches = epochs(setting.dataset(setting.shards(), recipe), setting)
        return _counted("feeder", (images for images, _ in batches), setting)

    def named() -> Generator[int]:
        loaders = [_named(setting, size, times) for size, times in ((large, _LARGE), (small, _SMALL))]
        try:
            for (of_large, _), (of_small, _) in zip(*loaders, strict=True):
                checked("feeder, named eight times", of_small, small, small)
                yield checked("feeder, named eight times", of_large, large, large) // _LARGE
        finally:
            for loader in loaders:
                loader.close()

    def pillow() -> Generator[int]:
        return _counted("torch", torch_batches(_PillowViews(setting), setting), setting)

    return {"feeder": views, "feeder, named eight times": named, "torch and Pillow": pillow}


def _named(setting: Setting, size: int, times: int) -> Generator[Any]:
    """Yields batches in which each sample comes that many times."""
    dataset = setting.dataset(setting.shards(), _crops(size))
    order = np.random.default_rng(0).permutation(len(dataset)).tolist()
    sampler = list(itertools.chain.from_iterable([i] * times for i in order))
    return epochs(dataset, setting, shuffle=None, sampler=sampler, batch_size=setting.batch_size * times)


def dino_feeds(setting: Setting) -> dict[str, Feed]:
    large, small = _sizes(setting)

    def views() -> Generator[int]:
        batches = epochs(setting.dataset(setting.shards(), _dino(T, large, small)), setting)
        return _counted("feeder", (images for images, _ in batches), setting)

    return {"feeder": views}

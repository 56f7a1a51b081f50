"""Two large and six small views of each image, as self-supervised training takes them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image

import feeder
from bench.task_feeds.setting import PACKED, Feed, Setting, checked, epochs, finds_torchvision, torch_batches
from examples.dino_views import recipes
from feeder import transforms as T
from feeder.tools.bench.pillow import normalized, random_resized_crop
from feeder.tools.presets import preset

__all__ = ["NAMED", "dali_feeds", "dino", "feeds", "feeds_of_files"]

_LARGE, _SMALL = 2, 6
NAMED = "feeder, samples named eight times"


def feeds(setting: Setting) -> dict[str, Feed]:
    """Returns the rivals on seekable shards."""
    found = _feeds(setting, lambda transform: setting.dataset(setting.shards(), transform))
    packed = _feeds(setting, lambda transform: setting.dataset(setting.shards("packed"), transform))
    return found | {PACKED: packed["feeder"]}


def feeds_of_files(setting: Setting) -> dict[str, Feed]:
    """Returns the rivals on the images as they are."""
    return _feeds(setting, lambda transform: setting.long(feeder.FolderDataset(setting.images, transform)))


def dali_feeds(setting: Setting) -> dict[str, Feed]:
    """Returns feeder's rivals on seekable shards with DALI, on the CPU."""
    return _feeds(setting, lambda transform: setting.dataset(setting.shards(), transform), backend="dali")


def dino(setting: Setting) -> dict[str, Feed]:
    """Returns the rivals with DINO's recipe."""
    large, small = _sizes(setting)

    def ours() -> Generator[int]:
        dataset = setting.dataset(setting.shards(), T.Views(recipes(T, large, small)))
        for views, _ in epochs(dataset, setting):
            yield _count("feeder", views, setting)

    def torchvision() -> Generator[int]:
        from torchvision.transforms import v2

        transforms = [v2.Compose(ops) for ops in recipes(v2, large, small)]
        for views in torch_batches(_PillowViews(setting, transforms), setting):
            yield _count("torch and torchvision v2", views, setting)

    return {"feeder": ours} | ({"torch and torchvision v2": torchvision} if finds_torchvision() else {})


def _sizes(setting: Setting) -> tuple[int, int]:
    return setting.image_size, max(8, setting.image_size * 96 // 224)


def _count(name: str, views: list[torch.Tensor], setting: Setting) -> int:
    """Returns the number of images of a batch, whose views must be as expected."""
    large, small = _sizes(setting)
    sizes = [large] * _LARGE + [small] * _SMALL
    (images,) = {checked(name, view, size, size) for view, size in zip(views, sizes, strict=True)}
    return images


def _feeds(setting: Setting, open_dataset: Callable[[Any], Any], backend: str = "cpu") -> dict[str, Feed]:
    large, small = (preset("train", "float32", size) for size in _sizes(setting))

    def ours() -> Generator[int]:
        dataset = open_dataset(T.Views([large] * _LARGE + [small] * _SMALL))
        for views, _ in epochs(dataset, setting, backend=backend):
            yield _count("feeder", views, setting)

    def named() -> Generator[int]:
        whole = []
        for recipe, times in ((large, _LARGE), (small, _SMALL)):
            dataset = open_dataset(recipe)
            sampler = _Repeated(len(dataset), times)
            whole.append((epochs(dataset, setting, backend=backend, shuffle=None, sampler=sampler), times))
        while True:  # as many batches of each as have the views of one batch of images
            for (batches, times), size in zip(whole, _sizes(setting), strict=True):
                for _ in range(times):
                    images = checked(NAMED, next(batches)[0], size, size)
            yield images

    def pillow() -> Generator[int]:
        of_large, of_small = (functools.partial(_crop, size=size) for size in _sizes(setting))
        crops = [of_large] * _LARGE + [of_small] * _SMALL
        for views in torch_batches(_PillowViews(setting, crops), setting):
            yield _count("torch and Pillow", views, setting)

    return {"feeder": ours, NAMED: named} | ({"torch and Pillow": pillow} if backend == "cpu" else {})


class _Repeated(torch.utils.data.Sampler[int]):
    """Samples in random order, each several times in a row."""

    def __init__(self, samples: int, times: int) -> None:
        self._samples, self._times = samples, times

    def __len__(self) -> int:
        return self._samples * self._times

    def __iter__(self) -> Iterator[int]:
        return iter(torch.randperm(self._samples).repeat_interleave(self._times).tolist())


class _PillowViews(torch.utils.data.Dataset):
    """Images that Pillow decodes once.

    Args:
        setting: Names the images.
        transforms: Make each view of Pillow's image.
    """

    def __init__(self, setting: Setting, transforms: Sequence[Callable[[Image.Image], torch.Tensor]]) -> None:
        self.paths, self.transforms = setting.paths(), transforms

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, i: int) -> list[torch.Tensor]:
        with Image.open(self.paths[i]) as file:
            image = file.convert("RGB")
        return [transform(image) for transform in self.transforms]


def _crop(image: Image.Image, size: int) -> torch.Tensor:
    view = image.crop(random_resized_crop(*image.size)).resize((size, size), Image.Resampling.BILINEAR)
    if torch.rand(1) < 0.5:
        view = view.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return normalized(torch.from_numpy(np.array(view)).permute(2, 0, 1).contiguous())

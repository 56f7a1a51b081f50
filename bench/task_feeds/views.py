"""Two large and six small views of each image, as self-supervised training takes them."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import Any

import numpy as np
import torch
from PIL import Image

import feeder
from bench.task_feeds.setting import Feed, Setting, checked, epochs, torch_batches
from feeder import transforms as T
from feeder.tools.bench.pillow import normalized, random_resized_crop
from feeder.tools.presets import MEAN, STD, preset

__all__ = ["NAMED", "dino", "feeds", "feeds_of_files"]

_LARGE, _SMALL = 2, 6
NAMED = "feeder, samples named eight times"


def feeds(setting: Setting) -> dict[str, Feed]:
    """Returns the rivals on seekable shards."""
    return _feeds(setting, lambda transform: setting.dataset(setting.shards(), transform))


def feeds_of_files(setting: Setting) -> dict[str, Feed]:
    """Returns the rivals on the images as they are."""

    def open_files(transform: Any) -> Any:
        dataset: Any = feeder.FolderDataset(setting.images, transform)
        return torch.utils.data.ConcatDataset([dataset] * setting.times(len(dataset)))

    return _feeds(setting, open_files)


def dino(setting: Setting) -> dict[str, Feed]:
    """Returns feeder with DINO's recipe (Caron et al., "Emerging properties in self-supervised vision transformers",
    2021)."""
    large, small = _sizes(setting)
    colors: list[T.Op] = [T.RandomHorizontalFlip(), T.RandomApply([T.ColorJitter(0.4, 0.4, 0.2, 0.1)], p=0.8)]
    colors.append(T.RandomGrayscale(0.2))
    values, blur = [T.ToDtype("float32", scale=True), T.Normalize(MEAN, STD)], T.GaussianBlur(9, (0.1, 2.0))
    solarized = [T.RandomApply([blur], p=0.1), T.RandomSolarize(128, p=0.2)]
    first = [T.RandomResizedCrop(large, scale=(0.4, 1.0)), *colors, blur, *values]
    second = [T.RandomResizedCrop(large, scale=(0.4, 1.0)), *colors, *solarized, *values]
    local = [T.RandomResizedCrop(small, scale=(0.05, 0.4)), *colors, T.RandomApply([blur], p=0.5), *values]

    def ours() -> Generator[int]:
        dataset = setting.dataset(setting.shards(), T.Views([first, second, *[local] * _SMALL]))
        for views, _ in epochs(dataset, setting):
            yield _count("feeder", views, setting)

    return {"feeder": ours}


def _sizes(setting: Setting) -> tuple[int, int]:
    return setting.image_size, max(8, setting.image_size * 96 // 224)


def _count(name: str, views: list[torch.Tensor], setting: Setting) -> int:
    """Returns the number of images of a batch, whose views must be as expected."""
    large, small = _sizes(setting)
    sizes = [large] * _LARGE + [small] * _SMALL
    (images,) = {checked(name, view, size, size) for view, size in zip(views, sizes, strict=True)}
    return images


def _feeds(setting: Setting, open_dataset: Callable[[Any], Any]) -> dict[str, Feed]:
    large, small = (preset("train", "float32", size) for size in _sizes(setting))

    def ours() -> Generator[int]:
        dataset = open_dataset(T.Views([large] * _LARGE + [small] * _SMALL))
        for views, _ in epochs(dataset, setting):
            yield _count("feeder", views, setting)

    def named() -> Generator[int]:
        whole = []
        for recipe, times in ((large, _LARGE), (small, _SMALL)):
            dataset = open_dataset(recipe)
            whole.append((epochs(dataset, setting, shuffle=None, sampler=_Repeated(len(dataset), times)), times))
        while True:  # as many batches of each as have the views of one batch of images
            for (batches, times), size in zip(whole, _sizes(setting), strict=True):
                for _ in range(times):
                    images = checked(NAMED, next(batches)[0], size, size)
            yield images

    def pillow() -> Generator[int]:
        for views in torch_batches(_PillowViews(setting), setting):
            yield _count("torch and Pillow", views, setting)

    return {"feeder": ours, NAMED: named, "torch and Pillow": pillow}


class _Repeated(torch.utils.data.Sampler[int]):
    """Samples in random order, each several times in a row."""

    def __init__(self, samples: int, times: int) -> None:
        self._samples, self._times = samples, times

    def __len__(self) -> int:
        return self._samples * self._times

    def __iter__(self) -> Iterator[int]:
        return iter(torch.randperm(self._samples).repeat_interleave(self._times).tolist())


class _PillowViews(torch.utils.data.Dataset):
    """Images that Pillow decodes once and crops for each view."""

    def __init__(self, setting: Setting) -> None:
        self.paths = setting.paths()
        large, small = _sizes(setting)
        self.sizes = [large] * _LARGE + [small] * _SMALL

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, i: int) -> list[torch.Tensor]:
        with Image.open(self.paths[i]) as file:
            image = file.convert("RGB")
        return [self._view(image, size) for size in self.sizes]

    def _view(self, image: Image.Image, size: int) -> torch.Tensor:
        view = image.crop(random_resized_crop(*image.size)).resize((size, size), Image.Resampling.BILINEAR)
        if torch.rand(1) < 0.5:
            view = view.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return normalized(torch.from_numpy(np.array(view)).permute(2, 0, 1).contiguous())

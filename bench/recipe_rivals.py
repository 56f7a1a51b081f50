"""The process of one contestant of bench/recipes.py.

    python -m bench.recipe_rivals NAME RECIPE WORKERS IMAGES MADE IMAGE_SIZE BATCH_SIZE

It makes a few batches, checks them and writes "ready" with a line of JSON: mean and deviation of a batch and the
versions of its packages. Each line of its input is a number of seconds, which it answers with a line of JSON: images,
seconds and CPU seconds, with those of its worker, of whole batches in at least that time.
"""

from __future__ import annotations

import functools
import importlib.metadata
import itertools
import json
import sys
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch

from bench.task_feeds.setting import Setting, checked, epochs, finds_torchvision, torch_batches
from examples import dino_views
from feeder.system.process_usage import cpu_seconds
from feeder.tools.presets import MEAN, STD

__all__ = ["RECIPES", "RIVALS", "main", "serve", "unable"]

_WARM_BATCHES = 3  # behind them a worker is at work, and DALI's queues are full
_LEAST_BATCHES = 2  # of a run, however slow
_VALUES = ("ToDtype", "ConvertImageDtype", "Normalize")
_BLUR_SIGMA = (0.1, 2.0)

RECIPES = {
    "nothing": "nothing",
    "jitter": "ColorJitter(0.4, 0.4, 0.4)",
    "randaugment": "RandAugment(2, 9)",
    "trivialaugment": "TrivialAugmentWide",
    "autoaugment": "AutoAugment",
    "timm": "timm's default (rand-m9-mstd0.5-inc1, erasing 0.25)",
    "simclr": "SimCLR (jitter with hue, gray, blur)",
    "dino": "DINO, 2 x 224 + 6 x 96",
    "erasing": "RandomErasing(p=0.001)",
    "lambda": "a Lambda that does nothing",
}


def same(image: Any, **_: Any) -> Any:
    """Does nothing, as a function of the user's."""
    return image


def _small(size: int) -> int:
    return max(8, size * 96 // 224)


def _blur_size(size: int) -> int:
    """Returns SimCLR's kernel, a tenth of the image: 23 of 224."""
    return size // 10 | 1


def _views(T: Any, recipe: str, size: int) -> list[list[Any]]:
    """Returns the ops of each view, of feeder.transforms or of either API of torchvision."""
    if recipe == "dino":
        return dino_views.recipes(T, size, _small(size))

    ops: Callable[[], list[Any]] = {
        "jitter": lambda: [T.ColorJitter(0.4, 0.4, 0.4)],
        "randaugment": lambda: [T.RandAugment(2, 9)],
        "trivialaugment": lambda: [T.TrivialAugmentWide()],
        "autoaugment": lambda: [T.AutoAugment()],
        "timm": lambda: [T.TimmRandAugment("rand-m9-mstd0.5-inc1")],
        "simclr": lambda: [
            T.RandomApply([T.ColorJitter(0.8, 0.8, 0.8, 0.2)], p=0.8),
            T.RandomGrayscale(0.2),
            T.RandomApply([T.GaussianBlur(_blur_size(size), _BLUR_SIGMA)], p=0.5),
        ],
    }.get(recipe, list)
    behind = {"erasing": [T.RandomErasing(p=0.001)], "lambda": [T.Lambda(same)]}.get(recipe, [])
    if recipe == "timm":
        behind = [T.RandomErasing(0.25, scale=(0.02, 1 / 3), ratio=(0.3, 1 / 0.3), value="random")]
    values = [T.ToImage(), T.ToDtype(torch.float32, scale=True), T.Normalize(MEAN, STD)]
    return [[T.RandomResizedCrop(size), T.RandomHorizontalFlip(), *ops(), *values, *behind]]


def _feeder(setting: Setting, recipe: str, encode: str | None) -> Generator[Any]:
    """Feeder's DataLoader on the files as they are, or on shards."""
    import feeder
    from feeder import transforms as T

    views = _views(T, recipe, setting.image_size)
    transform = T.Compose(views[0]) if len(views) == 1 else T.Views(views)
    if encode is None:
        dataset = setting.long(feeder.FolderDataset(setting.images, transform))
    else:
        dataset = setting.dataset(setting.shards(encode), transform)
    return (images for images, _ in epochs(dataset, setting))


class _Files(torch.utils.data.Dataset):
    """Files that are decoded once, and the views of each."""

    def __init__(self, setting: Setting, read: Callable[[str], Any], views: list[Callable[[Any], Any]]) -> None:
        self._paths, self._read, self._views = list(map(str, setting.paths())), read, views

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, i: int) -> Any:
        image = self._read(self._paths[i])
        found = [view(image) for view in self._views]
        return found if len(found) > 1 else found[0]


def _pillow(path: str) -> Any:
    from PIL import Image

    with Image.open(path) as file:
        return file.convert("RGB")


def _tensor(path: str) -> Any:
    from torchvision import tv_tensors
    from torchvision.transforms.v2 import functional

    return tv_tensors.Image(functional.pil_to_tensor(_pillow(path)))


def _torchvision(setting: Setting, recipe: str, pillow: str, uint8: bool = False, v2: bool = False) -> Generator[Any]:
    """torch's DataLoader: v1 on Pillow's images, or v2 on tensors; uint8 batches are normalized in this process."""
    import PIL

    if ("post" in PIL.__version__) != (pillow == "pillow-simd") or not finds_torchvision():
        raise SystemExit(f"expected torchvision and {pillow}, found Pillow {PIL.__version__} in {PIL.__path__[0]}")
    from torchvision import transforms
    from torchvision.transforms import v2 as second

    first = SimpleNamespace(**vars(transforms))
    first.ToImage = transforms.PILToTensor
    first.ToDtype = lambda dtype, scale: transforms.ConvertImageDtype(dtype)
    finish: list[Callable[[Any], Any]] = [transforms.ConvertImageDtype(torch.float32), transforms.Normalize(MEAN, STD)]
    if recipe == "timm":
        from timm.data import create_transform

        options = {"auto_augment": "rand-m9-mstd0.5-inc1", "re_prob": 0.25, "re_mode": "pixel"}
        whole = create_transform(setting.image_size, is_training=True, interpolation="bilinear", **options).transforms
        ops = [whole]
        if uint8:  # as its own loader does, which erases in batches
            ops = [[*whole[:-3], transforms.PILToTensor()]]
            finish.append(whole[-1])
    else:
        ops = _views(second if v2 else first, recipe, setting.image_size)
        if uint8:
            ops = [[op for op in view if type(op).__name__ not in _VALUES] for view in ops]

    views: list[Any] = [(second if v2 else transforms).Compose(view) for view in ops]
    batches = torch_batches(_Files(setting, _tensor if v2 else _pillow, views), setting)
    if not uint8:
        return batches

    def finished(images: Any) -> Any:
        if isinstance(images, list):
            return list(map(finished, images))
        return functools.reduce(lambda made, op: op(made), finish, images)

    return map(finished, batches)  # type: ignore[return-value]


def _imread(path: str) -> Any:
    import cv2

    return cv2.imread(path, cv2.IMREAD_COLOR_RGB)


class _Albumented:
    """A view by Albumentations."""

    def __init__(self, compose: Any) -> None:
        self._compose = compose

    def __call__(self, image: Any) -> torch.Tensor:
        found: torch.Tensor = self._compose(image=image)["image"]
        return found


def _albumentations(setting: Setting, recipe: str, interpolation: str) -> Generator[Any]:
    """torch's DataLoader with OpenCV and either Albumentations, whose arguments' names differ."""
    import albumentations as A
    import cv2

    cv2.setNumThreads(0)
    renamed = not A.__version__.startswith("2.0.")
    telemetry = {"telemetry": False} if renamed else {}
    size, small = setting.image_size, _small(setting.image_size)

    def jitter(light: float, saturation: float, hue: float, p: float) -> Any:
        strengths = {"brightness": light, "contrast": light, "saturation": saturation}
        ranges = {name: (1 - strength, 1 + strength) for name, strength in strengths.items()} | {"hue": (-hue, hue)}
        return A.ColorJitter(**{f"{name}_range" if renamed else name: value for name, value in ranges.items()}, p=p)

    def blur(kernel: int, p: float) -> Any:
        values = {"blur": (kernel, kernel), "sigma": _BLUR_SIGMA}
        return A.GaussianBlur(**{f"{k}_{'range' if renamed else 'limit'}": v for k, v in values.items()}, p=p)

    def view(side: int, ops: list[Any], scale: tuple[float, float] = (0.08, 1.0)) -> Any:
        crop = A.RandomResizedCrop(size=(side, side), scale=scale, interpolation=getattr(cv2, interpolation))
        values = [A.Normalize(MEAN, STD), A.ToTensorV2()]
        return _Albumented(A.Compose([crop, A.HorizontalFlip(p=0.5), *ops, *values], **telemetry))

    if recipe == "dino":
        colors = [jitter(0.4, 0.2, 0.1, 0.8), A.ToGray(p=0.2)]
        solarized = [blur(9, 0.1), A.Solarize(threshold_range=(128 / 255, 128 / 255), p=0.2)]
        large = [[*colors, blur(9, 1.0)], [*colors, *solarized]]
        views = [view(size, ops, (0.4, 1.0)) for ops in large]
        views += [view(small, [*colors, blur(9, 0.5)], (0.05, 0.4)) for _ in range(6)]
    else:
        simclr = [jitter(0.8, 0.8, 0.2, 0.8), A.ToGray(p=0.2), blur(_blur_size(size), 0.5)]
        ops = {"jitter": [jitter(0.4, 0.4, 0.0, 1.0)], "simclr": simclr, "erasing": [A.Erasing(p=0.001)]}
        views = [view(size, ops.get(recipe, [A.Lambda(image=same, p=1.0)] if recipe == "lambda" else []))]
    return torch_batches(_Files(setting, _imread, views), setting)


def _dali(setting: Setting, recipe: str, prefetch: int, fast: bool) -> Generator[Any]:
    """DALI on the CPU; its batches stay in its own memory."""
    from nvidia.dali import fn, pipeline_def, types
    from nvidia.dali.auto_aug import auto_augment, rand_augment, trivial_augment

    paths, size = list(map(str, setting.paths())), setting.image_size
    linear = {"interp_type": types.INTERP_LINEAR, "antialias": True}
    ratio = [3 / 4, 4 / 3]
    mean, std = ([255 * value for value in values] for values in (MEAN, STD))

    def between(low: float, high: float, **options: Any) -> Any:
        return fn.random.uniform(range=[low, high], **options)

    def fires(p: float) -> Any:
        return fn.random.coin_flip(probability=p, dtype=types.BOOL)

    def colors(images: Any, light: float, saturation: float, hue: float) -> Any:
        return fn.color_twist(
            images,
            brightness=between(1 - light, 1 + light),
            contrast=between(1 - light, 1 + light),
            saturation=between(1 - saturation, 1 + saturation),
            hue=between(-360 * hue, 360 * hue) if hue else 0.0,
        )

    def views(images: Any, light: float, saturation: float, hue: float, kernel: int, blurred: float) -> Any:
        if fires(0.8):
            images = colors(images, light, saturation, hue)
        if fires(0.2):
            images = fn.saturation(images, saturation=0.0)
        if fires(blurred):
            images = fn.gaussian_blur(images, window_size=kernel, sigma=between(*_BLUR_SIGMA))
        return images

    def solarized(images: Any) -> Any:
        if fires(0.2):
            kept = images < 128
            images = kept * images + (kept ^ True) * (types.Constant(255, dtype=types.UINT8) - images)
        return images

    def erased(images: Any) -> Any:
        if fires(0.001):
            corner, extent = between(0.0, 0.45, shape=[2]), between(0.15, 0.55, shape=[2])
            place = {"anchor": corner, "shape": extent, "normalized": True, "axis_names": "HW"}
            images = fn.erase(images, fill_value=mean, **place)
        return images

    def augmented(images: Any) -> Any:
        if recipe == "jitter":
            images = colors(images, 0.4, 0.4, 0.0)
        elif recipe == "randaugment":
            images = rand_augment.rand_augment(images, n=2, m=9, shape=(size, size))
        elif recipe == "trivialaugment":
            images = trivial_augment.trivial_augment_wide(images, shape=(size, size))
        elif recipe == "autoaugment":
            images = auto_augment.auto_augment_image_net(images, shape=(size, size))
        elif recipe == "simclr":
            images = views(images, 0.8, 0.8, 0.2, _blur_size(size), 0.5)
        elif recipe == "erasing":
            images = erased(images)
        return images

    def finished(images: Any, side: int) -> Any:
        values = {"dtype": types.FLOAT, "output_layout": "CHW", "mean": mean, "std": std}
        return fn.crop_mirror_normalize(images, crop=(side, side), mirror=fn.random.coin_flip(), **values)

    def dino_view(whole: Any, number: int) -> Any:
        side, area = (size, [0.4, 1.0]) if number < 2 else (_small(size), [0.05, 0.4])
        images = fn.random_resized_crop(whole, size=(side, side), random_area=area, random_aspect_ratio=ratio, **linear)
        images = views(images, 0.4, 0.2, 0.1, 9, {0: 1.0, 1: 0.1}.get(number, 0.5))
        return finished(solarized(images) if number == 1 else images, side)

    @pipeline_def(enable_conditionals=True)
    def pipeline() -> Any:
        encoded, _ = fn.readers.file(files=paths, random_shuffle=True)
        decoding = {"device": "cpu", "use_fast_idct": fast, "adjust_orientation": False}
        if recipe == "dino":
            whole = fn.decoders.image(encoded, **decoding)
            return tuple([dino_view(whole, number) for number in range(8)])
        crop = {"random_area": [0.08, 1.0], "random_aspect_ratio": ratio, "num_attempts": 10}
        images = fn.decoders.image_random_crop(encoded, **crop, **decoding)
        return finished(augmented(fn.resize(images, size=(size, size), **linear)), size)

    built = pipeline(batch_size=setting.batch_size, num_threads=1, device_id=None, prefetch_queue_depth=prefetch)
    built.build()
    while True:
        batch = built.run()
        yield list(batch) if len(batch) > 1 else batch[0]


class Rival(NamedTuple):
    """A contestant.

    Attributes:
        feed: Yields batches of a recipe without end: a tensor, or one for each view.
        needs: Names of what has to be installed.
        workers: Numbers of worker processes that it is measured with.
    """

    feed: Callable[[Setting, str], Generator[Any]]
    needs: tuple[str, ...] = ()
    workers: tuple[int, ...] = (0, 1)


def _rivals() -> dict[str, Rival]:
    found = {f"feeder, {name}": Rival(functools.partial(_feeder, encode=encode)) for name, encode in _OURS.items()}
    for pillow, name in (("pillow", "Pillow"), ("pillow-simd", "pillow-simd")):
        for kind, uint8 in (("", False), (", uint8 batches", True)):
            feed = functools.partial(_torchvision, pillow=pillow, uint8=uint8)
            found[f"torchvision, {name}{kind}"] = Rival(feed, ("torchvision", pillow))
    second = functools.partial(_torchvision, pillow="pillow-simd", v2=True)
    found["torchvision v2, uint8 tensors"] = Rival(second, ("torchvision", "pillow-simd"))
    for name in ("AlbumentationsX", "albumentations 2.0.8"):
        for interpolation in ("INTER_LINEAR", "INTER_AREA"):
            feed = functools.partial(_albumentations, interpolation=interpolation)
            found[f"{name}, {interpolation}"] = Rival(feed, (name.lower().partition(" ")[0],))
    for prefetch, fast in itertools.product((2, 3), (False, True)):
        feed = functools.partial(_dali, prefetch=prefetch, fast=fast)
        found[f"DALI, prefetch {prefetch}{', fast IDCT' if fast else ''}"] = Rival(feed, ("dali",), (0,))
    return found


_OURS = {"files": None, "seekable": "seekable", "packed": "packed"}
RIVALS = _rivals()


def unable(name: str, recipe: str) -> str | None:
    """Returns the reason why a contestant has no such recipe, or None."""
    policies = ("randaugment", "trivialaugment", "autoaugment", "timm")
    if name.startswith("albumentations") or name.startswith("AlbumentationsX"):
        return "Albumentations has no such policy" if recipe in policies else None
    if recipe == "timm" and not name.startswith(("feeder, ", "torchvision, ")):
        whose = "timm's ops take Pillow's images" if name.startswith("torchvision") else "it lacks timm's RandAugment"
        return whose
    if recipe == "lambda" and name.startswith("DALI"):
        return "its pipelined executor calls no Python"
    return None


def _array(view: Any) -> torch.Tensor:
    return view if isinstance(view, torch.Tensor) else torch.from_numpy(np.array(view.as_tensor()))


def _figures(name: str, batch: Any, setting: Setting, recipe: str) -> dict[str, float]:
    """Returns mean and deviation of a batch, whose views must be normalized floats of the recipe's sizes."""
    size = setting.image_size
    sizes = [size] * 2 + [_small(size)] * 6 if recipe == "dino" else [size]
    views = list(map(_array, batch if isinstance(batch, list) else [batch]))
    counts = {checked(name, view, side, side) for view, side in zip(views, sizes, strict=True)}
    if counts != {setting.batch_size} or not all(view.is_contiguous() for view in views):
        raise SystemExit(f"{name}: {counts} images in a batch of {setting.batch_size}, or not in order in memory")
    return {"mean": float(views[0].mean()), "std": float(views[0].std())}


def _versions(needs: tuple[str, ...]) -> dict[str, str]:
    names = {"dali": "nvidia-dali-cuda130"}
    found = {}
    for need in (*needs, *(["opencv-python-headless"] if needs[:1] and "albumentations" in needs[0] else [])):
        try:
            found[need] = importlib.metadata.version(names.get(need, need))
        except importlib.metadata.PackageNotFoundError:
            found[need] = "unknown"
    return found


def serve(batches: Iterator[Any], count: Callable[[Any], int]) -> None:
    """Answers each line of the input, a number of seconds, with the images and CPU seconds of as much time."""
    for line in sys.stdin:
        images, done, started, cpu_started = 0, 0, time.perf_counter(), cpu_seconds()
        while done < _LEAST_BATCHES or time.perf_counter() - started < float(line):
            images += count(next(batches))
            done += 1
        used = {"seconds": time.perf_counter() - started, "cpu_seconds": max(cpu_seconds() - cpu_started, 0.01)}
        print(json.dumps({"images": images, **used}), flush=True)


def main() -> int:
    name, recipe, workers, images, made, image_size, batch_size = sys.argv[1:]
    setting = Setting(images, Path(made), int(workers), int(image_size), int(batch_size))
    torch.set_num_threads(1)
    batches = iter(RIVALS[name].feed(setting, recipe))
    figures = [_figures(name, next(batches), setting, recipe) for _ in range(_WARM_BATCHES)]
    mean = {key: sum(figure[key] for figure in figures) / len(figures) for key in ("mean", "std")}
    print("ready " + json.dumps({**mean, "versions": _versions(RIVALS[name].needs)}), flush=True)

    serve(batches, lambda batch: len(batch[0] if isinstance(batch, list) else batch))
    return 0


if __name__ == "__main__":
    sys.exit(main())

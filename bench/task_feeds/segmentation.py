"""Images and palette masks of the same size, cropped and flipped alike."""

from __future__ import annotations

import functools
import io
import struct
import zlib
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

import feeder
from bench.task_feeds.setting import OURS, Feed, Setting, checked, epochs, finds_torchvision, torch_batches
from feeder import transforms as T
from feeder.tools.bench.pillow import normalized, random_resized_crop
from feeder.tools.presets import MEAN, STD, preset

__all__ = ["PARTS", "feeds"]

PARTS = ("inflate of masks",)
_CLASSES = 21  # as in Pascal VOC
_REGION_PX = 48


def _mask(seed: int, width: int, height: int) -> bytes:
    """A palette PNG of regions with smooth edges, about as many as a photo has objects."""
    rng = np.random.default_rng(seed)
    small = (max(2, width // _REGION_PX), max(2, height // _REGION_PX))
    best = np.full((height, width), -np.inf, np.float32)
    classes = np.zeros((height, width), np.uint8)
    for number in rng.choice(_CLASSES, 5, replace=False).tolist():
        field = Image.fromarray(rng.standard_normal(small[::-1], np.float32))
        values = np.asarray(field.resize((width, height), Image.Resampling.BICUBIC))
        classes[values > best] = number
        best = np.maximum(best, values)
    mask = Image.fromarray(classes)
    mask.putpalette(rng.integers(0, 256, 768, np.uint8).tobytes())
    file = io.BytesIO()
    mask.save(file, "PNG")
    return file.getvalue()


def _masks(setting: Setting) -> list[Path]:
    """The mask of each image, as a file."""
    folder = setting.made / "masks"
    paths = [folder / f"{i}.png" for i in range(len(setting.paths()))]
    if not folder.exists():
        folder.mkdir()
        for i, (image, path) in enumerate(zip(setting.paths(), paths, strict=True)):
            with Image.open(image) as file:
                path.write_bytes(_mask(i, *file.size))
    return paths


def _shards(setting: Setting, encode: str) -> str:
    out = setting.made / f"segmentation-{encode}"
    if not out.exists():
        pairs = enumerate(zip(setting.paths(), _masks(setting), strict=True))
        samples = (
            {"__key__": f"{i:06d}", "jpg": image.read_bytes(), "seg.png": mask.read_bytes()}
            for i, (image, mask) in pairs
        )
        feeder.write_shards(samples, out, image_field="jpg", encode=encode)
    return str(out)


class _Pairs(torch.utils.data.Dataset):
    """Images and masks, cropped and flipped alike.

    Args:
        setting: Names the images.
        transform: Makes the sample of Pillow's image and mask.
    """

    def __init__(self, setting: Setting, transform: Callable[[Image.Image, Image.Image], Any]) -> None:
        self.paths, self.transform = list(zip(setting.paths(), _masks(setting), strict=True)), transform

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, i: int) -> Any:
        image_path, mask_path = self.paths[i]
        with Image.open(image_path) as file:
            image = file.convert("RGB")
        with Image.open(mask_path) as file:
            mask = file.copy()
        return self.transform(image, mask)


def _with_pillow(size: int) -> Callable[[Image.Image, Image.Image], Any]:
    """Returns what torchvision's v2 does to Pillow's images."""

    def transform(image: Image.Image, mask: Image.Image) -> tuple[torch.Tensor, torch.Tensor]:
        box = random_resized_crop(*image.size)
        image = image.crop(box).resize((size, size), Image.Resampling.BILINEAR)
        mask = mask.crop(box).resize((size, size), Image.Resampling.NEAREST)
        if torch.rand(1) < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
            mask = mask.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()
        return normalized(pixels), torch.from_numpy(np.array(mask))

    return transform


def _with_torchvision(size: int) -> Callable[[Image.Image, Image.Image], Any]:
    """Returns torchvision's v2 on tensors."""
    from torchvision import tv_tensors
    from torchvision.transforms import v2

    crop = v2.Compose([v2.RandomResizedCrop(size), v2.RandomHorizontalFlip()])
    values = v2.Compose([v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)])

    def transform(image: Image.Image, mask: Image.Image) -> tuple[torch.Tensor, torch.Tensor]:
        moved, classes = crop(tv_tensors.Image(image), tv_tensors.Mask(mask))
        return values(moved), classes[0]

    return transform


def feeds(setting: Setting) -> dict[str, Feed]:
    size = setting.image_size

    def count(name: str, images: torch.Tensor, masks: Any) -> int:
        if masks.shape != (len(images), size, size) or masks.dtype != torch.uint8 or int(masks[0].max()) >= _CLASSES:
            raise SystemExit(f"{name}: masks of a batch are {masks.dtype} {list(masks.shape)}")
        return checked(name, images, size, size)

    def ours(encode: str) -> Generator[int]:
        shards = _shards(setting, encode)
        dataset = setting.dataset(shards, preset("train", "float32", size), targets={"seg.png": T.Mask()})
        for images, _, masks in epochs(dataset, setting):
            yield count("feeder", images, masks)

    def pairs(name: str, transform: Callable[[Image.Image, Image.Image], Any]) -> Generator[int]:
        for images, masks in torch_batches(_Pairs(setting, transform), setting):
            yield count(name, images, masks)

    def inflate() -> Generator[int]:
        streams = [_stream(path.read_bytes()) for path in _masks(setting)]
        while True:
            for stream in streams:
                zlib.decompress(stream)
            yield len(streams)

    found: dict[str, Feed] = {name: functools.partial(ours, encode) for name, encode in OURS.items()}
    if finds_torchvision():
        found["torch and torchvision v2"] = functools.partial(pairs, "torchvision", _with_torchvision(size))
    return found | {"torch and Pillow": functools.partial(pairs, "Pillow", _with_pillow(size)), PARTS[0]: inflate}


def _stream(png: bytes) -> bytes:
    """Returns the zlib stream of a PNG."""
    found, position = [], 8
    while position < len(png):
        length, kind = struct.unpack_from(">I4s", png, position)
        if kind == b"IDAT":
            found.append(png[position + 8 : position + 8 + length])
        position += 12 + length
    return b"".join(found)

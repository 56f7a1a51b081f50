"""The usual pipeline: Pillow and torchvision's ops, one image at a time, written here with torch alone."""

from __future__ import annotations

import io
import os
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from feeder.decoders.image_header import PILLOW_FORMATS
from feeder.decoders.packed import add_codebooks, is_packed, unpack
from feeder.shard.format.set_index import SetIndex
from feeder.tools.bench.bench_options import BenchOptions
from feeder.tools.bench.images import listed
from feeder.tools.presets import MEAN, STD, is_shards, val_resize
from feeder.tools.set_report import open_set

_NPY = b"\x93NUMPY"


def preprocess(data: bytes, options: BenchOptions) -> torch.Tensor:
    """Decodes an image to uint8, 0-255, or normalized float32, [3, image_size, image_size]."""
    from PIL import Image

    if data.startswith(_NPY):
        image = Image.fromarray(np.load(io.BytesIO(data), allow_pickle=False))
    else:
        with Image.open(io.BytesIO(data), formats=PILLOW_FORMATS) as opened:
            image = opened.convert("RGB")
    size = options.image_size
    if options.preset == "train":
        image = image.crop(random_resized_crop(*image.size)).resize((size, size), Image.Resampling.BILINEAR)
        if torch.rand(1) < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    else:
        image = _resize_and_center_crop(image, val_resize(size), size)
    pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()
    return pixels if options.dtype == "uint8" else normalized(pixels)


def normalized(pixels: torch.Tensor) -> torch.Tensor:
    """Returns uint8 pixels [3, H, W] as float32, normalized by ImageNet's mean and deviation."""
    floats = pixels.to(torch.float32).div_(255)
    return floats.sub_(torch.tensor(MEAN).view(3, 1, 1)).div_(torch.tensor(STD).view(3, 1, 1))


class PillowDataset(Dataset[tuple[torch.Tensor, int]]):
    """Images of a class-per-folder tree or of a shard set."""

    def __init__(self, path: str, options: BenchOptions) -> None:
        self._options = options
        self._index: SetIndex | None = None
        self._files: list[tuple[str, int]] = []
        if is_shards(path):
            self._index = open_set(path)
            add_codebooks(self._index.codebooks)
        else:
            self._files = listed(path)

    def __len__(self) -> int:
        return len(self._files) if self._index is None else len(self._index)

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        data, label = self._read(i)
        return preprocess(data, self._options), label

    def _read(self, i: int) -> tuple[bytes, int]:
        if self._index is None:
            path, label = self._files[i]
            with open(path, "rb") as file:
                return file.read(), label
        index = self._index
        shard, offset, length = index.place(i)
        with open(index.shard_path(shard), "rb") as file:
            data = os.pread(file.fileno(), length, offset)
        return unpack(data) if is_packed(data) else data, int(index.row(i).labels[0])


def random_resized_crop(width: int, height: int, scale: tuple[float, float] = (0.08, 1.0)) -> tuple[int, int, int, int]:
    """Returns the box of torchvision's RandomResizedCrop.get_params, by default with its defaults."""
    area = width * height
    for _ in range(10):
        target = area * torch.empty(1).uniform_(*scale).item()
        ratio = torch.exp(torch.empty(1).uniform_(float(np.log(3 / 4)), float(np.log(4 / 3)))).item()
        w, h = round((target * ratio) ** 0.5), round((target / ratio) ** 0.5)
        if 0 < w <= width and 0 < h <= height:
            top = int(torch.randint(0, height - h + 1, (1,)).item())
            left = int(torch.randint(0, width - w + 1, (1,)).item())
            return left, top, left + w, top + h

    # No drawn box fits: the largest in the middle, of the nearest ratio that is allowed.
    ratio = min(max(width / height, 3 / 4), 4 / 3)
    w, h = (width, round(width / ratio)) if width / height < 3 / 4 else (round(height * ratio), height)
    w, h = min(w, width), min(h, height)
    left, top = (width - w) // 2, (height - h) // 2
    return left, top, left + w, top + h


def _resize_and_center_crop(image: Any, short_side: int, size: int) -> Any:
    """Applies torchvision's Resize and CenterCrop."""
    from PIL import Image

    width, height = image.size
    if width <= height:
        scaled = short_side, int(short_side * height / width)
    else:
        scaled = int(short_side * width / height), short_side
    left, top = round((scaled[0] - size) / 2), round((scaled[1] - size) / 2)
    return image.resize(scaled, Image.Resampling.BILINEAR).crop((left, top, left + size, top + size))

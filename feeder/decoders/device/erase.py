"""Erasing on a device: in uint8 images before other ops, and in the output after kernel 1, with a value or noise."""

from __future__ import annotations

import numpy as np
import torch

from feeder.decoders.device.fused import Erasing
from feeder.decoders.device.rows import change_rows
from feeder.decoders.tensors import to_device
from feeder.system.arrays import Float32s, Int32s, Int64s, Uint64s

# Numbers of noise made at a time; each takes about 100 bytes meanwhile.
NUMBERS_AT_ONCE = 1 << 21

_MASK32 = 0xFFFFFFFF


def erase(images: torch.Tensor, erasing: Erasing) -> None:
    """Writes a value, or noise, to a rectangle of each image.

    The noise is that of the other backends, to a unit in float32's last place.

    Args:
        images: [N, 3, H, W] of any memory format, float for noise.
        erasing: The rectangles and their content.
    """
    if erasing.value is not None:
        _write_value(images, erasing.boxes, erasing.value)
        return
    boxes = erasing.boxes.astype(np.int64)
    height, width = boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1]
    rows = np.flatnonzero(height * width)
    before = np.cumsum(3 * height[rows] * width[rows])
    for group in np.split(rows, np.flatnonzero(np.diff(before // NUMBERS_AT_ONCE)) + 1):
        if len(group):
            _write_noise(images, group, boxes[group], erasing)


def add_noise(images: torch.Tensor, keys: Uint64s, mean: float, sigma: float, is_clipped: bool) -> None:
    """Adds noise to each image, that of the other backends within a level.

    Args:
        images: uint8 [N, 3, H, W], contiguous.
        keys: [N], its seeds.
        mean: Its mean, in levels.
        sigma: Its standard deviation, in levels.
        is_clipped: False lets sums wrap around.
    """
    number = torch.arange(images[0].numel(), device=images.device)
    for image, key in zip(images, keys.tolist(), strict=True):
        low, high = (torch.full_like(number, half) for half in (key & _MASK32, key >> 32))
        noise = (mean + _normal(low, high, number).float() * sigma).int().reshape(image.shape)
        sums = image + noise
        image.copy_(sums.clamp(0, 255) if is_clipped else sums & 255)


def _write_value(images: torch.Tensor, boxes: Int32s, value: Float32s) -> None:
    erased = np.flatnonzero((boxes[:, 0] < boxes[:, 2]) & (boxes[:, 1] < boxes[:, 3]))
    rows = torch.arange(images.shape[2], device=images.device)[:, None]
    columns = torch.arange(images.shape[3], device=images.device)
    levels = to_device(value, images.device).to(images.dtype).reshape(1, 3, 1, 1)

    def write(some: torch.Tensor, chunk: slice) -> torch.Tensor:
        top, left, bottom, right = to_device(boxes[erased[chunk]], images.device)[:, :, None, None, None].unbind(1)
        inside = (rows >= top) & (rows < bottom) & (columns >= left) & (columns < right)
        return torch.where(inside, levels, some)

    change_rows(images, erased, write)


def _write_noise(images: torch.Tensor, rows: Int64s, boxes: Int64s, erasing: Erasing) -> None:
    """Writes noise; the numbers of all rectangles follow each other, each [3, h, w]."""
    device = images.device
    sizes = 3 * (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    ends = np.cumsum(sizes)
    keys = erasing.keys[rows]
    low, high = (keys & np.uint64(_MASK32)).astype(np.int64), (keys >> np.uint64(32)).astype(np.int64)
    mirrored = erasing.mirrored[rows].astype(np.int64)
    table = to_device(np.stack([rows, *boxes.T, ends - sizes, low, high, mirrored]), device)
    place = torch.arange(int(ends[-1]), device=device)
    image, top, left, bottom, right, start, low_of, high_of, flip = table[
        :, torch.searchsorted(to_device(ends, device), place, right=True)
    ].unbind(0)
    number = place - start
    width = right - left
    area = (bottom - top) * width
    channel, within = number // area, number % area
    x = within % width
    column = torch.where(flip != 0, right - 1 - x, left + x)
    values = _normal(low_of, high_of, number).float()
    if not ((erasing.scale == 1.0).all() and (erasing.bias == 0.0).all()):
        values = values * to_device(erasing.scale, device)[channel] + to_device(erasing.bias, device)[channel]
    images[image, channel, top + within // width, column] = values.to(images.dtype)


def _normal(key_low: torch.Tensor, key_high: torch.Tensor, number: torch.Tensor) -> torch.Tensor:
    """Returns standard normal numbers, float64, by Box and Muller.

    They come from the two uniform numbers of ``order.uniform`` for (seed = key, epoch 0, sample id = number, stream 0).
    """
    words = _philox(key_low, key_high, number)
    first, second = ((high << 21 | low >> 11).double() * 2.0**-53 for high, low in (words[:2], words[2:]))
    return torch.sqrt(-2.0 * torch.log1p(-first)) * torch.cos(2.0 * np.pi * second)


def _philox(
    key_low: torch.Tensor, key_high: torch.Tensor, number: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Computes Philox4x32-10 as :func:`feeder.order.random.philox`, for a counter of one number below 2**32.

    Products of 32-bit words wrap around in int64, and their halves are right nevertheless.
    """
    zero = torch.zeros_like(number)
    a, b, c, d = number, zero, zero, zero
    for _ in range(10):
        first, second = a * 0xD2511F53, c * 0xCD9E8D57
        a, b = (second >> 32 & _MASK32) ^ b ^ key_low, second & _MASK32
        c, d = (first >> 32 & _MASK32) ^ d ^ key_high, first & _MASK32
        key_low, key_high = key_low + 0x9E3779B9 & _MASK32, key_high + 0xBB67AE85 & _MASK32
    return a, b, c, d

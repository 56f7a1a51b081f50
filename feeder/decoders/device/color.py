"""Ops on colors and sharpness as batched torch ops on uint8 images, on any device, with a strength for each image.

Each repeats Pillow's arithmetic step by step (float32 for blends, float64 for hue and tables), so the pixels are
Pillow's to the bit. Where a build of Pillow fuses a product and a sum (some for ARM) or rounds its blends
(pillow-simd), a blend on the edge between two levels may differ by one level.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from feeder.decoders.device.rows import per_image
from feeder.decoders.gpu.normalize import gray_level, mean_level
from feeder.decoders.op_math import blur_weights
from feeder.decoders.tensors import to_device
from feeder.system.arrays import AnyArray, Size


def _over(values: torch.Tensor, divisor: float) -> torch.Tensor:
    """Divides by a number, in float64. With a plain number torch would multiply by its reciprocal on a GPU."""
    return values.double() / torch.full((), divisor, dtype=torch.float64, device=values.device)


def _blend(other: torch.Tensor, images: torch.Tensor, factors: AnyArray) -> torch.Tensor:
    """Computes Pillow's ``Image.blend``: other + factor * (image - other), cut to uint8.

    Args:
        other: float32, whole numbers, broadcast to the images.
        images: uint8 [n, 3, H, W].
        factors: [n]; 1 gives the image.
    """
    difference = images.float().sub_(other)
    return difference.mul_(per_image(factors.astype(np.float32), images)).add_(other).clamp_(0.0, 255.0).to(torch.uint8)


def _brightness(images: torch.Tensor, factors: AnyArray) -> torch.Tensor:
    return _blend(torch.zeros((), device=images.device), images, factors)


def _contrast(images: torch.Tensor, factors: AnyArray) -> torch.Tensor:
    mean = mean_level(gray_level(images, 1).sum((1, 2)), images.shape[2] * images.shape[3])
    return _blend(mean.reshape(-1, 1, 1, 1), images, factors)


def _saturation(images: torch.Tensor, factors: AnyArray) -> torch.Tensor:
    return _blend(gray_level(images, 1)[:, None].float(), images, factors)


def _sharpness(images: torch.Tensor, factors: AnyArray) -> torch.Tensor:
    """Blends with Pillow's ``SMOOTH``: 3 x 3 pixels, the middle one five times, over 13; edges are unchanged."""
    smooth = images.float()
    if min(images.shape[2:]) > 2:
        wide = images.to(torch.int16)
        rows = wide[:, :, :-2] + wide[:, :, 1:-1] + wide[:, :, 2:]
        total = rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:] + 4 * wide[:, :, 1:-1, 1:-1]
        smooth[:, :, 1:-1, 1:-1] = torch.div(2 * total + 13, 26, rounding_mode="floor").float()
    return _blend(smooth, images, factors)


def _hue(images: torch.Tensor, turns: AnyArray) -> torch.Tensor:
    """Shifts the hue in Pillow's uint8 HSV, with wraparound.

    Args:
        images: uint8 [n, 3, H, W].
        turns: [n], in turns of the color circle.
    """
    shift = per_image(np.trunc(turns * 255).astype(np.int64) % 256, images)[:, 0]
    hue, saturation, value = _to_hsv(images)
    return _to_rgb((hue + shift) % 256, saturation, value)


def _to_hsv(images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Computes Pillow's ``rgb2hsv_row``: hue (int64), saturation and value (float32), 0-255, each [n, H, W]."""
    colors = images.float()
    high, low = colors.amax(1), colors.amin(1)
    red, green, _ = colors.unbind(1)
    spread = high - low
    gray = spread == 0
    divisor = torch.where(gray, 1.0, spread)
    of_red, of_green, of_blue = ((high[:, None] - colors) / divisor[:, None]).unbind(1)
    # In C the constants are doubles, the variables floats.
    after_green = ((2.0 + of_red.double()) - of_blue.double()).float()
    after_blue = ((4.0 + of_green.double()) - of_red.double()).float()
    hue = torch.where(red == high, of_blue - of_green, torch.where(green == high, after_green, after_blue))
    hue = torch.fmod(_over(hue, 6.0) + 1.0, 1.0).float()
    levels = torch.where(gray, 0, (hue.double() * 255.0).long().clamp_(0, 255))
    saturation = (spread / torch.where(high == 0, 1.0, high)).double() * 255.0
    return levels, torch.where(gray, 0.0, saturation.floor().float()), high


def _to_rgb(hue: torch.Tensor, saturation: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Computes Pillow's ``hsv2rgb``: uint8 [n, 3, H, W]."""
    sixths = _over(hue.double() * 6.0, 255.0)
    sector = sixths.floor()
    within = (sixths - sector).float()
    purity, full = _over(saturation, 255.0).float(), value.double()
    p = _rounded(full * (1.0 - purity.double()))
    q = _rounded(full * (1.0 - (purity * within).double()))
    t = _rounded(full * (1.0 - purity.double() * (1.0 - within.double())))
    v = value.to(torch.uint8)
    sector = sector % 6
    channels = []
    for in_order in ((v, q, p, p, t, v), (t, v, v, q, p, p), (p, p, t, v, v, q)):
        channel = in_order[5]
        for number in range(5):
            channel = torch.where(sector == number, in_order[number], channel)
        channels.append(channel)
    return torch.stack(channels, 1)


def _rounded(values: torch.Tensor) -> torch.Tensor:
    """Rounds numbers of 0 or more like C's round(), to uint8."""
    whole = values.floor()
    return (whole + (values - whole >= 0.5)).clamp_(0, 255).to(torch.uint8)


# Functions as in Pillow's ImageEnhance: take images and a factor for each (1 changes nothing); hue takes turns.
ADJUSTMENTS: dict[str, Callable[[torch.Tensor, AnyArray], torch.Tensor]] = {
    "brightness": _brightness,
    "contrast": _contrast,
    "saturation": _saturation,
    "sharpness": _sharpness,
    "hue": _hue,
}


def grayscale(images: torch.Tensor) -> torch.Tensor:
    """Returns the gray level in three channels."""
    return gray_level(images, 1)[:, None].to(torch.uint8).expand_as(images)


def posterize(images: torch.Tensor, bits: AnyArray) -> torch.Tensor:
    """Keeps the upper bits of each value; ``bits`` [n], 0 to 8."""
    return images & per_image((0xFF << (8 - bits.astype(np.int64)) & 0xFF).astype(np.uint8), images)


def solarize(images: torch.Tensor, thresholds: AnyArray) -> torch.Tensor:
    """Inverts the values from a threshold on; ``thresholds`` [n], 0 to 255."""
    lowest = per_image(np.ceil(thresholds).astype(np.int16), images)
    return torch.where(images < lowest, images, invert(images))


def invert(images: torch.Tensor) -> torch.Tensor:
    """Returns 255 minus each value."""
    return 255 - images


def autocontrast(images: torch.Tensor) -> torch.Tensor:
    """Stretches each channel's values from the lowest to the highest over 0-255."""
    low, high = images.amin((2, 3)).double(), images.amax((2, 3)).double()
    flat = high <= low
    scale = torch.full_like(low, 255.0) / torch.where(flat, 1.0, high - low)
    levels = torch.arange(256, dtype=torch.float64, device=images.device)
    stretched = (levels * scale[..., None] + (-low * scale)[..., None]).trunc().clamp_(0.0, 255.0)
    return _look_up(images, torch.where(flat[..., None], levels, stretched).to(torch.uint8))


def equalize(images: torch.Tensor) -> torch.Tensor:
    """Spreads each channel's values so that all are about as frequent."""
    values = images.flatten(2).long()
    counts = torch.zeros((*values.shape[:2], 256), dtype=torch.int64, device=images.device)
    counts.scatter_add_(2, values, torch.ones((), dtype=torch.int64, device=images.device).expand_as(values))
    of_highest = counts.gather(2, values.amax(2, keepdim=True))
    step = (values.shape[2] - of_highest) // 255
    spread = (step // 2 + counts.cumsum(2) - counts) // step.clamp(min=1)
    levels = torch.arange(256, device=images.device)
    return _look_up(images, torch.where(step == 0, levels, spread.clamp_(0, 255)).to(torch.uint8))


def _look_up(images: torch.Tensor, tables: torch.Tensor) -> torch.Tensor:
    """Replaces every value by its entry in uint8 [n, 3, 256]."""
    return tables.gather(2, images.flatten(2).long()).view_as(images)


def blur(images: torch.Tensor, sigmas: AnyArray, kernel_size: Size) -> torch.Tensor:
    """Applies a Gaussian blur, with reflection at the edges.

    Args:
        images: uint8 [n, 3, H, W].
        sigmas: [n], pixels.
        kernel_size: (x, y) in pixels, odd.
    """
    blurred = images.float()
    for axis, size in ((3, kernel_size[0]), (2, kernel_size[1])):
        weights = per_image(np.stack([blur_weights(size, sigma) for sigma in sigmas.tolist()]).T, images)
        weights = weights.reshape(size, len(images), 1, 1, 1)
        length = blurred.shape[axis]
        reflected = np.pad(np.arange(length), (size // 2, size // 2), mode="reflect")
        padded = blurred.index_select(axis, to_device(reflected, images.device))
        # One by one: a convolution would round differently, or to fewer bits on some GPUs.
        blurred = weights[0] * padded.narrow(axis, 0, length)
        for start in range(1, size):
            blurred += weights[start] * padded.narrow(axis, start, length)
    return blurred.round_().to(torch.uint8)

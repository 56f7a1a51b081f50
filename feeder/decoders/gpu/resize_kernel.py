"""The Triton side of kernel 2; its reference and tolerance are in ``resize.py``."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from feeder.decoders.gpu.normalize_kernel import COMPILE, on_device, store_pixel
from feeder.decoders.gpu.parameters import Ragged

_BLOCK = 128


@triton.jit
def _crop_resize_kernel(
    out, places, sources, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, CHANNELS_LAST: tl.constexpr, BLOCK: tl.constexpr
):
    """``places`` has, for each image, its support's address, the image's width, and the support's width and height."""
    image = tl.program_id(1)
    pixel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = pixel < HEIGHT * WIDTH
    row = pixel // WIDTH
    column = pixel % WIDTH
    support_width = tl.load(places + image * 4 + 2).to(tl.int32)
    support_height = tl.load(places + image * 4 + 3).to(tl.int32)
    left = tl.load(sources + image * 4)
    top = tl.load(sources + image * 4 + 1)
    step_x = (tl.load(sources + image * 4 + 2) - left) / WIDTH
    step_y = (tl.load(sources + image * 4 + 3) - top) / HEIGHT
    reach_x = tl.maximum(step_x, 1.0)
    reach_y = tl.maximum(step_y, 1.0)
    slope_x = 1.0 / reach_x  # a division for each tap would be a fifth of the loop
    slope_y = 1.0 / reach_y
    center_x = left + (column.to(tl.float32) + 0.5) * step_x
    center_y = top + (row.to(tl.float32) + 0.5) * step_y
    first_x = tl.maximum(tl.floor(center_x - reach_x + 0.5).to(tl.int32), 0)
    first_y = tl.maximum(tl.floor(center_y - reach_y + 0.5).to(tl.int32), 0)
    last_x = tl.minimum(tl.floor(center_x + reach_x + 0.5).to(tl.int32), support_width)
    last_y = tl.minimum(tl.floor(center_y + reach_y + 0.5).to(tl.int32), support_height)
    taps_x = tl.ceil(reach_x).to(tl.int32) * 2 + 1
    taps_y = tl.ceil(reach_y).to(tl.int32) * 2 + 1

    start = tl.load(places + image * 4).to(tl.pointer_type(tl.uint8))
    stride = tl.load(places + image * 4 + 1)
    red = tl.zeros([BLOCK], tl.float32)
    green = tl.zeros([BLOCK], tl.float32)
    blue = tl.zeros([BLOCK], tl.float32)
    total_y = tl.zeros([BLOCK], tl.float32)
    total_x = tl.zeros([BLOCK], tl.float32)
    for tap_y in range(taps_y):
        from_y = first_y + tap_y
        good_y = mask & (from_y < last_y)
        weight_y = tl.maximum(1.0 - tl.abs((from_y.to(tl.float32) - center_y + 0.5) * slope_y), 0.0)
        weight_y = tl.where(good_y, weight_y, 0.0)
        total_y += weight_y
        total_x = tl.zeros([BLOCK], tl.float32)
        line = from_y.to(tl.int64) * stride
        for tap_x in range(taps_x):
            from_x = first_x + tap_x
            good_x = from_x < last_x
            weight_x = tl.maximum(1.0 - tl.abs((from_x.to(tl.float32) - center_x + 0.5) * slope_x), 0.0)
            weight_x = tl.where(good_x, weight_x, 0.0)
            total_x += weight_x
            weight = weight_x * weight_y
            place = start + (line + from_x) * 3
            good = good_y & good_x
            red += weight * tl.load(place, mask=good, other=0).to(tl.float32)
            green += weight * tl.load(place + 1, mask=good, other=0).to(tl.float32)
            blue += weight * tl.load(place + 2, mask=good, other=0).to(tl.float32)
    total = tl.where(mask, total_y * total_x, 1.0)
    red = tl.minimum(tl.floor(red / total + 0.5), 255.0)
    green = tl.minimum(tl.floor(green / total + 0.5), 255.0)
    blue = tl.minimum(tl.floor(blue / total + 0.5), 255.0)
    store_pixel(out, image, pixel, HEIGHT * WIDTH, mask, red, green, blue, CHANNELS_LAST)


def launch(
    images: Ragged, source: torch.Tensor, support: torch.Tensor, size: tuple[int, int], out: torch.Tensor
) -> None:
    """Launches kernel 2 on the current stream.

    Args:
        images, source, support, size: As in ``crop_resize``.
        out: uint8 [N, 3, H, W], filled.
    """
    height, width = size
    # Relative to the support's corner, computed in float64, so that float32 keeps the boxes' fractions.
    corner, widths = support[:, :2].long(), images.sizes[:, 1].long()
    starts = images.addresses + 3 * (corner[:, 1] * widths + corner[:, 0])
    places = torch.column_stack([starts, widths, support[:, 2:].long() - corner])
    sources = source.double() - torch.cat([corner, corner], 1)
    _crop_resize_kernel[(triton.cdiv(height * width, _BLOCK), len(images))](
        out, on_device(places, torch.int64, out), on_device(sources.float(), torch.float32, out), HEIGHT=height,
        WIDTH=width, CHANNELS_LAST=not out.is_contiguous(), BLOCK=_BLOCK, **COMPILE,
    )  # fmt: skip

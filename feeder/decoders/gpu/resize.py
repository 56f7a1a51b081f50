"""Kernel 2: antialiased bilinear crop-resize of uint8 images of different sizes."""

from __future__ import annotations

import torch

from feeder.decoders.gpu.dispatch import launching_on, runs_triton
from feeder.decoders.gpu.parameters import Ragged
from feeder.system.arrays import Size


def crop_resize(
    images: Ragged,
    source: torch.Tensor,
    support: torch.Tensor,
    size: Size,
    *,
    channels_last: bool = False,
    using: str = "auto",
) -> torch.Tensor:
    """Crops and resizes.

    The filter is Pillow's BILINEAR: a triangle, as wide as the scale where the image shrinks, cut at the support box.
    The kernel and its reference are within 0.01 level of exact arithmetic before they round, and within 1 level of
    Pillow, which rounds to uint8 between its two passes.

    Args:
        images: N images as stored.
        source: float [N, 4], on the CPU, (left, top, right, bottom) in stored pixels: the area mapped onto the output.
        support: integers [N, 4], on the CPU, the stored pixels that the filter may read.
        size: (H, W) of the output.
        channels_last: Memory format of the output.
        using: "auto", "triton" or "torch".

    Returns:
        uint8 [N, 3, H, W].

    Raises:
        ArgumentError: for an argument that does not fit.
    """
    images.check(source, support)
    memory_format = torch.channels_last if channels_last else torch.contiguous_format
    shape = (len(images), 3, *size)
    out = torch.empty(shape, dtype=torch.uint8, device=images.device, memory_format=memory_format)
    if len(images) == 0:
        return out
    if runs_triton(images.device, using):
        from feeder.decoders.gpu.resize_kernel import launch

        with launching_on(images.device):
            launch(images, source, support, size, out)
    else:
        _reference(images, source, support, size, out)
    return out


def _reference(images: Ragged, source: torch.Tensor, support: torch.Tensor, size: Size, out: torch.Tensor) -> None:
    """Runs the reference in torch ops on any device: the filter is two matrices per image."""
    boxes = zip(source.tolist(), support.tolist(), strict=True)
    for row, (outer, (left, top, right, bottom)) in enumerate(boxes):
        # float64: torch multiplies float32 matrices with the precision of the caller's settings (bfloat16, TF32).
        window = torch.utils.dlpack.from_dlpack(images.images[row])[top:bottom, left:right].double()
        rows = _weights(outer[1] - top, outer[3] - top, bottom - top, size[0]).to(window)
        columns = _weights(outer[0] - left, outer[2] - left, right - left, size[1]).to(window)
        resized = torch.einsum("yh,hwc,xw->cyx", rows, window, columns)
        out[row] = torch.floor(resized + 0.5).clamp_(0, 255)  # half up, as Pillow rounds


def _weights(low: float, high: float, length: int, size: int) -> torch.Tensor:
    """Returns each input pixel's weight in each output pixel, float64 [size, length]; Pillow's precompute_coeffs."""
    step = (high - low) / size
    support = max(step, 1.0)
    center = low + (torch.arange(size, dtype=torch.float64) + 0.5) * step
    first = torch.clamp(torch.floor(center - support + 0.5), min=0)[:, None]
    last = torch.clamp(torch.floor(center + support + 0.5), max=length)[:, None]
    pixel = torch.arange(length, dtype=torch.float64)[None, :]
    weight = torch.clamp(1.0 - ((pixel - center[:, None] + 0.5) / support).abs(), min=0.0)
    weight = torch.where((pixel >= first) & (pixel < last), weight, 0.0)
    return weight / weight.sum(1, keepdim=True)

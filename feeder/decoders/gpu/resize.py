"""Kernel 2: antialiased bilinear crop-resize of uint8 images of different sizes, turned, normalized and erased."""

from __future__ import annotations

import torch

from feeder.decoders.gpu.dispatch import launching_on, runs_triton
from feeder.decoders.gpu.normalize import finish_reference
from feeder.decoders.gpu.parameters import Erase, Ragged, output_tensor
from feeder.errors import ArgumentError

__all__ = ["crop_resize", "crop_resize_reference"]


def crop_resize(
    images: Ragged,
    source: torch.Tensor,
    support: torch.Tensor,
    size: tuple[int, int],
    *,
    scale: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    dtype: torch.dtype = torch.float32,
    channels_last: bool = False,
    turn: torch.Tensor | None = None,
    erase: Erase | None = None,
    out: torch.Tensor | None = None,
    using: str = "auto",
) -> torch.Tensor:
    """Crops, resizes, turns, normalizes and erases: out = pixel (0-255, not rounded) * scale + bias.

    The filter is Pillow's BILINEAR: a triangle, as wide as the scale where the image shrinks, cut at the support box.
    The kernel is within 0.01 level of :func:`crop_resize_reference` before it rounds to ``dtype``; the reference is
    within 1 level of Pillow, which rounds to uint8 between its two passes.

    Args:
        images: N images as stored.
        source: float [N, 4], on the CPU, (left, top, right, bottom) in stored pixels: the area mapped onto the output.
        support: integers [N, 4], on the CPU, the stored pixels that the filter may read.
        size: (H, W) of the output.
        scale: float32 [3]; None is 1.
        bias: float32 [3]; None is 0.
        dtype: uint8 (rounded to nearest, neither scale nor bias), float16, bfloat16 or float32.
        channels_last: Memory format of the output.
        turn: integers [N], 0-7, see Note [Turns] in ``parameters.py``.
        erase: Rectangles to overwrite.
        out: [N, 3, H, W] of ``dtype`` and memory format, filled; None makes one.
        using: "auto", "triton" or "torch".

    Returns:
        [N, 3, H, W].

    Raises:
        ArgumentError: for an argument that does not fit.
    """
    images.check(source, support)
    if dtype == torch.uint8 and not (scale is None and bias is None):
        raise ArgumentError("dtype uint8 takes no scale or bias; ask for a float dtype")
    out = output_tensor(len(images), size, dtype, channels_last, images.device, out)
    if len(images) == 0:
        return out
    if runs_triton(images.device, using):
        from feeder.decoders.gpu.resize_kernel import launch

        with launching_on(images.device):
            launch(images, source, support, size, out, scale, bias, turn, erase)
    else:
        crop_resize_reference(images, source, support, size, out, scale, bias, turn, erase)
    return out


def crop_resize_reference(
    images: Ragged,
    source: torch.Tensor,
    support: torch.Tensor,
    size: tuple[int, int],
    out: torch.Tensor,
    scale: torch.Tensor | None,
    bias: torch.Tensor | None,
    turn: torch.Tensor | None,
    erase: Erase | None,
) -> None:
    """Runs the reference of :func:`crop_resize` in torch ops on any device: the filter is two matrices per image."""
    pixels = torch.empty((len(images), *size, 3), device=images.device)
    codes = [0] * len(images) if turn is None else turn.tolist()
    boxes = zip(source.tolist(), support.tolist(), codes, strict=True)
    for row, (outer, (left, top, right, bottom), code) in enumerate(boxes):
        # float64: torch multiplies float32 matrices with the precision of the caller's settings (bfloat16, TF32).
        window = torch.utils.dlpack.from_dlpack(images.images[row])[top:bottom, left:right].double()
        stored = size[::-1] if code & 4 else size
        rows = _weights(outer[1] - top, outer[3] - top, bottom - top, stored[0]).to(window)
        columns = _weights(outer[0] - left, outer[2] - left, right - left, stored[1]).to(window)
        resized = torch.einsum("yh,hwc,xw->yxc", rows, window, columns)
        mirrored = [axis for bit, axis in ((1, 1), (2, 0)) if code & bit]
        upright = resized.flip(mirrored) if mirrored else resized
        pixels[row] = upright.transpose(0, 1) if code & 4 else upright
    if out.dtype == torch.uint8:
        # Half up, as Pillow rounds.
        pixels = torch.floor(pixels + 0.5).clamp_(0, 255)
    finish_reference(pixels, out, scale, bias, erase, None)


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

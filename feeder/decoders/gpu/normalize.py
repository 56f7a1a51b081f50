"""Kernel 1: turns, colors and normalizes uint8 images, in one pass over the batch."""

from __future__ import annotations

import math

import torch

from feeder.decoders.gpu.dispatch import launching_on, runs_triton
from feeder.decoders.gpu.parameters import BRIGHTNESS, CONTRAST, Color, output_tensor
from feeder.errors import ArgumentError
from feeder.system.arrays import Size
from feeder.system.checks import check_one_of

_LAYOUTS = ("nhwc", "nchw")


def normalize(
    images: torch.Tensor,
    size: Size,
    *,
    affine: tuple[torch.Tensor, torch.Tensor] | None = None,
    dtype: torch.dtype = torch.float32,
    layout: str = "nhwc",
    channels_last: bool = False,
    turn: torch.Tensor | None = None,
    color: Color | None = None,
    using: str = "auto",
) -> torch.Tensor:
    """Turns, colors and normalizes a batch: out = pixel (0-255), or pixel * scale + bias.

    Tolerance: for outputs of the usual size (under 5), the kernel and the reference are both within 1e-6, and half a
    unit in the last place of ``dtype``, of exact arithmetic. With ``color``, a blend on the edge between two levels may
    be rounded to either.

    Args:
        images: uint8, contiguous, N images of ``size`` as stored (see Note [Turns]), each of 3 * H * W bytes.
        size: (H, W) of the output.
        affine: scale and bias, float32 [3] each; None for the pixels themselves.
        dtype: float32, float16, bfloat16; or uint8, which takes neither scale nor bias.
        layout: Order of a stored image's bytes, "nhwc" or "nchw".
        channels_last: Memory format of the output.
        turn: integers [N], 0-7, see Note [Turns]; None is 0.
        color: Brightness, contrast and saturation.
        using: "auto", "triton" or "torch".

    Returns:
        [N, 3, H, W].

    Raises:
        ArgumentError: for an argument that does not fit.
    """
    _check(images, size, layout)
    if dtype == torch.uint8 and affine is not None:
        raise ArgumentError("dtype uint8 takes no scale or bias; ask for a float dtype")
    out = output_tensor(len(images), size, dtype, channels_last, images.device)
    if len(images) == 0:
        return out
    mean = None
    if color is not None and color.has_contrast:
        mean = gray_mean(images, size, color, layout=layout, using=using)
    if runs_triton(images.device, using):
        from feeder.decoders.gpu.normalize_kernel import launch

        with launching_on(images.device):
            launch(images, size, out, affine, layout, turn, color, mean)
    else:
        _reference(images, size, out, affine, layout, turn, color, mean)
    return out


def _check(images: torch.Tensor, size: Size, layout: str) -> None:
    """Refuses images of another size than the kernels would read."""
    check_one_of("layout", layout, _LAYOUTS)
    if images.dtype != torch.uint8 or not images.is_contiguous() or images.ndim < 1:
        raise ArgumentError(f"images must be contiguous uint8 [N, ...], got {images.dtype} {list(images.shape)}")
    if images.numel() != len(images) * 3 * math.prod(size):
        expected = f"{len(images)} of {size[0]}x{size[1]}x3 bytes"
        raise ArgumentError(f"images must be {expected}, got shape {list(images.shape)}")


def gray_mean(
    images: torch.Tensor, size: Size, color: Color, *, layout: str = "nhwc", using: str = "auto"
) -> torch.Tensor:
    """Returns the gray level that each image's contrast step blends with: float32 [N], whole numbers.

    The kernel's numbers are the reference's, unless an earlier step had a blend on the edge between two levels.

    Args:
        images: As in :func:`normalize`.
        size: As in :func:`normalize`.
        color: The steps. Those before the contrast are applied first; for images without contrast the result means
            nothing.
        layout: As in :func:`normalize`.
        using: As in :func:`normalize`.
    """
    if runs_triton(images.device, using):
        from feeder.decoders.gpu.normalize_kernel import launch_gray_sum

        with launching_on(images.device):
            return mean_level(launch_gray_sum(images, size, color, layout), math.prod(size))
    # A turn moves pixels and does not change the mean.
    pixels = _stored(images, size, layout)
    mean = torch.zeros(len(pixels), device=images.device)
    for column in range(color.steps.shape[1]):
        here = color.steps[:, column] == CONTRAST
        if bool(here.any()):
            mean = torch.where(here, mean_level(gray_level(pixels).sum((1, 2)), math.prod(size)), mean)
        pixels = _step(pixels, color, column, mean)
    return mean


def mean_level(sums: torch.Tensor, count: int) -> torch.Tensor:
    """Returns the mean of ``count`` whole numbers with these sums (int64), rounded half up, float32.

    Computed in whole numbers: on a GPU torch multiplies by the reciprocal, so that some halves would be rounded down.
    """
    return torch.div(2 * sums + count, 2 * count, rounding_mode="floor").float()


def _reference(
    images: torch.Tensor,
    size: Size,
    out: torch.Tensor,
    affine: tuple[torch.Tensor, torch.Tensor] | None,
    layout: str,
    turn: torch.Tensor | None,
    color: Color | None,
    mean: torch.Tensor | None,
) -> None:
    """Runs the reference of :func:`normalize`, in torch ops on any device."""
    pixels = _turned(images, size, layout, turn)
    if color is not None:
        nothing = torch.zeros(len(pixels), device=images.device)
        for column in range(color.steps.shape[1]):
            pixels = _step(pixels, color, column, nothing if mean is None else mean)

    values = pixels if affine is None else pixels.float() * affine[0] + affine[1]
    out.copy_(values.permute(0, 3, 1, 2))


def _stored(images: torch.Tensor, size: Size, layout: str) -> torch.Tensor:
    """Returns images without a turn, as uint8 [N, H, W, 3]."""
    if layout == "nhwc":
        return images.reshape(len(images), *size, 3)
    return images.reshape(len(images), 3, *size).permute(0, 2, 3, 1)


def _turned(images: torch.Tensor, size: Size, layout: str, turn: torch.Tensor | None) -> torch.Tensor:
    """Returns turned images, uint8 [N, H, W, 3]."""
    if turn is None:
        return _stored(images, size, layout)
    result = torch.empty((len(images), *size, 3), dtype=torch.uint8, device=images.device)
    for code in range(8):
        rows = (turn == code).nonzero().flatten()
        if len(rows) == 0:
            continue
        stored = _stored(images[rows], size[::-1] if code & 4 else size, layout)
        mirrored = [axis for bit, axis in ((1, 2), (2, 1)) if code & bit]
        upright = stored.flip(mirrored) if mirrored else stored
        result[rows] = upright.transpose(1, 2) if code & 4 else upright
    return result


def gray_level(pixels: torch.Tensor, channels: int = -1) -> torch.Tensor:
    """Returns Pillow's gray level, int32, without the dimension of channels: (19595 R + 38470 G + 7471 B) / 65536,
    rounded."""
    red, green, blue = pixels.int().unbind(channels)
    weighted: torch.Tensor = red * 19595 + green * 38470 + blue * 7471 + 32768
    return weighted >> 16


def _step(pixels: torch.Tensor, color: Color, column: int, mean: torch.Tensor) -> torch.Tensor:
    """Applies one step of color, to uint8."""
    step = color.steps[:, column, None, None, None]
    factor = color.factors[:, column, None, None, None].float()
    gray = gray_level(pixels)[..., None].float()
    target = torch.where(step == CONTRAST, mean[:, None, None, None], torch.where(step == BRIGHTNESS, 0.0, gray))
    blended = (target + factor * (pixels.float() - target)).clamp(0.0, 255.0).to(torch.uint8)
    return torch.where(step == 0, pixels, blended)

"""Parameters of the fused ops besides normalizing: turns, color steps, erasing, mixing."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from feeder.errors import ArgumentError

__all__ = ["BRIGHTNESS", "CONTRAST", "DTYPES", "SATURATION", "Color", "Erase", "Mix", "output_tensor"]

# Note [Turns]
#     An image is stored as in its file, and turned at the output: bit 0 of its turn mirrors the stored image
#     left to right, bit 1 top to bottom, and bit 2 then swaps rows and columns. Every EXIF orientation, with or without
#     a flip, is one of these eight turns. With bit 2 the stored image is as high as the output is wide.

BRIGHTNESS, CONTRAST, SATURATION = 1, 2, 3

DTYPES = (torch.uint8, torch.float16, torch.bfloat16, torch.float32)


@dataclass(frozen=True)
class Color:
    """Steps of brightness, contrast and saturation, in the order of each sample; as in Pillow's ImageEnhance.

    A step blends a pixel p with t: floor(clamp(t + factor * (p - t), 0, 255)), where t is 0 for brightness, the current
    image's mean gray level for contrast, and the pixel's own gray level for saturation.

    Args:
        steps: integers [N, K]: 0 (none), BRIGHTNESS, CONTRAST or SATURATION; at most one CONTRAST per sample.
        factors: float32 [N, K]; 1 changes nothing.
        has_contrast: True if any step may be CONTRAST; False saves the pass for the means.
    """

    steps: torch.Tensor
    factors: torch.Tensor
    has_contrast: bool = True


@dataclass(frozen=True)
class Erase:
    """Rectangles to overwrite after normalizing.

    Args:
        boxes: integers [N, 4], (top, left, bottom, right) in pixels of the output; empty where nothing is erased.
        value: float32 [3], R, G and B, in units of the output.
    """

    boxes: torch.Tensor
    value: torch.Tensor


@dataclass(frozen=True)
class Mix:
    """The last step, a mix of pairs: inside the box the output is lam * own + (1 - lam) * partner's.

    MixUp's box is the whole image; CutMix has lam = 0.

    Args:
        partner: integers [N], number of each sample's partner in the batch.
        lam: 0 to 1.
        box: (top, left, bottom, right) in pixels of the output; None is the whole image.
    """

    partner: torch.Tensor
    lam: float
    box: tuple[int, int, int, int] | None = None


def output_tensor(
    count: int,
    size: tuple[int, int],
    dtype: torch.dtype,
    channels_last: bool,
    device: torch.device,
    out: torch.Tensor | None,
) -> torch.Tensor:
    """Returns the tensor to write to: ``out``, or a new one.

    Raises:
        ArgumentError: if ``out`` does not fit.
    """
    if dtype not in DTYPES:
        raise ArgumentError(f"dtype must be one of {', '.join(map(str, DTYPES))}, got {dtype}")
    layout = torch.channels_last if channels_last else torch.contiguous_format
    shape = (count, 3, *size)
    if out is None:
        return torch.empty(shape, dtype=dtype, device=device, memory_format=layout)
    fits = out.shape == shape and out.dtype == dtype and out.device == device
    if not fits or not out.is_contiguous(memory_format=layout):
        raise ArgumentError(
            f"out must be {dtype} {list(shape)} on {device}, {str(layout).removeprefix('torch.')}; "
            f"got {out.dtype} {list(out.shape)} on {out.device} with strides {out.stride()}"
        )
    return out

"""Expected results of the fused ops, in float64 and one pixel at a time, and the ways to run these ops."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from feeder.decoders import gpu

__all__ = ["BIAS", "SCALE", "USING", "color", "finish", "resize", "turn"]

Pixels = npt.NDArray[Any]

_MEAN, _STD = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
SCALE, BIAS = (1 / 255 / _STD).astype(np.float32), (-_MEAN / _STD).astype(np.float32)

# Ways to run a fused op: its reference in torch, and its kernel.
USING = [
    "torch",
    pytest.param("triton", marks=pytest.mark.skipif(not gpu.has_triton(), reason="Triton is not installed")),
]


def turn(stored: Pixels, code: int) -> Pixels:
    """A stored image [H, W, 3], mirrored and then with rows and columns swapped."""
    mirrored = stored[:, ::-1] if code & 1 else stored
    mirrored = mirrored[::-1] if code & 2 else mirrored
    return mirrored.transpose(1, 0, 2) if code & 4 else mirrored


def color(image: Pixels, steps: list[int], factors: list[float]) -> Pixels:
    """Brightness (1), contrast (2) and saturation (3) of an image [H, W, 3] with whole values."""
    pixels = image.astype(np.float64)
    for step, factor in zip(steps, factors, strict=True):
        if step == 0:
            continue
        gray = (pixels.astype(np.int64) @ np.array([19595, 38470, 7471]) + 32768) // 65536
        target = {1: 0.0, 2: np.floor(gray.mean() + 0.5), 3: gray[..., None].astype(np.float64)}[step]
        pixels = np.floor(np.clip(target + np.float64(np.float32(factor)) * (pixels - target), 0, 255))
    return pixels


def finish(pixels: list[Pixels], scale: Pixels, bias: Pixels) -> Pixels:
    """Normalized: float64 [N, 3, H, W]."""
    return np.stack([image * scale.astype(np.float64) + bias.astype(np.float64) for image in pixels]).transpose(
        0, 3, 1, 2
    )


def resize(image: Pixels, source: list[float], support: list[int], size: tuple[int, int]) -> Pixels:
    """Pillow's BILINEAR with a box, without its rounding: float64 [H, W, 3]."""
    left, top, right, bottom = support
    window = image[top:bottom, left:right].astype(np.float64)
    for axis, (low, high, count) in enumerate(
        ((source[1] - top, source[3] - top, size[0]), (source[0] - left, source[2] - left, size[1]))
    ):
        step = (high - low) / count
        reach = max(step, 1.0)
        lines = []
        for k in range(count):
            center = low + (k + 0.5) * step
            first = max(int(center - reach + 0.5), 0)
            last = min(int(center + reach + 0.5), window.shape[axis])
            weights = np.array([max(0.0, 1 - abs((i - center + 0.5) / reach)) for i in range(first, last)])
            taken = np.take(window, range(first, last), axis=axis)
            lines.append(np.tensordot(weights / weights.sum(), taken, axes=(0, axis)))
        window = np.stack(lines, axis=axis)
    return window

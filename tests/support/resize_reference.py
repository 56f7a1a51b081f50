"""Reference of the native resize: Pillow's result on libjpeg's decoded planes, written out in numpy."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

__all__ = ["Case", "orient", "pillow_resize", "resize_pass", "smooth_noise", "to_rgb", "upsample", "ycbcr_to_rgb"]

U8 = npt.NDArray[np.uint8]


def smooth_noise(rng: np.random.Generator, height: int, width: int, channels: int, slope: float = 1.0) -> U8:
    """Noise with the spectrum of a photo: amplitude falls as frequency ** -slope. uint8 [height, width, channels]."""
    fy, fx = np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None, :]
    falloff = 1 / np.maximum(np.hypot(fy, fx), 1 / max(height, width)) ** slope
    out = np.empty((height, width, channels))
    for c in range(channels):
        spectrum = np.fft.rfft2(rng.normal(size=(height, width))) * falloff
        plane = np.fft.irfft2(spectrum, s=(height, width))
        deviation = float(plane.std())
        out[:, :, c] = 128 + (plane - plane.mean()) * (48 / deviation if deviation > 0 else 0)
    return np.clip(np.rint(out), 0, 255).astype(np.uint8)


def _smooth(plane: npt.NDArray[np.int32], axis: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Three times each sample plus the one before it, and plus the one after it; the edge counts as its neighbour."""
    samples = np.moveaxis(plane, axis, 0)
    before = np.concatenate([samples[:1], samples[:-1]])
    after = np.concatenate([samples[1:], samples[-1:]])
    return np.moveaxis(3 * samples + before, 0, axis), np.moveaxis(3 * samples + after, 0, axis)


def _merge(even: npt.NDArray[np.int32], odd: npt.NDArray[np.int32], axis: int) -> npt.NDArray[np.int32]:
    return np.stack([even, odd], axis=axis + 1).reshape([2 * n if a == axis else n for a, n in enumerate(even.shape)])


def upsample(plane: U8, h: int, v: int) -> U8:
    """libjpeg's upsampling (jdsample.c) by h columns and v rows: "fancy" for 2x1, 1x2, 2x2, else replication."""
    samples = plane.astype(np.int32)
    if h == 2 and v == 1 and plane.shape[1] > 2:
        even, odd = _smooth(samples, 1)
        even[:, 1:] = even[:, 1:] + 1 >> 2
        odd[:, :-1] = odd[:, :-1] + 2 >> 2
        even[:, 0], odd[:, -1] = samples[:, 0], samples[:, -1]
        return _merge(even, odd, 1).astype(np.uint8)
    if h == 1 and v == 2:
        even, odd = _smooth(samples, 0)
        return _merge(even + 1 >> 2, odd + 2 >> 2, 0).astype(np.uint8)
    if h == 2 and v == 2 and plane.shape[1] > 2:
        rows = _merge(*_smooth(samples, 0), 0)
        even, odd = _smooth(rows, 1)
        even, odd = even + 8 >> 4, odd + 7 >> 4
        even[:, 0], odd[:, -1] = rows[:, 0] * 4 + 8 >> 4, rows[:, -1] * 4 + 7 >> 4
        return _merge(even, odd, 1).astype(np.uint8)
    return plane.repeat(v, 0).repeat(h, 1)


def ycbcr_to_rgb(pixels: U8) -> U8:
    """libjpeg's conversion (jdcolor.c): 16 fractional bits, clamped. uint8 [..., 3]."""
    y, cb, cr = (pixels[..., c].astype(np.int64) - (128 if c else 0) for c in range(3))

    def fixed(value: float) -> int:
        return int(value * 65536 + 0.5)

    red = y + (fixed(1.40200) * cr + 32768 >> 16)
    green = y + (-fixed(0.34414) * cb - fixed(0.71414) * cr + 32768 >> 16)
    blue = y + (fixed(1.77200) * cb + 32768 >> 16)
    return np.clip(np.stack([red, green, blue], axis=-1), 0, 255).astype(np.uint8)


def to_rgb(planes: list[U8], color: str, sampling: list[tuple[int, int]], width: int, height: int) -> U8:
    """Pixels that Pillow gets from libjpeg for these planes, converted to RGB: uint8 [height, width, 3]."""
    most = max(h for h, _ in sampling), max(v for _, v in sampling)
    full = [
        upsample(plane, most[0] // h, most[1] // v)[:height, :width]
        for plane, (h, v) in zip(planes, sampling, strict=True)
    ]
    pixels = np.stack(full, axis=-1)
    if color == "gray":
        return pixels.repeat(3, axis=2)
    if color == "ycbcr":
        return ycbcr_to_rgb(pixels)
    if color == "rgb":
        return pixels
    if color == "ycck":
        pixels = np.concatenate([255 - ycbcr_to_rgb(pixels[..., :3]), pixels[..., 3:]], axis=-1)
    return np.asarray(Image.frombytes("CMYK", (width, height), pixels.tobytes()).convert("RGB"))


_TRANSPOSES = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def orient(image: Image.Image, orientation: int) -> Image.Image:
    """As PIL.ImageOps.exif_transpose."""
    return image.transpose(_TRANSPOSES[orientation]) if orientation != 1 else image


def pillow_resize(
    rgb: U8,
    source: tuple[float, float, float, float],
    support: tuple[int, int, int, int],
    size: tuple[int, int],
    orientation: int = 1,
    flip: bool = False,
    filter: str = "bilinear",
) -> U8:
    """Pillow's crop and antialiased resize to size (width, height). uint8 [height, width, 3].

    The horizontal pass first: Pillow always had it so, and from version 13 on has the vertical one first for some
    shapes, which rounds differently in between.
    """
    pixels = np.asarray(orient(Image.fromarray(rgb), orientation).crop(support))
    left, top, right, bottom = (value - support[i % 2] for i, value in enumerate(source))
    pixels = resize_pass(pixels, 1, left, right, size[0], filter)
    pixels = resize_pass(pixels, 0, top, bottom, size[1], filter)
    return pixels[:, ::-1] if flip else pixels


def resize_pass(pixels: U8, axis: int, start: float, end: float, count: int, filter: str = "bilinear") -> U8:
    """One pass of Pillow's resize (Resample.c) along an axis, as its portable C code does it.

    Written out, as pillow-simd rounds differently and may be what is imported as PIL.
    """
    samples = np.moveaxis(pixels, axis, 0).astype(np.int64)
    start, scale = float(np.float32(start)), float(np.float32(end) - np.float32(start)) / count  # the box is floats
    shrink = max(scale, 1.0)
    reach = (2 if filter == "bicubic" else 1) * shrink
    out = np.empty((count, *samples.shape[1:]), np.uint8)
    for i in range(count):
        center = start + (i + 0.5) * scale
        first, last = max(0, int(center - reach + 0.5)), min(len(samples), int(center + reach + 0.5))
        weights = _weights(np.abs((np.arange(first, last) - center + 0.5) / shrink), filter)
        exact = weights / weights.sum() * (1 << 22)
        fixed = (exact + np.copysign(0.5, exact)).astype(np.int64)
        out[i] = np.clip((np.tensordot(fixed, samples[first:last], 1) + (1 << 21)) >> 22, 0, 255)
    return np.moveaxis(out, 0, axis)


def _weights(distances: npt.NDArray[np.float64], filter: str) -> npt.NDArray[np.float64]:
    if filter == "bilinear":
        return np.maximum(0, 1 - distances)
    inner = (1.5 * distances - 2.5) * distances * distances + 1
    outer = (((distances - 5) * distances + 8) * distances - 4) * -0.5
    return np.where(distances < 1, inner, np.where(distances < 2, outer, 0))


@dataclass
class Case:
    """One call of ``resample_planes`` on a whole image."""

    planes: list[U8]
    color: str
    sampling: list[tuple[int, int]]
    width: int
    height: int
    source: tuple[float, float, float, float]
    support: tuple[int, int, int, int]
    size: tuple[int, int]
    orientation: int = 1
    flip: bool = False
    filter: str = "bilinear"
    extra: dict[str, object] = field(default_factory=dict)

    def arguments(self) -> dict[str, Any]:
        """All of its keyword arguments but ``out`` and what describes it."""
        return {
            "planes": self.planes,
            "color": self.color,
            "source_box": self.source,
            "support_box": self.support,
            "sampling": self.sampling,
            "most": (max(h for h, _ in self.sampling), max(v for _, v in self.sampling)),
            "window": (0, 0, self.width, self.height),
            "image_size": (self.width, self.height),
            "orientation": self.orientation,
            "flip": self.flip,
            "filter": self.filter,
            **self.extra,
        }

    def expected(self) -> U8:
        rgb = to_rgb(self.planes, self.color, self.sampling, self.width, self.height)
        return pillow_resize(rgb, self.source, self.support, self.size, self.orientation, self.flip, self.filter)

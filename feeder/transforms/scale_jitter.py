"""Large scale jitter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from feeder.transforms.arguments import check_interpolation, check_range, check_size
from feeder.transforms.op import Drawn, IntArray, ResizeOp, SizeBounds, Uniforms
from feeder.transforms.sizes import ByEpoch, check_by_epoch

__all__ = ["ScaleJitter"]


@dataclass(frozen=True, init=False)
class ScaleJitter(ResizeOp):
    """Resizes the image by a random factor, keeping its aspect ratio (Ghiasi et al., "Simple Copy-Paste", 2021).

    The output's size depends on the image and the draw; a crop of fixed size belongs after it.

    Args:
        target_size: Two lengths in pixels: at scale 1 the image's height is at most the second and its width at most
            the first, as in torchvision; an int makes a square.
        scale_range: (min, max) of the scale.
        interpolation: By name, as torchvision's ``InterpolationMode`` or Pillow's constant.
        antialias: True; anything else than None is refused.

    Raises:
        ArgumentError: for an argument outside its range.
    """

    draws_from_size = True

    target_size: tuple[int, int]
    scale_range: tuple[float, float]
    interpolation: str

    def __init__(
        self,
        target_size: int | Sequence[int] | ByEpoch,
        scale_range: Sequence[float] = (0.1, 2.0),
        interpolation: object = "bilinear",
        antialias: bool | None = True,
    ) -> None:
        self._set(
            target_size=check_by_epoch(target_size, partial(check_size, "target_size")),
            scale_range=check_range("scale_range", scale_range, low=1e-6),
            interpolation=check_interpolation(interpolation, antialias),
        )

    def draw(self, uniforms: Uniforms, sizes: IntArray) -> Drawn:
        low, high = self.scale_range
        factor = (np.array(self.target_size[::-1]) / sizes).min(axis=1) * (low + uniforms(1)[:, 0] * (high - low))
        resized = np.maximum((sizes * factor[:, None]).astype(np.int64), 1)
        return Drawn({"resized_height": resized[:, 0], "resized_width": resized[:, 1]}, resized)

    def extent(self, extent: SizeBounds) -> SizeBounds:
        return SizeBounds()

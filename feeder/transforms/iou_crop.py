"""The crop of object detectors that keeps a part of at least one box."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from feeder.errors import ArgumentError
from feeder.system.arrays import Float32s, Float64s
from feeder.system.checks import check_int
from feeder.transforms.op import Drawn, IntArray, Op, SizeBounds, Uniforms

_OPTIONS = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)
# torchvision goes on for ever where no option leaves the image whole and no crop fits.
_ROUNDS = 50


@dataclass(frozen=True, init=False)
class RandomIoUCrop(Op):
    """Crops a window that overlaps at least one box enough (SSD, Liu et al., 2016).

    It draws from a sample's boxes, so the dataset needs one target of :class:`BoundingBoxes`. Boxes whose center is
    outside the window become zeros, which :class:`SanitizeBoundingBoxes` drops. The output's size depends on the image
    and the draw; a resize or a crop of fixed size belongs after it.

    Args:
        min_scale: Least width and height of the window as a fraction of the image's.
        max_scale: Largest width and height.
        min_aspect_ratio: Least width / height of the window.
        max_aspect_ratio: Largest width / height.
        sampler_options: Least overlaps (intersection over union) of a box and the window, of which one is drawn; one
            of 1 or more leaves the image whole. None for 0.0, 0.1, 0.3, 0.5, 0.7, 0.9 and 1.0.
        trials: Windows that are tried before another option is drawn. After 50 options the image is left whole.

    Raises:
        ArgumentError: for an argument outside its range.
    """

    draws_from_size = True
    crops = True

    min_scale: float
    max_scale: float
    min_aspect_ratio: float
    max_aspect_ratio: float
    sampler_options: tuple[float, ...]
    trials: int

    def __init__(
        self,
        min_scale: float = 0.3,
        max_scale: float = 1.0,
        min_aspect_ratio: float = 0.5,
        max_aspect_ratio: float = 2.0,
        sampler_options: Sequence[float] | None = None,
        trials: int = 40,
    ) -> None:
        try:
            min_scale, max_scale = float(min_scale), float(max_scale)
            min_aspect_ratio, max_aspect_ratio = float(min_aspect_ratio), float(max_aspect_ratio)
            options = _OPTIONS if sampler_options is None else tuple(float(option) for option in sampler_options)
        except (TypeError, ValueError) as error:
            raise ArgumentError(
                f"RandomIoUCrop takes numbers, and sampler_options as a list of them: {error}"
            ) from None

        if not 0.0 < min_scale <= max_scale <= 1.0:
            raise ArgumentError(
                f"min_scale and max_scale must be increasing numbers within (0, 1], got {min_scale!r} and {max_scale!r}"
            )

        if not 0.0 < min_aspect_ratio <= max_aspect_ratio:
            raise ArgumentError(
                "min_aspect_ratio and max_aspect_ratio must be increasing numbers above 0, got "
                f"{min_aspect_ratio!r} and {max_aspect_ratio!r}"
            )

        if not options or min(options) < 0.0:
            raise ArgumentError(f"sampler_options must be numbers of 0 or more, at least one, got {sampler_options!r}")
        trials = check_int("trials", trials, 1)

        self._set(
            min_scale=min_scale,
            max_scale=max_scale,
            min_aspect_ratio=min_aspect_ratio,
            max_aspect_ratio=max_aspect_ratio,
            sampler_options=options,
            trials=trials,
        )

    def draw(self, uniforms: Uniforms, sizes: IntArray) -> Drawn:
        raise ArgumentError(
            "RandomIoUCrop draws from a sample's boxes; give them to the dataset: "
            "targets={'boxes.json': T.BoundingBoxes()}"
        )

    def draw_from(self, uniforms: Uniforms, sizes: IntArray, boxes: Sequence[Float32s]) -> Drawn:
        """Draws windows as torchvision's ``RandomIoUCrop.make_params``.

        Args:
            uniforms: The op's random numbers.
            sizes: int64 [N, 2], (height, width) of the op's input images.
            boxes: For each of them float32 [K, 4], (left, top, right, bottom) in its pixels.
        """
        windows = np.zeros((len(sizes), 5), np.int64)
        windows[:, 2:4] = sizes
        for row, ((height, width), each) in enumerate(zip(sizes.tolist(), boxes, strict=True)):
            found = self._window(uniforms, row, height, width, each)
            if found is not None:
                windows[row] = found
        names = ("top", "left", "height", "width", "crop")
        params = {name: windows[:, number] for number, name in enumerate(names)}
        return Drawn(params, windows[:, 2:4].copy())

    def _window(
        self, uniforms: Uniforms, row: int, height: int, width: int, boxes: Float32s
    ) -> tuple[int, int, int, int, int] | None:
        """Returns (top, left, height, width, 1), or None for the whole image."""
        numbers_a_round = 1 + 4 * self.trials
        here = np.array([row])
        for attempt in range(_ROUNDS):
            # Only the numbers of the first rounds are drawn for most samples.
            numbers = uniforms((attempt + 1) * numbers_a_round, here)[0, attempt * numbers_a_round :]
            option = self.sampler_options[int(numbers[0] * len(self.sampler_options))]
            if option >= 1.0:
                return None
            if len(boxes):
                found = self._fitting(numbers[1:].reshape(-1, 4), height, width, boxes, option)
                if found is not None:
                    return found
        return None

    def _fitting(
        self,
        numbers: Float64s,
        height: int,
        width: int,
        boxes: Float32s,
        least_overlap: float,
    ) -> tuple[int, int, int, int, int] | None:
        """Returns the first window of several trials that fits: all at once, [trials, K]."""
        scale = self.min_scale + (self.max_scale - self.min_scale) * numbers[:, :2]
        new_width, new_height = (width * scale[:, 0]).astype(np.int64), (height * scale[:, 1]).astype(np.int64)
        left = ((width - new_width) * numbers[:, 2]).astype(np.int64)
        top = ((height - new_height) * numbers[:, 3]).astype(np.int64)
        right, bottom = left + new_width, top + new_height

        aspect = new_width / np.maximum(new_height, 1)
        fits = (self.min_aspect_ratio <= aspect) & (aspect <= self.max_aspect_ratio)
        fits &= (new_width > 0) & (new_height > 0)

        start, end = boxes[:, :2].astype(np.float64), boxes[:, 2:].astype(np.float64)
        x, y = (0.5 * (start + end)).T
        inside = (left[:, None] < x) & (x < right[:, None]) & (top[:, None] < y) & (y < bottom[:, None])
        corner, opposite = np.stack([left, top], axis=1), np.stack([right, bottom], axis=1)
        common = np.minimum(opposite[:, None], end) - np.maximum(corner[:, None], start)
        intersection = np.maximum(common, 0.0).prod(axis=2)

        union = (new_width * new_height)[:, None] + (end - start).prod(axis=1) - intersection
        with np.errstate(divide="ignore", invalid="ignore"):
            overlap = np.where(inside, intersection / union, -1.0).max(axis=1)

        chosen = np.flatnonzero(fits & inside.any(axis=1) & (overlap >= least_overlap))
        if not len(chosen):
            return None
        first = chosen[0]
        return int(top[first]), int(left[first]), int(new_height[first]), int(new_width[first]), 1

    def extent(self, extent: SizeBounds) -> SizeBounds:
        return SizeBounds()

    def fuses(self, extent: SizeBounds) -> bool:
        return True

"""Differences of a backend's pixels from the reference's, in buckets by the crop's reduction."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from feeder.errors import ArgumentError
from feeder.system.arrays import Float64s, Int32s, Uint8s

# Crop-to-target ratios, [low, high): the geometric mean of crop width / output width and crop height / output height.
BUCKETS = ((0.0, 1.0), (1.0, 2.0), (2.0, 4.0), (4.0, math.inf))
FIGURES = ("crop / target", "images", "mean", "99.9 %", "max", "bias R, G, B")  # the columns of a report


@dataclass(frozen=True)
class Bounds:
    """Upper limits of the differences in every bucket, in levels of 0-255.

    Attributes:
        mean: Limit of the mean absolute difference.
        percentile_999: Limit of the 99.9th percentile of the absolute difference.
        bias: Limit of the absolute value of any channel's mean signed difference.
    """

    mean: float = 0.6
    percentile_999: float = 8.0
    bias: float = 0.1

    @property
    def cells(self) -> list[str]:
        """The limits as text, in the order of :data:`FIGURES`."""
        return ["bounds", "", f"{self.mean:.3f}", f"{self.percentile_999:g}", "", f"{self.bias:+.3f}"]


BOUNDS = {"fast": Bounds(), "exact": Bounds(percentile_999=1.0), "draft": Bounds(mean=2.0, percentile_999=32.0)}


@dataclass(frozen=True)
class BucketFigures:
    """The differences of one bucket, in levels of 0-255.

    Attributes:
        low: Least crop-to-target ratio of the bucket.
        high: Upper end of its ratios, exclusive.
        images: Number of images compared.
        mean: Mean absolute difference.
        percentile_999: 99.9th percentile of the absolute difference.
        max: Largest absolute difference.
        bias: Mean signed difference (backend - reference) of R, G and B.
    """

    low: float
    high: float
    images: int
    mean: float
    percentile_999: float
    max: int
    bias: tuple[float, float, float]

    @property
    def cells(self) -> list[str]:
        """The figures as text, in the order of :data:`FIGURES`."""
        ratio = f"over {self.low:g}" if math.isinf(self.high) else f"{self.low:g} - {self.high:g}"
        bias = " ".join(f"{value:+.3f}" for value in self.bias)
        return [ratio, f"{self.images:,}", f"{self.mean:.3f}", f"{self.percentile_999:g}", str(self.max), bias]

    def within(self, bounds: Bounds) -> bool:
        """Returns True if all figures are within bounds, or the bucket has no images."""
        return self.images == 0 or (
            self.mean <= bounds.mean
            and self.percentile_999 <= bounds.percentile_999
            and max(map(abs, self.bias)) <= bounds.bias
        )

    def __str__(self) -> str:
        bias = ", ".join(f"{b:+.3f}" for b in self.bias)
        return (
            f"ratio {self.low:g}-{self.high:g}: {self.images} images, mean {self.mean:.3f}, "
            f"99.9th percentile {self.percentile_999:g}, max {self.max}, bias (R, G, B) {bias}"
        )


class Differences:
    """Collects differences image by image, in constant memory."""

    def __init__(self) -> None:
        self._histograms = np.zeros((len(BUCKETS), 256), np.int64)
        self._signed = np.zeros((len(BUCKETS), 3), np.int64)
        self._images = np.zeros(len(BUCKETS), np.int64)

    def add(self, reference: Uint8s, found: Uint8s, ratio: float) -> None:
        """Compares one image.

        Args:
            reference: uint8 [3, H, W], 0-255.
            found: uint8 [3, H, W], 0-255: the same image, by the backend.
            ratio: Crop-to-target ratio, see :data:`BUCKETS`.
        """
        if reference.shape != found.shape:
            raise ArgumentError(f"the images must be of one shape, got {reference.shape} and {found.shape}")
        bucket = next(i for i, (_, high) in enumerate(BUCKETS) if ratio < high)
        difference = found.astype(np.int16) - reference
        self._histograms[bucket] += np.bincount(np.abs(difference).ravel(), minlength=256)
        self._signed[bucket] += difference.sum(axis=(1, 2), dtype=np.int64)
        self._images[bucket] += 1

    def figures(self) -> list[BucketFigures]:
        """Returns the figures of all buckets; those without images are zero."""
        return [self._bucket(i) for i in range(len(BUCKETS))]

    def _bucket(self, i: int) -> BucketFigures:
        histogram = self._histograms[i]
        count = max(1, int(histogram.sum()))
        levels = np.arange(256)
        red, green, blue = (3 * self._signed[i] / count).tolist()
        return BucketFigures(
            low=BUCKETS[i][0],
            high=BUCKETS[i][1],
            images=int(self._images[i]),
            mean=float((histogram * levels).sum() / count),
            percentile_999=float(np.searchsorted(np.cumsum(histogram), 0.999 * histogram.sum())),
            max=int(levels[histogram > 0].max(initial=0)),
            bias=(red, green, blue),
        )


def crop_ratio(source_box: Float64s, size: Int32s) -> float:
    """Returns the crop-to-target ratio of one image.

    Args:
        source_box: float64 [4], (left, top, right, bottom).
        size: [2], (height, width) of the output.
    """
    left, top, right, bottom = source_box.tolist()
    height, width = size.tolist()
    return math.sqrt((right - left) * (bottom - top) / (height * width))

"""Comparison of a backend with the Pillow reference on given images, in buckets by the crop's reduction."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from textwrap import indent
from typing import Any, NamedTuple

import numpy as np
import PIL

from feeder.dataset.reader import Reader, ReadSamples
from feeder.decoders.decoder import Decoder, View
from feeder.decoders.registry import get_decoder
from feeder.decoders.staged.trainer_decoder import TrainerDecoder
from feeder.errors import ArgumentError, DecodeError
from feeder.order.permutation import permute
from feeder.system.arguments import check_int
from feeder.system.arrays import Float64s, Int32s, Uint8s
from feeder.system.progress import Progress
from feeder.system.text import count, printable
from feeder.tools.presets import open_dataset
from feeder.tools.terminal import table, wrap
from feeder.transforms import CenterCrop, Draws, Op, RandomHorizontalFlip, RandomResizedCrop, Recipe, Resize

__all__ = [
    "BOUNDS",
    "BUCKETS",
    "RECIPES",
    "Bounds",
    "BucketFigures",
    "Differences",
    "Failure",
    "ParityReport",
    "crop_ratio",
    "parity",
]

# Crop-to-target ratios, [low, high): the geometric mean of crop width / output width and crop height / output height.
BUCKETS = ((0.0, 1.0), (1.0, 2.0), (2.0, 4.0), (4.0, math.inf))


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

    def within(self, bounds: Bounds) -> bool:
        """Returns True if all figures are within bounds, or the bucket has no images."""
        return self.images == 0 or (
            self.mean <= bounds.mean
            and self.percentile_999 <= bounds.percentile_999
            and max(map(abs, self.bias)) <= bounds.bias
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


# Recipes to compare: the two presets, and crops at output sizes that fill every bucket from photos of usual size.
RECIPES: tuple[tuple[Op, ...], ...] = (
    (Resize(256), CenterCrop(224)),
    *((RandomResizedCrop(size), RandomHorizontalFlip()) for size in (448, 224, 112, 48)),
)


class Failure(NamedTuple):
    """An image that only one of the two could decode.

    Attributes:
        name: The image's path, or a shard and a key.
        decoded_by: The backend that could.
        reason: The other's error.
    """

    name: str
    decoded_by: str
    reason: str


@dataclass(frozen=True)
class ParityReport:
    """The result of a comparison.

    Attributes:
        backend: The backend's name.
        fidelity: "fast", "exact" or "draft".
        device: Device that the backend decoded on.
        versions: Name and version of the reference.
        images: Number of images compared.
        unreadable: Number of images that neither could decode.
        failures: Images that only one could decode.
        redone: Number of images that the CPU decoded after the backend had failed: they say nothing about it.
        buckets: The figures, by crop-to-target ratio.
        bounds: The figures' limits.
    """

    backend: str
    fidelity: str
    device: str
    versions: str
    images: int
    unreadable: int
    failures: tuple[Failure, ...]
    redone: int
    buckets: tuple[BucketFigures, ...]
    bounds: Bounds

    @property
    def passed(self) -> bool:
        """True if every bucket is within the bounds, and both decoded the same images, at least one, without help."""
        alike = self.images > 0 and not self.failures and not self.redone
        return alike and all(bucket.within(self.bounds) for bucket in self.buckets)

    def to_json(self) -> dict[str, Any]:
        """Returns the report as JSON values; the last bucket's upper end is None."""
        report = {**asdict(self), "passed": self.passed}
        for bucket in report["buckets"]:
            bucket["high"] = None if math.isinf(bucket["high"]) else bucket["high"]
        return report

    def render(self) -> str:
        """Returns the report as a table."""
        head = f"backend {self.backend!r} ({self.fidelity}, {self.device}) against {self.versions}: "
        head += f"{count(self.images, 'image')}, differences in levels of 0-255"
        lines = [*wrap(head), ""]
        rows = [["crop / target", "images", "mean", "99.9 %", "max", "bias R, G, B", ""]]
        for bucket in self.buckets:
            ratio = f"over {bucket.low:g}" if math.isinf(bucket.high) else f"{bucket.low:g} - {bucket.high:g}"
            rows.append([ratio, f"{bucket.images:,}", f"{bucket.mean:.3f}", f"{bucket.percentile_999:g}"])
            rows[-1] += [str(bucket.max), " ".join(f"{value:+.3f}" for value in bucket.bias)]
            rows[-1].append("" if bucket.within(self.bounds) else "OUT OF BOUNDS")
        bounds = self.bounds
        rows.append(["bounds", "", f"{bounds.mean:.3f}", f"{bounds.percentile_999:g}", "", f"{bounds.bias:+.3f}", ""])
        lines.append(indent(table(rows), "  "))
        if not self.images:
            lines.append("\n  nothing was compared")
        if self.unreadable:
            lines.append(f"\n  neither can decode {count(self.unreadable, 'image')}")
        if self.redone:
            lines.append(
                f"\n  {self.backend!r} failed on {count(self.redone, 'image')}, which the CPU decoded in its place; "
                "the log has the reasons"
            )
        for failure in self.failures:
            lines.append(f"\n  only {failure.decoded_by!r} decodes " + printable(f"{failure.name}: {failure.reason}"))
        lines.append("\n  " + ("passed" if self.passed else "NOT PASSED"))
        return "\n".join(lines)


def parity(
    path: str,
    *,
    backend: str = "auto",
    fidelity: str = "fast",
    device: str = "cpu",
    images: int = 250,
    seed: int = 0,
    progress: Progress | None = None,
) -> ParityReport:
    """Compares a backend with the Pillow reference on given images.

    Args:
        path: A shard set or its URL, or a folder with a subfolder for each class.
        backend: The backend's name, or "auto".
        fidelity: "fast", "exact" or "draft".
        device: Device of a backend that has a choice: "cpu" or a CUDA device.
        images: Number of images to compare, chosen at random; all if there are fewer.
        seed: Seed of the choice of images and of crops.
        progress: Advanced with every image.

    Raises:
        ArgumentError: for a bad argument.
        BackendError: if the backend is missing.
        SourceError: if the images can't be listed.
        FormatError: if the index is damaged.
    """
    check_int("images", images, 1)
    comparison = _Comparison(get_decoder(backend, Recipe.of(RECIPES[0]), fidelity=fidelity, device=device), seed)
    reader = open_dataset(path, None).reader
    number = min(images, len(reader))
    chosen = permute(np.arange(number), len(reader), seed) if number else np.arange(0)
    progress = progress or Progress()

    with progress.running(number, 0):
        for sample in chosen.tolist():
            progress.advance(1, comparison.add(reader, sample))

    decoder = comparison.decoder
    return ParityReport(
        backend=decoder.name,
        fidelity=fidelity,
        device=str(decoder.device) if isinstance(decoder, TrainerDecoder) else "cpu",
        versions=f"Pillow {PIL.__version__}",
        images=comparison.compared,
        unreadable=comparison.unreadable,
        failures=tuple(comparison.failures),
        redone=comparison.redone,
        buckets=tuple(comparison.differences.figures()),
        bounds=BOUNDS[fidelity],
    )


class _Comparison:
    """Counts and differences of a backend's images and Pillow's; all recipes make views of one image."""

    def __init__(self, decoder: Decoder, seed: int) -> None:
        self.decoder = decoder
        self.differences = Differences()
        self.failures: list[Failure] = []
        self.compared = 0
        self.unreadable = 0
        self.redone = 0
        self._reference = get_decoder("pillow")
        self._recipes = [Recipe.of(ops) for ops in RECIPES]
        self._seed = seed

    def add(self, reader: Reader, sample: int) -> int:
        """Compares one image, and returns its bytes."""
        image = reader.read(np.array([sample]))
        size = len(image.buffers[0])
        if image.errors[0] is not None:
            self.unreadable += 1
            return size

        redone = self.decoder.redone_images
        draws = [recipe.draw(self._seed, 0, [sample], image.sizes) for recipe in self._recipes]
        expected, lost = self._decode(self._reference, image, draws)
        found, missed = self._decode(self.decoder, image, draws)

        if lost is not None and missed is not None:  # which says nothing about the backend
            self.unreadable += 1
        elif lost is not None:
            self.failures.append(Failure(reader.field(sample, "path"), self.decoder.name, lost.reason))
        elif missed is not None:
            self.failures.append(Failure(reader.field(sample, "path"), self._reference.name, missed.reason))
        else:
            self.compared += 1
            self.redone += self.decoder.redone_images > redone
            for drawn, right, pixels in zip(draws, expected, found, strict=True):
                ratio = crop_ratio(drawn.source_box[0], drawn.base_size[0])
                self.differences.add(right.out[0], pixels.out[0], ratio)
        return size

    def _decode(
        self, decoder: Decoder, image: ReadSamples, draws: Sequence[Draws]
    ) -> tuple[list[View], DecodeError | None]:
        views = [
            View(recipe, drawn, np.zeros((1, *recipe.leading_shape, *drawn.output_size[0].tolist()), np.uint8))
            for recipe, drawn in zip(self._recipes, draws, strict=True)
        ]
        (error,) = decoder.decode([bytes(image.buffers[0])], image.orientations, views).errors
        return views, error

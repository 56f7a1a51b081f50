"""Comparison of a backend with the Pillow reference on given images, in buckets by the crop's reduction."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from textwrap import indent
from typing import Any, NamedTuple

import numpy as np
import PIL

from feeder.dataset.reader import Reader, ReadSamples
from feeder.decoders.decoder import Decoder, View
from feeder.decoders.registry import get_decoder
from feeder.decoders.staged.trainer_decoder import TrainerDecoder
from feeder.errors import DecodeError
from feeder.order.permutation import permute
from feeder.system.checks import check_int
from feeder.system.progress import Progress
from feeder.system.text import count, printable
from feeder.tools.parity.differences import BOUNDS, FIGURES, Bounds, BucketFigures, Differences, crop_ratio
from feeder.tools.presets import open_dataset
from feeder.tools.terminal import table, wrap
from feeder.transforms import CenterCrop, Draws, Op, RandomHorizontalFlip, RandomResizedCrop, Recipe, Resize

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


# A view of an image by the reference and by the backend, and its crop-to-target ratio.
Compared = tuple[View, View, float]


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

    @property
    def head(self) -> str:
        """The comparison in words."""
        return (
            f"backend {self.backend!r} ({self.fidelity}, {self.device}) against {self.versions}: "
            f"{count(self.images, 'image')}, differences in levels of 0-255"
        )

    @property
    def notes(self) -> list[str]:
        """Lines on the images that the figures leave out."""
        notes = [] if self.images else ["nothing was compared"]
        if self.unreadable:
            notes.append(f"neither can decode {count(self.unreadable, 'image')}")
        if self.redone:
            notes.append(
                f"{self.backend!r} failed on {count(self.redone, 'image')}, which the CPU decoded in its place; "
                "the log has the reasons"
            )
        for failure in self.failures:
            notes.append(f"only {failure.decoded_by!r} decodes {failure.name}: {failure.reason}")
        return notes

    def render(self) -> str:
        """Returns the report as a table."""
        buckets = [[*each.cells, "" if each.within(self.bounds) else "OUT OF BOUNDS"] for each in self.buckets]
        rows = [[*FIGURES, ""], *buckets, [*self.bounds.cells, ""]]
        notes = [f"\n  {printable(note)}" for note in (*self.notes, "passed" if self.passed else "NOT PASSED")]
        return "\n".join([*wrap(self.head), "", indent(table(rows), "  "), *notes])


def parity(
    path: str,
    *,
    backend: str = "auto",
    fidelity: str = "fast",
    device: str = "cpu",
    images: int = 250,
    seed: int = 0,
    progress: Progress | None = None,
    seen: Callable[[str, Sequence[Compared]], None] | None = None,
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
        seen: Called with the path, or key, of every image that both decode, and its views.

    Raises:
        ArgumentError: for a bad argument.
        BackendError: if the backend is missing.
        SourceError: if the images can't be listed.
        FormatError: if the index is damaged.
    """
    check_int("images", images, 1)
    comparison = _Comparison(get_decoder(backend, Recipe.of(RECIPES[0]), fidelity=fidelity, device=device), seed, seen)
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

    def __init__(
        self, decoder: Decoder, seed: int, seen: Callable[[str, Sequence[Compared]], None] | None = None
    ) -> None:
        self.decoder = decoder
        self.differences = Differences()
        self.failures: list[Failure] = []
        self.compared = 0
        self.unreadable = 0
        self.redone = 0
        self._reference = get_decoder("pillow")
        self._recipes = [Recipe.of(ops) for ops in RECIPES]
        self._seed = seed
        self._seen = seen

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

        if lost is not None and missed is not None:  # if both fail, the image is bad, not the backend
            self.unreadable += 1
        elif lost is not None:
            self.failures.append(Failure(reader.field(sample, "path"), self.decoder.name, lost.reason))
        elif missed is not None:
            self.failures.append(Failure(reader.field(sample, "path"), self._reference.name, missed.reason))
        else:
            self.compared += 1
            self.redone += self.decoder.redone_images > redone
            compared = list[Compared]()
            for drawn, right, pixels in zip(draws, expected, found, strict=True):
                compared.append((right, pixels, crop_ratio(drawn.source_box[0], drawn.base_size[0])))
                self.differences.add(right.out[0], pixels.out[0], compared[-1][-1])
            if self._seen is not None:
                self._seen(reader.field(sample, "path") or reader.field(sample, "key"), compared)
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

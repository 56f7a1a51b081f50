"""Comparison of a backend with the Pillow reference on given images."""

from __future__ import annotations

import contextlib
import math
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from textwrap import indent
from typing import Any, NamedTuple, Protocol

import numpy as np
import PIL

from feeder.decoders.decoder import Decoder, View
from feeder.decoders.image_header import image_info
from feeder.decoders.packed import add_codebooks
from feeder.decoders.registry import get_decoder
from feeder.decoders.staged.trainer_decoder import TrainerDecoder
from feeder.errors import ArgumentError, SourceError
from feeder.order.permutation import permute
from feeder.shard.format.index_file import INDEX_NAME
from feeder.shard.format.open_index import open_index
from feeder.shard.format.set_index import SetIndex
from feeder.shard.source.open import open_source
from feeder.shard.source.source import Source
from feeder.shard.source.table_file import ManifestColumns
from feeder.system.progress import Progress
from feeder.system.text import count, printable
from feeder.tools.parity.chart_parity import Chart, TargetFigures, compare_targets
from feeder.tools.parity.differences import BOUNDS, Bounds, BucketFigures, Differences, crop_ratio
from feeder.tools.terminal import table, wrap
from feeder.transforms import CenterCrop, Op, RandomHorizontalFlip, RandomResizedCrop, Recipe, Resize

__all__ = ["RECIPES", "Failure", "ParityReport", "parity"]

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


# An image that neither could decode says nothing about the backend.
_NEITHER = Failure("", "", "")

_CHARTS = 32  # for targets, at most


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
        views_differing: Number of images of which a view, made together with the others, is not to the bit what it is
            alone.
        targets: Masks, boxes and keypoints beside the backend's images, on charts of the images' sizes.
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
    views_differing: int
    targets: TargetFigures

    @property
    def passed(self) -> bool:
        """True if every bucket is within the bounds, both decoded the same images, at least one, without help, and
        views and targets agree with the images."""
        alike = self.images > 0 and not self.failures and not self.redone
        alike = alike and all(bucket.within(self.bounds) for bucket in self.buckets)
        return alike and not self.views_differing and self.targets.passed

    def to_json(self) -> dict[str, Any]:
        """Returns the report as JSON values; the last bucket's upper end is None."""
        report = {**asdict(self), "passed": self.passed}
        report["targets"]["passed"] = self.targets.passed
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
        lines += [indent(table(rows), "  "), "", indent(table(self._agreement()), "  ")]
        lines += ["", f"  targets are those of {count(self.targets.charts, 'chart')} of the images' sizes"]
        if self.targets.refused:
            lines.append(f"  {self.backend!r} refuses {', '.join(self.targets.refused)}")
        if self.unreadable:
            lines.append(f"\n  neither can decode {count(self.unreadable, 'image')}")
        if self.redone:
            lines.append(
                f"\n  {self.backend!r} failed on {count(self.redone, 'image')}, which the CPU decoded in its place; "
                "the log has the reasons"
            )
        if self.targets.redone:
            lines.append(f"\n  {self.backend!r} failed on {count(self.targets.redone, 'chart')}, decoded by the CPU")
        lines += [f"\n  {self.backend!r} fails on the {printable(failed)}" for failed in self.targets.failed]
        for failure in self.failures:
            lines.append(f"\n  only {failure.decoded_by!r} decodes " + printable(f"{failure.name}: {failure.reason}"))
        lines.append("\n  " + ("passed" if self.passed else "NOT PASSED"))
        return "\n".join(lines)

    def _agreement(self) -> list[list[str]]:
        """Returns the rows of views and targets."""
        found = self.targets
        share, bound = f"{100 * found.mask_share:.2f} %", f"{100 * found.mask_share_bound:g} %"
        box, most = f"{found.box_px:.1f} px", f"{found.box_px_bound:g} px"
        rows = [
            ("views unlike those made alone", self.images, str(self.views_differing), "0", not self.views_differing),
            ("masks: pixels of an image off", found.images, share, bound, found.mask_share <= found.mask_share_bound),
            ("boxes: an edge off by", found.boxes, box, most, found.box_px <= found.box_px_bound),
            ("keypoints off", found.keypoints, str(found.keypoints_off), "0", not found.keypoints_off),
        ]
        marked = [
            [what, f"{n:,}", *rest, ("" if good else "OUT OF BOUNDS") if n else "NOTHING COMPARED"]
            for what, n, *rest, good in rows
        ]
        return [["with the same draws", "compared", "most", "bound", ""], *marked]


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
        path: A folder of images, a shard set, tars, or a manifest: any source of ``feeder shard``.
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
    if images < 1:
        raise ArgumentError(f"images must be at least 1, got {images}")
    recipes = [Recipe.of(ops) for ops in RECIPES]
    decoder = get_decoder(backend, recipes[0], fidelity=fidelity, device=device)
    reference = get_decoder("pillow")
    progress = progress or Progress()
    comparison = Differences()
    failures: list[Failure] = []
    compared = unreadable = redone = views_differing = 0
    charts: dict[Chart, None] = {}
    with _open_images(path) as source:
        count = min(images, len(source))
        chosen = permute(np.arange(count), len(source), seed).tolist() if count else []
        with progress.running(count, 0):
            for sample in chosen:
                image = source.read(sample)
                before = decoder.redone_images
                failure: Failure | None = _NEITHER
                if image is not None:
                    failure, differs = _compare(comparison, decoder, reference, recipes, image, seed, sample)
                    if failure is None:
                        views_differing += differs
                        charts[Chart.like(image.height, image.width, image.orientation)] = None
                compared += failure is None
                redone += failure is None and decoder.redone_images > before
                unreadable += failure is _NEITHER
                if failure is not None and failure is not _NEITHER:
                    failures.append(failure)
                progress.advance(1, len(image.data) if image else 0)
    return ParityReport(
        backend=decoder.name,
        fidelity=fidelity,
        device=str(decoder.device) if isinstance(decoder, TrainerDecoder) else "cpu",
        versions=f"Pillow {PIL.__version__}",
        images=compared,
        unreadable=unreadable,
        failures=tuple(failures),
        redone=redone,
        buckets=tuple(comparison.figures()),
        bounds=BOUNDS[fidelity],
        views_differing=views_differing,
        targets=compare_targets(decoder, list(charts)[:_CHARTS], seed=seed),
    )


def _compare(
    comparison: Differences,
    decoder: Decoder,
    reference: Decoder,
    recipes: Sequence[Recipe],
    image: _Image,
    seed: int,
    sample: int,
) -> tuple[Failure | None, bool]:
    """Compares one image under all recipes, which make views of it.

    Returns:
        A failure of one of the two, and True if a view is another one when it is made alone.
    """
    orientations = np.array([image.orientation], np.uint8)
    width, height = image.width, image.height
    size = (width, height) if image.orientation > 4 else (height, width)
    draws = [recipe.draw(seed, 0, [sample], [size]) for recipe in recipes]
    expected, found = (
        [
            View(recipe, drawn, np.zeros((1, 3, *drawn.output_size[0].tolist()), np.uint8))
            for recipe, drawn in zip(recipes, draws, strict=True)
        ]
        for _ in range(2)
    )
    (lost,) = reference.decode([image.data], orientations, expected).errors
    (missed,) = decoder.decode([image.data], orientations, found).errors
    if lost is not None and missed is not None:
        return _NEITHER, False
    if lost is not None:
        return Failure(image.name, decoder.name, lost.reason), False
    if missed is not None:
        return Failure(image.name, reference.name, missed.reason), False
    for (_, drawn, right), (_, _, pixels) in zip(expected, found, strict=True):
        comparison.add(right[0], pixels[0], crop_ratio(drawn.source_box[0], drawn.base_size[0]))
    differs = False
    for recipe, drawn, pixels in found:
        alone = np.zeros_like(pixels)
        (error,) = decoder.decode([image.data], orientations, [View(recipe, drawn, alone)]).errors
        differs = differs or error is not None or not np.array_equal(alone, pixels)
    return None, differs


class _Image(NamedTuple):
    """An encoded image, its size as stored, and its orientation."""

    name: str
    data: bytes
    width: int
    height: int
    orientation: int


class _Images(Protocol):
    """Images by number."""

    def __len__(self) -> int: ...

    def read(self, i: int) -> _Image | None:
        """Returns an image, or None if it can't be read as one."""


class _IndexedImages:
    """The images of shards, by their index."""

    def __init__(self, index: SetIndex) -> None:
        self._index = index
        if index.codebooks:
            with contextlib.suppress(ImportError):  # an image that needs the kernels says so
                add_codebooks(index.codebooks)

    def __len__(self) -> int:
        return len(self._index)

    def read(self, i: int) -> _Image | None:
        index, row = self._index, self._index.row(i)
        number, offset, length = index.place(i)
        path = index.shard_path(number)
        with open(path, "rb") as shard:
            if offset + length > os.fstat(shard.fileno()).st_size:
                raise SourceError(
                    f"{path}: sample {index.key(i)!r} ends after the end of the file; run `feeder inspect --verify`"
                )
            data = os.pread(shard.fileno(), length, offset)
        size = int(row.width[0]), int(row.height[0])
        return _Image(f"{path} {index.key(i)}", data, *size, int(row.orientation[0]))


class _SourceImages:
    """The images of any other source."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def __len__(self) -> int:
        return len(self._source.table)

    def read(self, i: int) -> _Image | None:
        name = os.fsdecode(self._source.table.path(i))
        for _, data in self._source.read(i):
            try:
                info = image_info(data)
            except ValueError:
                continue
            return _Image(name, data, info.width_px, info.height_px, info.orientation)
        return None


@contextlib.contextmanager
def _open_images(path: str) -> Iterator[_Images]:
    index = path if path.endswith(".bin") else os.path.join(path, INDEX_NAME)
    if os.path.isfile(index):
        yield _IndexedImages(open_index(index))
        return
    with tempfile.TemporaryDirectory(prefix="feeder-parity-") as work:
        source = open_source(path, ManifestColumns(), work)
        try:
            yield _SourceImages(source)
        finally:
            source.close()

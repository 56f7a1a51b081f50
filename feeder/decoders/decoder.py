"""The contract of decode backends: encoded bytes and drawn parameters in, pixels in the caller's buffer out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from feeder.errors import ArgumentError, DecodeError
from feeder.system.arrays import Int32s, Int64s, Uint8s
from feeder.system.checks import check_int, check_one_of
from feeder.transforms import Draws, Recipe

Buffer = bytes | bytearray | memoryview

# The default limit of an image: Pillow's own, 256 MiB of RGB.
MAX_PIXELS = 89_478_485

# "exact" gives Pillow's pixels to the level; "fast" may differ by amounts too small for any training to notice; "draft"
# decodes at half or quarter size what becomes smaller still, where a backend can, and is "fast" where it can't.
FIDELITIES = ("draft", "exact", "fast")


class View(NamedTuple):
    """An output that is made of each of N images.

    Attributes:
        recipe: The ops for every image.
        draws: Drawn parameters of these N images; boxes are in upright coordinates (after orientation).
        out: [N, C, H, W], C-contiguous, of ``recipe.output_dtype``: uint8 0-255, or normalized floats.
    """

    recipe: Recipe
    draws: Draws
    out: npt.NDArray[np.generic]

    def take(self, rows: Int64s | slice) -> View:
        """Returns the view of some of the images; its ``out`` is a view of this one's for a slice, else a copy."""
        return View(self.recipe, self.draws.take(rows), self.out[rows])


@dataclass(frozen=True, eq=False)
class DecodeResult:
    """The outcome of one call, for N images.

    Attributes:
        errors: One entry per image: None, or why one of its views could not be made (its part of every ``out`` is then
            undefined).
        clipped: Number of images that lost range, as their samples have more than 8 bits.
        slow: Number of JPEGs that took a slower way of decoding.
        spent_ns: int64 [N, 3], nanoseconds that each image took in decode, transform and write, 0 for a stage that is
            not separate; None: the whole call is decode.
    """

    errors: list[DecodeError | None]
    clipped: int = 0
    slow: int = 0
    spent_ns: Int64s | None = None

    @classmethod
    def join(cls, results: Sequence[DecodeResult]) -> DecodeResult:
        """Returns the result for all images, in order, of calls for some of them."""
        spent_ns = [each.spent_ns for each in results if each.spent_ns is not None]
        return cls(
            [error for each in results for error in each.errors],
            sum(each.clipped for each in results),
            sum(each.slow for each in results),
            np.concatenate(spent_ns) if spent_ns else None,
        )


class Decoder(Protocol):
    """One way to turn encoded images into a batch; a backend derives from it and gets its defaults.

    A decoder has no state that changes a pixel: the same buffers and draws give the same output, whatever the earlier
    calls, the batch size or the thread count. Backends are made by
    ``factory(max_pixels=..., threads=..., fidelity=...)``, see :func:`feeder.decoders.registry.get_decoder` and
    docs/new-backend.md.

    Attributes:
        name: The backend's name in ``backend=``.
        takes_rows: True if :meth:`decode` takes seekable JPEGs without the rows that the crops do not need.
        redone_images: Number of images so far that the CPU decoded after this backend had failed on them.
    """

    name: str
    takes_rows: bool = False
    redone_images: int = 0

    def check(self, recipe: Recipe) -> None:
        """Refuses, by the op's name, a recipe that this backend can't run.

        Raises:
            BackendError: naming the op and the backends that can run it.
        """

    def decode(
        self,
        buffers: Sequence[Buffer],
        orientations: Uint8s,
        views: Sequence[View],
        first_rows: Int32s | None = None,
    ) -> DecodeResult:
        """Decodes N images and makes every view of each. The pixels of a view do not depend on the other views.

        Args:
            buffers: N encoded images (JPEG, PNG, ...).
            orientations: uint8 [N], EXIF orientation 1-8 to apply; 1 leaves the image as stored.
            views: The outputs, at least one; filled.
            first_rows: int32 [N], the first pixel row in each buffer, -1 for a whole image, see
                :class:`feeder.dataset.reader.ReadSamples`; None: all are whole. Given only if ``takes_rows``. The
                buffers have the rows that all views of an image need; an image that can't be decoded from these is
                given again, whole.
        """
        ...


def check_options(max_pixels: int, threads: int, fidelity: str) -> None:
    """Checks the options that every backend takes.

    Raises:
        ArgumentError: naming the wrong one.
    """
    check_int("max_pixels", max_pixels, 1)
    check_int("threads", threads, 1)
    check_one_of("fidelity", fidelity, FIDELITIES)


def check_views(buffers: Sequence[Buffer], orientations: Uint8s, views: Sequence[View]) -> None:
    """Checks the arguments of :meth:`Decoder.decode` that every backend takes alike.

    Raises:
        ArgumentError: naming the wrong lengths or dtype.
    """
    for recipe, draws, out in views:
        if not len(buffers) == len(orientations) == len(draws) == len(out):
            raise ArgumentError(
                f"buffers, orientations, draws and out must be of one length, got {len(buffers)}, "
                f"{len(orientations)}, {len(draws)} and {len(out)}"
            )
        if out.dtype != recipe.storage_dtype:
            raise ArgumentError(f"out must be of {recipe.storage_dtype} for {recipe.output_dtype}, got {out.dtype}")


def check_output_size(out: npt.NDArray[np.generic], sizes: Int32s) -> None:
    """Checks that ``out`` is [N, 3, H, W] with the (height, width) of every image.

    Args:
        out: Of a :class:`View`.
        sizes: int32 [N, 2], N at least 1.

    Raises:
        ArgumentError: naming a size that does not fit.
    """
    wrong = np.flatnonzero((sizes != out.shape[2:]).any(axis=1))
    if out.ndim != 4 or len(wrong):
        height, width = sizes[wrong[0]].tolist() if len(wrong) else out.shape[-2:]
        raise ArgumentError(
            f"out must be [N, 3, {height}, {width}] for this image, got {list(out.shape)}; "
            "end the recipe with a size that doesn't depend on the image"
        )

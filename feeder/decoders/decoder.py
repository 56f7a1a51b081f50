"""The contract of decode backends: encoded bytes and drawn parameters in, pixels in the caller's buffer out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from feeder.errors import ArgumentError, DecodeError

if TYPE_CHECKING:
    import torch

    from feeder._gpu import Mix
    from feeder.decoders.staged.staged import Staged
    from feeder.decoders.staged.stager import Stager
    from feeder.transforms import Draws, Recipe
    from feeder.transforms.op import Params

__all__ = [
    "ALL_IN_DECODE",
    "FIDELITIES",
    "MAX_PIXELS",
    "Buffer",
    "Decoder",
    "LeftToCpu",
    "Padding",
    "StagedView",
    "TrainerDecoder",
    "View",
    "ViewsDecoder",
    "check_batch",
    "check_options",
    "check_output_size",
]

Buffer = bytes | bytearray | memoryview

# The default limit of an image: Pillow's own, 256 MiB of RGB.
MAX_PIXELS = 89_478_485

# For a backend that does not time its stages one by one.
ALL_IN_DECODE = {"cut": "decode", "transform": "decode", "write": "decode"}

# "exact" gives Pillow's pixels to the level; "fast" may differ by amounts too small for any training to notice; "draft"
# decodes at half or quarter size what becomes smaller still, where a backend can, and is "fast" where it can't.
FIDELITIES = ("draft", "exact", "fast")


class LeftToCpu(DecodeError):
    """An image that a :class:`TrainerDecoder` leaves to the CPU backend, which has the last word on it."""


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


class Padding(NamedTuple):
    """A batch of images of different sizes, which stand top left.

    Attributes:
        sizes: int32 [N, 2], (height, width) of each image after the recipe.
        size: (height, width) of the batch.
        value: What is left over has this value, in the output's dtype.
    """

    sizes: npt.NDArray[np.int32]
    size: tuple[int, int]
    value: float


class StagedView(NamedTuple):
    """An output that is made of each of N staged images.

    Attributes:
        recipe: The ops for every image; without ``padding`` its output size must be fixed.
        rest: Drawn parameters of the ops after the base path, N rows each.
        mix: The partner of each sample, if samples are mixed. If any image can't be decoded, none is mixed: it must be
            replaced first.
        padding: Pads the images to one size; given only where the loader has ``pad=``.
    """

    recipe: Recipe
    rest: Sequence[Params]
    mix: Mix | None = None
    padding: Padding | None = None


class Decoder(Protocol):
    """One way to turn encoded images into a batch; a backend derives from it and gets its defaults.

    A decoder has no state that changes a pixel: the same buffers and draws give the same output, whatever the earlier
    calls, the batch size or the thread count. Backends are made by
    ``factory(max_pixels=..., threads=..., fidelity=...)``, see :func:`feeder.decoders.registry.get_decoder` and
    docs/new-backend.md.

    Attributes:
        name: The backend's name in ``backend=``.
        takes_rows: True if :meth:`decode` takes seekable JPEGs without the rows that the crop does not need.
        spent_ns: int64 [N, 3], nanoseconds that each image of the last call took in decode, transform and write, 0
            for a stage that is not separate; None: the whole call is decode.
        fused: Maps each stage without its own time to the stage whose time contains it.
        clipped: Number of images in the last call that lost range, as their samples have more than 8 bits.
        slow: Number of JPEGs in the last call that took a slower way of decoding.
        redone_images: Number of images so far that the CPU decoded after this backend had failed on them.
    """

    name: str
    takes_rows: bool = False
    spent_ns: npt.NDArray[np.int64] | None = None
    fused: Mapping[str, str] = ALL_IN_DECODE
    clipped: int = 0
    slow: int = 0
    redone_images: int = 0

    def check(self, recipe: Recipe) -> None:
        """Refuses, by the op's name, a recipe that this backend can't run.

        Raises:
            BackendError: naming the op and the backends that can run it.
        """

    def decode(
        self,
        buffers: Sequence[Buffer],
        orientations: npt.NDArray[np.uint8],
        recipe: Recipe,
        draws: Draws,
        out: npt.NDArray[np.generic],
        first_rows: npt.NDArray[np.int32] | None = None,
    ) -> list[DecodeError | None]:
        """Decodes and augments N images into ``out``.

        Args:
            buffers: N encoded images (JPEG, PNG, ...).
            orientations: uint8 [N], EXIF orientation 1-8 to apply; 1 leaves the image as stored.
            recipe: The ops for every image.
            draws: Drawn parameters of these N images; boxes are in upright coordinates (after orientation).
            out: [N, C, H, W], C-contiguous, of ``recipe.output_dtype``: uint8 0-255, or normalized floats.
            first_rows: int32 [N], the first pixel row in each buffer, -1 for a whole image, see
                :class:`feeder.dataset.reader.Encoded`; None: all are whole. Given only if ``takes_rows``; an image
                that can't be decoded from these rows is given again, whole.

        Returns:
            One entry per image: None, or why it could not be decoded (its part of ``out`` is then undefined).
        """
        ...

    def decode_views(
        self,
        buffers: Sequence[Buffer],
        orientations: npt.NDArray[np.uint8],
        views: Sequence[View],
        first_rows: npt.NDArray[np.int32] | None = None,
    ) -> list[DecodeError | None]:
        """Makes several views of each of N images.

        The pixels are those of :meth:`decode` for each view alone. By default every view is decoded apart. A backend
        that can share the work overrides it.

        Args:
            buffers, orientations: See :meth:`decode`.
            views: The outputs, at least one.
            first_rows: See :meth:`decode`; the buffers have the rows that all views of an image need.

        Returns:
            One entry per image: None, or why one of its views could not be made (its part of every ``out`` is then
            undefined).
        """
        errors: list[DecodeError | None] = [None] * len(buffers)
        spent_ns: npt.NDArray[np.int64] | None = None
        clipped = slow = 0
        for recipe, draws, out in views:
            found = self.decode(buffers, orientations, recipe, draws, out, first_rows)
            errors = [earlier or error for earlier, error in zip(errors, found, strict=True)]
            if self.spent_ns is not None:
                spent_ns = self.spent_ns if spent_ns is None else spent_ns + self.spent_ns
            clipped, slow = max(clipped, self.clipped), max(slow, self.slow)
        self.spent_ns, self.clipped, self.slow = spent_ns, clipped, slow
        return errors


class ViewsDecoder(Decoder, Protocol):
    """Base of a backend that makes all views of an image together: it has :meth:`decode_views`, which one view goes
    through as well."""

    def decode(
        self,
        buffers: Sequence[Buffer],
        orientations: npt.NDArray[np.uint8],
        recipe: Recipe,
        draws: Draws,
        out: npt.NDArray[np.generic],
        first_rows: npt.NDArray[np.int32] | None = None,
    ) -> list[DecodeError | None]:
        """Decodes and augments N images into ``out``; see :meth:`Decoder.decode`."""
        return self.decode_views(buffers, orientations, [View(recipe, draws, out)], first_rows)


@runtime_checkable
class TrainerDecoder(Decoder, Protocol):
    """A backend that decodes, in the trainer's process and on its own device, the images that workers have staged.

    Workers never touch it: they get its ``stager``.
    """

    stager: Stager
    device: torch.device

    def check(self, recipe: Recipe) -> None:
        """Refuses a recipe with an op that can't run in batches: a function, or an op whose images differ in size.

        Raises:
            BackendError: naming the op and the backend that can run it.
        """
        from feeder.decoders.device.ops import check_device_ops

        check_device_ops(recipe, self.name)

    def prepare(
        self, batch_size: int, preallocate: tuple[int, int] | None = None, outlier_pixels: int | None = None
    ) -> None:
        """Prepares for the batches to come.

        Args:
            batch_size: The largest batch.
            preallocate: (height, width) of an image to reserve decoding memory for, or None.
            outlier_pixels: Images with more stored pixels are decoded by workers; None for the default limit.
        """

    def start(self, staged: Staged) -> bool:
        """Starts to decode a batch, without waiting; :meth:`finish` or :meth:`drop` must follow.

        Returns:
            True if it is under way; False if there is no memory for it yet, and it may be tried again.
        """
        ...

    def drop(self, staged: Staged) -> None:
        """Forgets a batch that was started."""

    def finish(
        self, staged: Staged, views: Sequence[StagedView], *, channels_last: bool = False
    ) -> tuple[list[torch.Tensor], list[DecodeError | None]]:
        """Decodes and augments a batch, started or not.

        Args:
            staged: N samples, at least one.
            views: The outputs, one for each view of the staged batch.
            channels_last: Memory format of the outputs.

        Returns:
            For each view [N, 3, H, W] of its recipe's output dtype, owned by the caller; and for each sample None or
            why it could not be decoded. One with :class:`LeftToCpu` is to be staged again by ``stager.on_cpu()``.
        """
        ...

    def meters(self) -> dict[str, int]:
        """Returns sums so far, for the loader's stats."""
        ...

    def close(self) -> None:
        """Ends its threads and frees its memory; it can be used again."""


def check_options(max_pixels: int, threads: int, fidelity: str) -> None:
    """Checks the options that every backend takes.

    Raises:
        ArgumentError: naming the wrong one.
    """
    if max_pixels < 1:
        raise ArgumentError(f"max_pixels must be at least 1, got {max_pixels}")
    if threads < 1:
        raise ArgumentError(f"threads must be at least 1, got {threads}")
    if fidelity not in FIDELITIES:
        raise ArgumentError(f"fidelity must be one of {', '.join(FIDELITIES)}, got {fidelity!r}")


def check_batch(
    buffers: Sequence[Buffer],
    orientations: npt.NDArray[np.uint8],
    recipe: Recipe,
    draws: Draws,
    out: npt.NDArray[np.generic],
) -> None:
    """Checks the arguments of :meth:`Decoder.decode` that every backend takes alike.

    Raises:
        ArgumentError: naming the wrong lengths or dtype.
    """
    if not len(buffers) == len(orientations) == len(draws) == len(out):
        raise ArgumentError(
            f"buffers, orientations, draws and out must be of one length, got {len(buffers)}, "
            f"{len(orientations)}, {len(draws)} and {len(out)}"
        )
    if out.dtype != recipe.storage_dtype:
        raise ArgumentError(f"out must be of {recipe.storage_dtype} for {recipe.output_dtype}, got {out.dtype}")


def check_output_size(out: npt.NDArray[np.generic], sizes: npt.NDArray[np.int32]) -> None:
    """Checks that ``out`` is [N, 3, H, W] with the (height, width) of every image.

    Args:
        out: See :meth:`Decoder.decode`.
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

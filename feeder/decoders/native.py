"""The native backend: the C++ kernels decode JPEG and raw arrays, Pillow the other formats and the ops after them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from feeder import _native
from feeder.decoders.decoder import (
    MAX_PIXELS,
    Buffer,
    View,
    ViewsDecoder,
    check_batch,
    check_options,
    check_output_size,
)
from feeder.errors import BackendError, DecodeError
from feeder.transforms import Draws, Recipe

if TYPE_CHECKING:
    from feeder.decoders.pillow.decoder import PillowDecoder

__all__ = ["CpuDecoder"]


class CpuDecoder(ViewsDecoder):
    """Decodes with feeder's own kernels.

    A recipe that ends with the base path (crop, resize, flip, normalize) takes one native pass. Where other ops follow,
    the kernels make the base path's uint8 image, and the Pillow backend runs the other ops.

    Args:
        max_pixels: Larger images are refused.
        threads: Number of threads that share a batch.
        fidelity: "fast" resizes luma and chroma each from its own resolution; "exact" upsamples chroma first, as
            Pillow does. "draft" is fast, but decodes JPEGs at half or quarter size where the crop is at least 2 or 4
            times the output.

    Attributes:
        native_images: Number of images that the kernels have decoded.
        pillow_images: Number of images that Pillow got: neither JPEG nor .npy, or a JPEG that the kernels don't decode.
        clipped: Number of images in the last call that lost range, as their samples have more than 8 bits.
        slow: Number of JPEGs in the last call that were decoded as for "exact" in spite of "fast", or by Pillow.
        spent_ns: int64 [N, 3], nanoseconds that each image of the last call took in decode, transform and write.
    """

    name = "cpu"
    takes_rows = True
    spent_ns: npt.NDArray[np.int64]
    fused: Mapping[str, str] = {"cut": "decode", "write": "transform"}

    def __init__(self, *, max_pixels: int = MAX_PIXELS, threads: int = 1, fidelity: str = "fast") -> None:
        check_options(max_pixels, threads, fidelity)
        self.max_pixels = max_pixels
        self.threads = threads
        self.fidelity = fidelity
        self.native_images = 0
        self.pillow_images = 0
        self.clipped = 0
        self.slow = 0
        self.spent_ns = np.zeros((0, 3), np.int64)

    def check(self, recipe: Recipe) -> None:
        """Refuses a recipe with an op that is not feeder's.

        Raises:
            BackendError: naming the op.
        """
        if not recipe.is_variable and recipe.is_base_path:
            return
        try:
            self._pillow.check(recipe)
        except BackendError as error:
            raise BackendError(str(error).replace("'pillow'", "'cpu'")) from None

    @cached_property
    def _pillow(self) -> PillowDecoder:
        from feeder.decoders.pillow.decoder import PillowDecoder  # many loaders never need it

        return PillowDecoder(max_pixels=self.max_pixels)

    def decode_views(
        self,
        buffers: Sequence[Buffer],
        orientations: npt.NDArray[np.uint8],
        views: Sequence[View],
        first_rows: npt.NDArray[np.int32] | None = None,
    ) -> list[DecodeError | None]:
        """Decodes views of an image that overlap together; see :meth:`Decoder.decode_views`."""
        for view in views:
            check_batch(buffers, orientations, *view)
        self.spent_ns = np.zeros((len(buffers), 3), np.int64)
        self.clipped = self.slow = 0
        if len(buffers) == 0:
            return []
        batch = _Batch(buffers, orientations, views, first_rows)
        if all(view.recipe.is_base_path for view in views):
            return self._decode_base_path(batch)
        return [self._decode_with_rest(batch.take(slice(row, row + 1)), row) for row in range(len(buffers))]

    def _decode_base_path(self, batch: _Batch) -> list[DecodeError | None]:
        for view in batch.views:
            check_output_size(view.out, view.draws.base_size)
        spent = np.zeros((len(batch.buffers), 2), np.int64)
        statuses, reasons = self._native(batch, [_native_view(view) for view in batch.views], spent)
        self.spent_ns[:, :2] = spent
        errors = _errors(statuses, reasons)
        others = np.flatnonzero(_for_pillow(statuses, batch.first_rows))
        if len(others):
            left = batch.take(others)
            found = self._with_pillow(left, statuses[others], [errors[row] for row in others.tolist()])
            for view, redone in zip(batch.views, left.views, strict=True):
                view.out[others] = redone.out
            self.spent_ns[others] = self._pillow.spent_ns
            for row, error in zip(others.tolist(), found, strict=True):
                errors[row] = error
        self.pillow_images += len(others)
        self.native_images += len(batch.buffers) - len(others)
        return errors

    def _decode_with_rest(self, one: _Batch, row: int) -> DecodeError | None:
        """Decodes and augments the image that is number ``row`` of its batch."""
        bases: list[npt.NDArray[np.uint8] | None] = []
        native_views = []
        for view in one.views:
            if view.recipe.is_base_path:
                check_output_size(view.out, view.draws.base_size)
                bases.append(None)
                native_views.append(_native_view(view))
                continue
            height, width = view.draws.base_size[0].tolist()
            if height * width > self.max_pixels:
                return DecodeError(f"the recipe makes {width}x{height} pixels, more than max_pixels={self.max_pixels}")
            base = np.empty((1, height, width, 3), np.uint8)
            bases.append(base[0])
            native_views.append(_native.View(*_boxes(view.draws), base, layout="nhwc", dtype="uint8"))
        spent = np.zeros((1, 2), np.int64)
        statuses, reasons = self._native(one, native_views, spent)
        (error,) = _errors(statuses, reasons)
        if _for_pillow(statuses, one.first_rows)[0]:
            self.pillow_images += 1
            (error,) = self._with_pillow(one, statuses, [error])
            self.spent_ns[row] = self._pillow.spent_ns[0]
            return error
        self.native_images += 1
        self.spent_ns[row, :2] = spent[0]
        if error is None:
            started = time.perf_counter_ns()
            try:
                for view, pixels in zip(one.views, bases, strict=True):
                    if pixels is not None:
                        self._pillow.finish(pixels, view.recipe, view.draws, 0, view.out[0])
            except DecodeError as failed:
                error = failed
            self.spent_ns[row, 1] += time.perf_counter_ns() - started
        return error

    def _with_pillow(
        self, batch: _Batch, statuses: npt.NDArray[np.int32], errors: list[DecodeError | None]
    ) -> list[DecodeError | None]:
        """Decodes with Pillow; a JPEG that Pillow can't decode either keeps the kernels' error."""
        found = self._pillow.decode_views(batch.buffers, batch.orientations, batch.views)
        self.clipped += self._pillow.clipped
        is_jpeg = (statuses != _native.Status.NOT_JPEG.value).tolist()
        self.slow += sum(jpeg and error is None for jpeg, error in zip(is_jpeg, found, strict=True))
        both = zip(is_jpeg, found, errors, strict=True)
        return [ours if jpeg and error is not None else error for jpeg, error, ours in both]

    def _native(
        self, batch: _Batch, views: list[_native.View], spent: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.int32], list[str]]:
        slow = np.zeros(len(batch.buffers), np.uint8)
        result = _native.decode_views(
            batch.buffers,
            views,
            np.ascontiguousarray(batch.orientations, np.uint8),
            threads=self.threads,
            fidelity=self.fidelity,
            max_pixels=self.max_pixels,
            image_sizes=np.ascontiguousarray(batch.views[0].draws.image_size, np.int32),
            first_rows=batch.first_rows,
            spent=spent,
            slow=slow,
        )
        self.slow += int(np.count_nonzero(slow))
        return result


class _Batch(NamedTuple):
    """The arguments of :meth:`CpuDecoder.decode_views`."""

    buffers: Sequence[Buffer]
    orientations: npt.NDArray[np.uint8]
    views: Sequence[View]
    first_rows: npt.NDArray[np.int32] | None

    def take(self, rows: npt.NDArray[np.int64] | slice) -> _Batch:
        """Returns some of the images; each ``out`` is a view for a slice, and a copy for an array."""
        return _Batch(
            [self.buffers[row] for row in np.arange(len(self.buffers))[rows].tolist()],
            self.orientations[rows],
            [View(view.recipe, view.draws.take(rows), view.out[rows]) for view in self.views],
            None if self.first_rows is None else self.first_rows[rows],
        )


def _boxes(draws: Draws) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int32], npt.NDArray[np.uint8]]:
    return (
        np.ascontiguousarray(draws.source_box, np.float64),
        np.ascontiguousarray(draws.support_box, np.int32),
        np.ascontiguousarray(draws.flip, np.uint8),
    )


def _native_view(view: View) -> _native.View:
    """Returns the kernels' view of a recipe that is a base path."""
    scale, bias = view.recipe.affine or (None, None)
    dtype = view.recipe.output_dtype
    return _native.View(*_boxes(view.draws), view.out, layout="nchw", dtype=dtype, scale=scale, bias=bias)


def _for_pillow(statuses: npt.NDArray[np.int32], first_rows: npt.NDArray[np.int32] | None) -> npt.NDArray[np.bool_]:
    """Returns which images Pillow may decode: no JPEGs, and whole JPEGs of kinds that the kernels don't decode."""
    others: npt.NDArray[np.bool_] = statuses == _native.Status.UNSUPPORTED.value
    if first_rows is not None:
        others &= first_rows < 0
    others |= statuses == _native.Status.NOT_JPEG.value
    return others


def _errors(statuses: npt.NDArray[np.int32], reasons: list[str]) -> list[DecodeError | None]:
    return [DecodeError(reason) if status else None for status, reason in zip(statuses.tolist(), reasons, strict=True)]

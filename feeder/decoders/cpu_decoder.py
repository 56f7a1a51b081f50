"""The native backend: the C++ kernels decode JPEG, PNG and raw arrays, Pillow the rest, and ops that they lack."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from feeder import _native
from feeder.decoders.decoder import (
    MAX_PIXELS,
    Buffer,
    Decoder,
    DecodeResult,
    View,
    check_options,
    check_output_size,
    check_views,
)
from feeder.decoders.programs import finish, finish_apart, has_programs, last_native, programs
from feeder.errors import BackendError, DecodeError
from feeder.transforms import Draws, Recipe

if TYPE_CHECKING:
    from feeder.decoders.pillow.pillow_decoder import PillowDecoder

__all__ = ["CpuDecoder"]

_LARGEST_SIDE = (1 << 16) - 1
_FEW = 8


class CpuDecoder(Decoder):
    """Decodes with feeder's own kernels.

    The base path (crop, resize, flip, normalize) and the ops behind it take one native pass. Where one of these ops has
    no native form, the kernels make the base path's uint8 image, and the Pillow backend runs all ops behind it.

    Args:
        max_pixels: Larger images are refused.
        threads: Number of threads that share a batch.
        fidelity: "fast" resizes luma and chroma each from its own resolution; "exact" upsamples chroma first, as
            Pillow does. "draft" is fast, but decodes JPEGs at half or quarter size where the crop is at least 2 or 4
            times the output.
    """

    name = "cpu"
    takes_rows = True
    fused: Mapping[str, str] = {"cut": "decode", "write": "transform"}

    def __init__(self, *, max_pixels: int = MAX_PIXELS, threads: int = 1, fidelity: str = "fast") -> None:
        check_options(max_pixels, threads, fidelity)
        self.max_pixels = max_pixels
        self.threads = threads
        self.fidelity = fidelity

    def check(self, recipe: Recipe) -> None:
        """Refuses a recipe with an op that is not feeder's.

        Raises:
            BackendError: naming the op.
        """
        if recipe.is_variable or not has_programs(recipe):
            self._check_reference(recipe)

    def _check_reference(self, recipe: Recipe) -> None:
        """Refuses a recipe with an op that Pillow can't run."""
        try:
            self._pillow.check(recipe)
        except BackendError as error:
            raise BackendError(str(error).replace("'pillow'", "'cpu'")) from None

    @cached_property
    def _pillow(self) -> PillowDecoder:
        from feeder.decoders.pillow.pillow_decoder import PillowDecoder  # many loaders never need it

        return PillowDecoder(max_pixels=self.max_pixels)

    def decode(
        self,
        buffers: Sequence[Buffer],
        orientations: npt.NDArray[np.uint8],
        views: Sequence[View],
        first_rows: npt.NDArray[np.int32] | None = None,
    ) -> DecodeResult:
        """Decodes views of an image that overlap together; see :meth:`Decoder.decode`.

        Of the result, ``slow`` counts the JPEGs that were decoded as for "exact" in spite of "fast", or by Pillow. Only
        Pillow's images have a time for write.
        """
        check_views(buffers, orientations, views)
        if len(buffers) == 0:
            return DecodeResult([])
        # A few where the kernels make images apart, which then stay in the caches; one where these differ in size.
        is_apart = any(view.recipe.tail is not None or view.recipe.channels == 1 for view in views)
        is_batched = all(_is_batched(view.recipe) for view in views)
        step = 1 if not is_batched else _FEW if is_apart else len(buffers)
        results = []
        for first in range(0, len(buffers), step):
            some = slice(first, first + step)
            rows = None if first_rows is None else first_rows[some]
            taken = [view.take(some) for view in views]
            results.append(self._decode_apart(buffers[some], orientations[some], taken, rows))
        return results[0] if len(results) == 1 else DecodeResult.join(results)

    def _decode_apart(
        self,
        buffers: Sequence[Buffer],
        orientations: npt.NDArray[np.uint8],
        views: Sequence[View],
        first_rows: npt.NDArray[np.int32] | None,
    ) -> DecodeResult:
        """Decodes as :meth:`_decode` does; recipes with a tail, or with one channel, into images of their own first."""
        heads = [_head(view) for view in views]
        result = self._decode(buffers, orientations, heads, first_rows)
        for view, head in zip(views, heads, strict=True):
            if head is not view:
                rows = [row for row, error in enumerate(result.errors) if error is None]
                with _transforming(result, rows):
                    failures = finish_apart(view, head.out, rows)
                for row, failure in failures.items():
                    result.errors[row] = failure
        return result

    def _decode(
        self,
        buffers: Sequence[Buffer],
        orientations: npt.NDArray[np.uint8],
        views: Sequence[View],
        first_rows: npt.NDArray[np.int32] | None,
    ) -> DecodeResult:
        """Decodes images whose base path makes one size in each view."""
        try:
            native_views, bases = self._native_views(views)
        except DecodeError as refused:
            return DecodeResult([refused] * len(buffers), spent_ns=np.zeros((len(buffers), 3), np.int64))

        spent, slow = np.zeros((len(buffers), 2), np.int64), np.zeros(len(buffers), np.uint8)
        statuses, reasons = _native.decode_views(
            buffers,
            native_views,
            np.ascontiguousarray(orientations, np.uint8),
            threads=self.threads,
            fidelity=self.fidelity,
            max_pixels=self.max_pixels,
            image_sizes=np.ascontiguousarray(views[0].draws.image_size, np.int32),
            first_rows=first_rows,
            spent=spent,
            slow=slow,
        )
        errors = [
            DecodeError(reason) if status else None for status, reason in zip(statuses.tolist(), reasons, strict=True)
        ]
        spent_ns = np.concatenate([spent, np.zeros((len(buffers), 1), np.int64)], axis=1)
        clipped = 0

        others = np.flatnonzero(_for_pillow(statuses, first_rows))
        if len(others):
            result = self._redone(others, buffers, orientations, views)
            spent_ns[others] = result.spent_ns
            clipped = result.clipped
            is_jpeg = statuses != _native.Status.NOT_JPEG.value
            for row, error in zip(others.tolist(), result.errors, strict=True):
                # A JPEG that Pillow can't decode either keeps the kernels' error.
                if error is None or not is_jpeg[row]:
                    errors[row] = error
                    slow[row] = is_jpeg[row]

        elif bases and errors[0] is None:
            started = time.perf_counter_ns()
            try:
                for view, pixels in bases:
                    self._pillow.finish(pixels, view.recipe, view.draws, 0, view.out[0])
            except DecodeError as failed:
                errors[0] = failed
            spent_ns[0, 1] += time.perf_counter_ns() - started

        result = DecodeResult(errors, clipped, int(np.count_nonzero(slow)), spent_ns)
        _finish(result, views, set(others.tolist()))
        return result

    def _native_views(
        self, views: Sequence[View]
    ) -> tuple[list[_native.View], list[tuple[View, npt.NDArray[np.uint8]]]]:
        """Returns the kernels' views, and those whose base path alone they make, each with its image [H, W, 3].

        Raises:
            DecodeError: if a view is too large.
        """
        native_views, bases = [], []
        for view in views:
            height, width = view.draws.base_size[0].tolist()
            if max(height, width) > _LARGEST_SIDE or (height * width > self.max_pixels and view.recipe.rest):
                most = f"max_pixels={self.max_pixels} or {_LARGEST_SIDE} a side"
                raise DecodeError(
                    f"the recipe makes {width}x{height} pixels, more than {most}; end it with a fixed size"
                )
            if has_programs(view.recipe):
                check_output_size(view.out, view.draws.base_size)
                native_views.append(_native_view(view))
                continue
            base = np.empty((1, height, width, 3), np.uint8)
            boxes, kind = _boxes(view.draws), view.recipe.base_filter
            native_views.append(_native.View(*boxes, base, layout="nhwc", dtype="uint8", filter=kind))
            bases.append((view, base[0]))
        return native_views, bases

    def _redone(
        self,
        rows: npt.NDArray[np.int64],
        buffers: Sequence[Buffer],
        orientations: npt.NDArray[np.uint8],
        views: Sequence[View],
    ) -> DecodeResult:
        """Decodes some images by Pillow, into their rows of the views."""
        left = [view.take(rows) for view in views]
        for view in left:
            self._check_reference(view.recipe)
        result = self._pillow.decode([buffers[row] for row in rows.tolist()], orientations[rows], left)
        for view, redone in zip(views, left, strict=True):
            view.out[rows] = redone.out
        return result


def _is_batched(recipe: Recipe) -> bool:
    """Returns True if the kernels run all ops of a recipe but for the tail, on images of one size."""
    return has_programs(recipe.head) and (recipe.tail is None or recipe.head.output_size is not None)


def _head(view: View) -> View:
    """Returns the view of three channels, without a tail, that a recipe's output is made from; mostly the view itself.

    In front of a function of Pillow images its channels are interleaved, as theirs are.
    """
    recipe, draws = view.recipe, view.draws
    if recipe.tail is None and recipe.channels == 3:
        return view
    if recipe.tail is not None:
        draws = draws.head()
    count, (height, width) = len(draws), draws.output_size[0].tolist()
    if recipe.tail is not None and recipe.tail.on == "pil":
        out = np.empty((count, height, width, 3), recipe.head.storage_dtype).transpose(0, 3, 1, 2)
    else:
        out = np.empty((count, 3, height, width), recipe.head.storage_dtype)
    return View(recipe.head, draws, out)


def _finish(result: DecodeResult, views: Sequence[View], redone: Collection[int]) -> None:
    """Runs the functions and ops at the recipes' ends on the images that the kernels have made."""
    for view in views:
        end = last_native(view.recipe)
        if end < len(view.recipe.rest) and has_programs(view.recipe):
            rows = [row for row, error in enumerate(result.errors) if error is None and row not in redone]
            drawn = view.draws.ops[view.recipe.base_length + end :]
            with _transforming(result, rows):
                failures = finish(view.recipe.rest[end:], drawn, rows, view.out)
            for row, failure in failures.items():
                result.errors[row] = failure


@contextlib.contextmanager
def _transforming(result: DecodeResult, rows: Sequence[int]) -> Iterator[None]:
    """Adds the time of a block to the transform of some images, each the same."""
    started = time.perf_counter_ns()
    yield
    assert result.spent_ns is not None  # as of :meth:`CpuDecoder.decode`
    result.spent_ns[rows, 1] += (time.perf_counter_ns() - started) // max(len(rows), 1)


def _boxes(draws: Draws) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int32], npt.NDArray[np.uint8]]:
    return (
        np.ascontiguousarray(draws.source_box, np.float64),
        np.ascontiguousarray(draws.support_box, np.int32),
        np.ascontiguousarray(draws.flip, np.uint8),
    )


def _native_view(view: View) -> _native.View:
    """Returns the kernels' view of a recipe that they run."""
    recipe, draws = view.recipe, view.draws
    scale, bias = recipe.affine or (None, None)
    end = last_native(recipe)
    drawn = programs(recipe.rest[:end], draws.ops[recipe.base_length :][:end], view.out.shape[2:])
    is_planar = view.out.strides[3] == view.out.itemsize
    out, layout = (view.out, "nchw") if is_planar else (view.out.transpose(0, 2, 3, 1), "nhwc")
    return _native.View(
        *_boxes(draws),
        out,
        layout=layout,
        dtype=recipe.output_dtype,
        scale=scale,
        bias=bias,
        programs=drawn,
        filter=recipe.base_filter,
    )


def _for_pillow(statuses: npt.NDArray[np.int32], first_rows: npt.NDArray[np.int32] | None) -> npt.NDArray[np.bool_]:
    """Returns which images Pillow may decode: no JPEGs, and whole JPEGs of kinds that the kernels don't decode."""
    others: npt.NDArray[np.bool_] = statuses == _native.Status.UNSUPPORTED.value
    if first_rows is not None:
        others &= first_rows < 0
    others |= statuses == _native.Status.NOT_JPEG.value
    return others

"""The native backend: the C++ kernels decode JPEG, PNG and raw arrays, Pillow the rest, and ops that they lack."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

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
from feeder.decoders.programs import Finish, has_programs, laid_out, programs
from feeder.errors import BackendError, DecodeError
from feeder.system.arrays import AnyArray, Bools, Float64s, Int32s, Int64s, Uint8s
from feeder.transforms import Draws, Recipe

if TYPE_CHECKING:
    from feeder.decoders.pillow.pillow_decoder import PillowDecoder

LARGEST_SIDE = (1 << 16) - 1
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
        orientations: Uint8s,
        views: Sequence[View],
        first_rows: Int32s | None = None,
    ) -> DecodeResult:
        """Decodes views of an image that overlap together; see :meth:`Decoder.decode`.

        The result's ``slow`` counts JPEGs that Pillow has decoded, or that were decoded as "exact" although "fast" was
        asked for. Only images that Pillow has decoded have a time for write.
        """
        check_views(buffers, orientations, views)
        if len(buffers) == 0:
            return DecodeResult([])
        views = [_framed(view) for view in views]
        # Images of one call: one if their sizes differ; a few if ops follow apart from the kernels' first step, so that
        # the images stay in the CPU's caches; all otherwise.
        is_batched = all(_is_batched(view.recipe) for view in views)
        is_apart = is_batched and any(Finish(view.recipe, view.recipe.rest).is_apart for view in views)
        step = 1 if not is_batched else _FEW if is_apart else len(buffers)
        results = []
        for first in range(0, len(buffers), step):
            some = slice(first, first + step)
            rows = None if first_rows is None else first_rows[some]
            taken = [view.take(some) for view in views]
            results.append(self._decode(buffers[some], orientations[some], taken, rows))
        return results[0] if len(results) == 1 else DecodeResult.join(results)

    def _decode(
        self,
        buffers: Sequence[Buffer],
        orientations: Uint8s,
        views: Sequence[View],
        first_rows: Int32s | None,
    ) -> DecodeResult:
        """Decodes images whose base path makes one size in each view."""
        try:
            native_views, made = self._native_views(views)
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

        result = DecodeResult(errors, clipped, int(np.count_nonzero(slow)), spent_ns)
        redone = set(others.tolist())
        rows = [row for row, error in enumerate(errors) if error is None and row not in redone]
        for view, (finish, images) in zip(views, made, strict=True):
            if finish is None or finish.is_needed:
                with _transforming(result, rows):
                    self._finish(view, finish, images, rows, errors)
        return result

    def _finish(
        self,
        view: View,
        finish: Finish | None,
        images: AnyArray,
        rows: list[int],
        errors: list[DecodeError | None],
    ) -> None:
        """Runs what follows on the images that the kernels have made, by Pillow where that has no native form."""
        recipe, draws, out = view
        if finish is not None:
            for row, error in finish.run(draws.ops[recipe.base_length :], rows, images, out).items():
                errors[row] = error
            return
        for row in rows:
            try:
                self._pillow.finish(images[row], recipe, draws, row, out[row])
            except DecodeError as error:
                errors[row] = error

    def _native_views(self, views: Sequence[View]) -> tuple[list[_native.View], list[tuple[Finish | None, AnyArray]]]:
        """Returns the kernels' views, and for each what follows on the images that they make there; None and [N, H, W,
        3] where they make those of the base path alone.

        Raises:
            DecodeError: if a view is too large.
        """
        native_views: list[_native.View] = []
        made: list[tuple[Finish | None, AnyArray]] = []
        for view in views:
            recipe, draws = view.recipe, view.draws
            height, width = draws.base_size[0].tolist()
            if max(height, width) > LARGEST_SIDE or (
                height * width > self.max_pixels and (recipe.rest or draws.frame is not None)
            ):
                most = f"max_pixels={self.max_pixels} or {LARGEST_SIDE} a side"
                raise DecodeError(
                    f"the recipe makes {width}x{height} pixels, more than {most}; end it with a fixed size"
                )
            if not has_programs(recipe):
                base = np.empty((len(draws), height, width, 3), np.uint8)
                native_views.append(_native.View(*_boxes(draws), base, layout="nhwc", dtype="uint8", **_base(view)))
                made.append((None, base))
                continue

            if recipe.tail is None:
                check_output_size(view.out, draws.base_size)
            finish = Finish(recipe, recipe.rest)
            images: AnyArray = finish.memory(len(draws), height, width) if finish.is_apart else view.out
            native_views.append(_native_view(view, finish, images))
            made.append((finish, images))
        return native_views, made

    def _redone(
        self,
        rows: Int64s,
        buffers: Sequence[Buffer],
        orientations: Uint8s,
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
    """Returns True if the kernels make images of one size."""
    return has_programs(recipe) and (recipe.tail is None or recipe.head.output_size is not None)


@contextlib.contextmanager
def _transforming(result: DecodeResult, rows: Sequence[int]) -> Iterator[None]:
    """Adds the time of a block to the transform of some images, each the same."""
    started = time.perf_counter_ns()
    yield
    assert result.spent_ns is not None  # as of :meth:`CpuDecoder.decode`
    result.spent_ns[rows, 1] += (time.perf_counter_ns() - started) // max(len(rows), 1)


def _framed(view: View) -> View:
    """Returns a view whose recipe's base path may pad, too."""
    recipe = view.recipe.framed
    if recipe.base_length == view.recipe.base_length:
        return view
    return view._replace(recipe=recipe, draws=recipe.redrawn(view.draws))


def _base(view: View) -> dict[str, Any]:
    """Returns the kernels' options of a view's base path."""
    draws, recipe = view.draws, view.recipe
    return {
        "filter": recipe.base_filter,
        "bicubic": draws.bicubic,
        "frames": draws.frame,
        "fill": recipe.base_fill,
    }


def _boxes(draws: Draws) -> tuple[Float64s, Int32s, Uint8s]:
    return (
        np.ascontiguousarray(draws.source_box, np.float64),
        np.ascontiguousarray(draws.support_box, np.int32),
        np.ascontiguousarray(draws.flip, np.uint8),
    )


def _native_view(view: View, finish: Finish, images: AnyArray) -> _native.View:
    """Returns the kernels' view of a recipe, in which they make these images."""
    recipe, draws = view.recipe, view.draws
    drawn = draws.ops[recipe.base_length :][: finish.end]
    made = programs(recipe.rest[: finish.end], drawn, (images.shape[2], images.shape[3]))
    out, layout = laid_out(images)
    return _native.View(*_boxes(draws), out, layout=layout, programs=made, **_base(view) | finish.options)


def _for_pillow(statuses: Int32s, first_rows: Int32s | None) -> Bools:
    """Returns which images Pillow may decode: no JPEGs, and whole JPEGs of kinds that the kernels don't decode."""
    others: Bools = statuses == _native.Status.UNSUPPORTED.value
    if first_rows is not None:
        others &= first_rows < 0
    others |= statuses == _native.Status.NOT_JPEG.value
    return others

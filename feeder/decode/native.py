"""The native backend: the C++ kernels decode JPEG and raw arrays, Pillow the other formats and the ops after them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from feeder import _native
from feeder.decode.decoder import MAX_PIXELS, Buffer, Decoder, check_batch
from feeder.decode.pillow.decoder import PillowDecoder
from feeder.errors import ArgumentError, BackendError, DecodeError
from feeder.transforms import Draws, Recipe

__all__ = ["CpuDecoder"]

_FIDELITIES = ("exact", "fast")


class CpuDecoder(Decoder):
    """Decodes with feeder's own kernels.

    A recipe that ends with the base path (crop, resize, flip, normalize) is done in one native pass. Where other ops
    follow, the kernels make the base path's uint8 image, and the Pillow backend does the rest.

    Args:
        max_pixels: Larger images are refused.
        threads: How many threads share a batch.
        fidelity: "fast" resizes luma and chroma each from its own resolution; "exact" upsamples chroma first, as
            Pillow does.

    Attributes:
        native_images: How many images the kernels have decoded.
        pillow_images: How many went to Pillow because they are neither JPEG nor .npy, or a JPEG that the kernels don't
            decode.
        clipped: How many images of the last call lost range, because their samples have more than 8 bits.
        slow: How many JPEGs of the last call were decoded as for "exact" though "fast" was asked for, or by Pillow.
        spent_ns: int64 [N, 3], what each image of the last call took: decode, transform, write.
    """

    name = "cpu"
    takes_rows = True
    spent_ns: npt.NDArray[np.int64]
    fused: Mapping[str, str] = {"cut": "decode", "write": "transform"}

    def __init__(self, *, max_pixels: int = MAX_PIXELS, threads: int = 1, fidelity: str = "fast") -> None:
        if max_pixels < 1:
            raise ArgumentError(f"max_pixels must be at least 1, got {max_pixels}")
        if threads < 1:
            raise ArgumentError(f"threads must be at least 1, got {threads}")
        if fidelity not in _FIDELITIES:
            raise ArgumentError(f"fidelity must be one of {', '.join(_FIDELITIES)}, got {fidelity!r}")
        self.max_pixels = max_pixels
        self.threads = threads
        self.fidelity = fidelity
        self.native_images = 0
        self.pillow_images = 0
        self.clipped = 0
        self.slow = 0
        self.spent_ns = np.zeros((0, 3), np.int64)
        self._pillow = PillowDecoder(max_pixels=max_pixels)

    def check(self, recipe: Recipe) -> None:
        """Refuses a recipe with an op that feeder doesn't know.

        Raises:
            BackendError: naming the op.
        """
        try:
            self._pillow.check(recipe)
        except BackendError as error:
            raise BackendError(str(error).replace("'pillow'", "'cpu'")) from None

    def decode(
        self,
        buffers: Sequence[Buffer],
        orientations: npt.NDArray[np.uint8],
        recipe: Recipe,
        draws: Draws,
        out: npt.NDArray[np.generic],
        first_rows: npt.NDArray[np.int32] | None = None,
    ) -> list[DecodeError | None]:
        """Decodes and augments N images into ``out``; see :class:`feeder.decode.decoder.Decoder`."""
        check_batch(buffers, orientations, recipe, draws, out)
        self.spent_ns = np.zeros((len(buffers), 3), np.int64)
        self.clipped = self.slow = 0
        if len(buffers) == 0:
            return []
        if recipe.is_base_path:
            return self._decode_base_path(buffers, orientations, recipe, draws, out, first_rows)
        errors: list[DecodeError | None] = []
        for row in range(len(buffers)):
            errors.append(self._decode_with_rest(buffers[row], orientations, recipe, draws, row, out[row], first_rows))
        return errors

    def _decode_base_path(
        self,
        buffers: Sequence[Buffer],
        orientations: npt.NDArray[np.uint8],
        recipe: Recipe,
        draws: Draws,
        out: npt.NDArray[np.generic],
        first_rows: npt.NDArray[np.int32] | None,
    ) -> list[DecodeError | None]:
        wrong = np.flatnonzero((draws.base_size != out.shape[2:]).any(axis=1))
        if out.ndim != 4 or len(wrong):
            height, width = draws.base_size[wrong[0]].tolist() if len(wrong) else out.shape[-2:]
            raise ArgumentError(
                f"out must be [N, 3, {height}, {width}] for this image, got {list(out.shape)}; "
                "end the recipe with a size that doesn't depend on the image"
            )
        scale, bias = recipe.affine or (None, None)
        spent = np.zeros((len(buffers), 2), np.int64)
        options = {"layout": "nchw", "dtype": recipe.output_dtype, "scale": scale, "bias": bias, "spent": spent}
        statuses, reasons = self._native(buffers, orientations, draws, out, first_rows=first_rows, **options)
        self.spent_ns[:, :2] = spent
        errors = _errors(statuses, reasons)
        others = np.flatnonzero(_for_pillow(statuses, first_rows))
        if len(others):
            pixels = np.ascontiguousarray(out[others])
            found = self._with_pillow(
                [buffers[row] for row in others.tolist()],
                orientations[others],
                recipe,
                draws.take(others),
                pixels,
                [errors[row] for row in others.tolist()],
                statuses[others],
            )
            out[others] = pixels
            self.spent_ns[others] = self._pillow.spent_ns
            for row, error in zip(others.tolist(), found, strict=True):
                errors[row] = error
        self.pillow_images += len(others)
        self.native_images += len(buffers) - len(others)
        return errors

    def _decode_with_rest(
        self,
        buffer: Buffer,
        orientations: npt.NDArray[np.uint8],
        recipe: Recipe,
        draws: Draws,
        row: int,
        out: npt.NDArray[np.generic],
        first_rows: npt.NDArray[np.int32] | None,
    ) -> DecodeError | None:
        height, width = draws.base_size[row].tolist()
        if height * width > self.max_pixels:
            return DecodeError(f"the recipe makes {width}x{height} pixels, more than max_pixels={self.max_pixels}")
        base = np.empty((1, height, width, 3), np.uint8)
        one = slice(row, row + 1)
        spent = np.zeros((1, 2), np.int64)
        some = None if first_rows is None else first_rows[one]
        options: dict[str, Any] = {"layout": "nhwc", "dtype": "uint8", "spent": spent, "first_rows": some}
        statuses, reasons = self._native([buffer], orientations[one], draws.take(one), base, **options)
        error = _errors(statuses, reasons)[0]
        if _for_pillow(statuses, some)[0]:
            self.pillow_images += 1
            (error,) = self._with_pillow(
                [buffer], orientations[one], recipe, draws.take(one), out[None], [error], statuses
            )
            self.spent_ns[one] = self._pillow.spent_ns
            return error
        self.native_images += 1
        self.spent_ns[one, :2] = spent
        if error is None:
            started = time.perf_counter_ns()
            try:
                self._pillow.finish(base[0], recipe, draws, row, out)
            except DecodeError as failed:
                error = failed
            self.spent_ns[row, 1] += time.perf_counter_ns() - started
        return error

    def _with_pillow(
        self,
        buffers: Sequence[Buffer],
        orientations: npt.NDArray[np.uint8],
        recipe: Recipe,
        draws: Draws,
        out: npt.NDArray[np.generic],
        errors: list[DecodeError | None],
        statuses: npt.NDArray[np.int32],
    ) -> list[DecodeError | None]:
        """What the kernels have left over, by Pillow; of a JPEG that it can't decode either, the kernels' error."""
        found = self._pillow.decode(buffers, orientations, recipe, draws, out)
        self.clipped += self._pillow.clipped
        is_jpeg = (statuses != _native.Status.NOT_JPEG.value).tolist()
        self.slow += sum(jpeg and error is None for jpeg, error in zip(is_jpeg, found, strict=True))
        both = zip(is_jpeg, found, errors, strict=True)
        return [ours if jpeg and error is not None else error for jpeg, error, ours in both]

    def _native(
        self,
        buffers: Sequence[Buffer],
        orientations: npt.NDArray[np.uint8],
        draws: Draws,
        out: npt.NDArray[Any],
        **options: Any,
    ) -> tuple[npt.NDArray[np.int32], list[str]]:
        slow = np.zeros(len(buffers), np.uint8)
        result = _native.decode_batch(
            buffers,
            np.ascontiguousarray(draws.source_box, np.float64),
            np.ascontiguousarray(draws.support_box, np.int32),
            np.ascontiguousarray(draws.flip, np.uint8),
            np.ascontiguousarray(orientations, np.uint8),
            out,
            threads=self.threads,
            fidelity=self.fidelity,
            max_pixels=self.max_pixels,
            image_sizes=np.ascontiguousarray(draws.image_size, np.int32),
            slow=slow,
            **options,
        )
        self.slow += int(np.count_nonzero(slow))
        return result


def _for_pillow(statuses: npt.NDArray[np.int32], first_rows: npt.NDArray[np.int32] | None) -> npt.NDArray[np.bool_]:
    """Which images Pillow may decode: what is no JPEG, and whole JPEGs of kinds that the kernels don't decode."""
    others: npt.NDArray[np.bool_] = statuses == _native.Status.UNSUPPORTED.value
    if first_rows is not None:
        others &= first_rows < 0
    others |= statuses == _native.Status.NOT_JPEG.value
    return others


def _errors(statuses: npt.NDArray[np.int32], reasons: list[str]) -> list[DecodeError | None]:
    return [DecodeError(reason) if status else None for status, reason in zip(statuses.tolist(), reasons, strict=True)]

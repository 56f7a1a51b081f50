"""The reference backend: Pillow decodes, and the ops run one by one, as in torchvision."""

from __future__ import annotations

import io
import itertools
import time
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from PIL import Image, UnidentifiedImageError

from feeder.decoders.decoder import MAX_PIXELS, Buffer, Decoder, DecodeResult, View, check_options, check_views
from feeder.decoders.image_header import PILLOW_FORMATS, quiet_pillow
from feeder.decoders.op_math import bfloat16_bits
from feeder.decoders.packed import is_packed, unpack
from feeder.decoders.pillow.image_ops import ARRAY_OPS, IMAGE_OPS
from feeder.decoders.raw import is_raw, raw_pixels
from feeder.errors import ArgumentError, BackendError, DecodeError
from feeder.system.arrays import Float32s, Int32s, Uint8s
from feeder.transforms import Draws, Normalize, Op, Recipe, ToDtype
from feeder.transforms.function import kept_generators
from feeder.transforms.values import compose_affine

# EXIF orientation -> the operation that makes the stored image upright.
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}

_VALUE_OPS = (ToDtype, Normalize)


class PillowDecoder(Decoder):
    """Decodes with Pillow (or pillow-simd) in the calling thread.

    Args:
        max_pixels: Larger images, before or after any op, are refused. Pillow's own limit,
            ``2 * PIL.Image.MAX_IMAGE_PIXELS``, applies as well.
        threads: Accepted like every backend does; this one uses the calling thread only.
        fidelity: Accepted like every backend does; this one is the reference in any case, also for "draft".
    """

    name = "pillow"

    def __init__(self, *, max_pixels: int = MAX_PIXELS, threads: int = 1, fidelity: str = "fast") -> None:
        check_options(max_pixels, threads, fidelity)
        self.max_pixels = max_pixels

    def check(self, recipe: Recipe) -> None:
        """Refuses a recipe with an op that is not feeder's.

        Raises:
            BackendError: naming the op.
        """
        is_float = False
        for op in recipe.ops:
            is_float = is_float or (isinstance(op, _VALUE_OPS) and not _keeps_uint8(op))
            known = ARRAY_OPS if is_float else IMAGE_OPS
            unknown = [
                each for each in (op, *op.inner_ops) if not isinstance(each, _VALUE_OPS) and type(each) not in known
            ]
            if unknown:
                raise BackendError(
                    f"backend 'pillow' can't run {type(unknown[0]).__name__}, which is no op of feeder.transforms; "
                    "wrap a function of your own in feeder.transforms.Lambda"
                )

    def decode(
        self,
        buffers: Sequence[Buffer],
        orientations: Uint8s,
        views: Sequence[View],
        first_rows: Int32s | None = None,
    ) -> DecodeResult:
        """Decodes N images once each, and augments them for every view; see :meth:`Decoder.decode`."""
        check_views(buffers, orientations, views)
        spent_ns = np.zeros((len(buffers), 3), np.int64)
        errors: list[DecodeError | None] = [None] * len(buffers)
        clipped = 0
        with quiet_pillow(), kept_generators():
            for row, buffer in enumerate(buffers):
                try:
                    is_clipped, spent_ns[row] = self._decode_one(row, buffer, int(orientations[row]), views)
                    clipped += is_clipped
                except DecodeError as error:
                    errors[row] = error
        return DecodeResult(errors, clipped=clipped, spent_ns=spent_ns)

    def _decode_one(
        self, row: int, buffer: Buffer, orientation: int, views: Sequence[View]
    ) -> tuple[bool, tuple[int, int, int]]:
        """Makes the views of one image; returns True if it was clipped, and the time of each stage, nanoseconds."""
        clock = time.perf_counter_ns
        transform_ns = write_ns = 0
        started = clock()
        image, clipped = self._upright(buffer, orientation, views[0].draws, row)
        decode_ns = clock() - started
        for recipe, draws, out in views:
            decoded = clock()
            result = self._run(image, recipe, draws, row, 0)
            transformed = clock()
            self._store(result, recipe, draws, row, out[row])
            transform_ns += transformed - decoded
            write_ns += clock() - transformed
        return clipped, (decode_ns, transform_ns, write_ns)

    def finish(
        self,
        base: Uint8s,
        recipe: Recipe,
        draws: Draws,
        row: int,
        out: npt.NDArray[np.generic],
    ) -> None:
        """Runs the ops after the base path on an image from another backend.

        Args:
            base: uint8 [H, W, 3], 0-255: the base path's output, C-contiguous.
            recipe: The ops.
            draws: Drawn parameters.
            row: The image's row in the draws.
            out: [3, H', W'] of ``recipe.storage_dtype``.

        Raises:
            DecodeError: if an op can't be done on this image.
        """
        result = self._run(Image.fromarray(base), recipe, draws, row, recipe.base_length)
        self._store(result, recipe, draws, row, out)

    def _upright(self, buffer: Buffer, orientation: int, draws: Draws, row: int) -> tuple[Image.Image, bool]:
        """Returns the whole image as RGB (like torchvision's ``pil_loader``) and upright, and True if it is clipped."""
        if not buffer:
            raise DecodeError("empty file; expected an encoded image")
        image: Image.Image
        try:
            image, turn, clipped = self._open(buffer, orientation)
            if turn is not None:
                image = image.transpose(turn)
        except DecodeError:
            raise
        except UnidentifiedImageError:
            raise DecodeError(f"not an image that Pillow can read; starts with {bytes(buffer[:8])!r}") from None
        except Exception as error:  # Pillow raises nearly every kind on damaged files
            raise DecodeError(f"Pillow: {str(error) or type(error).__name__}") from None
        height, width = (int(side) for side in draws.image_size[row])
        if image.size != (width, height):
            raise DecodeError(
                f"the index says {width}x{height} pixels (width x height, upright), the image has "
                f"{image.width}x{image.height}; run `feeder index` again if the shards have changed"
            )
        return image, clipped

    def _open(self, buffer: Buffer, orientation: int) -> tuple[Image.Image, Image.Transpose | None, bool]:
        """Returns the stored image as RGB, the operation that makes it upright, and True if it is clipped."""
        if is_raw(buffer):
            pixels = raw_pixels(buffer)
            self._check_pixels("the array", pixels.shape[1], pixels.shape[0])
            return Image.fromarray(pixels).convert("RGB"), _UPRIGHT.get(orientation), False
        if is_packed(buffer):
            buffer = unpack(buffer)
        with Image.open(io.BytesIO(buffer), formats=PILLOW_FORMATS) as stored:
            self._check_pixels("the image", stored.width, stored.height)
            # Pillow itself turns TIFF images upright while it loads them.
            turn = None if stored.format == "TIFF" else _UPRIGHT.get(orientation)
            return stored.convert("RGB"), turn, _is_clipped(stored)

    def _check_pixels(self, what: str, width: int, height: int) -> None:
        if width * height > self.max_pixels:
            most = f"max_pixels={self.max_pixels}"
            raise DecodeError(f"{what} has {width}x{height} pixels, more than {most}; make it smaller")

    def _run(self, image: Image.Image, recipe: Recipe, draws: Draws, row: int, start: int) -> Image.Image | Float32s:
        """Runs the ops from number ``start`` on, but for the tail.

        Returns:
            An RGB image, or float32 [3, H, W] after ToDtype.
        """
        current: Image.Image | Float32s = image
        steps = zip(recipe.head.ops[start:], draws.ops[start:], strict=False)
        for is_values, group in itertools.groupby(steps, key=lambda step: isinstance(step[0], _VALUE_OPS)):
            if is_values:
                values = tuple(op for op, _ in group if not _keeps_uint8(op))
                if not values:
                    pass
                elif isinstance(current, np.ndarray):
                    scale, bias = compose_affine(values, is_float=True)
                    current = current * scale[:, None, None] + bias[:, None, None]
                else:
                    current = _through_table(current, _table(values))
                continue

            for op, params in group:
                sample = {name: column[row] for name, column in params.items()}
                if isinstance(current, np.ndarray):
                    current = ARRAY_OPS[type(op)](current, op, sample)
                else:
                    if "resized_height" in sample:
                        self._check_pixels(
                            type(op).__name__, int(sample["resized_width"]), int(sample["resized_height"])
                        )
                    if "padding" in sample:
                        left, top, right, bottom = sample["padding"].tolist()
                        self._check_pixels(
                            type(op).__name__, current.width + left + right, current.height + top + bottom
                        )
                    current = IMAGE_OPS[type(op)](current, op, sample)
        return current

    def _store(
        self, result: Image.Image | Float32s, recipe: Recipe, draws: Draws, row: int, out: npt.NDArray[np.generic]
    ) -> None:
        is_gray = recipe.channels == 1
        if recipe.tail is not None:
            if is_gray:
                result = result[:1] if isinstance(result, np.ndarray) else result.getchannel(0)
            recipe.tail.write(result, int(draws.ops[-1]["key"][row]), out)
            return

        array = result if isinstance(result, np.ndarray) else np.asarray(result).transpose(2, 0, 1)
        array = array[: len(out)] if is_gray else array
        if array.shape != out.shape:
            raise ArgumentError(
                f"out must be {list(array.shape)} (channels, height, width) for this image, got {list(out.shape)}; "
                "end the recipe with a size that doesn't depend on the image"
            )
        if recipe.output_dtype == "bfloat16":
            out[...] = bfloat16_bits(array)
        else:
            out[...] = array


def _is_clipped(image: Image.Image) -> bool:
    """Returns whether an image loses range in RGB: floats, and integers outside 0-255."""
    if image.mode == "F":
        return True
    if not image.mode.startswith("I"):
        return False
    samples = np.asarray(image)  # Pillow's own getextrema() does not take all of these modes
    return bool(samples.min() < 0 or samples.max() > 255)


@lru_cache(maxsize=64)
def _table(values: tuple[Op, ...]) -> Float32s:
    """Returns float32 [3, 256]: the output of every pixel value."""
    scale, bias = compose_affine(values, is_float=False)
    return np.arange(256, dtype=np.float32) * scale[:, None] + bias[:, None]


def _through_table(image: Image.Image, table: Float32s) -> Float32s:
    """Returns float32 [3, H, W]; a table is faster than arithmetic, and rounds alike on every CPU."""
    pixels = np.asarray(image)
    array = np.empty((3, *pixels.shape[:2]), np.float32)
    for channel in range(3):
        np.take(table[channel], pixels[:, :, channel], out=array[channel], mode="clip")
    return array


def _keeps_uint8(op: Op) -> bool:
    return isinstance(op, ToDtype) and op.dtype == "uint8"

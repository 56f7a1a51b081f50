"""Masks: a PNG's class numbers, and a recipe's moves on them as torchvision v2 does them, to the nearest pixel.

Crops, resizes, flips and padding only choose rows and columns, so a mask is cut once, at the end, by two arrays of
numbers; warps take a number per pixel, in torch's float32 arithmetic.
"""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Collection
from typing import Any, cast

import numpy as np

from feeder import _native
from feeder.decoders.decoder import MAX_PIXELS, Buffer
from feeder.decoders.image_header import PNG_SIGNATURE, png_chunks
from feeder.errors import DecodeError
from feeder.system.arrays import AnyArray, Float32s, Int32s, Int64s, Size, Uint8s
from feeder.transforms.matrices import affine_matrix
from feeder.transforms.moves import Border, Crop, Flip, Move, Moves, Scaling, Swap, Tilt, Warp
from feeder.transforms.target_ops import TargetOp

MaskArray = Uint8s | Int32s

_HEAD_BYTES = 26
_GRAY, _PALETTE = 0, 3
_COLORS = {2: "RGB", 4: "gray and alpha", 6: "RGBA"}
_OUTSIDE = -1


def decode_mask(data: Buffer | AnyArray, dtype: str) -> MaskArray:
    """Decodes a mask.

    Args:
        data: A PNG: 8-bit grayscale, bilevel or palette; with "int32" also 16-bit grayscale. Or its class numbers, of
            any integer dtype [H, W].
        dtype: "uint8" or "int32".

    Returns:
        Its class numbers, uint8 or int32 [H, W].

    Raises:
        DecodeError: saying what else it is, and what to do.
    """
    if isinstance(data, np.ndarray):
        if data.ndim != 2 or data.dtype.kind not in "biu" or (data.astype(dtype) != data).any():
            raise DecodeError(
                f"a mask must be class numbers [H, W] that fit into {dtype}, got {data.dtype} {list(data.shape)}"
            )
        return cast(MaskArray, data.astype(dtype))

    width, height, depth = _header(data)
    if depth == 16 and dtype != "int32":
        raise DecodeError("the mask is a 16-bit PNG, which needs T.Mask(dtype=torch.int32)")
    if width * height > MAX_PIXELS:
        raise DecodeError(f"the mask has {width}x{height} pixels, more than the {MAX_PIXELS} allowed; make it smaller")
    numbers = _numbers(memoryview(data), height, width, depth) if depth >= 8 else None
    return cast(MaskArray, (_with_pillow(data) if numbers is None else numbers).astype(dtype, copy=False))


def check_mask(data: Buffer, sizes: Collection[Size]) -> None:
    """Checks by its header that a member can be the mask of an image.

    Args:
        data: The member.
        sizes: (height, width) that the mask may have, pixels.

    Raises:
        DecodeError: saying what else it is, and what to do.
    """
    width, height, _ = _header(data)
    if (height, width) not in sizes:
        expected = " or ".join(f"{width}x{height}" for height, width in sizes)
        raise DecodeError(f"the mask has {width}x{height} pixels (width x height), the image {expected}")


def _header(data: Buffer) -> tuple[int, int, int]:
    """Returns a mask's width and height, pixels, and its bits a pixel."""
    head = bytes(data[:_HEAD_BYTES])
    if len(head) < _HEAD_BYTES or head[:8] != PNG_SIGNATURE or head[12:16] != b"IHDR":
        raise DecodeError(
            f"a mask must be a PNG; this member starts with {head[:8]!r}: write masks as PNGs, which keep each number"
        )
    width, height, depth, color = struct.unpack(">IIBB", head[16:26])
    if color in _COLORS:
        raise DecodeError(
            f"the mask is a PNG of {_COLORS[color]} colors, which are no class numbers; write one number per pixel, "
            "as 8-bit grayscale or with a palette, before sharding"
        )
    if color == _GRAY and depth in (2, 4):
        raise DecodeError(
            f"the mask is a {depth}-bit grayscale PNG, whose numbers readers scale to 0-255; write it with 8 bits"
        )
    return width, height, depth


def _numbers(data: memoryview, height: int, width: int, depth: int) -> AnyArray | None:
    """Decodes a PNG of 8 or 16 bits a pixel, faster than Pillow; None if Pillow is to decode or refuse it."""
    if len(data) < 29 or data[28] != 0:  # interlaced
        return None
    parts = []
    for kind, start, end in png_chunks(data):
        if kind == b"IDAT":
            parts.append(data[start:end])
        elif parts:
            break
    row_bytes = width * depth // 8
    size = height * (1 + row_bytes)
    try:
        # One byte more than the pixels take, so that the memory is sized by the header.
        rows = zlib.decompressobj().decompress(parts[0] if len(parts) == 1 else b"".join(parts), size + 1)
        table = np.frombuffer(rows, np.uint8).reshape(height, 1 + row_bytes)
        numbers = table[:, 1:]
        if table[:, 0].any():  # writers leave palette images unfiltered
            numbers = np.empty((height, row_bytes), np.uint8)
            _native.unfilter_png(rows, numbers, depth // 8)
    except (ValueError, zlib.error):
        return None
    return numbers if depth == 8 else numbers.view(">u2")


def _with_pillow(data: Buffer) -> AnyArray:
    from PIL import Image  # few masks need it

    try:
        with Image.open(io.BytesIO(data), formats=("PNG",)) as image:
            return np.array(image)
    except Exception as error:  # Pillow raises nearly every kind on damaged files
        raise DecodeError(f"the mask: Pillow: {str(error) or type(error).__name__}") from None


def move_mask(mask: MaskArray, fill: int, moves: Moves) -> MaskArray:
    """Moves a mask.

    Args:
        mask: uint8 or int32 [H, W].
        fill: Number for area from outside the image.
        moves: The moves.

    Returns:
        The mask after the moves, C-contiguous; it may be the given one.
    """
    cut = _Cut(mask, fill)
    for move, canvas in moves:
        if isinstance(move, (Warp, Tilt)):
            cut = _Cut(_warped(cut.pixels(), fill, move, canvas), fill)
        elif not isinstance(move, TargetOp):
            cut.move(move, canvas)
    return cut.pixels()


class _Cut:
    """Rows and columns chosen of a mask, ``_OUTSIDE`` for those to fill; None for all."""

    def __init__(self, mask: MaskArray, fill: int) -> None:
        self._mask = mask
        self._fill = fill
        self._rows: Int64s | None = None
        self._columns: Int64s | None = None

    def move(self, move: Move, canvas: Size) -> None:
        height, width = canvas
        if isinstance(move, Swap):
            rows = self._rows
            self._mask = self._mask.T
            self._rows = self._columns
            self._columns = rows
        elif isinstance(move, Flip):
            if move.is_vertical:
                self._rows = _along(self._rows, height)[::-1]
            else:
                self._columns = _along(self._columns, width)[::-1]
        elif isinstance(move, Crop):
            self._rows = _window(_along(self._rows, height), move.top, move.height)
            self._columns = _window(_along(self._columns, width), move.left, move.width)
        elif isinstance(move, Border):
            self._rows = _padded(_along(self._rows, height), move.top, move.bottom, move.mode)
            self._columns = _padded(_along(self._columns, width), move.left, move.right, move.mode)
        elif isinstance(move, Scaling):
            if move.height != height:
                self._rows = _along(self._rows, height)[_nearest(height, move.height, move.is_exact)]
            if move.width != width:
                self._columns = _along(self._columns, width)[_nearest(width, move.width, move.is_exact)]

    def pixels(self) -> MaskArray:
        """Cuts the mask."""
        mask: AnyArray = self._mask
        if self._rows is None and self._columns is None:
            return cast(MaskArray, np.ascontiguousarray(mask))
        rows, columns = _along(self._rows, mask.shape[0]), _along(self._columns, mask.shape[1])
        cut = np.empty((len(rows), len(columns)), mask.dtype)
        _native.cut_mask(mask, np.ascontiguousarray(rows), np.ascontiguousarray(columns), self._fill, cut)
        return cast(MaskArray, cut)


def _along(places: Int64s | None, length: int) -> Int64s:
    return np.arange(length) if places is None else places


def _window(places: Int64s, start: int, length: int) -> Int64s:
    end = start + length
    if start >= 0 and end <= len(places):
        return places[start:end]
    inside = places[max(start, 0) : max(end, 0)]
    before = min(max(-start, 0), length)
    return np.pad(inside, (before, length - before - len(inside)), constant_values=_OUTSIDE)


def _padded(places: Int64s, before: int, after: int, mode: str) -> Int64s:
    if mode == "constant":
        return np.pad(places, (before, after), constant_values=_OUTSIDE)
    around: Any = mode
    return np.pad(places, (before, after), mode=around)


def _nearest(length: int, new_length: int, is_exact: bool) -> Int64s:
    """Returns where torch's "nearest" or "nearest-exact" takes each pixel from, in its float32 arithmetic."""
    pixels = np.arange(new_length, dtype=np.float32) + np.float32(0.5 if is_exact else 0.0)
    places = np.floor(pixels * (np.float32(length) / np.float32(new_length))).astype(np.int64)
    inside: Int64s = np.minimum(places, length - 1)
    return inside


def _warped(mask: MaskArray, fill: int, move: Warp | Tilt, canvas: Size) -> MaskArray:
    """Computes torch's ``grid_sample`` with the mode "nearest"."""
    if isinstance(move, Warp) and move.turns >= 0:
        return cast(MaskArray, np.ascontiguousarray(np.rot90(mask, move.turns)))
    height, width = canvas
    x, y = _affine_grid(move, canvas) if isinstance(move, Warp) else _perspective_grid(move, canvas)
    with np.errstate(invalid="ignore"):
        x = np.rint(((x + np.float32(1)) * np.float32(width) - np.float32(1)) / np.float32(2))
        y = np.rint(((y + np.float32(1)) * np.float32(height) - np.float32(1)) / np.float32(2))
        inside = (x >= 0) & (x < width) & (y >= 0) & (y < height)
    place = np.where(inside, y, 0).astype(np.int64) * width + np.where(inside, x, 0).astype(np.int64)
    return cast(MaskArray, np.where(inside, mask.reshape(-1)[place], mask.dtype.type(fill)))


def _affine_grid(move: Warp, canvas: Size) -> tuple[Float32s, Float32s]:
    """Returns each output pixel's source, x and y from -1 to 1 across the mask."""
    height, width = canvas
    center = move.options["center"]
    middle = (0.0, 0.0) if center is None else (center[0] - width * 0.5, center[1] - height * 0.5)
    matrix = affine_matrix(width, height, **(move.options | {"center": middle}))
    theta = np.array(matrix, np.float32).reshape(2, 3) / np.array([[0.5 * width], [0.5 * height]], np.float32)
    x, y = _middles(move.width, -0.5 * move.width), _middles(move.height, -0.5 * move.height)
    return _linear(theta[0], x, y), _linear(theta[1], x, y)


def _perspective_grid(move: Tilt, canvas: Size) -> tuple[Float32s, Float32s]:
    height, width = canvas
    matrix = np.array([*move.matrix, 1.0], np.float32).reshape(3, 3)
    theta = matrix[:2] / np.array([[0.5 * width], [0.5 * height]], np.float32)
    x, y = _middles(width, 0.0), _middles(height, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        distance = _linear(matrix[2], x, y)
        return (
            _linear(theta[0], x, y) / distance - np.float32(1),
            _linear(theta[1], x, y) / distance - np.float32(1),
        )


def _middles(length: int, start: float) -> Float32s:
    """Returns the middles of pixels in a row."""
    middles: Float32s = np.arange(length, dtype=np.float32) + np.float32(start + 0.5)
    return middles


def _linear(row: Float32s, x: Float32s, y: Float32s) -> Float32s:
    """Returns row . (x, y, 1) for each pixel, [H, W], rounded as fused float32 multiplications do, which torch uses."""
    total: Float32s = (row[0] * x + (row[1].astype(np.float64) * y)[:, None]).astype(np.float32) + row[2]
    return total

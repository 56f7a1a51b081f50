"""Ops that move pixels as batched torch ops on uint8 images, on any device, each image by its own numbers.

Warps repeat Pillow's arithmetic (fixed point for "nearest", float64 for the others), so the pixels are Pillow's to the
bit; resizes are kernel 2's, within a level of Pillow's.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from feeder.decoders import gpu
from feeder.decoders.device.rows import change_rows, per_image
from feeder.decoders.tensors import to_device
from feeder.system.arrays import Float64s, Int64s, Size

_Fill = tuple[int, int, int]


def warp(
    images: torch.Tensor,
    rows: Int64s,
    matrices: Float64s,
    interpolation: str,
    fill: _Fill,
) -> None:
    """Applies Pillow's ``Image.transform``, to the same size, to some of the images, in place.

    Args:
        images: uint8 [N, 3, H, W].
        rows: The images' rows, [R].
        matrices: float64 [R, 6], each a :data:`feeder.transforms.matrices.Matrix`, or [R, 8] of
            :func:`feeder.transforms.matrices.perspective_matrix`.
        interpolation: "nearest", "nearest-exact", "bilinear" or "bicubic".
        fill: RGB of pixels from outside the image.
    """
    height, width = images.shape[2:]
    around = to_device(np.array(fill, np.uint8), images.device).reshape(1, 3, 1, 1)
    filtered = {"bilinear": _bilinear, "bicubic": _bicubic}.get(interpolation)
    if matrices.shape[1] == 8:
        filtered = filtered or _nearest
    if filtered is not None:
        change_rows(images, rows, lambda some, chunk: filtered(some, matrices[chunk], around))
        return
    # Without turning and shearing a pixel depends on its column and row alone, in floats that Pillow adds up.
    straight = (matrices[:, 1] == 0.0) & (matrices[:, 3] == 0.0)
    columns = _places(matrices[straight, 0], matrices[straight, 2], width)
    lines = _places(matrices[straight, 4], matrices[straight, 5], height)

    def by_tables(some: torch.Tensor, chunk: slice) -> torch.Tensor:
        x, y = to_device(columns[chunk], images.device), to_device(lines[chunk], images.device)
        return _picked(some, x[:, None, :], y[:, :, None], around)

    change_rows(images, rows[straight], by_tables)
    turned = _fixed_point(matrices[~straight])

    def by_fixed_point(some: torch.Tensor, chunk: slice) -> torch.Tensor:
        xx, xy, x0, yx, yy, y0 = to_device(turned[chunk].T, images.device)[:, :, None, None].unbind(0)
        x, y = _grid(some, torch.int64)
        return _picked(some, x0 + y * xy + x * xx >> 16, y0 + y * yy + x * yx >> 16, around)

    change_rows(images, rows[~straight], by_fixed_point)


def _places(steps: Float64s, starts: Float64s, length: int) -> Int64s:
    """Returns each pixel's source along an axis, int64 [n, length], -1 before the image."""
    first = starts + steps * 0.5
    along = np.concatenate([first[:, None], np.broadcast_to(steps[:, None], (len(steps), length - 1))], axis=1)
    along = np.cumsum(along, axis=1)
    return np.where(along < 0.0, -1.0, np.minimum(along, 2.0**31)).astype(np.int64)


def _fixed_point(matrices: Float64s) -> Int64s:
    """Converts to 65536ths, for the middle of the upper left pixel: int64 [n, 6]."""
    moved = matrices.copy()
    moved[:, 2] = matrices[:, 2] + matrices[:, 0] * 0.5 + matrices[:, 1] * 0.5
    moved[:, 5] = matrices[:, 5] + matrices[:, 3] * 0.5 + matrices[:, 4] * 0.5
    rounded: Int64s = np.floor(moved * 65536.0 + 0.5).astype(np.int64)
    return rounded


def _grid(images: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the numbers of columns [1, 1, W] and of rows [1, H, 1]."""
    x = torch.arange(images.shape[3], dtype=dtype, device=images.device)
    y = torch.arange(images.shape[2], dtype=dtype, device=images.device)
    return x[None, None, :], y[None, :, None]


def _picked(images: torch.Tensor, x: torch.Tensor, y: torch.Tensor, around: torch.Tensor) -> torch.Tensor:
    """Returns the pixel at column x of row y for each output pixel; x and y int64, broadcast to [n, H, W]."""
    height, width = images.shape[2:]
    inside = (x >= 0) & (x < width) & (y >= 0) & (y < height)
    return torch.where(inside[:, None], _at(images, x, y), around)


def _at(images: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Returns these pixels, [n, 3, H, W]; places outside are moved to the edge."""
    height, width = images.shape[2:]
    place = y.clamp(0, height - 1) * width + x.clamp(0, width - 1)
    return images.flatten(2).gather(2, place.flatten(1)[:, None].expand(-1, 3, -1)).view_as(images)


def _sources(images: torch.Tensor, matrices: Float64s) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns each pixel's source, x and y, float64 [n, H, W], and whether it is inside the image."""
    height, width = images.shape[2:]
    xx, xy, x0, yx, yy, y0, *tilts = to_device(matrices.T, images.device)[:, :, None, None].unbind(0)
    x, y = (axis + 0.5 for axis in _grid(images, torch.float64))
    from_x, from_y = xx * x + xy * y + x0, yx * x + yy * y + y0
    if tilts:
        distance = tilts[0] * x + tilts[1] * y + 1.0
        from_x, from_y = from_x / distance, from_y / distance
    inside = (from_x >= 0.0) & (from_x < width) & (from_y >= 0.0) & (from_y < height)
    # Far outside, where they mean nothing, numbers might not fit an int64.
    return from_x.clamp_(-9.0, width + 9.0) - 0.5, from_y.clamp_(-9.0, height + 9.0) - 0.5, inside


def _nearest(images: torch.Tensor, matrices: Float64s, around: torch.Tensor) -> torch.Tensor:
    x, y, inside = _sources(images, matrices)
    column, row = (x + 0.5).floor().long(), (y + 0.5).floor().long()
    return torch.where(inside[:, None], _at(images, column, row), around)


def _between(
    images: torch.Tensor, matrices: Float64s
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns the column and the row, int64 [n, H, W], that each pixel's source is behind, how far, float64
    [n, 1, H, W], and whether it is inside the image."""
    x, y, inside = _sources(images, matrices)
    left, top = x.floor(), y.floor()
    return left.long(), top.long(), (x - left)[:, None], (y - top)[:, None], inside[:, None]


def _bilinear(images: torch.Tensor, matrices: Float64s, around: torch.Tensor) -> torch.Tensor:
    column, row, dx, dy, inside = _between(images, matrices)
    lines = []
    for below in (0, 1):
        first, second = (_at(images, column + k, row + below).double() for k in (0, 1))
        lines.append(first + (second - first) * dx)
    blended = lines[0] + (lines[1] - lines[0]) * dy
    return torch.where(inside, blended.to(torch.uint8), around)


def _bicubic(images: torch.Tensor, matrices: Float64s, around: torch.Tensor) -> torch.Tensor:
    column, row, dx, dy, inside = _between(images, matrices)
    near = range(-1, 3)
    lines = [_cubic([_at(images, column + k, row + below).double() for k in near], dx) for below in near]
    return torch.where(inside, _cubic(lines, dy).clamp_(0.0, 255.0).to(torch.uint8), around)


def _cubic(points: list[torch.Tensor], d: torch.Tensor) -> torch.Tensor:
    """Evaluates Pillow's cubic through the second and third of four points."""
    a, b, c, e = points
    return b + d * ((-a + c) + d * ((2 * (a - b) + c - e) + d * (-a + b - c + e)))


def pad(images: torch.Tensor, padding: tuple[int, int, int, int], fill: _Fill, mode: str) -> torch.Tensor:
    """Adds ``padding`` (left, top, right, bottom) pixels; see :class:`feeder.transforms.Pad`."""
    left, top, right, bottom = padding
    count, _, height, width = images.shape
    if mode != "constant":
        kind: Any = mode
        lines, columns = (
            to_device(np.pad(np.arange(length), sides, mode=kind), images.device)
            for length, sides in ((height, (top, bottom)), (width, (left, right)))
        )
        return images.index_select(2, lines).index_select(3, columns)
    around = to_device(np.array(fill, np.uint8), images.device).reshape(1, 3, 1, 1)
    padded = around.expand(count, 3, height + top + bottom, width + left + right).contiguous()
    padded[:, :, top : top + height, left : left + width] = images
    return padded


def crop(images: torch.Tensor, top: Int64s, left: Int64s, size: Size) -> torch.Tensor:
    """Crops a window of each image; pixels outside the image are 0.

    Args:
        images: uint8 [N, 3, H, W].
        top: [N].
        left: [N].
        size: (height, width) of the windows.
    """
    height, width = images.shape[2:]
    reach = int(-top.min()), int(-left.min()), int(left.max()) + size[1] - width, int(top.max()) + size[0] - height
    above, before, after, below = (max(0, each) for each in reach)
    if above or before or after or below:
        images = pad(images, (before, above, after, below), (0, 0, 0), "constant")
    lines = per_image(top + above, images) + torch.arange(size[0], device=images.device)[:, None]
    columns = per_image(left + before, images) + torch.arange(size[1], device=images.device)
    channels = torch.arange(3, device=images.device)[:, None, None]
    which = torch.arange(len(images), device=images.device)[:, None, None, None]
    return images[which, channels, lines, columns]


def resize(images: torch.Tensor, windows: Int64s, size: Size) -> torch.Tensor:
    """Resizes a window of each image with kernel 2, which has Pillow's bilinear filter.

    Args:
        images: uint8 [N, 3, H, W].
        windows: [N, 4], (left, top, right, bottom), inside the images.
        size: (height, width) of the output.
    """
    height, width = images.shape[2:]
    if size == (height, width) and (windows == (0, 0, width, height)).all():
        return images
    stored = gpu.Ragged.of(images.permute(0, 2, 3, 1).contiguous().unbind())
    boxes = torch.from_numpy(windows)
    return gpu.crop_resize(stored, boxes.double(), boxes, size)

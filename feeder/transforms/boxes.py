"""Bounding boxes and keypoints in float32, moved as torchvision v2 does it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from feeder.system.arrays import Bools, Float32s, Int64s, Size
from feeder.transforms.matrices import affine_matrix
from feeder.transforms.moves import Border, Crop, Flip, Move, Moves, Scaling, Swap, Tilt, Warp, drawn_moves
from feeder.transforms.op import IntArray, Op, Params
from feeder.transforms.target_ops import (
    ClampBoundingBoxes,
    ClampKeyPoints,
    SanitizeBoundingBoxes,
    SanitizeKeyPoints,
    TargetOp,
)

# The four corners, clockwise from the upper left, in the columns of a box.
_CORNERS = [[0, 1], [2, 1], [2, 3], [0, 3]]


class Boxes(NamedTuple):
    """A sample's boxes.

    Attributes:
        values: float32 [K, 4], pixels.
        format: "xyxy", "xywh" or "cxcywh".
        clamping_mode: "soft", "hard" or None; see :class:`feeder.transforms.BoundingBoxes`.
    """

    values: Float32s
    format: str = "xyxy"
    clamping_mode: str | None = "soft"


@dataclass(frozen=True)
class SampleBoxes:
    """The boxes of N samples, in upright pixels, for ops that draw from them."""

    boxes: Sequence[Boxes]

    def __call__(self, ops: tuple[Op, ...], drawn: tuple[Params, ...], sizes: IntArray) -> list[Float32s]:
        """Returns them after a recipe's first ops.

        Args:
            ops: The ops.
            drawn: Their drawn parameters, N rows each.
            sizes: int64 [N, 2], upright (height, width) of the images.

        Returns:
            N arrays float32 [K, 4], (left, top, right, bottom).
        """
        moved = []
        for row, (boxes, (height, width)) in enumerate(zip(self.boxes, sizes.tolist(), strict=True)):
            now, _ = move_boxes(boxes, drawn_moves(ops, drawn, row, (height, width)))
            moved.append(_to_xyxy(now.values, now.format))
        return moved


def move_boxes(boxes: Boxes, moves: Moves) -> tuple[Boxes, Int64s]:
    """Moves boxes; returns those that are left, and their numbers before, int64 [K]."""
    kept = np.arange(len(boxes.values))
    for move, canvas in moves:
        if isinstance(move, SanitizeBoundingBoxes):
            valid = _valid(boxes, canvas, move)
            boxes, kept = boxes._replace(values=boxes.values[valid]), kept[valid]
        elif isinstance(move, ClampBoundingBoxes):
            mode = boxes.clamping_mode if move.clamping_mode == "auto" else move.clamping_mode
            boxes = boxes._replace(values=_clamped(boxes.values, boxes.format, canvas, mode))
        elif not isinstance(move, TargetOp):
            boxes = boxes._replace(values=_moved(boxes, move, canvas))
    return boxes, kept


def _to_xyxy(values: Float32s, format: str) -> Float32s:
    """Returns (left, top, right, bottom) of boxes."""
    if format == "xyxy":
        return values
    start, size = values[:, :2], values[:, 2:]
    if format == "cxcywh":
        start = start - size / np.float32(2)
    return np.concatenate([start, start + size], axis=1)


def _from_xyxy(values: Float32s, format: str) -> Float32s:
    """Returns boxes of (left, top, right, bottom) in a format."""
    if format == "xyxy":
        return values
    start, size = values[:, :2], values[:, 2:] - values[:, :2]
    return np.concatenate([(start * 2 + size) / 2 if format == "cxcywh" else start, size], axis=1)


def _clamped(values: Float32s, format: str, canvas: Size, mode: str | None) -> Float32s:
    """Returns boxes cut to a canvas, (height, width), unless the mode is None."""
    if mode is None:
        return values
    height, width = canvas
    edges = np.array([width, height, width, height], np.float32)
    return _from_xyxy(np.clip(_to_xyxy(values, format), 0, edges), format)


def _valid(boxes: Boxes, canvas: Size, op: SanitizeBoundingBoxes) -> Bools:
    """Returns True for boxes inside a canvas, (height, width), that are large enough for the op."""
    xyxy = _to_xyxy(boxes.values, boxes.format)
    width, height = (xyxy[:, 2:] - xyxy[:, :2]).T
    edges = np.array([canvas[1], canvas[0]] * 2, np.float32)
    inside = ((xyxy >= 0) & (xyxy <= edges)).all(axis=1)
    large = (width >= op.min_size) & (height >= op.min_size) & (width * height >= op.min_area)
    valid: Bools = inside & large
    return valid


def _moved(boxes: Boxes, move: Move, canvas: Size) -> Float32s:
    """Returns the values of boxes after a move; canvas is the image's (height, width) before it."""
    values, format, mode = boxes
    if not len(values):
        return values

    if isinstance(move, Crop):
        cropped = _clamped(values - _shift(move, format), format, (move.height, move.width), mode)
        if move.keeps_centers:
            cropped[~_has_center(_to_xyxy(values, format), move)] = 0
        return cropped

    if isinstance(move, Scaling):
        if (move.height, move.width) == canvas:
            return values
        return values * np.array([move.width / canvas[1], move.height / canvas[0]] * 2, np.float32)

    if isinstance(move, Flip):
        return _mirrored(values, format, int(move.is_vertical), np.float32(canvas[0 if move.is_vertical else 1]))
    if isinstance(move, Swap):
        return values[:, [1, 0, 3, 2]]
    if isinstance(move, Border):
        size = canvas[0] + move.top + move.bottom, canvas[1] + move.left + move.right
        return _clamped(values + _shift(move, format), format, size, mode)

    # Other moves turn edges: the box is that around the four corners, where they come to.
    corners = _to_xyxy(values, format)[:, _CORNERS].reshape(-1, 2)
    if isinstance(move, Warp):
        corners, size = _warped(corners, move, canvas), (move.height, move.width)
    else:
        corners, size = _tilted(corners, move), canvas

    around = corners.reshape(-1, 4, 2)
    xyxy = np.concatenate([around.min(axis=1), around.max(axis=1)], axis=1)
    return _from_xyxy(_clamped(xyxy, "xyxy", size, mode), format)


def _shift(move: Crop | Border, format: str) -> Float32s:
    """Returns what a crop takes from a box's values and a border adds to them: sizes stay."""
    return np.array([move.left, move.top] * 2 if format == "xyxy" else [move.left, move.top, 0, 0], np.float32)


def _mirrored(values: Float32s, format: str, axis: int, length: np.float32) -> Float32s:
    """Returns boxes mirrored along an axis, 0 for x and 1 for y, of a canvas of that length."""
    mirrored: Float32s = values.copy()
    if format == "xyxy":
        mirrored[:, [axis, axis + 2]] = length - values[:, [axis + 2, axis]]
    elif format == "xywh":
        mirrored[:, axis] = length - (values[:, axis] + values[:, axis + 2])
    else:
        mirrored[:, axis] = length - values[:, axis]
    return mirrored


def _has_center(xyxy: Float32s, window: Crop) -> Bools:
    x, y = (np.float32(0.5) * (xyxy[:, :2] + xyxy[:, 2:])).T
    right, bottom = window.left + window.width, window.top + window.height
    has: Bools = (window.left < x) & (x < right) & (window.top < y) & (y < bottom)
    return has


def _warped(points: Float32s, warp: Warp, canvas: Size) -> Float32s:
    """Returns points after an affine map, float32 [P, 2]; canvas is the image's (height, width) before it."""
    height, width = canvas
    matrix = np.array(affine_matrix(width, height, **warp.options, forward=True), np.float32).reshape(2, 3).T
    moved: Float32s = _homogeneous(points) @ matrix
    if warp.expands:
        frame = np.array([[0, 0], [0, height], [width, height], [width, 0]], np.float32)
        moved -= (_homogeneous(frame) @ matrix).min(axis=0)
    return moved


def _tilted(points: Float32s, tilt: Tilt) -> Float32s:
    """Returns points after a perspective, float32 [P, 2]."""
    matrix = np.array([*tilt.matrix, 1.0]).reshape(3, 3)
    # The adjugate is the inverse up to a factor, which the division takes out, and exists where the inverse does not.
    adjugate = np.cross(matrix[[1, 2, 0]], matrix[[2, 0, 1]])
    moved = _homogeneous(points).astype(np.float64) @ adjugate
    with np.errstate(divide="ignore", invalid="ignore"):
        return (moved[:, :2] / moved[:, 2:]).astype(np.float32)


def _homogeneous(points: Float32s) -> Float32s:
    return np.concatenate([points, np.ones((len(points), 1), np.float32)], axis=1)


def move_points(points: Float32s, moves: Moves) -> tuple[Float32s, Int64s]:
    """Moves keypoints.

    Args:
        points: float32 [K, ..., 2], (x, y) in pixels.
        moves: The moves.

    Returns:
        The groups that are left, and their numbers before, int64 [K].
    """
    kept = np.arange(len(points))
    for move, canvas in moves:
        if isinstance(move, SanitizeKeyPoints):
            edges = np.array(canvas[::-1], np.float32)
            inside = ((points >= 0) & (points < edges)).all(axis=tuple(range(1, points.ndim)))
            points, kept = points[inside], kept[inside]
        elif isinstance(move, ClampKeyPoints):
            points = np.clip(points, 0, np.array(canvas[::-1], np.float32) - 1)
        elif not isinstance(move, TargetOp) and points.size:
            points = _moved_points(points.reshape(-1, 2), move, canvas).reshape(points.shape)
    return points, kept


def _moved_points(points: Float32s, move: Move, canvas: Size) -> Float32s:
    """Returns points, float32 [P, 2], after a move; canvas is the image's (height, width) before it."""
    if isinstance(move, Crop):
        return points - np.array([move.left, move.top], np.float32)
    if isinstance(move, Scaling):
        if (move.height, move.width) == canvas:
            return points
        return points * np.array([move.width / canvas[1], move.height / canvas[0]], np.float32)
    if isinstance(move, Flip):
        axis, length = (1, canvas[0]) if move.is_vertical else (0, canvas[1])
        mirrored: Float32s = points.copy()
        mirrored[:, axis] = np.float32(length - 1) - points[:, axis]
        return mirrored
    if isinstance(move, Swap):
        return points[:, ::-1]
    if isinstance(move, Border):
        return points + np.array([move.left, move.top], np.float32)
    return _warped(points, move, canvas) if isinstance(move, Warp) else _tilted(points, move)

"""Keypoints in float32, moved as torchvision v2 does it."""

from __future__ import annotations

import numpy as np

from feeder.system.arrays import Int64s
from feeder.transforms.boxes import Floats, tilted, warped
from feeder.transforms.moves import Border, Crop, Flip, Move, Moves, Scaling, Swap, Warp
from feeder.transforms.target_ops import ClampKeyPoints, SanitizeKeyPoints, TargetOp

__all__ = ["move_points"]


def move_points(points: Floats, moves: Moves) -> tuple[Floats, Int64s]:
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
            points = _moved(points.reshape(-1, 2), move, canvas).reshape(points.shape)
    return points, kept


def _moved(points: Floats, move: Move, canvas: tuple[int, int]) -> Floats:
    if isinstance(move, Crop):
        return points - np.array([move.left, move.top], np.float32)
    if isinstance(move, Scaling):
        if (move.height, move.width) == canvas:
            return points
        return points * np.array([move.width / canvas[1], move.height / canvas[0]], np.float32)
    if isinstance(move, Flip):
        axis, length = (1, canvas[0]) if move.is_vertical else (0, canvas[1])
        mirrored: Floats = points.copy()
        mirrored[:, axis] = np.float32(length - 1) - points[:, axis]
        return mirrored
    if isinstance(move, Swap):
        return points[:, ::-1]
    if isinstance(move, Border):
        return points + np.array([move.left, move.top], np.float32)
    return warped(points, move, canvas) if isinstance(move, Warp) else tilted(points, move)

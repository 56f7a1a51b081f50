"""A recipe's base path in the terms of the kernels, which draw the same parameters for it."""

from __future__ import annotations

import math

from feeder import _native
from feeder.transforms.geometry import CenterCrop, RandomCrop, RandomHorizontalFlip, RandomResizedCrop, Resize
from feeder.transforms.recipe import Recipe
from feeder.transforms.target_ops import TargetOp
from feeder.transforms.values import Normalize, ToDtype

__all__ = ["base_ops"]

_LARGEST_SIDE = (1 << 16) - 1


def base_ops(recipe: Recipe) -> _native.BaseOps | None:
    """Returns the ops of the base path of a recipe without variable sizes; None if one is unknown to the kernels."""
    ops = _native.BaseOps()
    for stream, op in enumerate(recipe.ops[: recipe.base_length]):
        kind = type(op)
        if max(_sides(op), default=0) > _LARGEST_SIDE:
            return None
        if isinstance(op, RandomResizedCrop) and kind is RandomResizedCrop:
            logs = math.log(op.ratio[0]), math.log(op.ratio[1])
            ops.add_random_resized_crop(stream, *op.size, op.scale, op.ratio, logs)
        elif isinstance(op, RandomCrop) and kind is RandomCrop:
            ops.add_random_crop(stream, *op.size)  # without padding, which is no part of a base path
        elif isinstance(op, CenterCrop) and kind is CenterCrop:
            ops.add_center_crop(*op.size)
        elif isinstance(op, Resize) and kind is Resize:
            _add_resize(ops, op)
        elif isinstance(op, RandomHorizontalFlip) and kind is RandomHorizontalFlip:
            ops.add_horizontal_flip(stream, op.p)
        elif kind is not ToDtype and kind is not Normalize and not isinstance(op, TargetOp):
            return None
    return ops


def _sides(op: object) -> list[int]:
    values = (getattr(op, name, None) for name in ("size", "max_size"))
    return [side for value in values if value is not None for side in ([value] if isinstance(value, int) else value)]


def _add_resize(ops: _native.BaseOps, op: Resize) -> None:
    if op.size is None:
        ops.add_resize("longer", 0, 0, op.max_size or 1)
    elif op.cover or len(op.size) == 2:
        ops.add_resize("cover" if op.cover else "both", op.size[0], op.size[-1], 0)
    else:
        ops.add_resize("shorter", op.size[0], 0, op.max_size or 0)

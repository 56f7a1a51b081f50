"""The ops that kernel 1 runs in one pass, the erasing after it, and their parameters for a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from feeder.system.arrays import Bools, Float32s, Int32s, Uint8s, Uint64s
from feeder.transforms import (
    ColorJitter,
    Draws,
    Normalize,
    Op,
    RandomErasing,
    RandomGrayscale,
    RandomHorizontalFlip,
    Recipe,
    ToDtype,
)
from feeder.transforms.op import Params
from feeder.transforms.photometric import COLOR_STEPS
from feeder.transforms.target_ops import TargetOp
from feeder.transforms.values import compose_affine

if TYPE_CHECKING:
    import torch

    from feeder.decoders.gpu import Color

_JITTER = COLOR_STEPS[:3]  # steps 1, 2 and 3 of feeder.decoders.gpu.Color
_SATURATION = 3


@dataclass
class Erasing:
    """One op's rectangles in the output.

    Args:
        boxes: int32 [N, 4], (top, left, bottom, right) in pixels of the output; empty where nothing is erased.
        value: float32 [3], the value written; None for noise.
        keys: uint64 [N], the seeds of the noise.
        mirrored: bool [N], True where the noise is mirrored left to right.
        scale: float32 [3], effect of the later ops on the noise: noise * scale + bias.
        bias: float32 [3].
    """

    boxes: Int32s
    value: Float32s | None
    keys: Uint64s
    mirrored: Bools
    scale: Float32s
    bias: Float32s


class FusedParameters(NamedTuple):
    """Arguments of :func:`feeder.decoders.gpu.normalize` for N samples, as numpy arrays, and the erasing after it.

    Attributes:
        flip: uint8 [N], 1 where the ops mirror the image.
        steps: uint8 [N, K], see :class:`feeder.decoders.gpu.Color`; None without color ops.
        factors: float32 [N, K]; None without color ops.
        erasings: The erasing ops, in order.
    """

    flip: Uint8s
    steps: Uint8s | None
    factors: Float32s | None
    erasings: list[Erasing]

    def color(self, device: torch.device) -> Color | None:
        """Returns the color steps on a device; None without color ops."""
        from feeder.decoders import gpu
        from feeder.decoders.tensors import to_device

        if self.steps is None or self.factors is None:
            return None
        has_contrast = bool((self.steps == gpu.CONTRAST).any())
        return gpu.Color(to_device(self.steps, device), to_device(self.factors, device), has_contrast)


@dataclass(frozen=True)
class DividedRecipe:
    """A recipe in two stages: one makes uint8 images on the CPU, the other runs in kernel 1 on the device.

    Args:
        cpu: The ops on the CPU.
        kept: Their numbers in the whole recipe.
        fuses_rest: True if the device runs the ops after the base path too, not only the normalization.
    """

    cpu: Recipe
    kept: tuple[int, ...]
    fuses_rest: bool

    def draws(self, whole: Draws) -> Draws:
        """Returns the draws of the ops on the CPU, from those of the whole recipe."""
        return replace(whole, ops=tuple(whole.ops[number] for number in self.kept))


def divide_recipe(recipe: Recipe) -> DividedRecipe | None:
    """Divides a recipe for batches on a device; None if all of it is best done on the CPU.

    uint8 is a quarter of float32 to copy, and the work after the copy is one pass.
    """
    values = [isinstance(op, (ToDtype, Normalize)) for op in recipe.ops]
    if (recipe.output_dtype == "uint8" and not recipe.rest) or recipe.channels == 1:
        return None
    if _is_one_pass(recipe.rest):
        kept = [number for number in range(recipe.base_length) if not values[number]]
        fuses_rest = True
    else:
        kept = list(range(values.index(True) if any(values) else len(values)))
        fuses_rest = False
        pixel_ops = [value for value, op in zip(values, recipe.ops, strict=True) if not isinstance(op, TargetOp)]
        if not any(values) or False in pixel_ops[pixel_ops.index(True) :]:
            return None
    cpu = Recipe(tuple(recipe.ops[number] for number in kept))
    return DividedRecipe(cpu, tuple(kept), fuses_rest)


def fused_from(ops: Sequence[Op]) -> int:
    """Returns the number of the first op from which on kernel 1, and erasing after it, can run all.

    These are color without hue, with at most one change of contrast, then erasing; flips, value ops and ops on
    targets alone anywhere.

    Args:
        ops: A recipe's :attr:`~feeder.transforms.Recipe.rest`.
    """
    contrasts, colors = 0, False
    for number in range(len(ops) - 1, -1, -1):
        op = ops[number]
        if isinstance(op, ColorJitter):
            contrasts += op.contrast is not None
            runs = op.hue is None and contrasts <= 1
            colors = True
        elif isinstance(op, RandomGrayscale):
            runs = colors = True
        elif isinstance(op, RandomErasing):
            runs = not colors
        else:
            runs = type(op) in (RandomHorizontalFlip, ToDtype, Normalize) or isinstance(op, TargetOp)
        if not runs:
            return number + 1
    return 0


def _is_one_pass(ops: Sequence[Op]) -> bool:
    erased = [op for op in ops if isinstance(op, RandomErasing)]
    return fused_from(ops) == 0 and len(erased) <= 1 and all(op.value is not None for op in erased)


def fused_parameters(ops: Sequence[Op], drawn: Sequence[Params], count: int, width: int) -> FusedParameters:
    """Returns the parameters of a recipe's last ops.

    Args:
        ops: The ops from :func:`fused_from` on.
        drawn: Their drawn parameters.
        count: Number of samples.
        width: Width of the output, pixels.
    """
    flip = np.zeros(count, np.uint8)
    steps: list[Uint8s] = []
    factors: list[Float32s] = []
    erasings: list[Erasing] = []

    is_float = False
    for number, (op, params) in enumerate(zip(ops, drawn, strict=True)):
        if isinstance(op, ColorJitter):
            _jitter(params, steps, factors)
        elif isinstance(op, RandomGrayscale):
            steps.append(np.where(params["gray"], _SATURATION, 0).astype(np.uint8))
            factors.append(np.zeros(count, np.float32))
        elif isinstance(op, RandomHorizontalFlip):
            flip ^= params["flip"].astype(np.uint8)
            for erasing in erasings:
                _mirror(erasing, params["flip"], width)
        elif isinstance(op, RandomErasing):
            erasings.append(erasing_of(op, params, ops[number + 1 :], is_float))
        elif not isinstance(op, TargetOp):
            is_float = is_float or not (isinstance(op, ToDtype) and op.dtype == "uint8")

    return FusedParameters(
        flip,
        np.stack(steps, axis=1) if steps else None,
        np.stack(factors, axis=1) if factors else None,
        erasings,
    )


def _jitter(params: Params, steps: list[Uint8s], factors: list[Float32s]) -> None:
    """Adds the steps of each sample in its own order; 0 for what the op leaves unchanged."""
    order = params["order"]
    kinds = np.array([k + 1 if name in params else 0 for k, name in enumerate(_JITTER)] + [0], np.uint8)
    nothing = np.ones(len(order))
    table = np.stack([params.get(name, nothing) for name in _JITTER] + [nothing], axis=1).astype(np.float32)
    in_order = np.take_along_axis(table, order, axis=1)
    for column in range(order.shape[1]):
        steps.append(kinds[order[:, column]])
        factors.append(in_order[:, column])


def erasing_of(op: RandomErasing, params: Params, later: Sequence[Op], is_float: bool) -> Erasing:
    """Returns the rectangles, with their value after the ops that follow."""
    top, left = params["i"], params["j"]
    boxes = np.stack([top, left, top + params["h"], left + params["w"]], axis=1)
    boxes = np.where(params["erase"][:, None], boxes, 0).astype(np.int32)
    value: Float32s | None = None
    scale, bias = compose_affine(later, is_float=is_float)
    if op.value is not None:
        exact = np.array(op.value)
        value = (exact if is_float else np.clip(exact, 0, 255).astype(np.uint8)).astype(np.float32)
        if any(isinstance(each, (ToDtype, Normalize)) for each in later):
            value = value * scale + bias
    return Erasing(boxes, value, params["key"], np.zeros(len(boxes), np.bool_), scale, bias)


def _mirror(erasing: Erasing, flips: Bools, width: int) -> None:
    """Mirrors the rectangles of the flipped samples left to right; empty ones stay empty."""
    rows, boxes = np.flatnonzero(flips), erasing.boxes
    left, right = boxes[rows, 1].copy(), boxes[rows, 3].copy()
    boxes[rows, 1], boxes[rows, 3] = width - right, width - left
    erasing.mirrored ^= flips

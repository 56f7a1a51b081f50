"""The ops that feeder's fused GPU kernels run after the resize, and their parameters for a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from feeder.errors import BackendError
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
from feeder.transforms.values import compose_affine

if TYPE_CHECKING:
    import torch

__all__ = ["DeviceSplit", "FusedParameters", "check_fused", "fused_parameters", "split_for_device"]

_JITTER = ("brightness", "contrast", "saturation")  # steps 1, 2 and 3 of feeder._gpu.Color
_SATURATION = 3
_RUNS = "ColorJitter without hue, RandomGrayscale, RandomHorizontalFlip, RandomErasing with numbers, ToDtype, Normalize"


class FusedParameters(NamedTuple):
    """What :func:`feeder._gpu.normalize` takes for N samples, as numpy arrays.

    Attributes:
        flip: uint8 [N], 1 where the ops after the base path mirror the image.
        steps: uint8 [N, K], see :class:`feeder._gpu.Color`; None without color ops.
        factors: float32 [N, K]; None without color ops.
        boxes: int32 [N, 4], see :class:`feeder._gpu.Erase`; None without erasing.
        value: float32 [3], what is written there; None without erasing.
    """

    flip: npt.NDArray[np.uint8]
    steps: npt.NDArray[np.uint8] | None
    factors: npt.NDArray[np.float32] | None
    boxes: npt.NDArray[np.int32] | None
    value: npt.NDArray[np.float32] | None

    def tensors(self, device: torch.device) -> dict[str, object]:
        """The keyword arguments ``color`` and ``erase``, on a device."""
        from feeder import _gpu
        from feeder.tensors import to_device

        color = erase = None
        if self.steps is not None and self.factors is not None:
            has_contrast = bool((self.steps == _gpu.CONTRAST).any())
            color = _gpu.Color(to_device(self.steps, device), to_device(self.factors, device), has_contrast)
        if self.boxes is not None and self.value is not None:
            erase = _gpu.Erase(to_device(self.boxes, device), to_device(self.value, device))
        return {"color": color, "erase": erase}


@dataclass(frozen=True)
class DeviceSplit:
    """A recipe cut in two: what makes uint8 images on the CPU, and what kernel 1 does to them on the device.

    Args:
        cpu: The ops on the CPU.
        kept: Their numbers in the whole recipe.
        fuses_rest: Whether the ops after the base path are done on the device, and not only the normalization.
    """

    cpu: Recipe
    kept: tuple[int, ...]
    fuses_rest: bool

    def draws(self, whole: Draws) -> Draws:
        """What was drawn for the ops on the CPU, of what was drawn for the whole recipe."""
        return replace(whole, ops=tuple(whole.ops[number] for number in self.kept))


def split_for_device(recipe: Recipe) -> DeviceSplit | None:
    """How to cut a recipe whose batches are wanted on a device; None if all of it is best done on the CPU.

    uint8 is a quarter of float32 to copy, and what comes after the copy is one pass.
    """
    values = [isinstance(op, (ToDtype, Normalize)) for op in recipe.ops]
    if recipe.output_dtype == "uint8" and not recipe.rest:
        return None
    try:
        check_fused(recipe, "")
        kept = [number for number in range(recipe.base_length) if not values[number]]
        fuses_rest = True
    except BackendError:
        kept = list(range(values.index(True) if any(values) else len(values)))
        fuses_rest = False
        if not any(values) or not all(values[len(kept) :]):
            return None
    cpu = Recipe(tuple(recipe.ops[number] for number in kept))
    return DeviceSplit(cpu, tuple(kept), fuses_rest)


def check_fused(recipe: Recipe, backend: str) -> None:
    """Refuses, by the op's name, a recipe with an op after the base path that the kernels don't run.

    Raises:
        BackendError: naming the op and the backends that can run it.
    """
    erased = contrasts = 0
    for op in recipe.rest:
        problem = None
        if isinstance(op, ColorJitter):
            contrasts += op.contrast is not None
            if op.hue is not None:
                problem = "it shifts the hue"
            elif erased:
                problem = "it stands after RandomErasing"
            elif contrasts > 1:
                problem = "it is the second one that changes contrast"
        elif isinstance(op, RandomGrayscale):
            problem = "it stands after RandomErasing" if erased else None
        elif isinstance(op, RandomErasing):
            erased += 1
            if op.value is None:
                problem = "its value is 'random'"
            elif erased > 1:
                problem = "it is the second one"
        elif type(op) not in (RandomHorizontalFlip, ToDtype, Normalize):
            problem = "it is none of those ops"
        if problem is not None:
            names = ", ".join(type(each).__name__ for each in recipe.rest)
            raise BackendError(
                f"backend {backend!r} can't run {type(op).__name__}: {problem}. After crop and resize it runs {_RUNS}; "
                f"this recipe has {names} there. Use backend='cpu', or leave the op out"
            )


@dataclass
class _Erasing:
    boxes: npt.NDArray[np.int32]
    value: npt.NDArray[np.float32]


def fused_parameters(recipe: Recipe, rest: Sequence[Params], count: int, width: int) -> FusedParameters:
    """The parameters of a recipe's ops after the base path.

    Args:
        recipe: One that :func:`check_fused` lets pass.
        rest: What was drawn for each op of its :attr:`~feeder.transforms.Recipe.rest`.
        count: For how many samples.
        width: Of the output, pixels.
    """
    flip = np.zeros(count, np.uint8)
    steps: list[npt.NDArray[np.uint8]] = []
    factors: list[npt.NDArray[np.float32]] = []
    erasing: _Erasing | None = None
    is_float = False
    for number, (op, params) in enumerate(zip(recipe.rest, rest, strict=True)):
        if isinstance(op, ColorJitter):
            _jitter(params, steps, factors)
        elif isinstance(op, RandomGrayscale):
            steps.append(np.where(params["gray"], _SATURATION, 0).astype(np.uint8))
            factors.append(np.zeros(count, np.float32))
        elif isinstance(op, RandomHorizontalFlip):
            flip ^= params["flip"].astype(np.uint8)
            if erasing is not None:
                _mirror(erasing.boxes, params["flip"], width)
        elif isinstance(op, RandomErasing):
            erasing = _erase(op, params, recipe.rest[number + 1 :], is_float)
        else:
            is_float = is_float or not (isinstance(op, ToDtype) and op.dtype == "uint8")
    return FusedParameters(
        flip,
        np.stack(steps, axis=1) if steps else None,
        np.stack(factors, axis=1) if factors else None,
        erasing.boxes if erasing else None,
        erasing.value if erasing else None,
    )


def _jitter(params: Params, steps: list[npt.NDArray[np.uint8]], factors: list[npt.NDArray[np.float32]]) -> None:
    """The steps of each sample in its own order; what the op leaves alone is no step."""
    order = params["order"]
    kinds = np.array([k + 1 if name in params else 0 for k, name in enumerate(_JITTER)] + [0], np.uint8)
    nothing = np.ones(len(order))
    table = np.stack([params.get(name, nothing) for name in _JITTER] + [nothing], axis=1).astype(np.float32)
    in_order = np.take_along_axis(table, order, axis=1)
    for column in range(order.shape[1]):
        steps.append(kinds[order[:, column]])
        factors.append(in_order[:, column])


def _erase(op: RandomErasing, params: Params, later: tuple[Op, ...], is_float: bool) -> _Erasing:
    """Rectangles, and their value as the ops that follow leave it."""
    top, left = params["i"], params["j"]
    boxes = np.stack([top, left, top + params["h"], left + params["w"]], axis=1)
    value = np.array(op.value, np.float32)
    if not is_float:
        value = np.clip(value, 0, 255).astype(np.uint8).astype(np.float32)
    if any(isinstance(each, (ToDtype, Normalize)) for each in later):
        scale, bias = compose_affine(later, is_float=is_float)
        value = value * scale + bias
    return _Erasing(np.where(params["erase"][:, None], boxes, 0).astype(np.int32), value)


def _mirror(boxes: npt.NDArray[np.int32], flips: npt.NDArray[np.bool_], width: int) -> None:
    """Mirrors the rectangles (top, left, bottom, right) of the flipped samples left to right; empty ones stay empty."""
    rows = np.flatnonzero(flips)
    left, right = boxes[rows, 1].copy(), boxes[rows, 3].copy()
    boxes[rows, 1], boxes[rows, 3] = width - right, width - left

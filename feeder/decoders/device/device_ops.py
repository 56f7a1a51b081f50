"""The ops that kernel 1 can't run, as batched torch ops on uint8 images on a device, before kernel 1.

All numbers are the recipe's draws on the CPU, where it is known which images an op changes: images of one kind are
processed together, and nothing waits for a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from feeder import transforms as T
from feeder.decoders.device import color, geometry_ops
from feeder.decoders.device.erase import add_noise, erase
from feeder.decoders.device.fused import erasing_of, fused_from
from feeder.decoders.device.rows import change_rows, per_image
from feeder.decoders.op_math import augmentation_matrix, drawn_matrices
from feeder.decoders.tensors import to_device
from feeder.errors import BackendError
from feeder.system.arrays import AnyArray, Float64s, Int64s
from feeder.transforms.augment import AUGMENTATIONS, ENHANCEMENTS
from feeder.transforms.choice import Branches
from feeder.transforms.op import Params, ProbabilityOp, SizeBounds
from feeder.transforms.photometric import COLOR_STEPS
from feeder.transforms.target_ops import TARGET_OPS


def check_device_ops(recipe: T.Recipe, backend: str) -> None:
    """Refuses, by the op's name, a recipe with an op after the base path that doesn't run on a device.

    Raises:
        BackendError: naming the op, why, and what to do.
    """
    for op, problem in _problems(recipe):
        if problem is not None:
            raise BackendError(
                f"backend {backend!r} can't run {type(op).__name__}: {problem}. Use backend='cpu', or leave the op out"
            )


def _problems(recipe: T.Recipe) -> Iterator[tuple[T.Op, str | None]]:
    """Yields the ops, each with the reason why it can't run on a device."""
    for op in recipe.ops[: recipe.base_length]:
        yield op, _filter_problem(op)
    extent = SizeBounds(recipe.base_size or (1, 1), recipe.base_size is not None)
    first_fused = fused_from(recipe.rest)
    for number, op in enumerate(recipe.rest):
        yield op, _problem(op, extent, number < first_fused)
        extent = op.extent(extent)


def _filter_problem(op: T.Op) -> str | None:
    interpolation = getattr(op, "interpolation", "bilinear") if op.resizes else "bilinear"
    return None if interpolation == "bilinear" else f"its interpolation is {interpolation!r}, and must be 'bilinear'"


def _problem(op: T.Op, extent: SizeBounds, is_batched: bool) -> str | None:
    """Returns why an op can't run on images of this extent; None if it can."""
    if isinstance(op, T.Lambda):
        return "it is a function of one image, for a worker to call"
    if isinstance(op, T.Grayscale) and op.num_output_channels == 1:
        return "its images have one channel"

    if isinstance(op, (T.RandomIoUCrop, T.RandomResize, T.RandomShortestSize, T.RandomZoomOut, T.ScaleJitter)):
        return "its images are of different sizes"
    if isinstance(op, T.GaussianNoise) and not is_batched:
        return "its noise is added to uint8 images on a device; put it before ToDtype and Normalize"
    if isinstance(op, (T.JPEG, T.LetterBox)):
        return "it runs on the CPU alone"
    if isinstance(op, T.TimmRandAugment):
        return "its augmentations run on the CPU alone"
    if type(op) not in (*DEVICE_OPS, T.Normalize):
        return "it is no op of feeder.transforms"
    for each in op.inner_ops:
        if (problem := _problem(each, extent, is_batched)) is not None:
            return f"of {type(each).__name__} in it: {problem}"

    if not is_batched:
        return None
    if (problem := _filter_problem(op)) is not None:
        return problem
    # Images of one size are finished together, so an op that keeps their sizes needs none.
    if not extent.fixed and (op.resizes or op.extent(extent) != extent):
        return "it gets images of different sizes here; put a crop or Resize((height, width)) first"
    if isinstance(op, T.RandomRotation) and op.expand:
        return "with expand=True its images are of different sizes"
    if isinstance(op, T.RandomCrop) and not op.pad_if_needed:
        left, top, right, bottom = op.padding or (0, 0, 0, 0)
        height, width = extent.minimum[0] + top + bottom, extent.minimum[1] + left + right
        if op.size[0] > height or op.size[1] > width:
            return (
                f"its {op.size[0]}x{op.size[1]} (height x width) is larger than the image, {height}x{width}; resize "
                "first, or set pad_if_needed=True"
            )
    return None


def run_on_device(images: torch.Tensor, op: T.Op, params: Params) -> torch.Tensor:
    """Runs an op on a batch.

    Args:
        images: uint8 [N, 3, H, W], contiguous, all of one size, on any device; may be written to.
        op: One of :data:`DEVICE_OPS`.
        params: Its drawn parameters.

    Returns:
        uint8 [N, 3, H', W'], equal to the Pillow backend's except as noted in the ops' modules.
    """
    return DEVICE_OPS[type(op)](images, op, params) if len(images) else images


def _jitter(images: torch.Tensor, op: T.ColorJitter | T.RandomPhotometricDistort, params: Params) -> torch.Tensor:
    order = params["order"]
    for place in range(order.shape[1]):
        for number, name in enumerate(COLOR_STEPS):
            if name in params:
                is_next = order[:, place] == number
                rows = np.flatnonzero(is_next & params["change"][:, number] if "change" in params else is_next)
                _adjust(images, rows, name, params[name][rows])
    return images


def _distort(images: torch.Tensor, op: T.RandomPhotometricDistort, params: Params) -> torch.Tensor:
    _jitter(images, op, params)
    exchanged = np.flatnonzero((params["permutation"] != [0, 1, 2]).any(axis=1))

    def permute(some: torch.Tensor, chunk: slice) -> torch.Tensor:
        channels = to_device(params["permutation"][exchanged[chunk]], some.device)
        return some[torch.arange(len(some), device=some.device)[:, None], channels]

    change_rows(images, exchanged, permute)
    return images


def _add_noise(images: torch.Tensor, op: T.GaussianNoise, params: Params) -> torch.Tensor:
    add_noise(images, params["key"], 255 * op.mean, 255 * op.sigma, op.clip)
    return images


def _adjust(images: torch.Tensor, rows: Int64s, name: str, strengths: AnyArray) -> None:
    adjustment = color.ADJUSTMENTS[name]
    change_rows(images, rows, lambda some, chunk: adjustment(some, strengths[chunk]))


def _blur(images: torch.Tensor, op: T.GaussianBlur, params: Params) -> torch.Tensor:
    change_rows(
        images, np.arange(len(images)), lambda some, chunk: color.blur(some, params["sigma"][chunk], op.kernel_size)
    )
    return images


def _branch(images: torch.Tensor, op: Branches, params: Params) -> torch.Tensor:
    for drawn, steps in op.branches(params):
        _do_steps(images, np.flatnonzero(drawn), list(steps))
    return images


def _do_steps(images: torch.Tensor, rows: Int64s, steps: list[tuple[T.Op, Params]]) -> None:
    def run(some: torch.Tensor, chunk: slice) -> torch.Tensor:
        for op, drawn in steps:
            some = DEVICE_OPS[type(op)](some, op, {name: values[rows[chunk]] for name, values in drawn.items()})
        return some

    change_rows(images, rows, run)


def _if_drawn(change: Callable[[torch.Tensor, Any], torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Returns how to run a :class:`feeder.transforms.op.ProbabilityOp`."""

    def run(images: torch.Tensor, op: ProbabilityOp, params: Params) -> torch.Tensor:
        change_rows(images, np.flatnonzero(params[op.drawn_name]), lambda some, _: change(some, op))
        return images

    return run


def _sharpen(images: torch.Tensor, op: T.RandomAdjustSharpness) -> torch.Tensor:
    return color.ADJUSTMENTS["sharpness"](images, np.full(len(images), op.sharpness_factor))


def _erase(images: torch.Tensor, op: T.RandomErasing, params: Params) -> torch.Tensor:
    erase(images, erasing_of(op, params, (), is_float=False))
    return images


def _mix_chains(images: torch.Tensor, op: T.AugMix, params: Params) -> torch.Tensor:
    def run(some: torch.Tensor, chunk: slice) -> torch.Tensor:
        weights = params["weights"][chunk]
        mixed = per_image(weights[:, 0], some) * some
        for chain in range(op.mixture_width):
            drawn = {name: params[name][chunk, chain] for name in ("kind", "magnitude")}
            mixed += per_image(weights[:, 1 + chain], some) * _augment(some.clone(), op, drawn)
        return mixed.to(torch.uint8)  # cut, not rounded, as torchvision does it

    change_rows(images, np.arange(len(images)), run)
    return images


_Automatic = T.AugMix | T.AutoAugment | T.RandAugment | T.TrivialAugmentWide


def _augment(images: torch.Tensor, op: _Automatic, params: Params) -> torch.Tensor:
    height, width = images.shape[2:]
    for kinds, magnitudes in zip(params["kind"].T, params["magnitude"].T, strict=True):
        drawn = zip(kinds.tolist(), magnitudes.tolist(), strict=True)
        _warp(images, [augmentation_matrix(AUGMENTATIONS[kind], each, width, height) for kind, each in drawn], op)
        for number in np.unique(kinds).tolist():
            rows = np.flatnonzero(kinds == number)
            _augment_once(images, rows, AUGMENTATIONS[number], magnitudes[rows])
    return images


_AUGMENTATIONS: dict[str, Callable[[torch.Tensor, Float64s], torch.Tensor]] = {
    "Posterize": color.posterize,
    "Solarize": lambda images, thresholds: color.solarize(images, 255.0 * thresholds),
    "AutoContrast": lambda images, _: color.autocontrast(images),
    "Equalize": lambda images, _: color.equalize(images),
    "Invert": lambda images, _: color.invert(images),
}


def _augment_once(images: torch.Tensor, rows: Int64s, kind: str, magnitudes: Float64s) -> None:
    """Applies an augmentation that doesn't move pixels; the others change nothing here."""
    if kind in ENHANCEMENTS:
        _adjust(images, rows, ENHANCEMENTS[kind], 1.0 + magnitudes)
    elif kind in _AUGMENTATIONS:
        change_rows(images, rows, lambda some, chunk: _AUGMENTATIONS[kind](some, magnitudes[chunk]))


def _move(
    images: torch.Tensor, op: T.RandomAffine | T.RandomPerspective | T.RandomRotation, params: Params
) -> torch.Tensor:
    height, width = images.shape[2:]
    _warp(images, drawn_matrices(op, params, width, height), op)
    return images


def _warp(images: torch.Tensor, matrices: list[tuple[float, ...] | None], op: Any) -> None:
    rows = [row for row, matrix in enumerate(matrices) if matrix is not None]
    if rows:
        chosen = np.array([matrices[row] for row in rows], np.float64)
        geometry_ops.warp(images, np.array(rows), chosen, op.interpolation, op.fill)


def _pad(images: torch.Tensor, op: T.Pad, params: Params) -> torch.Tensor:
    return geometry_ops.pad(images, op.padding, op.fill, op.padding_mode)


def _crop(images: torch.Tensor, op: T.RandomCrop | T.CenterCrop, params: Params) -> torch.Tensor:
    if isinstance(op, T.RandomCrop) and "padding" in params:  # the same for all, as the images are of one size
        left, top, right, bottom = params["padding"][0].tolist()
        images = geometry_ops.pad(images, (left, top, right, bottom), op.fill, op.padding_mode)
    return geometry_ops.crop(images, params["top"], params["left"], op.size)


def _resize(images: torch.Tensor, op: T.Resize | T.RandomResizedCrop, params: Params) -> torch.Tensor:
    size = int(params["resized_height"][0]), int(params["resized_width"][0])
    windows = np.tile(np.array([0, 0, images.shape[3], images.shape[2]], np.int64), (len(images), 1))
    if "top" in params:
        top, left = params["top"], params["left"]
        windows = np.stack([left, top, left + params["width"], top + params["height"]], axis=1)
    return geometry_ops.resize(images, windows, size)


def _nothing(images: torch.Tensor, op: T.Op, params: Params) -> torch.Tensor:
    return images


DEVICE_OPS: dict[type[T.Op], Callable[[torch.Tensor, Any, Params], torch.Tensor]] = {
    **dict.fromkeys(TARGET_OPS, _nothing),
    T.AugMix: _mix_chains,
    T.AutoAugment: _augment,
    T.CenterCrop: _crop,
    T.CornerCrop: _crop,
    T.ColorJitter: _jitter,
    T.GaussianBlur: _blur,
    T.Grayscale: _if_drawn(lambda some, _: color.grayscale(some)),
    T.GaussianNoise: _add_noise,
    T.Pad: _pad,
    T.RandAugment: _augment,
    T.RandomAdjustSharpness: _if_drawn(_sharpen),
    T.RandomAffine: _move,
    T.RandomApply: _branch,
    T.RandomAutocontrast: _if_drawn(_AUGMENTATIONS["AutoContrast"]),
    T.RandomChoice: _branch,
    T.RandomCrop: _crop,
    T.RandomEqualize: _if_drawn(_AUGMENTATIONS["Equalize"]),
    T.RandomErasing: _erase,
    T.RandomGrayscale: _if_drawn(lambda some, _: color.grayscale(some)),
    T.RandomHorizontalFlip: _if_drawn(lambda some, _: some.flip(3)),
    T.RandomInvert: _if_drawn(_AUGMENTATIONS["Invert"]),
    T.RandomOrder: _branch,
    T.RandomPerspective: _move,
    T.RandomPhotometricDistort: _distort,
    T.RandomPosterize: _if_drawn(lambda some, op: color.posterize(some, np.full(len(some), op.bits))),
    T.RandomResizedCrop: _resize,
    T.RandomRotation: _move,
    T.RandomSolarize: _if_drawn(lambda some, op: color.solarize(some, np.full(len(some), op.threshold))),
    T.RandomVerticalFlip: _if_drawn(lambda some, _: some.flip(2)),
    T.Resize: _resize,
    T.ToDtype: _nothing,  # one to uint8; after any other the images are kernel 1's
    T.TrivialAugmentWide: _augment,
}

"""Drawn ops as elementary moves of one sample's pixels and points, in the order in which they happen.

torchvision v2 has a function per op and kind of target; here an op is a few moves, and a kind of target has one way
to do each of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from feeder.transforms.choice import Branches
from feeder.transforms.distort import RandomAffine, RandomPerspective, RandomRotation
from feeder.transforms.geometry import RandomResizedCrop
from feeder.transforms.iou_crop import RandomIoUCrop
from feeder.transforms.matrices import perspective_matrix
from feeder.transforms.op import Op, Params
from feeder.transforms.padding import Pad
from feeder.transforms.target_ops import TargetOp

# (height, width) in pixels.
Canvas = tuple[int, int]


class Crop(NamedTuple):
    """A crop; the window may reach outside the image.

    Attributes:
        keeps_centers: True to empty the boxes whose center is outside the window.
    """

    top: int
    left: int
    height: int
    width: int
    keeps_centers: bool = False


class Scaling(NamedTuple):
    """A resize.

    Attributes:
        is_exact: True if masks take the pixel nearest to each pixel's middle, False for torch's "nearest".
    """

    height: int
    width: int
    is_exact: bool = False


class Flip(NamedTuple):
    """A flip, left to right or top to bottom."""

    is_vertical: bool = False


class Swap(NamedTuple):
    """An exchange of rows and columns."""


class Border(NamedTuple):
    """Padding, in pixels; ``mode`` is that of :class:`feeder.transforms.Pad`."""

    left: int
    top: int
    right: int
    bottom: int
    mode: str = "constant"


class Warp(NamedTuple):
    """An affine map, with the arguments of :func:`feeder.transforms.matrices.affine_matrix`.

    Attributes:
        height: Of the output, pixels.
        width: Of the output, pixels.
        expands: True if the output has the size of the whole turned image.
        turns: Number of counterclockwise quarter turns, if it is nothing else; -1 for any other map.
    """

    options: dict[str, Any]
    height: int
    width: int
    expands: bool = False
    turns: int = -1


class Tilt(NamedTuple):
    """A perspective; ``matrix`` is that of :func:`feeder.transforms.matrices.perspective_matrix`."""

    matrix: tuple[float, float, float, float, float, float, float, float]


Move = Crop | Scaling | Flip | Swap | Border | Warp | Tilt

# Moves, and ops on targets alone, each with the size of the image before it.
Moves = Iterator[tuple[Move | TargetOp, Canvas]]

# By EXIF orientation: mirrors left to right, mirrors top to bottom, then swaps rows and columns.
_TURNS = {2: (1, 0, 0), 3: (1, 1, 0), 4: (0, 1, 0), 5: (0, 0, 1), 6: (0, 1, 1), 7: (1, 1, 1), 8: (1, 0, 1)}


def drawn_moves(ops: tuple[Op, ...], drawn: tuple[Params, ...], row: int, canvas: Canvas) -> Moves:
    """Yields the moves of one sample.

    Args:
        ops: The first ops of a recipe, or all.
        drawn: Their drawn parameters.
        row: The sample's row in them.
        canvas: Size of the upright image.
    """
    for op, params in zip(ops, drawn, strict=False):
        sample = {name: column[row] for name, column in params.items()}
        for move in _moves(op, sample, canvas):
            yield move, canvas
            canvas = _after(move, canvas)


def upright(orientation: int, canvas: Canvas) -> Moves:
    """Yields the moves that turn what is given in stored pixels.

    Args:
        orientation: EXIF orientation, 1-8.
        canvas: Size of the stored image.
    """
    mirrors, flips, swaps = _TURNS.get(orientation, (0, 0, 0))
    if mirrors:
        yield Flip(), canvas
    if flips:
        yield Flip(is_vertical=True), canvas
    if swaps:
        yield Swap(), canvas


def _moves(op: Op, sample: Mapping[str, Any], canvas: Canvas) -> Iterator[Move | TargetOp]:
    """Yields an op's moves, most of them by its parameters' names; see :meth:`feeder.transforms.Op.fuses`."""
    if isinstance(op, TargetOp):
        yield op
    elif isinstance(op, Branches):
        for is_drawn, steps in op.branches(sample):
            if is_drawn:
                for each, params in steps:
                    yield from _moves(each, params, canvas)
    elif isinstance(op, RandomRotation):
        yield _rotation(op, float(sample["angle"]), canvas)
    elif isinstance(op, RandomAffine):
        yield Warp(op.affine(sample), *canvas)
    elif isinstance(op, RandomPerspective):
        matrix = perspective_matrix(canvas[1], canvas[0], sample["corners"].tolist()) if sample["distort"] else None
        if matrix is not None:
            yield Tilt(matrix)
    elif isinstance(op, Pad):
        yield Border(*op.padding, mode=op.padding_mode)
    elif "padding" in sample:
        if "resized_height" in sample:  # a letterbox
            yield _scaling(op, sample)
        left, top, right, bottom = sample["padding"].tolist()
        yield Border(left, top, right, bottom, getattr(op, "padding_mode", "constant"))

    marks = isinstance(op, RandomIoUCrop)
    if "top" in sample and (not marks or sample["crop"]):
        top, left, height, width = (int(sample[name]) for name in ("top", "left", "height", "width"))
        yield Crop(top, left, height, width, marks)
    if "resized_height" in sample and "padding" not in sample:
        yield _scaling(op, sample)

    if sample.get("flip"):
        yield Flip()
    if sample.get("flip_vertically"):
        yield Flip(is_vertical=True)


def _scaling(op: Op, sample: Mapping[str, Any]) -> Scaling:
    # resized_crop_mask does not know of the op's interpolation.
    is_exact = not isinstance(op, RandomResizedCrop) and getattr(op, "interpolation", "") == "nearest-exact"
    return Scaling(int(sample["resized_height"]), int(sample["resized_width"]), is_exact)


def _rotation(op: RandomRotation, angle: float, canvas: Canvas) -> Warp:
    height, width = op.expanded_size(*canvas, angle) if op.expand else canvas
    turns, rest = divmod(angle % 360.0, 90.0)
    is_quarter = rest == 0.0 and op.center is None and (turns % 2 == 0 or op.expand or canvas[0] == canvas[1])
    options = {"angle": -angle, "center": op.center}
    return Warp(options, height, width, op.expand, int(turns) % 4 if is_quarter else -1)


def _after(move: Move | TargetOp, canvas: Canvas) -> Canvas:
    """Returns the image's size after a move."""
    if isinstance(move, (Crop, Scaling, Warp)):
        return move.height, move.width
    if isinstance(move, Border):
        return canvas[0] + move.top + move.bottom, canvas[1] + move.left + move.right
    return canvas[::-1] if isinstance(move, Swap) else canvas

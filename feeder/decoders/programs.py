"""Programs for the kernels: the ops behind the base path, with the values drawn for each image.

Functions of the user's run on arrays, between calls of the kernels.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from feeder import _native
from feeder import transforms as T
from feeder.decoders.device.fused import erasing_of
from feeder.decoders.op_math import augmentation_matrix, drawn_matrices
from feeder.errors import DecodeError
from feeder.system.arrays import AnyArray, Bools, Float64s, Int64s, Size, Uint8s, Uint64s
from feeder.transforms.augment import AUGMENTATIONS, ENHANCEMENTS, TIMM_AUGMENTATIONS, timm_matrix
from feeder.transforms.choice import Branches
from feeder.transforms.function import kept_generators
from feeder.transforms.matrices import rotation_matrix
from feeder.transforms.op import Params
from feeder.transforms.photometric import COLOR_STEPS
from feeder.transforms.target_ops import TargetOp

Programs = Float64s  # [N, ops, 12], see _native.AugmentOp; a row of zeros does nothing

_COLUMNS = 12
_BYTES = {"dtype": "uint8"}
_ON_ARRAYS = (T.Lambda, T.GaussianNoise)
_MOST_TAPS = 63  # the widest blur of the kernels
_OPS = _native.AugmentOp
_FILTERS = {each.name.lower(): each.value for each in _native.WarpFilter}
_FILTERS["nearest-exact"] = _FILTERS["nearest"]
_STEPS = np.array([getattr(_OPS, name.upper()).value for name in COLOR_STEPS], np.float64)
_NAMES = {kind: name.upper() for kind, name in ENHANCEMENTS.items()} | {"SolarizeAdd": "SOLARIZE_ADD"}
# Opcodes of augmentations, by their numbers; NOTHING for those that move pixels.
_KINDS, _TIMM_KINDS = (
    np.array([getattr(_OPS, _NAMES.get(kind, kind.upper()), _OPS.NOTHING).value for kind in kinds], np.float64)
    for kinds in (AUGMENTATIONS, TIMM_AUGMENTATIONS)
)
_ENHANCES = np.array([kind in ENHANCEMENTS for kind in AUGMENTATIONS])
_WARPS = np.array([augmentation_matrix(kind, 0.0, 1, 1) is not None for kind in AUGMENTATIONS])
_TIMM_WARPS = np.array([kind == "Rotate" or kind[:5] in ("Shear", "Trans") for kind in TIMM_AUGMENTATIONS])
_POSTERIZE, _SOLARIZE = (AUGMENTATIONS.index(kind) for kind in ("Posterize", "Solarize"))


class _Step(NamedTuple):
    """Ops that run one after the other, from the first number to the end: in the kernels, or on arrays."""

    is_native: bool
    first: int
    end: int


def has_programs(recipe: T.Recipe) -> bool:
    """Returns True if the kernels run all ops of a recipe without variable sizes, but for those that run on arrays."""
    rest = recipe.framed.rest
    ops = _after_values(rest)
    for is_native, first, end in _steps(rest):
        some = ops[first:end]
        values = [number for number, (op, _) in enumerate(some) if isinstance(op, (T.ToDtype, T.Normalize))]
        if is_native:
            noisy = some[: max(values, default=0)]
            if any(type(op) is T.RandomErasing and op.value is None for op, _ in noisy):
                return False  # the noise would have to be normalized, too
            if not all(_is_native(op, is_float) for op, is_float in some):
                return False
        elif some[0][1] and (
            values
            or recipe.head.output_dtype != "float32"
            or not all(type(op) in _ON_ARRAYS or _is_native(op, True) for op, _ in some)
        ):
            return False
    return True


def _steps(ops: Sequence[T.Op]) -> list[_Step]:
    """Returns the steps of the ops behind a base path, without a tail. The first is in the kernels, and may be empty.

    All that follows a function of floats runs on arrays, too.
    """
    steps = [_Step(True, 0, 0)]
    flags = [is_float for _, is_float in _after_values(ops)]
    for number, (op, is_float) in enumerate(zip(ops, flags, strict=True)):
        if isinstance(op, T.Lambda) and not op.keeps_shape:
            break
        last = steps[-1]
        stays = not last.is_native and (isinstance(op, TargetOp) or flags[last.first])
        is_native = not (stays or type(op) is T.Lambda or (is_float and type(op) is T.GaussianNoise))
        if is_native == last.is_native:
            steps[-1] = last._replace(end=number + 1)
        else:
            steps.append(_Step(is_native, number, number + 1))
    return steps


class Finish:
    """The steps behind the kernels' call on a recipe's images: functions of the user's, and the kernels between them.

    Args:
        recipe: A recipe that :func:`has_programs`.
        ops: Its ops behind the base path.

    Attributes:
        end: Number of these ops that are in the call.
        is_apart: True if the call makes the images of :meth:`memory`, False if it makes the recipe's output.
        is_needed: True if anything is left to do.
        options: The dtype, scale and bias of what the call makes.
    """

    def __init__(self, recipe: T.Recipe, ops: Sequence[T.Op]) -> None:
        self._ops = ops
        self._head = recipe.head
        self._tail = recipe.tail
        functions = [op for op in ops if isinstance(op, T.Lambda)]
        self._is_interleaved = bool(functions) and functions[0].on == "pil"

        self._steps = _steps(ops)
        self._mapping = -1  # number of the step that makes floats of bytes
        if self._head.output_dtype != "uint8":
            values = next((number for number, (op, _) in enumerate(_after_values(ops)) if _makes_floats(op)), 0)
            self._mapping = [step.is_native and values < max(step.end, 1) for step in self._steps].index(True)

        is_gray_later = recipe.channels == 1 and len(self._steps) > 1
        self.is_apart = bool(self._tail) or self._is_interleaved or self._mapping > 0 or is_gray_later
        if self.is_apart and self._mapping == 0:
            first = self._steps[0]
            self._steps[:1] = [first._replace(end=values), first._replace(first=values)]
            self._mapping = 1
        self.end = self._steps[0].end
        self.is_needed = self.is_apart or len(self._steps) > 1
        self.options = self._options(0)

    def memory(self, count: int, height: int, width: int) -> Uint8s:
        """Returns images that are apart, uint8 [N, C, H, W]; with the channels inmost in front of a function that
        takes Pillow's images, as these have them."""
        channels = 3 if any(step.is_native for step in self._steps[1:2]) else self._channels_at(0)
        if not self._is_interleaved:
            return np.empty((count, channels, height, width), np.uint8)
        pixels = np.empty((count, height, width, channels), np.uint8)
        by_channel: Uint8s = pixels.transpose(0, 3, 1, 2)
        return by_channel

    def run(
        self,
        drawn: Sequence[Params],
        rows: Iterable[int],
        made: AnyArray,
        out: AnyArray,
        places: Int64s | None = None,
    ) -> dict[int, DecodeError]:
        """Runs the steps.

        Args:
            drawn: The drawn parameters of the ops, N rows.
            rows: The rows there of the images to finish.
            made: [M, C, H, W], what the call has made.
            out: [M, C, H, W], gets the finished images; may be the same.
            places: int64 [N], the images of the rows in ``made`` and ``out``; None: M is N, and they are the same.

        Returns:
            The errors that functions raised, by row.
        """
        size = made.shape[2], made.shape[3]
        later = [
            programs(self._ops[first:end], drawn[first:end], size) if is_native else None
            for is_native, first, end in self._steps[1:]
        ]

        errors = {}
        with kept_generators():
            for row in rows:
                try:
                    own = [None if each is None else each[row : row + 1] for each in later]
                    place = row if places is None else int(places[row])
                    self._run_one(drawn, row, own, made[place], out[place])
                except DecodeError as error:
                    errors[row] = error
        return errors

    def _run_one(
        self,
        drawn: Sequence[Params],
        row: int,
        later: Sequence[Programs | None],
        image: AnyArray,
        out: AnyArray,
    ) -> None:
        from feeder.decoders.pillow.image_ops import ARRAY_OPS  # many loaders never need it

        steps = len(self._steps)
        for number, (is_native, first, end) in enumerate(self._steps[1:], start=1):
            if not is_native:
                for op, params in zip(self._ops[first:end], drawn[first:end], strict=True):
                    image = ARRAY_OPS[type(op)](image, op, {name: column[row] for name, column in params.items()})
                continue
            into = out
            if self._tail is not None or number < steps - 1:
                dtype = self._head.storage_dtype if number == self._mapping else np.uint8
                into = np.empty((self._channels_at(number), *image.shape[1:]), dtype)
            _in_kernels(image, into, later[number - 1], self._options(number))
            image = into

        if self._tail is not None:
            self._tail.write(image, int(drawn[-1]["key"][row]), out)
        elif image.__array_interface__ != out.__array_interface__:  # else it was changed where it is
            if image.dtype == np.uint8:
                _in_kernels(image, out, None, _BYTES)  # the kernels are faster where channels are inmost
            else:
                out[:] = image

    def _channels_at(self, number: int) -> int:
        """Returns the number of channels behind a step."""
        return T.Recipe(tuple(self._ops[: self._steps[number].end])).channels

    def _options(self, number: int) -> dict[str, Any]:
        """Returns the dtype, scale and bias of a step's images."""
        if self._mapping != number:
            return _BYTES
        scale, bias = self._head.affine or (None, None)
        return {"dtype": self._head.output_dtype, "scale": scale, "bias": bias}


def _in_kernels(image: Uint8s, out: AnyArray, program: Programs | None, options: dict[str, Any]) -> None:
    """Runs a program on one image [3, H, W]."""
    into, layout = laid_out(out[None])
    _native.augment(image, into, program, layout=layout, **options)


def laid_out(out: AnyArray) -> tuple[AnyArray, str]:
    """Returns an output [N, 3, H, W] as the kernels take it, and its layout's name."""
    is_planar = out.strides[3] == out.itemsize
    return (out, "nchw") if is_planar else (out.transpose(0, 2, 3, 1), "nhwc")


def _is_native(op: T.Op, is_float: bool) -> bool:
    if isinstance(op, (TargetOp, T.ToDtype, T.Normalize)):
        return True
    if type(op) is T.RandomErasing:
        return is_float or op.value is not None
    if is_float:
        return type(op) is T.RandomHorizontalFlip
    if not all(_is_native(each, False) for each in op.inner_ops):
        return False
    if type(op) is T.GaussianBlur:
        return max(op.kernel_size) <= _MOST_TAPS
    return type(op) in _WRITERS and not getattr(op, "expand", False)


def _makes_floats(op: T.Op) -> bool:
    return isinstance(op, (T.ToDtype, T.Normalize)) and getattr(op, "dtype", "") != "uint8"


def _after_values(ops: Sequence[T.Op]) -> list[tuple[T.Op, bool]]:
    """Returns the ops, each with True if its images are floats."""
    found, is_float = [], False
    for op in ops:
        found.append((op, is_float))
        is_float = is_float or _makes_floats(op)
    return found


def programs(ops: Sequence[T.Op], drawn: Sequence[Params], size: Size) -> Programs | None:
    """Returns the programs of N images; None if they are empty.

    Args:
        ops: Those behind the base path of a recipe that :func:`has_programs`, or one of its steps in the kernels.
        drawn: Their drawn parameters.
        size: (height, width) of the images.
    """
    blocks: list[Programs] = []
    for number, ((op, is_float), params) in enumerate(zip(_after_values(ops), drawn, strict=True)):
        if isinstance(op, T.RandomErasing):
            blocks.append(_erase(op, params, ops[number + 1 :] if is_float else (), is_float))
        elif not isinstance(op, (TargetOp, T.ToDtype, T.Normalize)):
            if isinstance(op, T.RandomHorizontalFlip):
                for block in blocks:
                    _mirror(block, params["flip"], size[1])
            blocks.append(_WRITERS[type(op)](op, params, size))
    if not blocks:
        return None
    return blocks[0] if len(blocks) == 1 else np.concatenate(blocks, axis=1)


def _block(count: int, steps: int = 1) -> Programs:
    return np.zeros((count, steps, _COLUMNS))


def _single(kind: Any, *values: Any) -> Programs:
    """Returns programs of one op: its kind, and then its values, each [N] or a number; not all are numbers."""
    columns = np.broadcast_arrays(kind, *values)
    block = _block(len(columns[0]))
    block[:, 0, : len(columns)] = np.stack(columns, axis=1)
    return block


def _erase(op: T.RandomErasing, params: Params, later: Sequence[T.Op], is_float: bool) -> Programs:
    kind = _OPS.ERASE_NOISE if op.value is None else _OPS.ERASE_OUTPUT if is_float else _OPS.ERASE
    place = (params[name] for name in ("i", "j", "h", "w"))
    values: Any = _halves(params["key"]) if op.value is None else erasing_of(op, params, later, is_float).value
    block = _single(kind.value, *place, *values)
    block[~params["erase"]] = 0.0
    return block


def _mirror(block: Programs, flip: Bools, width: int) -> None:
    """Mirrors the rectangles in the output, which are erased after all flips, and their noise."""
    noise = flip[:, None] & (block[:, :, 0] == _OPS.ERASE_NOISE.value)
    erased = noise | flip[:, None] & (block[:, :, 0] == _OPS.ERASE_OUTPUT.value)
    block[:, :, 2] = np.where(erased, width - block[:, :, 2] - block[:, :, 4], block[:, :, 2])
    block[:, :, 7] = np.where(noise, 1.0 - block[:, :, 7], block[:, :, 7])


def _if_drawn(kind: _native.AugmentOp, argument: str | None = None) -> Callable[..., Programs]:
    """Returns how to write a :class:`feeder.transforms.op.ProbabilityOp`, of which an attribute is the value."""

    def write(op: Any, params: Params, size: Size) -> Programs:
        value = 0.0 if argument is None else getattr(op, argument)
        return _single(np.where(params[op.drawn_name], kind.value, 0), value)

    return write


def _jitter(op: T.ColorJitter | T.RandomPhotometricDistort, params: Params, size: Size) -> Programs:
    order = params["order"]
    values = np.zeros(order.shape)
    for column, name in enumerate(COLOR_STEPS):
        if name in params:
            # The shift wraps around in uint8, as in Pillow's HSV.
            values[:, column] = np.trunc(params[name] * 255) % 256 if name == "hue" else params[name]
    kinds = np.where([name in params for name in COLOR_STEPS], _STEPS, 0)
    block = _block(*order.shape)
    block[:, :, 0] = kinds[order]
    if "change" in params:
        block[:, :, 0] *= np.take_along_axis(params["change"], order, axis=1)
    block[:, :, 1] = np.take_along_axis(values, order, axis=1)
    return block


def _distort(op: T.RandomPhotometricDistort, params: Params, size: Size) -> Programs:
    permutation = params["permutation"]
    kinds = np.where((permutation == [0, 1, 2]).all(axis=1), 0, _OPS.PERMUTE.value)
    return np.concatenate([_jitter(op, params, size), _single(kinds, *permutation.T)], axis=1)


def _noise(op: T.GaussianNoise, params: Params, size: Size) -> Programs:
    mean, sigma = np.float32(op.mean) * np.float32(255), np.float32(op.sigma) * np.float32(255)
    return _single(_OPS.ADD_NOISE.value, *_halves(params["key"]), mean, sigma, op.clip)


def _halves(key: Uint64s) -> tuple[Uint64s, Uint64s]:
    return key >> np.uint64(32), key & np.uint64(0xFFFFFFFF)


def _augment(
    op: T.AugMix | T.AutoAugment | T.RandAugment | T.TrivialAugmentWide, params: Params, size: Size
) -> Programs:
    kind, magnitude = params["kind"], params["magnitude"]
    block = _block(*kind.shape)
    block[:, :, 0] = _KINDS[kind]
    block[:, :, 1] = np.where(_ENHANCES[kind], 1.0 + magnitude, 0.0)
    bits, levels = kind == _POSTERIZE, kind == _SOLARIZE
    if bits.any() or levels.any():
        block[:, :, 1] = np.where(bits, np.trunc(magnitude), np.where(levels, 255.0 * magnitude, block[:, :, 1]))
    height, width = size
    for row, place in np.argwhere(_WARPS[kind]).tolist():
        name, strength = AUGMENTATIONS[kind[row, place]], float(magnitude[row, place])
        matrix = augmentation_matrix(name, strength, width, height)
        assert matrix is not None
        _warp(block[row, place], _OPS.AFFINE, matrix, op)
    return block


def _mix_chains(op: T.AugMix, params: Params, size: Size) -> Programs:
    weights = params["weights"]
    parts = [_OPS.MIX_START, *[_OPS.MIX_ADD] * op.mixture_width, _OPS.MIX_FINISH]
    ends = np.zeros((len(parts), len(weights), 1, _COLUMNS))
    for number, kind in enumerate(parts):
        ends[number, :, 0, 0] = kind.value
    ends[:-1, :, 0, 1] = weights.T

    blocks = [ends[0]]
    for chain in range(op.mixture_width):
        drawn = {name: params[name][:, chain] for name in ("kind", "magnitude")}
        blocks += [_augment(op, drawn, size), ends[1 + chain]]
    return np.concatenate([*blocks, ends[-1]], axis=1)


def _timm_augment(op: T.TimmRandAugment, params: Params, size: Size) -> Programs:
    kind, value, variants = params["kind"], params["value"], op.variants()
    block = _block(*kind.shape)
    block[:, :, 0] = _TIMM_KINDS[kind]
    block[:, :, 1] = value
    for row, place in np.argwhere(_TIMM_WARPS[kind]).tolist():
        name, strength = TIMM_AUGMENTATIONS[kind[row, place]], float(value[row, place])
        matrix = timm_matrix(name, strength, size[1], size[0]) or rotation_matrix(size[1], size[0], strength)
        _warp(block[row, place], _OPS.AFFINE, matrix, variants[params["bicubic"][row, place]])
    return block


def _warp(row: Programs, kind: _native.AugmentOp, matrix: Sequence[float], op: Any) -> None:
    red, green, blue = op.fill
    numbers = (kind.value, *matrix, red + 256 * green + 65536 * blue, _FILTERS[op.interpolation])
    row[: len(numbers)] = numbers


def _move(op: T.RandomAffine | T.RandomPerspective | T.RandomRotation, params: Params, size: Size) -> Programs:
    matrices = drawn_matrices(op, params, size[1], size[0])
    kind = _OPS.PERSPECTIVE if isinstance(op, T.RandomPerspective) else _OPS.AFFINE
    block = _block(len(matrices))
    for row, matrix in enumerate(matrices):
        if matrix is not None:
            _warp(block[row, 0], kind, matrix, op)
    return block


def _blur(op: T.GaussianBlur, params: Params, size: Size) -> Programs:
    return _single(_OPS.BLUR.value, *op.kernel_size, params["sigma"])


def _compress(op: T.JPEG, params: Params, size: Size) -> Programs:
    return _single(_OPS.JPEG.value, params["quality"])


def _branch(op: Branches, params: Params, size: Size) -> Programs:
    blocks = []
    for is_drawn, steps in op.branches(params):
        for each, drawn in steps:
            if not isinstance(each, TargetOp):
                block = programs((each,), (drawn,), size)
                assert block is not None
                block[~is_drawn] = 0.0
                blocks.append(block)
    count = len(next(iter(params.values())))
    return np.concatenate(blocks, axis=1) if blocks else _block(count)


def _ordered(op: T.RandomOrder, params: Params, size: Size) -> Programs:
    branches = itertools.islice(op.branches(params), len(op.transforms))
    ops = [[step for step in steps if not isinstance(step[0], TargetOp)] for _, steps in branches]
    blocks = [programs([each for each, _ in some], [drawn for _, drawn in some], size) for some in ops]
    count, most = len(params["order"]), max(0 if block is None else block.shape[1] for block in blocks)
    whole = np.zeros((count, len(blocks), most, _COLUMNS))
    for number, block in enumerate(blocks):
        if block is not None:
            whole[:, number, : block.shape[1]] = block
    return whole[np.arange(count)[:, None], params["order"]].reshape(count, -1, _COLUMNS)


_WRITERS: dict[type[T.Op], Callable[[Any, Params, Size], Programs]] = {
    T.AugMix: _mix_chains,
    T.AutoAugment: _augment,
    T.ColorJitter: _jitter,
    T.GaussianBlur: _blur,
    T.Grayscale: _if_drawn(_OPS.GRAYSCALE),
    T.GaussianNoise: _noise,
    T.JPEG: _compress,
    T.RandAugment: _augment,
    T.RandomAdjustSharpness: _if_drawn(_OPS.SHARPNESS, "sharpness_factor"),
    T.RandomAffine: _move,
    T.RandomApply: _branch,
    T.RandomAutocontrast: _if_drawn(_OPS.AUTOCONTRAST),
    T.RandomChoice: _branch,
    T.RandomEqualize: _if_drawn(_OPS.EQUALIZE),
    T.RandomGrayscale: _if_drawn(_OPS.GRAYSCALE),
    T.RandomHorizontalFlip: _if_drawn(_OPS.MIRROR),
    T.RandomInvert: _if_drawn(_OPS.INVERT),
    T.RandomOrder: _ordered,
    T.RandomPerspective: _move,
    T.RandomPhotometricDistort: _distort,
    T.RandomPosterize: _if_drawn(_OPS.POSTERIZE, "bits"),
    T.RandomRotation: _move,
    T.RandomSolarize: _if_drawn(_OPS.SOLARIZE, "threshold"),
    T.RandomVerticalFlip: _if_drawn(_OPS.FLIP),
    T.TimmRandAugment: _timm_augment,
    T.TrivialAugmentWide: _augment,
}

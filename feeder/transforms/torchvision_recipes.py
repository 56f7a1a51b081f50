"""Recipes made of torchvision's transforms.

What has a counterpart becomes feeder's op. From the first op without one on, this op and all later ones run in Python,
in their order, on the type that they expect, by one :class:`feeder.transforms.Lambda` at the recipe's end.

torchvision itself is never imported: its objects are known by the module of their type.
"""

from __future__ import annotations

import dis
import inspect
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from feeder.errors import ArgumentError
from feeder.transforms import (
    augment,
    augmix,
    autoaugment,
    distort,
    enhance,
    geometry,
    padding,
    photometric,
    scale_jitter,
    shortest_size,
)
from feeder.transforms.choice import RandomApply, RandomChoice
from feeder.transforms.function import Lambda
from feeder.transforms.geometry import CenterCrop, RandomCrop
from feeder.transforms.op import Op, SizeBounds
from feeder.transforms.photometric import Grayscale, RandomErasing
from feeder.transforms.recipe import Compose, Recipe
from feeder.transforms.values import Normalize, ToDtype

__all__ = ["Conversion", "OpReport", "convert", "from_torchvision"]

_log = logging.getLogger(__name__)

_MODULES = (
    augment,
    augmix,
    autoaugment,
    distort,
    enhance,
    geometry,
    padding,
    photometric,
    scale_jitter,
    shortest_size,
)
# Of the same name and arguments in both, on Pillow images.
_SAME = frozenset(
    {
        "AugMix",
        "AutoAugment",
        "CenterCrop",
        "ColorJitter",
        "GaussianBlur",
        "Grayscale",
        "Pad",
        "RandAugment",
        "RandomAdjustSharpness",
        "RandomAffine",
        "RandomAutocontrast",
        "RandomCrop",
        "RandomEqualize",
        "RandomGrayscale",
        "RandomHorizontalFlip",
        "RandomInvert",
        "RandomPerspective",
        "RandomPosterize",
        "RandomResizedCrop",
        "RandomRotation",
        "RandomShortestSize",
        "RandomSolarize",
        "RandomVerticalFlip",
        "RandomZoomOut",
        "Resize",
        "ScaleJitter",
        "TrivialAugmentWide",
    }
)
# Those whose result on a tensor of uint8 is within a level of that on a Pillow image.
_SAME_ON_TENSORS = frozenset(
    {
        "CenterCrop",
        "Grayscale",
        "RandomCrop",
        "RandomGrayscale",
        "RandomHorizontalFlip",
        "RandomInvert",
        "RandomPosterize",
        "RandomResizedCrop",
        "RandomVerticalFlip",
        "Resize",
    }
)
# Those that give the same before a float's conversion and normalization as behind them.
_MOVABLE = frozenset(
    {"CenterCrop", "RandomCrop", "RandomHorizontalFlip", "RandomResizedCrop", "RandomVerticalFlip", "Resize"}
)


@dataclass(frozen=True)
class OpReport:
    """The fate of one of their ops.

    Attributes:
        name: The op's name.
        how: "native", "python" or "refused".
        reason: Why it is not native.
        way_out: What to do about that.
    """

    name: str
    how: str
    reason: str = ""
    way_out: str = ""

    def __str__(self) -> str:
        return f"{self.name}: {self.how}" + "".join(f"; {text}" for text in (self.reason, self.way_out) if text)


@dataclass(frozen=True)
class Conversion:
    """Their transform as feeder's ops.

    Attributes:
        ops: The ops, as :meth:`feeder.transforms.Recipe.of` takes them.
        lines: A line for each of their ops, in order.
        gives_pillow: True if theirs ends with a Pillow image, where feeder's recipe gives a tensor of uint8.
    """

    ops: tuple[Op, ...]
    lines: tuple[OpReport, ...]
    gives_pillow: bool

    def __str__(self) -> str:
        return "\n".join(map(str, self.lines))

    def check(self, *, strict: bool) -> None:
        """Says in one line of the log which ops run in Python.

        Args:
            strict: True to refuse them.

        Raises:
            ArgumentError: with all lines, for such an op if ``strict``, and for one that torchvision refuses in its
                place, too.
        """
        if any(line.how == "refused" or (strict and line.how == "python") for line in self.lines):
            raise ArgumentError(f"the transform has ops that feeder does not run natively:\n{self}")
        slow = [line.name for line in self.lines if line.how == "python"]
        if slow:
            _log.info("%s run in Python, the other ops natively: %s", ", ".join(slow), self.lines[-len(slow)].reason)


def from_torchvision(transform: Any, *, strict: bool = False) -> Compose:
    """Returns feeder's recipe for a transform of torchvision.

    Shapes, dtypes and ranges are torchvision's; random ops draw by (seed, epoch, sample). A transform that ends with a
    Pillow image gives a tensor of uint8.

    Args:
        transform: A ``Compose`` of torchvision's transforms, or of v2's, an ``nn.Sequential``, a list, one op, or None;
            their ops may be any functions.
        strict: True to refuse ops that have no counterpart; else they and all later ones run in Python.

    Raises:
        ArgumentError: with a line for each op, for one that is refused.
    """
    conversion = convert(transform)
    conversion.check(strict=strict)
    return Compose(conversion.ops)


def convert(transform: Any) -> Conversion:
    """Converts as :func:`from_torchvision` does, and reports in place of raising."""
    state = _State()
    leaves = list(_leaves(transform))
    lines = []
    for number, op in enumerate(leaves):
        name = _name(op)
        if state.tail:
            lines.append(OpReport(name, "python", f"it follows {lines[-1].name}"))
        else:
            before = list(state.ops), state.kind, state.is_float
            try:
                _convert_one(op, state, number == 0, number == len(leaves) - 1)
                Recipe(tuple(state.ops)).check()
            except _Refused as problem:
                lines.append(OpReport(name, "refused", str(problem), "leave it out, or put ToTensor before it"))
                continue
            except (ArgumentError, TypeError, ValueError) as problem:
                state.ops, state.kind, state.is_float = before
                way_out = "at the end of the recipe it leaves the ops before it native"
                lines.append(OpReport(name, "python", str(problem), way_out))
            else:
                lines.append(OpReport(name, "native"))
                continue
        state.tail.append(op)

    if state.tail:
        functions = [_as_image, *state.tail] if state.kind == "image" else state.tail
        on = "pil" if state.kind == "pil" else "tensor"
        state.ops.append(Lambda(_InOrder(tuple(functions)), on=on, keeps_shape=False))
    return Conversion(tuple(state.ops), tuple(lines), state.kind == "pil" and not state.tail)


class _Refused(Exception):
    """An op that torchvision itself refuses in its place."""


@dataclass
class _State:
    """The image after the ops so far.

    Attributes:
        ops: feeder's ops.
        kind: "pil", "image" (torchvision's tensor class) or "tensor".
        is_float: True if a tensor has floats.
        tail: Their ops from the first one that runs in Python on.
    """

    ops: list[Op] = field(default_factory=list)
    kind: str = "pil"
    is_float: bool = False
    tail: list[Callable[[Any], Any]] = field(default_factory=list)

    @property
    def recipe(self) -> Recipe:
        return Recipe(tuple(self.ops))


@dataclass(frozen=True)
class _InOrder:
    """Calls functions one after the other; can be pickled if they can."""

    functions: tuple[Callable[[Any], Any], ...]

    def __call__(self, image: Any) -> Any:
        for function in self.functions:
            image = function(image)
        return image


def _as_image(tensor: Any) -> Any:
    from torchvision.tv_tensors import Image

    return Image(tensor)


def _is_theirs(op: object, *modules: str) -> bool:
    """Returns whether an object is of a class of torchvision's transforms, and of none derived from one."""
    return f"{type(op).__module__}.".startswith(modules or ("torchvision.transforms.",))


def _is_v2(op: object) -> bool:
    return _is_theirs(op, "torchvision.transforms.v2.")


def _name(op: object) -> str:
    return getattr(op, "__name__", None) or type(op).__name__


def _leaves(transform: Any) -> Iterator[Any]:
    """Yields the ops of nested sequences."""
    if transform is None:
        return
    is_module = _is_theirs(transform, "torch.nn.modules.container.")
    is_sequence = is_module and _name(transform) in ("ModuleList", "Sequential")
    if isinstance(transform, (list, tuple)) or is_sequence:
        for each in transform:
            yield from _leaves(each)
    elif isinstance(transform, Compose) or (_is_theirs(transform) and _name(transform) == "Compose"):
        yield from _leaves(list(transform.transforms))
    elif callable(transform):
        yield transform
    else:
        raise ArgumentError(f"expected a transform of torchvision or a function, got {transform!r}")


def _convert_one(op: Any, state: _State, is_first: bool, is_last: bool) -> None:
    """Takes one op into the state.

    Raises:
        ArgumentError: why it has to run in Python.
        _Refused: if torchvision refuses it in its place.
    """
    name = _name(op)
    if isinstance(op, Op):
        state.ops.append(op)
    elif name == "Identity" and _is_theirs(op, "torch.nn.modules.", "torchvision.transforms."):
        pass
    elif _is_theirs(op, "timm.data.transforms.") and name == "MaybeToTensor":
        _to_tensor(op, state, is_first, is_last)
    elif not _is_theirs(op) or name == "Lambda":
        _function(getattr(op, "lambd", op) if _is_theirs(op) else op, state)
    elif name in _RULES:
        _RULES[name](op, state, is_first, is_last)
    elif name in _SAME:
        _same(op, name, state)
    else:
        raise ArgumentError("it has no counterpart")


def _same(op: Any, name: str, state: _State) -> None:
    """Takes an op of the same name and arguments."""
    if state.kind != "pil" and name not in (_MOVABLE if state.is_float else _SAME_ON_TENSORS):
        raise ArgumentError("on tensors it differs from Pillow's")
    kind = next(getattr(module, name) for module in _MODULES if name in module.__all__)
    taken = {each: getattr(op, each) for each in inspect.signature(kind).parameters if hasattr(op, each)}
    if state.kind == "pil":
        taken.pop("antialias", None)  # has no effect on Pillow images
    made = kind(**taken)
    if state.kind != "pil" and getattr(made, "interpolation", "bilinear") != "bilinear":
        raise ArgumentError("on tensors only its bilinear interpolation is Pillow's")

    place = len(state.ops)
    if state.is_float:
        place = next(number for number, each in enumerate(state.ops) if isinstance(each, (ToDtype, Normalize)))
        if any(not isinstance(each, (ToDtype, Normalize)) for each in state.ops[place:]):
            raise ArgumentError("it works on floats, behind an op that it can't be moved before")
        extent = SizeBounds()
        for each in state.ops[:place]:
            extent = each.extent(extent)
        if isinstance(made, (CenterCrop, RandomCrop)) and not made.fuses(extent):
            raise ArgumentError("it may pad an image of floats")
    state.ops.insert(place, made)


def _function(function: Any, state: _State) -> None:
    """Takes a function that is known by its code."""
    for known, kind, ops in _KNOWN:
        if _code(function) == _code(known) and kind in ("", state.kind) and state.recipe.channels == 3:
            state.ops += ops
            return
    raise ArgumentError("it is a function of yours")


def _code(function: Any) -> object:
    """Returns the steps of a function of one argument that reads nothing else."""
    code = getattr(function, "__code__", None)
    if not inspect.isfunction(function) or code.co_argcount != 1 or code.co_nlocals != 1 or code.co_freevars:
        return function
    steps = dis.get_instructions(code)
    return [(step.opname, None if "FAST" in step.opname else step.argval) for step in steps if step.opname != "RESUME"]


# Functions that many scripts have, the kind of image that they take, and feeder's ops for them.
_KNOWN: tuple[tuple[Callable[[Any], Any], str, tuple[Op, ...]], ...] = (
    (lambda image: image, "", ()),
    (lambda image: image.convert("RGB"), "pil", ()),
    (lambda image: image.convert("L"), "pil", (Grayscale(1),)),
)


def _to_tensor(op: Any, state: _State, is_first: bool, is_last: bool) -> None:
    if state.kind == "pil":
        state.ops.append(ToDtype("float32", scale=True))
        state.kind, state.is_float = "tensor", True
    elif not (_is_v2(op) or _name(op) == "MaybeToTensor"):
        raise _Refused("torchvision's ToTensor takes no tensor")


def _pil_to_tensor(op: Any, state: _State, is_first: bool, is_last: bool) -> None:
    if state.kind != "pil" and not _is_v2(op):
        raise _Refused("torchvision's PILToTensor takes no tensor")
    state.kind = "tensor" if state.kind == "pil" else state.kind


def _to_image(op: Any, state: _State, is_first: bool, is_last: bool) -> None:
    state.kind = "image"


def _to_pure_tensor(op: Any, state: _State, is_first: bool, is_last: bool) -> None:
    state.kind = "tensor" if state.kind == "image" else state.kind


def _to_pillow(op: Any, state: _State, is_first: bool, is_last: bool) -> None:
    if op.mode is not None and (op.mode, state.recipe.channels) not in (("RGB", 3), ("L", 1)):
        raise ArgumentError("it converts to another mode")
    if state.kind == "pil" and not (is_first or _is_v2(op)):
        raise _Refused("torchvision's ToPILImage takes no Pillow image")
    if state.is_float:
        if state.ops[-1] != ToDtype("float32", scale=True):
            raise ArgumentError("it turns other floats than ToTensor's back into pixels")
        state.ops.pop()
    state.kind, state.is_float = "pil", False


def _to_dtype(op: Any, state: _State, is_first: bool, is_last: bool) -> None:
    dtype, scale = op.dtype, getattr(op, "scale", True)
    if isinstance(dtype, dict):
        names = {getattr(key, "__name__", key): value for key, value in dtype.items()}
        own = {"image": "Image", "tensor": "Tensor", "pil": ""}[state.kind]
        if own not in names and "others" not in names:
            raise _Refused(f"its mapping has no dtype for {own or 'Pillow images'}")
        dtype = names.get(own, names.get("others"))
    if state.kind == "pil" and not _is_v2(op):
        raise _Refused("torchvision's ConvertImageDtype takes no Pillow image")
    if state.kind == "pil" or dtype is None:
        return  # v2 leaves Pillow images alone

    name = str(dtype).removeprefix("torch.")
    if name == ("float32" if state.is_float else "uint8"):
        return
    if name != "float32" and (state.is_float or not is_last):
        raise ArgumentError(f"later ops would compute in {name}")
    state.ops.append(ToDtype(name, scale=bool(scale)))
    state.is_float = True


def _normalize(op: Any, state: _State, is_first: bool, is_last: bool) -> None:
    if not state.is_float:
        raise _Refused("torchvision's Normalize takes tensors of floats")
    mean, std = (value.tolist() if hasattr(value, "tolist") else value for value in (op.mean, op.std))
    state.ops.append(Normalize(mean, std))


def _erasing(op: Any, state: _State, is_first: bool, is_last: bool) -> None:
    if state.kind == "pil":
        raise ArgumentError("it takes tensors")
    value = "random" if op.value is None else op.value
    state.ops.append(RandomErasing(op.p, op.scale, op.ratio, value))


def _rgb(op: Any, state: _State, is_first: bool, is_last: bool) -> None:
    if state.recipe.channels != 3:
        raise ArgumentError("it makes three channels of one")


def _apply(op: Any, state: _State, is_first: bool, is_last: bool) -> None:
    state.ops.append(RandomApply(_inner(op.transforms, state), op.p))


def _choose(op: Any, state: _State, is_first: bool, is_last: bool) -> None:
    state.ops.append(RandomChoice([Compose(_inner(each, state)) for each in op.transforms], op.p))


def _inner(transform: Any, state: _State) -> Sequence[Op]:
    """Returns the ops of a branch, all of which have counterparts and leave an image what it is."""
    inner = _State([], state.kind, False)
    if state.is_float:
        raise ArgumentError("it works on floats")
    for op in _leaves(
        list(transform) if isinstance(transform, (list, tuple)) or hasattr(transform, "__iter__") else transform
    ):
        try:
            _convert_one(op, inner, False, False)
        except ArgumentError as problem:
            raise ArgumentError(f"of {_name(op)} in it: {problem}") from None
    if (inner.kind, inner.is_float) != (state.kind, False):
        raise ArgumentError("an op in it changes the image's type")
    return inner.ops


def _preset(op: Any, state: _State, is_first: bool, is_last: bool) -> None:
    """Takes the transforms of a model's weights."""
    if state.kind != "pil":
        raise ArgumentError("on tensors it differs from Pillow's")
    state.ops += [
        geometry.Resize(op.resize_size, op.interpolation),
        CenterCrop(op.crop_size),
        ToDtype("float32", scale=True),
        Normalize(op.mean, op.std),
    ]
    state.kind, state.is_float = "tensor", True


_RULES: dict[str, Callable[[Any, _State, bool, bool], None]] = {
    "ConvertImageDtype": _to_dtype,
    "ImageClassification": _preset,
    "Normalize": _normalize,
    "PILToTensor": _pil_to_tensor,
    "RGB": _rgb,
    "RandomApply": _apply,
    "RandomChoice": _choose,
    "RandomErasing": _erasing,
    "ToDtype": _to_dtype,
    "ToImage": _to_image,
    "ToPILImage": _to_pillow,
    "ToPureTensor": _to_pure_tensor,
    "ToTensor": _to_tensor,
}

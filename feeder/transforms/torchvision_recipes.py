"""Recipes made of torchvision's transforms.

What has a counterpart becomes feeder's op. From the first op without one on, this op and all later ones run in Python,
in their order, on the type that they expect, by one :class:`feeder.transforms.Lambda` at the recipe's end. Where these
are functions that keep a Pillow image's size, and then ops with counterparts, the functions alone do.

torchvision itself is never imported: its objects are known by the module of their type.
"""

from __future__ import annotations

import dis
import inspect
import itertools
import logging
import math
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
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
    random_sizes,
)
from feeder.transforms.arguments import BASE_FILTERS, DRAWN, check_interpolation
from feeder.transforms.choice import RandomApply, RandomChoice, RandomOrder
from feeder.transforms.function import Lambda
from feeder.transforms.geometry import (
    CenterCrop,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomVerticalFlip,
    Resize,
)
from feeder.transforms.op import Op, SizeBounds
from feeder.transforms.photometric import ColorJitter, GaussianNoise, Grayscale, RandomErasing, RandomGrayscale
from feeder.transforms.recipe import Compose, Recipe
from feeder.transforms.values import Normalize, ToDtype

_log = logging.getLogger(__name__)

# Ops that have the same name and arguments in torchvision, and do the same to Pillow images.
_SAME: dict[str, type[Op]] = {
    kind.__name__: kind
    for kind in (
        augment.RandAugment,
        augment.TrivialAugmentWide,
        augmix.AugMix,
        autoaugment.AutoAugment,
        distort.RandomAffine,
        distort.RandomPerspective,
        distort.RandomRotation,
        enhance.RandomAdjustSharpness,
        enhance.RandomAutocontrast,
        enhance.RandomEqualize,
        enhance.RandomInvert,
        enhance.RandomPosterize,
        enhance.RandomSolarize,
        geometry.CenterCrop,
        geometry.RandomCrop,
        geometry.RandomHorizontalFlip,
        geometry.RandomResizedCrop,
        geometry.RandomVerticalFlip,
        geometry.Resize,
        padding.Pad,
        padding.RandomZoomOut,
        photometric.JPEG,
        photometric.ColorJitter,
        photometric.GaussianBlur,
        photometric.Grayscale,
        photometric.RandomGrayscale,
        photometric.RandomPhotometricDistort,
        random_sizes.ScaleJitter,
        random_sizes.RandomResize,
        random_sizes.RandomShortestSize,
    )
}
# Those whose result on a uint8 tensor differs by more than a level from that on a Pillow image. (A change of hue does,
# too, by up to 15 levels.)
_OTHER_ON_TENSORS = frozenset(
    {
        "AugMix",
        "AutoAugment",
        "RandAugment",
        "RandomAffine",
        "RandomPerspective",
        "RandomRotation",
        "TrivialAugmentWide",
    }
)
# Ops that give the same before and after a conversion to floats and a normalization.
_MOVABLE = frozenset(
    {"CenterCrop", "RandomCrop", "RandomHorizontalFlip", "RandomResizedCrop", "RandomVerticalFlip", "Resize"}
)
# Ops that keep the size of an image.
_KEEP_SIZE = (ColorJitter, Normalize, RandomErasing, RandomGrayscale, RandomHorizontalFlip, RandomVerticalFlip, ToDtype)
# Attributes that a class may have of its own and still behave as its base does.
_NOT_BEHAVIOR = {"__annotations__", "__dict__", "__doc__", "__init__", "__module__", "__repr__", "__weakref__"} | {
    "__annotate__",
    "__firstlineno__",
    "__static_attributes__",
}


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
        reasons = "; ".join(text for text in (self.reason, self.way_out) if text)
        return f"{self.name}: {self.how}" + (f" ({reasons})" if reasons else "")


@dataclass(frozen=True)
class Conversion:
    """Their transform as feeder's ops.

    Attributes:
        ops: The ops, as :meth:`feeder.transforms.Recipe.of` takes them.
        lines: A line for each of their ops, in order.
        gives_pillow: True if theirs ends with a Pillow image, where feeder's recipe gives a tensor of uint8.
        steps: The ops after each of the first lines, those of ops with a counterpart.
    """

    ops: tuple[Op, ...]
    lines: tuple[OpReport, ...]
    gives_pillow: bool
    steps: tuple[tuple[Op, ...], ...] = ()

    def __str__(self) -> str:
        return "\n".join(map(str, self.lines))

    def check(self, *, strict: bool) -> None:
        """Logs, in one line, the ops that run in Python.

        Args:
            strict: True to refuse them.

        Raises:
            ArgumentError: with their lines; also without ``strict`` if one is refused.
        """
        if any(line.how == "refused" or (strict and line.how == "python") for line in self.lines):
            others = ", ".join(str(line) for line in self.lines if line.how != "native")
            raise ArgumentError(f"the transform has ops that feeder does not run natively: {others}")
        slow = [line for line in self.lines if line.how == "python"]
        if slow:
            names = ", ".join(line.name for line in slow)
            _log.info("%s run in Python, the other ops natively: %s", names, slow[0].reason)


def from_torchvision(transform: Any, *, strict: bool = False) -> Compose:
    """Returns feeder's recipe for a transform of torchvision.

    Shapes, dtypes and ranges are torchvision's; random ops draw by (seed, epoch, sample). A transform that ends with a
    Pillow image gives a tensor of uint8.

    Args:
        transform: A ``Compose`` of torchvision's transforms, or of v2's, an ``nn.Sequential``, a list, one op, or None;
            their ops may be any functions.
        strict: True to refuse ops that have no counterpart; else they and all later ones run in Python.

    Raises:
        ArgumentError: with the reason for each op that is not native, if one is refused.
    """
    conversion = convert(transform)
    conversion.check(strict=strict)
    return Compose(conversion.ops)


def convert(transform: Any) -> Conversion:
    """Converts as :func:`from_torchvision` does, and reports in place of raising."""
    state = _State()
    lines: list[OpReport] = []
    steps: list[tuple[Op, ...]] = []
    reason, rest = "", list[Any]()
    leaves = list(_leaves(transform))
    for number, op in enumerate(leaves):
        name = _name(op)
        try:
            after = _convert_one(op, replace(state, is_first=number == 0, is_last=number == len(leaves) - 1))
            Recipe(after.ops).check()
        except _Refused as problem:
            lines.append(OpReport(name, "refused", str(problem), "leave it out, or put ToTensor before it"))
        except (ArgumentError, TypeError, ValueError) as problem:
            reason, rest = str(problem), leaves[number:]
            break
        else:
            lines.append(OpReport(name, "native"))
            state = after
            steps.append(state.ops)

    if not rest:
        return Conversion(state.ops, tuple(lines), state.kind == "pil", tuple(steps))
    functions, resumed = _resumed(rest, state)
    way_out = "at the end of the recipe it leaves the ops before it native"
    lines.append(OpReport(_name(rest[0]), "python", reason, way_out))
    for before, op in itertools.pairwise(functions):
        lines.append(OpReport(_name(op), "python", f"it follows {_name(before)}"))
    if resumed:
        lines += [OpReport(_name(op), "native") for op in rest[len(functions) :]]
        return Conversion(resumed.ops, tuple(lines), resumed.kind == "pil", tuple(steps))

    try:
        op, gives_pillow = _tail(functions, state)
    except ArgumentError as problem:
        first = len(lines) - len(functions)
        lines[first] = OpReport(lines[first].name, "refused", str(problem), "end with a tensor of one shape")
        return Conversion(state.ops, tuple(lines), gives_pillow=False, steps=tuple(steps))
    return Conversion((*state.ops, op), tuple(lines), gives_pillow, tuple(steps))


def _resumed(rest: Sequence[Any], state: _State) -> tuple[Sequence[Any], _State | None]:
    """Returns the ops that run in Python, of those from the first without a counterpart on, and the state after all.

    They are the first ones alone where these make a Pillow image of the same size, as a call on a made one shows, and
    all behind them have counterparts that need this size. Else they are all, and there is no state.
    """
    count = next((n for n, op in enumerate(rest) if n and _counterpart(op, state) is not None), len(rest))
    if state.kind != "pil" or state.channels != 3 or count == len(rest) or Recipe(state.ops).output_size is None:
        return rest, None
    try:
        op, gives_pillow = _tail(rest[:count], state)
    except ArgumentError:
        return rest, None
    if not (gives_pillow and op.keeps_shape):
        return rest, None

    after: _State | None = state.then(op)
    for number, op in enumerate(rest[count:], start=count + 1):
        after = _counterpart(op, replace(after, is_last=number == len(rest))) if after is not None else None
    behind = after.ops[len(state.ops) + 1 :] if after is not None else ()
    return (rest[:count], after) if behind and all(isinstance(op, _KEEP_SIZE) for op in behind) else (rest, None)


def _counterpart(op: Any, state: _State) -> _State | None:
    """Returns the state after one op; None if it has to run in Python, or torchvision refuses it."""
    try:
        after = _convert_one(op, state)
        Recipe(after.ops).check()
    except (ArgumentError, TypeError, ValueError, _Refused):
        return None
    return after


def _tail(tail: Sequence[Callable[[Any], Any]], state: _State) -> tuple[Lambda, bool]:
    """Returns the op that runs the last of their ops, and True if they make Pillow images.

    Raises:
        ArgumentError: if they fail on a made image, or make no images of one shape.
    """
    function = _InOrder((_as_image, *tail) if state.kind == "image" else tuple(tail))
    on = "pil" if state.kind == "pil" else "tensor"
    op, head = Lambda(function, on=on, keeps_shape=False), Recipe(state.ops)
    output = Recipe((*state.ops, op)).tail_output
    assert output is not None
    keeps_shape = (*output[:2], head.output_size) == ((3,), head.output_dtype, output.size)
    return Lambda(function, on=on, keeps_shape=keeps_shape and state.channels == 3), output.is_pillow


def recipe_of(transform: Any) -> Recipe:
    """Returns the recipe of a transform, feeder's as :meth:`Recipe.of` takes it, or torchvision's.

    Raises:
        ArgumentError: for another object, or an op in a place where it can't be.
    """
    return Recipe.of(from_torchvision(transform) if _is_theirs(transform) else transform)


def objects_in(transform: Any) -> tuple[Any, ...]:
    """Returns a transform and the ops in it, which scripts insert and replace: as long as they are the same objects,
    so is the recipe."""
    inside = getattr(transform, "transforms", transform)
    return (transform, *inside) if isinstance(inside, (list, tuple)) else (transform,)


def are_same(objects: tuple[Any, ...], others: tuple[Any, ...]) -> bool:
    """Returns True if two results of :func:`objects_in` are of the same objects."""
    return len(objects) == len(others) and all(map(operator.is_, objects, others))


def takes_images_alone(transform: Any) -> bool:
    """Returns True for ops of torchvision's v2 that leave a target of numbers and text as it is."""
    return all(
        _is_v2(op) and _name(op) != "Lambda" and takes_images_alone(getattr(op, "transforms", None))
        for op in _leaves(transform)
    )


class _Refused(Exception):
    """An op that torchvision itself refuses in its place."""


@dataclass(frozen=True)
class _State:
    """The image after the ops so far.

    Attributes:
        ops: feeder's ops.
        kind: "pil", "image" (torchvision's class of tensors) or "tensor".
        is_float: True if a tensor has floats.
        is_first: True if the next op is their first.
        is_last: True if the next op is their last.
    """

    ops: tuple[Op, ...] = ()
    kind: str = "pil"
    is_float: bool = False
    is_first: bool = False
    is_last: bool = False

    @property
    def channels(self) -> int:
        return Recipe(self.ops).channels

    def then(self, *ops: Op, **changes: Any) -> _State:
        """Returns the state after further ops."""
        return replace(self, ops=(*self.ops, *ops), **changes)


@dataclass(frozen=True)
class _InOrder:
    """Calls functions one after the other; can be pickled if they can."""

    may_move = True  # pixels, and no targets with them

    functions: tuple[Callable[[Any], Any], ...]

    def __call__(self, image: Any) -> Any:
        for function in self.functions:
            image = function(image)
        return image

    def __repr__(self) -> str:
        return f"[{', '.join(map(_name, self.functions))}]"


def _as_image(tensor: Any) -> Any:
    from torchvision.tv_tensors import Image

    return Image(tensor)


def _class(op: object) -> type:
    """Returns the class whose behavior an object has: that of its base where a derived class overrides nothing."""
    kinds = type(op).__mro__
    for kind, base in itertools.pairwise(kinds):
        own = {name for name in vars(kind) if hasattr(base, name)} - _NOT_BEHAVIOR
        if own or kind.__module__.startswith(("torchvision.", "torch.", "timm.")):
            return kind
    return kinds[0]


def _is_theirs(op: object, *modules: str) -> bool:
    """Returns True if an object behaves as a class of torchvision's transforms, or of these modules."""
    changed = vars(op).keys() & {"forward", "__call__"} if hasattr(op, "__dict__") else None
    hooks = getattr(op, "_forward_hooks", None) or getattr(op, "_forward_pre_hooks", None)
    return not changed and not hooks and f"{_class(op).__module__}.".startswith(modules or ("torchvision.transforms.",))


def _is_v2(op: object) -> bool:
    return _is_theirs(op, "torchvision.transforms.v2.")


def _name(op: object) -> str:
    return getattr(op, "__name__", None) or _class(op).__name__


def _leaves(transform: Any) -> Iterator[Any]:
    """Yields the ops of nested sequences."""
    if transform is None:
        return
    is_module = _is_theirs(transform, "torch.nn.modules.container.")
    is_sequence = is_module and _name(transform) in ("ModuleList", "Sequential")
    if isinstance(transform, (list, tuple)) or is_sequence:
        for each in transform:
            yield from _leaves(each)
    elif isinstance(transform, (Compose, Recipe)):
        yield from Recipe.of(transform).ops
    elif _is_theirs(transform) and _name(transform) == "Compose":
        yield from _leaves(list(transform.transforms))
    elif callable(transform):
        yield transform
    else:
        raise ArgumentError(f"expected a transform of torchvision or a function, got {transform!r}")


def _convert_one(op: Any, state: _State) -> _State:
    """Returns the state after one op.

    Raises:
        ArgumentError: why it has to run in Python.
        _Refused: if torchvision refuses it in its place.
    """
    name = _name(op)
    if isinstance(op, Op):
        return state.then(op)
    if name == "Identity" and _is_theirs(op, "torch.nn.modules.", "torchvision.transforms."):
        return state
    if _is_theirs(op, "timm.", "open_clip."):
        return _timms(op, name, state)
    if not _is_theirs(op):
        return _function(op, state)
    if name in _RULES:
        return _RULES[name](op, state)
    if name in _SAME:
        return _same(op, name, state)
    raise ArgumentError("it has no counterpart")


def _timms(op: Any, name: str, state: _State) -> _State:
    """Takes an op of timm or open_clip."""
    is_pillow = state.kind == "pil"
    if name in ("MaybeToTensor", "MaybePILToTensor"):
        rule = _to_tensor if name == "MaybeToTensor" else _pil_to_tensor
        return rule(op, state) if is_pillow else state
    if name == "MaybeConvertMode" and (not is_pillow or (op.mode == "RGB" and state.channels == 3)):
        return state
    if name in ("color_jitter", "gray_scale"):
        return state.then(RandomApply(_inner(op.transf, state), op.p))

    if name == "RandomResizedCropAndInterpolation" and is_pillow:
        return state.then(RandomResizedCrop(op.size, op.scale, op.ratio, _drawn(op.interpolation)))
    if name == "RandAugment" and is_pillow:
        return state.then(_timm_augment(op))
    if name == "RandomErasing" and state.is_float and not op.rand_color and op.max_count == 1:
        ratio = [math.exp(each) for each in op.log_aspect_ratio]
        value = "random" if op.per_pixel else 0.0
        return state.then(RandomErasing(op.probability, (op.min_area, op.max_area), ratio, value))
    raise ArgumentError("it has no counterpart")


def _drawn(interpolation: Any) -> Any:
    """Returns DRAWN for the two that timm draws from, and anything else as it is."""
    if not isinstance(interpolation, (tuple, list)):
        return interpolation
    if tuple(map(check_interpolation, interpolation)) != BASE_FILTERS:
        raise ArgumentError("it draws another interpolation than bilinear or bicubic: give it one")
    return DRAWN


def _timm_augment(op: Any) -> augment.TimmRandAugment:
    """Returns the op of timm's ``RandAugment``, whose augmentations have one configuration."""
    first, names = op.ops[0], [each.name for each in op.ops]
    plain = [name.removesuffix("Rel").removesuffix("Increasing") for name in names]
    increasing = sum(name.endswith("Increasing") for name in names)
    is_known = plain == [*augment.TIMM_AUGMENTATIONS[1:]] and increasing in (0, 6) and names[-1].endswith("Rel")
    if not is_known or op.choice_weights is not None or first.hparams.get("translate_pct", 0.45) != 0.45:
        raise ArgumentError("its augmentations are not those of timm's usual configurations")

    config = f"rand-m{first.magnitude}-n{op.num_layers}-p{first.prob}-inc{increasing // 6}"
    config += f"-mstd{min(first.magnitude_std, 101)}-mmax{first.magnitude_max or 10}"
    return augment.TimmRandAugment(config, _drawn(first.kwargs["resample"]), first.kwargs["fillcolor"])


def _same(op: Any, name: str, state: _State) -> _State:
    """Takes an op of the same name and arguments."""
    is_tensor = state.kind != "pil"
    if is_tensor and (name not in _MOVABLE if state.is_float else name in _OTHER_ON_TENSORS):
        raise ArgumentError("on tensors it differs from Pillow's")
    kind = _SAME[name]
    taken = {each: getattr(op, each) for each in inspect.signature(kind).parameters if hasattr(op, each)}
    if not is_tensor:
        taken.pop("antialias", None)  # it has no effect on Pillow images
    elif "antialias" in taken:
        taken["antialias"] = bool(taken["antialias"])  # None is torchvision's False
    made = kind(**taken)

    smooth = ("bilinear", "bicubic") if _is_v2(op) and not state.is_float else ("bilinear",)
    if is_tensor and (getattr(made, "interpolation", "bilinear") not in smooth or getattr(made, "hue", None)):
        raise ArgumentError("on tensors its interpolation, or its change of hue, differs from Pillow's")
    return _moved(made, state) if state.is_float else state.then(made)


def _moved(op: Op, state: _State) -> _State:
    """Takes an op on floats, which does the same before these were made of uint8."""
    place = next(number for number, each in enumerate(state.ops) if isinstance(each, (ToDtype, Normalize)))
    before, values = state.ops[:place], state.ops[place:]
    if not all(isinstance(each, (ToDtype, Normalize)) for each in values):
        if isinstance(op, RandomHorizontalFlip):
            return state.then(op)
        raise ArgumentError("it works on floats, behind an op that it can't be moved before")

    extent = SizeBounds()
    for each in before:
        extent = each.extent(extent)
    if isinstance(op, (CenterCrop, RandomCrop)) and not op.fuses(extent):
        raise ArgumentError("it may pad an image of floats")
    return replace(state, ops=(*before, op, *values))


def _lambda(op: Any, state: _State) -> _State:
    return _function(op.lambd, state)


def _function(function: Any, state: _State) -> _State:
    """Takes a function that is known by its code."""
    now = "floats" if state.is_float else state.kind
    for known, kind, ops in _KNOWN:
        if _code(function) == _code(known) and kind in ("", now) and state.channels == 3:
            return state.then(*ops)
    raise ArgumentError("it is a function of yours")


def _code(function: Any) -> object:
    """Returns the steps of a function of one argument that reads nothing else."""
    code = function.__code__ if inspect.isfunction(function) else None
    if code is None or code.co_argcount != 1 or code.co_nlocals != 1 or code.co_freevars:
        return function
    steps = dis.get_instructions(code)
    return [(step.opname, None if "FAST" in step.opname else step.argval) for step in steps if step.opname != "RESUME"]


_HALVES, _LEVELS = Normalize([0.5] * 3, [0.5] * 3), Normalize([0.0] * 3, [1 / 255] * 3)
# Functions that many scripts have, the kind of image that they take, and feeder's ops for them.
_KNOWN: tuple[tuple[Callable[[Any], Any], str, tuple[Op, ...]], ...] = (
    (lambda image: image, "", ()),
    (lambda image: image.convert("RGB"), "pil", ()),
    (lambda image: image.convert("L"), "pil", (Grayscale(1),)),
    (lambda image: image * 2 - 1, "floats", (_HALVES,)),
    (lambda image: 2 * image - 1, "floats", (_HALVES,)),
    (lambda image: (image - 0.5) * 2, "floats", (_HALVES,)),
    (lambda image: image.mul(255), "floats", (_LEVELS,)),
    (lambda image: image * 255, "floats", (_LEVELS,)),
)


def _to_tensor(op: Any, state: _State) -> _State:
    if state.kind == "pil":
        return state.then(ToDtype("float32", scale=True), kind="tensor", is_float=True)
    if _is_v2(op):
        return state
    raise _Refused("torchvision's ToTensor takes no tensor")


def _pil_to_tensor(op: Any, state: _State) -> _State:
    if state.kind != "pil" and not _is_v2(op):
        raise _Refused("torchvision's PILToTensor takes no tensor")
    return replace(state, kind="tensor") if state.kind == "pil" else state


def _to_image(op: Any, state: _State) -> _State:
    return replace(state, kind="image")


def _to_pure_tensor(op: Any, state: _State) -> _State:
    return replace(state, kind="tensor") if state.kind == "image" else state


def _to_pillow(op: Any, state: _State) -> _State:
    if op.mode is not None and (op.mode, state.channels) not in (("RGB", 3), ("L", 1)):
        raise ArgumentError("it converts to another mode")
    if state.kind == "pil" and not (state.is_first or _is_v2(op)):
        raise _Refused("torchvision's ToPILImage takes no Pillow image")
    ops = state.ops
    if state.is_float:
        if ops[-1] != ToDtype("float32", scale=True):
            raise ArgumentError("it turns other floats than ToTensor's into pixels")
        ops = ops[:-1]
    return replace(state, ops=ops, kind="pil", is_float=False)


def _to_dtype(op: Any, state: _State) -> _State:
    dtype = op.dtype
    if isinstance(dtype, dict):  # by the class of what is converted
        names = {getattr(key, "__name__", key): value for key, value in dtype.items()}
        own = {"image": "Image", "tensor": "Tensor"}.get(state.kind, "others")
        if own not in names and "others" not in names:
            raise _Refused(f"its mapping has no dtype for {own}")
        dtype = names.get(own, names.get("others"))
    if state.kind == "pil" and not _is_v2(op):
        raise _Refused("torchvision's ConvertImageDtype takes no Pillow image")
    name = str(dtype).removeprefix("torch.")
    if state.kind == "pil" or dtype is None or name == ("float32" if state.is_float else "uint8"):
        return state  # v2 leaves Pillow images alone

    if name != "float32" and (state.is_float or not state.is_last):
        raise ArgumentError(f"later ops would compute in {name}")
    return state.then(ToDtype(name, scale=getattr(op, "scale", True)), is_float=True)


def _normalize(op: Any, state: _State) -> _State:
    if not state.is_float:
        raise _Refused("torchvision's Normalize takes tensors of floats")
    mean, std = (value.tolist() if hasattr(value, "tolist") else value for value in (op.mean, op.std))
    if state.channels == 1 and any(len(value) > 1 for value in (mean, std) if hasattr(value, "__len__")):
        raise ArgumentError("it makes three channels of one")
    return state.then(Normalize(mean, std))


def _erasing(op: Any, state: _State) -> _State:
    if state.kind == "pil":
        raise ArgumentError("it takes tensors")
    return state.then(RandomErasing(op.p, op.scale, op.ratio, op.value))


def _noise(op: Any, state: _State) -> _State:
    if state.kind == "pil":
        raise _Refused("torchvision's GaussianNoise takes no Pillow image")
    return state.then(GaussianNoise(op.mean, op.sigma, op.clip))


def _rgb(op: Any, state: _State) -> _State:
    if state.channels != 3:
        raise ArgumentError("it makes three channels of one")
    return state


def _apply(op: Any, state: _State) -> _State:
    return state.then(RandomApply(_inner(op.transforms, state), op.p))


def _choose(op: Any, state: _State) -> _State:
    return state.then(RandomChoice([Compose(_inner(each, state)) for each in op.transforms], op.p))


def _reorder(op: Any, state: _State) -> _State:
    return state.then(RandomOrder([Compose(_inner(each, state)) for each in op.transforms]))


def _inner(transform: Any, state: _State) -> tuple[Op, ...]:
    """Returns the ops of a branch, all of which have counterparts and leave an image what it is."""
    if state.is_float:
        raise ArgumentError("it works on floats")
    inner = _State(kind=state.kind)
    for op in _leaves(transform):
        try:
            inner = _convert_one(op, inner)
        except ArgumentError as problem:
            raise ArgumentError(f"of {_name(op)} in it: {problem}") from None
    if inner.kind != state.kind or inner.is_float:
        raise ArgumentError("an op in it changes the image's type")
    return inner.ops


def _preset(op: Any, state: _State) -> _State:
    """Takes the transforms of a model's weights."""
    if state.kind != "pil":
        raise ArgumentError("on tensors it differs from Pillow's")
    resize = Resize(op.resize_size, op.interpolation)
    values = ToDtype("float32", scale=True), Normalize(op.mean, op.std)
    return state.then(resize, CenterCrop(op.crop_size), *values, kind="tensor", is_float=True)


_RULES: dict[str, Callable[[Any, _State], _State]] = {
    "ConvertImageDtype": _to_dtype,
    "GaussianNoise": _noise,
    "ImageClassification": _preset,
    "Lambda": _lambda,
    "Normalize": _normalize,
    "PILToTensor": _pil_to_tensor,
    "RGB": _rgb,
    "RandomApply": _apply,
    "RandomChoice": _choose,
    "RandomErasing": _erasing,
    "RandomOrder": _reorder,
    "ToDtype": _to_dtype,
    "ToImage": _to_image,
    "ToPILImage": _to_pillow,
    "ToPureTensor": _to_pure_tensor,
    "ToTensor": _to_tensor,
}

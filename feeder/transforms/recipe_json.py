"""Recipes and mixing ops as JSON: for states, which say by what their images were made, and for other processes."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import feeder.transforms as transforms
from feeder.errors import ArgumentError
from feeder.system.named_functions import function_name
from feeder.transforms.function import Lambda
from feeder.transforms.mixing import BatchOp
from feeder.transforms.op import Op
from feeder.transforms.recipe import Compose, Recipe
from feeder.transforms.sizes import BUCKET, ByEpoch
from feeder.transforms.views import Views

_BUCKET, _BY_EPOCH, _VIEWS, _LAMBDA = "BUCKET", "ByEpoch", "Views", "Lambda"

# Limits of a recipe that comes from elsewhere: a longer one would keep others waiting for the core that makes it.
_MOST_OPS, _DEEPEST, _MOST_SIDE = 256, 8, 1 << 14
_LEAST_SIDE = 1024.0  # pixels: the least side that an image counts with before ops enlarge it
_MOST_OF = {"kernel_size": 511, "num_magnitude_bins": 1024, "trials": 1000}
_OPS_OF = ("num_ops", "mixture_width", "chain_depth")
_SIDES = ("max_size", "min_size", "size", "target_size")
_GROWTHS = {"scale_range": 1.0, "side_range": 1.0, "expand": 1.5}  # and the factor that 1 stands for

Function = Callable[..., Any]
NameOf = Callable[[Function], str]
FunctionOf = Callable[[Any], Function]
_OpT = TypeVar("_OpT", Op, BatchOp)


def recipe_to_json(recipe: Recipe | Views, name_of: NameOf | None = None) -> Any:
    """Returns a recipe as JSON takes it: a list of ops, each ``{name: {argument: value}}``, or of views ``{"Views":
    [recipe, ...]}``.

    Args:
        recipe: The recipe.
        name_of: Returns the name that is written down for a function; None: there is none.

    Raises:
        ArgumentError: if it calls a function without a name, which JSON can't hold.
    """
    if isinstance(recipe, Views):
        return {_VIEWS: [recipe_to_json(view, name_of) for view in recipe.views]}
    return [_encoded(op, name_of) for op in recipe.ops]


def recipe_from_json(value: Any, function_of: FunctionOf | None = None) -> Recipe | Views:
    """Returns the recipe that :func:`recipe_to_json` has written.

    Args:
        value: The JSON.
        function_of: Returns the function of a name that was written down; None: such recipes are refused.

    Raises:
        ArgumentError: for anything else.
    """
    if isinstance(value, Mapping) and set(value) == {_VIEWS} and isinstance(value[_VIEWS], list):
        return Views([_recipe(view, function_of) for view in value[_VIEWS]])
    return _recipe(value, function_of)


def check_bounds(value: Any, *further: Any) -> None:
    """Refuses recipes that take too long, or too much memory, for a process that others wait for.

    Args:
        value: The JSON of the images' recipe.
        further: JSON with the recipes of further images.

    Raises:
        ArgumentError: naming the bound, for too many ops, ops too deep in others, or too large kernels or images.
    """
    is_views = isinstance(value, Mapping) and isinstance(value.get(_VIEWS), list)
    ops = sum(map(_checked_ops, (*(value[_VIEWS] if is_views else [value]), *further)))
    if ops > _MOST_OPS:
        raise _too_large(f"more than {_MOST_OPS} ops")


def _checked_ops(value: Any) -> float:
    """Returns the number of ops that an image goes through, once their depth and sizes were checked."""
    ops, side, growth = 0.0, _LEAST_SIDE, 1.0
    for name, number, depth in _facts(value, "", 0):
        if depth > _DEEPEST:
            raise _too_large(f"ops more than {_DEEPEST} deep in others")
        if name in _MOST_OF and not number <= _MOST_OF[name]:
            raise _too_large(f"{name} of more than {_MOST_OF[name]}")
        number = min(number, 2 * _MOST_SIDE)
        ops += number if name[:1].isupper() else 0
        if name in _GROWTHS:
            growth *= max(1.0, number * _GROWTHS[name])
        side = side + number if name == "padding" else max(side, number) if name in _SIDES else side
    if side * growth > _MOST_SIDE:
        raise _too_large(f"images of more than {_MOST_SIDE:,} pixels a side")
    return ops


def _facts(value: Any, name: str, depth: int) -> Iterator[tuple[str, float, int]]:
    """Yields (name, number of ops that it stands for, depth) for each op, and (argument, number, depth) for each
    number."""
    if isinstance(value, Mapping):
        for key, each in value.items():
            if key == _BY_EPOCH:
                yield from _facts([pair[1:] for pair in each if isinstance(pair, list)], name, depth)
            elif key[:1].isupper():
                yield key, _ops_in(each), depth + 1
                yield from _facts(each, name, depth + 1)
            else:
                yield from _facts(each, key, depth)
    elif isinstance(value, list):
        for each in value:
            yield from _facts(each, name, depth)
    elif isinstance(value, int | float):
        yield name, value if value == value else math.inf, depth  # NaN is in no range


def _ops_in(arguments: Any) -> float:
    """Returns the number of ops that one with these arguments stands for."""
    given = [arguments.get(name, 1) for name in _OPS_OF] if isinstance(arguments, Mapping) else []
    return math.prod(min(max(number, 1), 2 * _MOST_OPS) for number in given if isinstance(number, int | float))


def _too_large(what: str) -> ArgumentError:
    return ArgumentError(f"the recipe has {what}, and a server makes no more; make it smaller, or leave service= out")


def mix_to_json(ops: Sequence[BatchOp]) -> list[Any]:
    """Returns the ops of a loader's ``mix`` as JSON takes them, each ``{name: {argument: value}}``.

    Raises:
        ArgumentError: for an op of a class that is not feeder's.
    """
    for op in ops:
        if getattr(transforms, type(op).__name__, None) is not type(op):
            raise ArgumentError(f"{type(op).__name__} is no op of feeder.transforms, and can't be written down")
    return [_encoded(op) for op in ops]


def mix_from_json(value: Any) -> list[BatchOp]:
    """Returns the ops that :func:`mix_to_json` has written.

    Raises:
        ArgumentError: for anything else.
    """
    if not isinstance(value, list):
        raise ArgumentError(f"expected the ops of mix as a list, got {value!r}")
    return [_made(each, BatchOp) for each in value]  # type: ignore[type-abstract]


def _recipe(value: Any, function_of: FunctionOf | None) -> Recipe:
    if not isinstance(value, list):
        raise ArgumentError(f"expected a recipe as a list of ops, got {value!r}")
    return Recipe.of([_op(each, function_of) for each in value])


def _encoded(value: Any, name_of: NameOf | None = None) -> Any:
    if isinstance(value, Lambda):
        if name_of is None:
            raise ArgumentError("the recipe has a Lambda, whose function can't be written down")
        try:
            name = name_of(value.lambd)
        except ArgumentError as error:
            raise ArgumentError(f"the recipe has a Lambda: {error}") from None
        is_plain = value == Lambda(value.lambd)
        return {_LAMBDA: name if is_plain else [name, value.on, value.keeps_shape]}
    if value is BUCKET:
        return _BUCKET
    if isinstance(value, ByEpoch):
        return {_BY_EPOCH: [[epoch, _encoded(size)] for epoch, size in value.sizes]}
    if isinstance(value, (Op, BatchOp)):
        return {type(value).__name__: {name: _encoded(each, name_of) for name, each in vars(value).items()}}
    return [_encoded(each, name_of) for each in value] if isinstance(value, tuple) else value


def _op(value: Any, function_of: FunctionOf | None) -> Op:
    if isinstance(value, Mapping) and set(value) == {_LAMBDA} and function_of is not None:
        written = value[_LAMBDA]
        if isinstance(written, list) and len(written) == 3:
            name, on, keeps_shape = written
            return Lambda(function_of(name), on=on, keeps_shape=keeps_shape)
        return Lambda(function_of(written))
    return _made(value, Op, function_of)


def _made(value: Any, base: type[_OpT], function_of: FunctionOf | None = None) -> _OpT:
    """Returns an op of a class that derives from ``base``."""
    name, arguments = single_entry(value)
    kind = getattr(transforms, name, None) if name in transforms.__all__ else None
    if not inspect.isclass(kind) or not issubclass(kind, base) or not isinstance(arguments, Mapping):
        raise ArgumentError(f"expected an op of feeder.transforms as {{name: arguments}}, got {value!r}")
    taken = set(inspect.signature(kind).parameters)
    try:
        op = kind(**{name: _decoded(each, function_of) for name, each in arguments.items() if name in taken})
        is_same = _encoded(op, None if function_of is None else function_name) == value
    except TypeError as error:
        raise ArgumentError(f"{value!r} is no op of this version of feeder: {error}") from error
    if not is_same:
        raise ArgumentError(f"{value!r} is no op of this version of feeder, which would make {op!r} of it")
    return op


def single_entry(value: Any) -> tuple[Any, Any]:
    """Returns the name and the content of ``{name: content}``; ("", None) for anything else."""
    return next(iter(value.items())) if isinstance(value, Mapping) and len(value) == 1 else ("", None)


def _decoded(value: Any, function_of: FunctionOf | None = None) -> Any:
    if value == _BUCKET:
        return BUCKET
    if isinstance(value, Mapping):
        if set(value) == {_BY_EPOCH}:
            return ByEpoch({epoch: _decoded(size) for epoch, size in _pairs(value[_BY_EPOCH])})
        return _op(value, function_of)
    if isinstance(value, list):
        # A list of ops inside a list is a branch of several ops.
        return [Compose(each) if _are_ops(each) else each for each in (_decoded(each, function_of) for each in value)]
    return value


def _are_ops(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, Op) for each in value)


def _pairs(value: Any) -> Iterator[tuple[int, Any]]:
    if not isinstance(value, list) or not all(isinstance(each, list) and len(each) == 2 for each in value):
        raise ArgumentError(f"expected sizes by epoch, [[epoch, size], ...], got {value!r}")
    return (tuple(each) for each in value)

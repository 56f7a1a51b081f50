"""Ops that apply other ops to some of the images."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from feeder.errors import ArgumentError
from feeder.transforms.arguments import check_probability
from feeder.transforms.op import Drawn, IntArray, Op, Params, SizeBounds, Uniforms
from feeder.transforms.recipe import Recipe
from feeder.transforms.values import Normalize, ToDtype

# No resize or crop leaves both unchanged.
_PROBES = SizeBounds((7, 5), fixed=True), SizeBounds((4, 11), fixed=True)


# Ops, each with its drawn parameters.
Steps = Iterator[tuple[Op, dict[str, Any]]]


class Branches(Op):
    """An op that contains other ops in branches, and runs one of the branches or none, as drawn for each image."""

    @abstractmethod
    def branches(self, params: Mapping[str, Any]) -> Iterator[tuple[Any, Steps]]:
        """Yields each branch: whether it was drawn, and its ops with their drawn parameters.

        Args:
            params: This op's drawn parameters, for all samples or for one.
        """

    def _checked(self, transforms: Op | Sequence[Op]) -> tuple[Op, ...]:
        """Returns the ops of a branch, if it can hold them."""
        ops = Recipe.of(transforms).ops
        for op in ops:
            if isinstance(op, Branches):
                raise ArgumentError(
                    f"{type(op).__name__} can't be in {type(self).__name__}: ops that have others in them do not nest; "
                    "give the ops in it their own probabilities, or put it before or after"
                )
            changes = isinstance(op, (ToDtype, Normalize)) or Recipe((op,)).channels != 3 or Recipe((op,)).tail
            if changes or any(op.extent(e) != e for e in _PROBES):
                raise ArgumentError(
                    f"{type(op).__name__} can't be in {type(self).__name__}, which takes ops that keep an image's "
                    "size and dtype; put it before or after"
                )
        return ops

    def _draw_inner(self, uniforms: Uniforms, sizes: IntArray) -> Params:
        params: Params = {}
        for number, op in enumerate(self.inner_ops):
            drawn = op.draw(uniforms.inner(number), sizes).params
            params |= {f"{number}.{name}": values for name, values in drawn.items()}
        return params

    def _steps(self, params: Mapping[str, Any], first: int, count: int) -> Steps:
        """Yields ``count`` of the inner ops, each with its drawn parameters."""
        for number, op in enumerate(self.inner_ops[first : first + count], start=first):
            prefix = f"{number}."
            yield op, {name.removeprefix(prefix): value for name, value in params.items() if name.startswith(prefix)}


@dataclass(frozen=True, init=False)
class RandomApply(Branches):
    """Applies several ops with probability ``p``: all of them to an image, or none.

    Args:
        transforms: Ops that keep the image's size and dtype.
        p: Probability, 0 to 1.

    Raises:
        ArgumentError: for another op, or if ``p`` is no probability.
    """

    transforms: tuple[Op, ...]
    p: float

    def __init__(self, transforms: Op | Sequence[Op], p: float = 0.5) -> None:
        self._set(transforms=self._checked(transforms), p=check_probability(p))

    def draw(self, uniforms: Uniforms, sizes: IntArray) -> Drawn:
        apply: Params = {"apply": uniforms(1)[:, 0] < self.p}
        return Drawn(apply | self._draw_inner(uniforms, sizes), sizes)

    @property
    def inner_ops(self) -> tuple[Op, ...]:
        return self.transforms

    def branches(self, params: Mapping[str, Any]) -> Iterator[tuple[Any, Steps]]:
        yield params["apply"], self._steps(params, 0, len(self.transforms))


@dataclass(frozen=True, init=False)
class RandomChoice(Branches):
    """Applies one of several ops, chosen at random for each image.

    Args:
        transforms: Ops that keep the image's size and dtype; a ``Compose`` is chosen as a whole.
        p: Weight of each, in any unit; None for equal weights.

    Raises:
        ArgumentError: for another op, or if ``p`` is not a number of 0 or more for each, with one above 0.
    """

    transforms: tuple[tuple[Op, ...], ...]
    p: tuple[float, ...]

    def __init__(self, transforms: Sequence[Op], p: Sequence[float] | None = None) -> None:
        if not isinstance(transforms, Sequence) or not transforms:
            raise ArgumentError(f"transforms must be a sequence of one op or more, got {transforms!r}")
        weights = (1.0,) * len(transforms) if p is None else tuple(float(weight) for weight in p)
        total = sum(weights)
        if len(weights) != len(transforms) or min(weights) < 0.0 or not 0.0 < total < math.inf:
            raise ArgumentError(
                f"p must be {len(transforms)} numbers, one for each op, all 0 or more and one above 0, got {p!r}"
            )
        self._set(
            transforms=tuple(self._checked(each) for each in transforms),
            p=tuple(weight / total for weight in weights),
        )

    def draw(self, uniforms: Uniforms, sizes: IntArray) -> Drawn:
        ends = np.cumsum(self.p)
        choice = np.searchsorted(ends / ends[-1], uniforms(1)[:, 0], side="right")
        drawn: Params = {"choice": choice}
        return Drawn(drawn | self._draw_inner(uniforms, sizes), sizes)

    @property
    def inner_ops(self) -> tuple[Op, ...]:
        return tuple(op for ops in self.transforms for op in ops)

    def branches(self, params: Mapping[str, Any]) -> Iterator[tuple[Any, Steps]]:
        first = 0
        for number, ops in enumerate(self.transforms):
            yield params["choice"] == number, self._steps(params, first, len(ops))
            first += len(ops)


@dataclass(frozen=True, init=False)
class RandomOrder(Branches):
    """Applies several ops in an order drawn for each image.

    Args:
        transforms: Ops that keep the image's size and dtype; a ``Compose`` among them stays together.

    Raises:
        ArgumentError: for another op.
    """

    transforms: tuple[tuple[Op, ...], ...]

    def __init__(self, transforms: Sequence[Op]) -> None:
        if not isinstance(transforms, Sequence) or not transforms:
            raise ArgumentError(f"transforms must be a sequence of one op or more, got {transforms!r}")
        self._set(transforms=tuple(self._checked(each) for each in transforms))

    def draw(self, uniforms: Uniforms, sizes: IntArray) -> Drawn:
        order: Params = {"order": np.argsort(uniforms(len(self.transforms)), axis=1, kind="stable")}
        return Drawn(order | self._draw_inner(uniforms, sizes), sizes)

    @property
    def inner_ops(self) -> tuple[Op, ...]:
        return tuple(op for ops in self.transforms for op in ops)

    def branches(self, params: Mapping[str, Any]) -> Iterator[tuple[Any, Steps]]:
        """Yields the ops once for each place in the order."""
        for place in range(len(self.transforms)):
            first = 0
            for number, ops in enumerate(self.transforms):
                yield params["order"][..., place] == number, self._steps(params, first, len(ops))
                first += len(ops)

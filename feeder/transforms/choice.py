"""Ops that are done to some of the images only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from feeder.errors import ArgumentError
from feeder.transforms.arguments import check_probability
from feeder.transforms.op import Drawn, Extent, IntArray, Op, Params, Uniforms
from feeder.transforms.recipe import Recipe
from feeder.transforms.values import Normalize, ToDtype

__all__ = ["RandomApply"]

# No resize or crop leaves both as they are.
_PROBES = Extent((7, 5), fixed=True), Extent((4, 11), fixed=True)


@dataclass(frozen=True, init=False)
class RandomApply(Op):
    """Does several ops with probability ``p``: all of them to an image, or none.

    Args:
        transforms: The ops, such as leave the image's size and dtype alone.
        p: Probability, 0 to 1.

    Raises:
        ArgumentError: for another op, or if ``p`` is no probability.
    """

    transforms: tuple[Op, ...]
    p: float

    def __init__(self, transforms: Op | Sequence[Op], p: float = 0.5) -> None:
        ops = Recipe.of(transforms).ops
        for op in ops:
            if isinstance(op, (ToDtype, Normalize, RandomApply)) or any(op.extent(e) != e for e in _PROBES):
                raise ArgumentError(
                    f"{type(op).__name__} can't be in RandomApply, which takes ops that leave an image's size and "
                    "dtype alone; put it before or after"
                )
        self._set(transforms=ops, p=check_probability(p))

    def draw(self, uniforms: Uniforms, sizes: IntArray) -> Drawn:
        params: Params = {"apply": uniforms(1)[:, 0] < self.p}
        for number, op in enumerate(self.transforms):
            drawn = op.draw(uniforms.inner(number), sizes).params
            params |= {f"{number}.{name}": values for name, values in drawn.items()}
        return Drawn(params, sizes)

    def inner(self, params: Mapping[str, Any]) -> Iterator[tuple[Op, dict[str, Any]]]:
        """Each op with what was drawn for it.

        Args:
            params: What was drawn for this one, for all samples or for one.
        """
        for number, op in enumerate(self.transforms):
            prefix = f"{number}."
            yield op, {name.removeprefix(prefix): value for name, value in params.items() if name.startswith(prefix)}

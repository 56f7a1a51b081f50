"""Sizes that are not one pair of numbers: a bucket's, and those that change with the epoch."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from feeder.errors import ArgumentError
from feeder.system.arrays import Size


class VariableSize:
    """A size that is known batch by batch only."""

    @abstractmethod
    def at(self, bucket: Size | None, epoch: int) -> Any:
        """Returns the size of a batch, as the op's own check gives it.

        Args:
            bucket: (height, width) of the batch's bucket; None without buckets.
            epoch: 0 to 2**32-1.
        """


class BucketSize(VariableSize):
    """The type of :data:`BUCKET`."""

    def __repr__(self) -> str:
        return "BUCKET"

    def __reduce__(self) -> str:
        return "BUCKET"

    def at(self, bucket: Size | None, epoch: int) -> Size:
        if bucket is None:
            raise ArgumentError(
                "the recipe has T.BUCKET, the size of a batch's bucket, and there are no buckets: give "
                "feeder.DataLoader sizes=feeder.Buckets(...), and iterate over it, not over one of torch's that a "
                "framework made of it"
            )
        return bucket


BUCKET: Any = BucketSize()
"""The (height, width) of a batch's bucket, as the size of an op; needs ``DataLoader(sizes=feeder.Buckets(...))``."""


@dataclass(frozen=True, init=False, repr=False)
class ByEpoch(VariableSize):
    """A size that changes with the epoch, for a run that begins with small images.

    Args:
        sizes: Size by the first epoch that has it; one for epoch 0 is needed. Each is a size as the op takes it.

    Raises:
        ArgumentError: if the keys are no epochs, or 0 is missing.
    """

    sizes: tuple[tuple[int, Any], ...]

    def __init__(self, sizes: Mapping[int, Any]) -> None:
        is_map = isinstance(sizes, Mapping)
        epochs = list(sizes) if is_map else []
        if 0 not in epochs or not all(type(epoch) is int and 0 <= epoch < 1 << 32 for epoch in epochs):
            raise ArgumentError(
                f"ByEpoch takes sizes by their first epoch, from 0 on: {{0: 128, 6: 160}}; got {sizes!r}"
            )
        found = ((epoch, tuple(size) if isinstance(size, list) else size) for epoch, size in sorted(sizes.items()))
        object.__setattr__(self, "sizes", tuple(found))

    def __repr__(self) -> str:
        return f"ByEpoch({dict(self.sizes)!r})"

    def at(self, bucket: Size | None, epoch: int) -> Any:
        return next(size for first, size in reversed(self.sizes) if first <= epoch)


def check_variable(size: Any, check: Callable[[Any], Any]) -> Any:
    """Returns an op's size, or a variable size whose sizes are all checked.

    Args:
        size: The op's argument.
        check: Checks a size, and returns it in the form that the op keeps.
    """
    return size if isinstance(size, BucketSize) else check_by_epoch(size, check)


def check_by_epoch(size: Any, check: Callable[[Any], Any]) -> Any:
    """Returns an op's size, or sizes by epoch that are all checked, of an op that takes no bucket's size.

    Args:
        size: The op's argument.
        check: See :func:`check_variable`.
    """
    if isinstance(size, ByEpoch):
        return ByEpoch({epoch: check(each) for epoch, each in size.sizes})
    return check(size)


def by_phase(*sizes: Any) -> Iterator[tuple[Any, ...]]:
    """Yields the sizes of each phase of a run: a phase begins at an epoch at which one of them changes."""
    for epoch in sorted({0, *(first for size in sizes if isinstance(size, ByEpoch) for first, _ in size.sizes)}):
        yield tuple(size.at(None, epoch) if isinstance(size, ByEpoch) else size for size in sizes)

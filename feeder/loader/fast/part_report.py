"""The report on a part of a batch: what its slot and the meters do not say."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from feeder.decoders.decoder import Buffer
from feeder.errors import DecodeError

if TYPE_CHECKING:
    from feeder.loader.slots.batch_message import Collated

SUBSTITUTES = 16  # tried in place of one bad sample
SUMS = ("clipped", "slow")  # a report's counts, which add up over parts


class Substitution(NamedTuple):
    """A bad sample that was replaced by another.

    Attributes:
        position: Its position in the epoch.
        key: Its key.
        shard: The shard's file name; None for an unsharded image.
        offset_bytes: Offset of its image in the shard.
        reason: What is wrong with it.
        substitute: Id of the sample in its place.
    """

    position: int
    key: str | None
    shard: str | None
    offset_bytes: int | None
    reason: str
    substitute: int

    @classmethod
    def of(cls, position: int, error: DecodeError, substitute: int) -> Substitution:
        """Returns the substitution of the sample that an error names."""
        return cls(position, error.key, error.shard, error.offset_bytes, error.reason, substitute)


def no_substitute(error: DecodeError) -> DecodeError:
    """Returns the error for a bad sample whose substitutes are all bad, too."""
    return DecodeError(
        f"{error.reason}; none of its substitutes could be decoded either: check the dataset with "
        "`feeder inspect --verify`",
        key=error.key,
        shard=error.shard,
        offset_bytes=error.offset_bytes,
    )


@dataclass
class PartReport:
    """The report on a part that was made.

    Attributes:
        extras: Values of the targets and further fields that have no array in the slot, each a list of N.
        substitutions: Bad samples and their substitutes.
        left_over: Staged images that did not fit the slot, by image of the sample, row of the part and view.
        collated: The batch that a collate_fn made of the part, then without these; else None.
        clipped: Number of images that lost range, because their samples have more than 8 bits.
        slow: Number of JPEGs that the backend could not decode in its usual way.
    """

    extras: list[list[Any]] = field(default_factory=list)
    substitutions: list[Substitution] = field(default_factory=list)
    left_over: dict[tuple[int, int, int], Buffer] = field(default_factory=dict)
    collated: Collated | None = None
    clipped: int = 0
    slow: int = 0

    @classmethod
    def join(cls, parts: list[tuple[int, PartReport]]) -> PartReport:
        """Returns the report on a batch.

        Args:
            parts: First row and report of each part, at least one, in order.
        """
        reports = [report for _, report in parts]
        columns = zip(*(report.extras for report in reports), strict=True)
        return cls(
            extras=[list(itertools.chain.from_iterable(column)) for column in columns],
            substitutions=[each for report in reports for each in report.substitutions],
            left_over={
                (image, first + row, view): data
                for first, report in parts
                for (image, row, view), data in report.left_over.items()
            },
            collated=reports[0].collated,
            **{name: sum(getattr(report, name) for report in reports) for name in SUMS},
        )

    @property
    def has_news(self) -> bool:
        """True if it says anything that the slot and the meters do not."""
        further = self.extras or self.substitutions or self.left_over or self.collated
        return bool(further or self.clipped or self.slow)

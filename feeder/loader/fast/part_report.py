"""The report on a part of a batch: fields, substitutions, and what it took."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from feeder.decoders.decoder import Buffer
    from feeder.errors import DecodeError
    from feeder.loader.fast.collated import Collated

__all__ = ["PartReport", "Substitution"]


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


@dataclass
class PartReport:
    """The report on a part that was made.

    Attributes:
        fields: The further fields, each a list with one value per sample.
        substitutions: Bad samples and their substitutes.
        left_over: Staged images that did not fit the slot, by row of the part.
        collated: The batch that a collate_fn made of the part, then without further fields; else None.
        read_ns: Time spent reading, nanoseconds.
        decode_ns: Time spent drawing, decoding and augmenting, nanoseconds.
        encoded_bytes: Bytes of encoded images that were read.
        clipped: Number of images that lost range, because their samples have more than 8 bits.
        slow: Number of JPEGs that the backend could not decode in its usual way.
    """

    fields: list[list[Any]] = field(default_factory=list)
    substitutions: list[Substitution] = field(default_factory=list)
    left_over: dict[int, Buffer] = field(default_factory=dict)
    collated: Collated | None = None
    read_ns: int = 0
    decode_ns: int = 0
    encoded_bytes: int = 0
    clipped: int = 0
    slow: int = 0

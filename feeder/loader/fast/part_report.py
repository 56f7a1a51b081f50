"""The report on a part of a batch: fields, substitutes, and what it took."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from feeder.decode.decoder import Buffer
    from feeder.loader.fast.collated import Collated

__all__ = ["Report", "Substitution"]


class Substitution(NamedTuple):
    """A bad sample that another took the place of.

    Attributes:
        position: Its position in the epoch.
        key: Its key.
        shard: The shard's file name; None for an unsharded image.
        offset_bytes: Where its image starts in the shard.
        reason: What is wrong with it.
        substitute: Id of the sample in its place.
    """

    position: int
    key: str | None
    shard: str | None
    offset_bytes: int | None
    reason: str
    substitute: int


@dataclass
class Report:
    """What making a part took and gave, besides pixels and labels.

    Attributes:
        fields: The further fields, each a list of one value a sample.
        substitutions: Bad samples and what stands in their place.
        left_over: Staged images that found no room in the slot, by row of the part.
        collated: The batch that a collate_fn made of it, then without further fields; else None.
        read_ns: Time in reading, nanoseconds.
        decode_ns: Time in drawing, decoding and augmenting, nanoseconds.
        encoded_bytes: What was read of the encoded images.
        clipped: How many images lost range, because their samples have more than 8 bits.
        slow: How many JPEGs were not for the backend's usual way.
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

"""The replacement of a bad sample by another."""

from __future__ import annotations

from typing import NamedTuple

from feeder.errors import DecodeError

__all__ = ["SUBSTITUTES", "Substitution", "no_substitute"]

SUBSTITUTES = 16  # tried in place of one bad sample


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

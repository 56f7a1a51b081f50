"""Numbers and nouns as people read them."""

from __future__ import annotations

__all__ = ["count"]


def count(number: int, noun: str, plural: str | None = None) -> str:
    """Returns a number and its noun: "1 shard", "1,200 shards", "2 classes".

    Args:
        number: How many.
        noun: The noun for one.
        plural: The noun for any other number; None: ``noun`` with an s.
    """
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"

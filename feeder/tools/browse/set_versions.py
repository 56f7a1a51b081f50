"""The versions of a set."""

from __future__ import annotations

from typing import NamedTuple

from feeder.errors import FeederError
from feeder.shard.format.open_index import open_index
from feeder.tools.presets import is_shards, open_dataset

__all__ = ["Version", "versions_of"]


class Version(NamedTuple):
    """A version of a set.

    Attributes:
        number: Its number, from 1.
        samples, shards: Their numbers.
        taken_down: Number of its samples that were taken down.
        problem: The reason if it can't be read; empty if it can.
    """

    number: int
    samples: int = 0
    shards: int = 0
    taken_down: int = 0
    problem: str = ""


def versions_of(place: str) -> list[Version]:
    """Returns the versions of a set, the newest first; none of a folder of images.

    Args:
        place: The set's folder, its index file or its URL.

    Raises:
        FeederError: if the newest one can't be read.
    """
    if not is_shards(place):
        return []
    reader = open_dataset(place, None).reader
    index, mirror = reader.index, reader.mirror  # type: ignore[attr-defined]
    found = []
    for number in range(index.version, 0, -1):
        try:
            each = open_index(index.path, number, mirror)
        except FeederError as error:
            found.append(Version(number, problem=str(error)))
        else:
            found.append(Version(number, len(each), each.shard_count, each.header.info.taken_down))
    return found

"""The fields of samples in shards."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from feeder.dataset.reader import SWAPPING_ORIENTATIONS, parsed
from feeder.errors import DecodeError
from feeder.shard.format.index_file import NUMBER_FIELDS
from feeder.shard.format.set_index import SetIndex
from feeder.system.arrays import AnyArray, Int64s

_AT_ONCE = 1000  # members that a store is asked for together


class ShardFields:
    """Base of the reader of shards: the fields of each sample, from the index and from bytes that a subclass reads.

    Attributes:
        index: The index of the shards.
        exif: Whether EXIF orientation is applied.
    """

    index: SetIndex
    exif: bool

    def read_bytes(self, i: int, shard: int, offset: int, length: int) -> bytes:
        """Reads ``length`` bytes at ``offset`` of the shard of sample ``i``.

        Raises:
            DecodeError: if they can't be read.
        """
        raise NotImplementedError

    def at(self, error: DecodeError, i: int) -> DecodeError:
        """See :meth:`Reader.at`."""
        shard, offset, _ = self.index.place(i)
        return error.at(key=self.index.key(i), shard=self.index.header.shard_name(shard), offset_bytes=offset)

    def bring(self, places: Sequence[Sequence[int]]) -> None:
        """Brings the bytes that :meth:`read_bytes` will read, in one go: a remote set's come from its store.

        Args:
            places: (shard, offset, length) of each.
        """

    def field_names(self) -> list[str]:
        """See :meth:`Reader.field_names`."""
        numbers = [name for name in NUMBER_FIELDS if name != "row" or self.index.header.info.is_numbered]
        return sorted({"key", "path", *numbers, *self.index.fields})

    def field(self, i: int, name: str) -> Any:
        """See :meth:`Reader.field`."""
        if name == "key":
            return self.index.key(i)
        if name == "path":
            return self.index.source_path(i)
        if name == "index":
            return i
        if name in NUMBER_FIELDS:
            return int(self._numbers(name, np.array([i]))[0])
        place = self.index.member_place(i, name)
        return None if place is None else self._value(name, i, *place)

    def member(self, i: int, name: str) -> bytes | None:
        """See :meth:`Reader.member`."""
        place = self.index.member_place(i, name)
        return None if place is None else self.read_bytes(i, *place)

    def column(self, name: str) -> AnyArray | list[Any]:
        """See :meth:`Reader.column`. Members are read in stored order."""
        index, count = self.index, len(self.index)
        if name in ("key", "path"):
            text = index.key if name == "key" else index.source_path
            return [text(i) for i in range(count)]
        if name in NUMBER_FIELDS:
            return self._numbers(name, np.arange(count))

        values: list[Any] = [None] * count
        places = index.field_places(name)
        while some := [*itertools.islice(places, _AT_ONCE)]:
            self.bring([place for _, *place in some])
            for i, *place in some:
                values[i] = self._value(name, i, *place)
        return values

    def _numbers(self, name: str, ids: Int64s) -> Int64s:
        """Returns one of :data:`NUMBER_FIELDS` of N samples, int64 [N]."""
        index = self.index
        if name == "index":
            return ids
        if name == "row":
            return index.source_rows(ids)

        rows = index.rows(ids)
        orientations = rows.orientation
        if name == "orientation":
            return orientations.astype(np.int64)
        # Sizes are stored as the file has them, and read as the image is seen.
        width, height = rows.width, rows.height
        swapped = (orientations >= SWAPPING_ORIENTATIONS[0]) & self.exif
        sides = np.where(swapped, height, width) if name == "width" else np.where(swapped, width, height)
        return sides.astype(np.int64)

    def _value(self, name: str, i: int, shard: int, offset: int, length: int) -> Any:
        """Returns a member's bytes, or its parsed value if it is JSON."""
        data = self.read_bytes(i, shard, offset, length)
        try:
            return parsed(name, data)
        except DecodeError as error:
            raise self.at(error, i) from None

"""A subset of another reader's samples, in any order, and the single sets that a reader is made of."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from feeder.dataset.joined_reader import JoinedReader
from feeder.dataset.reader import Reader, ReadSamples, Wanted
from feeder.decoders.staged.capacity import Peek
from feeder.errors import DecodeError
from feeder.system.arrays import AnyArray, Int32s, Int64s, Uint8s

_AT_ONCE = 1 << 16


class SubsetReader:
    """A reader whose sample i is another reader's sample ``ids[i]``. Its field "index" is ``ids[i]``, not i.

    Args:
        whole: The other reader.
        ids: int64 [N], each in [0, len(whole)); repeats are allowed.
    """

    def __init__(self, whole: Reader, ids: Int64s) -> None:
        self.whole = whole
        self.ids = ids
        self.classes = whole.classes
        self.label_dtype = whole.label_dtype

    def __len__(self) -> int:
        return len(self.ids)

    def read(self, ids: Int64s, wanted: Wanted | None = None) -> ReadSamples:
        """See :meth:`Reader.read`."""
        return self.whole.read(self.ids[ids], wanted)

    def stored(self, ids: Int64s) -> tuple[Uint8s, Int32s] | None:
        """See :meth:`Reader.stored`."""
        return self.whole.stored(self.ids[ids])

    def measure(self, ids: Int64s | None = None) -> None:
        """See :meth:`Reader.measure`."""
        count = len(self) if ids is None else len(ids)
        for first in range(0, count, _AT_ONCE):
            some = slice(first, first + _AT_ONCE)
            self.whole.measure(np.unique(self.ids[some if ids is None else ids[some]]))

    def orientation(self, i: int) -> int:
        """See :meth:`Reader.orientation`."""
        return self.whole.orientation(int(self.ids[i]))

    def peek(self, ids: Int64s) -> Peek:
        """See :meth:`Reader.peek`."""
        return self.whole.peek(self.ids[ids])

    def field(self, i: int, name: str) -> Any:
        """See :meth:`Reader.field`."""
        return self.whole.field(int(self.ids[i]), name)

    def member(self, i: int, name: str) -> bytes | None:
        """See :meth:`Reader.member`."""
        return self.whole.member(int(self.ids[i]), name)

    @property
    def place(self) -> str:
        """See :class:`Reader`."""
        return self.whole.place

    def field_names(self) -> list[str]:
        """See :meth:`Reader.field_names`."""
        return self.whole.field_names()

    def column(self, name: str) -> AnyArray | list[Any]:
        """See :meth:`Reader.column`."""
        column = self.whole.column(name)
        return column[self.ids] if isinstance(column, np.ndarray) else [column[i] for i in self.ids.tolist()]

    def at(self, error: DecodeError, i: int) -> DecodeError:
        """See :meth:`Reader.at`."""
        return self.whole.at(error, int(self.ids[i]))

    def fingerprint(self) -> str:
        """Returns the hash of the other reader's fingerprint and of the ids."""
        digest = hashlib.blake2b(self.whole.fingerprint().encode(), digest_size=16)
        digest.update(np.ascontiguousarray(self.ids).data)
        return digest.hexdigest()

    def labels(self) -> AnyArray:
        """See :meth:`Reader.labels`."""
        return self.whole.labels()[self.ids]

    def shard_sizes(self) -> Int64s:
        """See :meth:`Reader.shard_sizes`. The ids must be in stored order."""
        ends = np.cumsum(self.whole.shard_sizes(), dtype=np.int64)
        counts = np.diff(np.searchsorted(self.ids, ends), prepend=0)
        return counts[counts > 0]


def leaves(reader: Reader) -> list[Reader]:
    """Returns the readers of single sets that a reader is made of."""
    if isinstance(reader, SubsetReader):
        return leaves(reader.whole)
    if isinstance(reader, JoinedReader):
        return [leaf for each in reader.readers for leaf in leaves(each)]
    return [reader]

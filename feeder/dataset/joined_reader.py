"""The samples of several readers, one reader after the other."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from feeder.dataset.reader import Reader, ReadSamples, Wanted
from feeder.decoders.staged.capacity import Peek
from feeder.errors import ArgumentError, DecodeError
from feeder.system.arrays import AnyArray, Int32s, Int64s, Uint8s


class JoinedReader:
    """Samples of several readers.

    Args:
        readers: One or more, all distinct.
        own_index: True if the field "index" counts samples across all readers, False if within each reader.

    Raises:
        ArgumentError: if the kind of labels differs between readers.
    """

    def __init__(self, readers: Sequence[Reader], *, own_index: bool = False) -> None:
        self.readers = list(readers)
        self.own_index = own_index
        first = self.readers[0]
        for reader in self.readers:
            if reader.label_dtype != first.label_dtype:
                kinds = (
                    f"the labels of {first.place} are {first.label_dtype}, those of {reader.place} {reader.label_dtype}"
                )
                raise ArgumentError(f"{kinds}; join sets with labels of one kind")
        self.label_dtype = first.label_dtype
        # Each reader keeps its labels, so class names are known only if all readers share them.
        self.classes = first.classes if all(reader.classes == first.classes for reader in self.readers) else None
        self.starts = np.cumsum([0, *map(len, self.readers)])

    @property
    def place(self) -> str:
        """See :class:`Reader`."""
        return self.readers[0].place + (f" and {len(self.readers) - 1} more" if len(self.readers) > 1 else "")

    def __len__(self) -> int:
        return int(self.starts[-1])

    def read(self, ids: Int64s, wanted: Wanted | None = None) -> ReadSamples:
        """See :meth:`Reader.read`. ``wanted`` is called once for all samples, whose crops are drawn together. Readers
        that get sizes from the files only are therefore read before it."""
        groups = self.groups(ids)
        found: list[ReadSamples | None] = [None] * len(groups)
        orientations, sizes = np.ones(len(ids), np.uint8), np.ones((len(ids), 2), np.int32)
        rows_wanted: Int32s | None = None
        if wanted is not None:
            for k, (number, rows, own) in enumerate(groups):
                known = self.readers[number].stored(own)
                if known is None:
                    found[k] = encoded = self.readers[number].read(own)
                    known = encoded.orientations, encoded.sizes
                orientations[rows], sizes[rows] = known
            rows_wanted = wanted(orientations, sizes)
        buffers = [memoryview(b"")] * len(ids)
        errors: list[DecodeError | None] = [None] * len(ids)
        labels, first_rows = np.empty(len(ids), self.label_dtype), np.full(len(ids), -1, np.int32)
        for k, (number, rows, own) in enumerate(groups):
            encoded = found[k] or self.readers[number].read(own, _given(rows_wanted, rows))
            for row, buffer, error in zip(rows.tolist(), encoded.buffers, encoded.errors, strict=True):
                buffers[row], errors[row] = buffer, error
            labels[rows] = encoded.labels
            orientations[rows], sizes[rows] = encoded.orientations, encoded.sizes
            if encoded.first_rows is not None:
                first_rows[rows] = encoded.first_rows
        whole = not (first_rows >= 0).any()
        return ReadSamples(buffers, labels, orientations, sizes, errors, None if whole else first_rows)

    def stored(self, ids: Int64s) -> tuple[Uint8s, Int32s] | None:
        """See :meth:`Reader.stored`."""
        orientations, sizes = np.ones(len(ids), np.uint8), np.ones((len(ids), 2), np.int32)
        for number, rows, own in self.groups(ids):
            known = self.readers[number].stored(own)
            if known is None:
                return None
            orientations[rows], sizes[rows] = known
        return orientations, sizes

    def measure(self, ids: Int64s | None = None) -> None:
        """See :meth:`Reader.measure`."""
        if ids is None:
            for reader in self.readers:
                reader.measure()
            return
        for number, _, own in self.groups(ids):
            self.readers[number].measure(own)

    def orientation(self, i: int) -> int:
        """See :meth:`Reader.orientation`."""
        reader, own = self._one(i)
        return reader.orientation(own)

    def peek(self, ids: Int64s) -> Peek:
        """See :meth:`Reader.peek`."""
        peek = Peek(np.zeros(len(ids), np.int64), np.zeros((len(ids), 2), np.int64), np.zeros(len(ids), np.bool_))
        for number, rows, own in self.groups(ids):
            for column, values in zip(peek, self.readers[number].peek(own), strict=True):
                column[rows] = values
        return peek

    def field(self, i: int, name: str) -> Any:
        """See :meth:`Reader.field`."""
        if name == "index" and self.own_index:
            return i
        reader, own = self._one(i)
        return reader.field(own, name)

    def member(self, i: int, name: str) -> bytes | None:
        """See :meth:`Reader.member`."""
        reader, own = self._one(i)
        return reader.member(own, name)

    def field_names(self) -> list[str]:
        """See :meth:`Reader.field_names`; the names that all readers share."""
        return sorted(set.intersection(*(set(reader.field_names()) for reader in self.readers)))

    def column(self, name: str) -> AnyArray | list[Any]:
        """See :meth:`Reader.column`."""
        if name == "index" and self.own_index:
            return np.arange(len(self))
        columns = [reader.column(name) for reader in self.readers]
        if all(isinstance(column, np.ndarray) for column in columns):
            return np.concatenate(columns)
        return [value for column in columns for value in column]

    def at(self, error: DecodeError, i: int) -> DecodeError:
        """See :meth:`Reader.at`."""
        reader, own = self._one(i)
        return reader.at(error, own)

    def fingerprint(self) -> str:
        """Returns the hash of the readers' fingerprints, in their order."""
        digest = hashlib.blake2b(digest_size=16)
        for reader in self.readers:
            digest.update(f"{reader.fingerprint()} {len(reader)};".encode())
        return digest.hexdigest()

    def labels(self) -> AnyArray:
        """See :meth:`Reader.labels`."""
        return np.concatenate([reader.labels() for reader in self.readers])

    def shard_sizes(self) -> Int64s:
        """See :meth:`Reader.shard_sizes`; empty if one of the readers has no shards."""
        sizes = [reader.shard_sizes() for reader in self.readers]
        return np.concatenate(sizes) if all(map(len, sizes)) else np.zeros(0, np.int64)

    def _one(self, i: int) -> tuple[Reader, int]:
        number = int(np.searchsorted(self.starts, i, side="right")) - 1
        return self.readers[number], i - int(self.starts[number])

    def groups(self, ids: Int64s) -> list[tuple[int, Int64s, Int64s]]:
        """Groups samples by reader: returns the number of each reader, the rows of the samples, and their ids there."""
        numbers = np.searchsorted(self.starts, ids, side="right") - 1
        groups = []
        for number in np.unique(numbers).tolist():
            rows = np.flatnonzero(numbers == number)
            groups.append((number, rows, ids[rows] - self.starts[number]))
        return groups


def _given(rows_wanted: Int32s | None, rows: Int64s) -> Wanted | None:
    return None if rows_wanted is None else lambda orientations, sizes: rows_wanted[rows]

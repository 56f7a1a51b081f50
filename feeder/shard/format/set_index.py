"""The index of a set: a header, and an index beside each shard, opened when a sample of it is used."""

from __future__ import annotations

import functools
import hashlib
import math
import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from feeder.errors import FormatError
from feeder.shard.format.set_header import SetHeader
from feeder.shard.format.shard_index import NARROW, NO_STEPS, WIDE, IndexedShard, ShardIndex
from feeder.shard.store.mirror import Mirror
from feeder.system.arrays import AnyArray, Int32s, Int64s

if TYPE_CHECKING:
    from feeder._native import ShardRows

# Shards whose index is mapped at a time. One takes 2 kB besides the shared page cache; opening it again takes 0.2 ms.
_OPEN_INDEXES = 4096
ASKED_INDEXES = 256  # the most that a mirror is asked for at a time
# Indexes that have left a mirror take room on its disk while they are mapped: so many bytes, or a share of its budget.
MIRRORED_BYTES, _BUDGET_DIVISOR = 128 << 20, 100
_DTYPES = {name: WIDE[name] for name in WIDE.names or ()} | {"shard": np.dtype("<u4"), "target": np.dtype("<f4")}


class SetIndex:
    """The index of a set.

    Args:
        path: The set's header.
        mirror: The mirror of its folder; None for a local set.
        most_open: Number of shards whose indexes are kept open.

    Attributes:
        path: The index file.
        header: The set's header.
        fields: Names of the fields, by number.
        classes: Class names by label; None if the index has none.
        codebooks: Codebooks of packed JPEGs.
        targets: Names of the numbers that each sample has in place of a label; empty if there are none.
        native: The same index as the kernels read it.

    Raises:
        FormatError: if the header can't be read, or is damaged.
    """

    def __init__(
        self, path: str | os.PathLike[str], mirror: Mirror | None = None, *, most_open: int = _OPEN_INDEXES
    ) -> None:
        self.path = os.fspath(path)
        self._most_open = most_open
        self.header = SetHeader(self.path, mirror)
        info = self.header.info
        self.fields = info.fields
        self.targets = info.targets
        self.classes = None if info.classes is None else list(info.classes)
        self.codebooks = info.codebooks
        self._mirror = mirror
        self._folder = os.path.dirname(self.path)
        self._open: dict[int, ShardIndex] = {}
        self._open_bytes = 0
        self.native = _table()
        self._lock = threading.Lock()
        self._field_numbers = {name: number for number, name in enumerate(self.fields)}

    def __reduce__(self) -> tuple[type[SetIndex], tuple[str, Mirror | None]]:
        return SetIndex, (self.path, self._mirror)

    def __len__(self) -> int:
        return self.header.samples

    def rows(self, ids: Int64s) -> RecordRows:
        """Returns the properties of some samples, int64 [N].

        Raises:
            FormatError: if the index of a shard is missing or damaged.
        """
        shards, rows = self.header.locate(ids)
        records = self.native.gather(shards, rows)
        if records is None:
            indexes = self.opened(shards)
            records = self.native.gather(shards, rows)
            if records is None:  # some are wide, or others have just taken their places
                return RecordRows(self, shards, rows, _joined(indexes, rows))
        return RecordRows(self, shards, rows, np.frombuffer(records, NARROW))

    def opened(self, shards: Int64s) -> list[ShardIndex]:
        """Returns the indexes of N shards."""
        numbers = shards.tolist()
        found = self._opened_by_number(set(numbers))
        return [found[number] for number in numbers]

    def extents(self, shards: Int64s, records: AnyArray, rows: Int32s) -> Int64s | None:
        """Returns the bytes of images that some of their rows need, see :meth:`RecordRows.extents`.

        Args:
            shards: int64 [N], their shards.
            records: [N], their records.
            rows: int32 [N, 2].
        """
        if records.dtype != NARROW:
            records = _narrowed(records)
        rows = np.ascontiguousarray(rows)
        found = self.native.extents(shards, records.view(np.uint8), rows)
        if found is None:
            self.hold(shards.tolist())
            found = self.native.extents(shards, records.view(np.uint8), rows)
        if found is None:  # others have just taken their places; whole images will do
            return None
        return found if (found[:, 0] >= 0).any() else None

    def located(self, ids: Int64s) -> tuple[Int64s | None, Int64s, int]:
        """Returns N samples as :attr:`native` finds them, see :meth:`feeder._native.PartRunner.run`.

        Returns:
            int64 [N], numbers of the shards, or None if they follow from the rows; int64 [N], rows in the shards, or in
            the set without shards; and the samples in each shard but the last, 0 with shards.
        """
        return (None, ids, self.header.equal) if self.header.equal else (*self.header.locate(ids), 0)

    def hold(self, shards: Iterable[int], *, by_rows: bool = True) -> None:
        """Adds the samples of some shards to :attr:`native`, where it holds them by shards.

        Args:
            shards: Their numbers.
            by_rows: False leaves out the places of rows.

        Raises:
            FormatError: if the index of a shard is missing or damaged.
        """
        found = self._opened_by_number(set(shards))
        if not by_rows:
            return
        steps = {number: index.group("steps") for number, index in found.items()}
        with self._lock:
            for number in steps.keys() & self._open.keys():
                self.native.add_steps(number, steps[number])

    def labels(self) -> AnyArray:
        """Returns the labels of all samples, int64 [samples], or targets, float32 [samples] or [samples, K]."""
        if not self.targets:
            return self.column("label")
        target = self.column("target")
        return target[:, 0] if target.shape[1] == 1 else target

    def key(self, i: int) -> str:
        """Returns the sample's WebDataset key."""
        index, row = self._one(i)
        return index.details(row).key.decode("utf-8", "surrogateescape")

    def source_path(self, i: int) -> str:
        """Returns the sample's original path; undecodable bytes as surrogates, as in :func:`os.fsdecode`."""
        index, row = self._one(i)
        return os.fsdecode(index.details(row).path)

    def source_rows(self, ids: Int64s) -> Int64s:
        """Returns the row numbers of samples in their table, int64 [N]."""
        found = (self._one(i) for i in ids.tolist())
        return np.array([index.details(row).source_row for index, row in found], np.int64)

    def row_data(self, i: int) -> bytes:
        """Returns the sample's ``row_data``, see Note [Sample]; empty if it is not a seekable JPEG."""
        index, row = self._one(i)
        return np.array(index.row_data(row), "<u4").tobytes()

    def place(self, i: int) -> tuple[int, int, int]:
        """Returns the place of the sample's image: shard, offset and length, bytes."""
        shard, row = self._located(i)
        record = self.shard_index(shard).rows()[row]
        return shard, int(record["offset"]), int(record["length"])

    def member_place(self, i: int, name: str) -> tuple[int, int, int] | None:
        """Returns the place of one of the sample's fields, as :meth:`place` has that of its image; None if it lacks
        it."""
        shard, _ = self._located(i)
        return next(((shard, offset, length) for field, offset, length in self.stored_fields(i) if field == name), None)

    def image_field(self, i: int) -> str:
        """Returns the name of the sample's image field, such as "jpg".

        Raises:
            FormatError: if the index has no such field.
        """
        index, row = self._one(i)
        return field_name(index, int(index.rows()["field"][row]))

    def field_places(self, name: str) -> Iterator[tuple[int, int, int, int]]:
        """Yields the places of one field of all samples that have it: (sample, shard, offset, length), bytes."""
        for number, index in self._each():
            first, _ = self.header.sample_range(number)
            for row in range(index.samples if name in index.fields else 0):
                for field, offset, length in index.stored_fields(row):
                    if field_name(index, field) == name:
                        yield first + row, number, offset, length

    def fingerprint(self, labels: AnyArray | None = None) -> str:
        """Returns the hash of the samples, their order and their labels, or of other ``labels`` that they were given.

        From the set's second version on its number follows, after a point.
        """
        info = self.header.info
        found = info.fingerprint
        if labels is not None:
            found = hashlib.blake2b(found.encode() + np.ascontiguousarray(labels).data, digest_size=16).hexdigest()
        return found if info.version == 1 else f"{found}.{info.version}"

    def column(self, name: str) -> AnyArray:
        """Returns the column of all samples: "shard", or as :meth:`ShardIndex.column` has it."""
        pieces: list[AnyArray] = []
        for number, index in self._each():
            pieces.append(np.full(index.samples, number) if name == "shard" else self._column_of(index, name))
        dtype = _DTYPES.get(name, np.dtype(np.uint64))
        none = np.zeros((0, len(self.targets)) if name == "target" else 0, dtype)
        return np.concatenate([none, *pieces]).astype(dtype, copy=False)

    def checked_columns(self, names: Sequence[str]) -> Iterator[dict[str, AnyArray]]:
        """Yields the columns of some samples at a time, of all in order, compared with their checksums.

        Args:
            names: Their names, see :meth:`ShardIndex.column`.

        Raises:
            FormatError: if one does not match.
        """
        for _, index in self._each():
            index.check()
            yield {name: self._column_of(index, name) for name in names}

    def _column_of(self, index: ShardIndex, name: str) -> AnyArray:
        """Returns a column of a shard's samples, with the set's numbers of fields."""
        column = index.column(name)
        return self._renumbered(index)[column] if name in ("field", "member_field") and column.size else column

    def check(self) -> None:
        """Compares the groups of all shards' indexes with their hashes.

        Raises:
            FormatError: if one does not match.
        """
        for _, index in self._each():
            index.check()

    def shard_index(self, shard: int) -> ShardIndex:
        """Returns the index of a shard, by the shard's number.

        Raises:
            FormatError: if it is missing or damaged.
        """
        return self._open.get(shard) or self._opened_by_number({shard})[shard]

    @property
    def label_dtype(self) -> np.dtype[Any]:
        """The dtype of one label: int64, float32, or a subarray of K float32."""
        if not self.targets:
            return np.dtype(np.int64)
        return np.dtype(np.float32) if len(self.targets) == 1 else np.dtype((np.float32, (len(self.targets),)))

    def shard_path(self, shard: int) -> str:
        """Returns the full path of a shard, by its number."""
        return os.path.join(self._folder, self.header.shard_name(shard))

    def row(self, i: int) -> RecordRows:
        """Returns the properties of one sample."""
        return self.rows(np.array([i]))

    def stored_fields(self, i: int) -> list[tuple[str, int, int]]:
        """Returns all fields of a sample as :meth:`ShardIndex.stored_fields` has them, by their names."""
        index, row = self._one(i)
        return [(field_name(index, field), offset, length) for field, offset, length in index.stored_fields(row)]

    def _each(self) -> Iterator[tuple[int, ShardIndex]]:
        """Opens the index of each shard in turn, with its number, and keeps none."""
        for first in range(0, self.header.shards, ASKED_INDEXES):
            numbers = range(first, min(first + ASKED_INDEXES, self.header.shards))
            found = {number: index for number in numbers if (index := self._open.get(number))}
            found |= self._read([number for number in numbers if number not in found])
            for number in numbers:
                yield number, found[number]

    def _one(self, i: int) -> tuple[ShardIndex, int]:
        shard, row = self._located(i)
        return self.shard_index(shard), row

    def _located(self, i: int) -> tuple[int, int]:
        """Returns the shard of a sample, and its row there."""
        if self.header.equal and 0 <= i < self.header.samples:
            return divmod(i, self.header.equal)
        (shard,), (row,) = (found.tolist() for found in self.header.locate(np.array([i])))
        return shard, row

    def _opened_by_number(self, shards: set[int]) -> dict[int, ShardIndex]:
        """Returns the indexes of some shards by number; opens those that are not open, and closes the oldest."""
        found = {number: index for number in shards if (index := self._open.get(number))}
        missing = sorted(shards - found.keys())
        if not missing:
            return found

        found |= self._read(missing)
        most_bytes = self._most_bytes if self._open_bytes > MIRRORED_BYTES else math.inf
        with self._lock:
            for number in missing:
                index, before = found[number], self._open.pop(number, None)
                self._open_bytes += index.size_bytes - (before.size_bytes if before else 0)
                self._open[number] = index
                if not index.is_wide:
                    self.native.add(number, index.records)

            while len(self._open) > self._most_open or (self._open_bytes > most_bytes and len(self._open) > 1):
                oldest = next(iter(self._open))
                self._open_bytes -= self._open.pop(oldest).size_bytes
                self.native.remove(oldest)
        return found

    @functools.cached_property
    def _most_bytes(self) -> float:
        """Size of the indexes that are kept open."""
        return math.inf if self._mirror is None else max(MIRRORED_BYTES, self._mirror.budget_bytes // _BUDGET_DIVISOR)

    def _read(self, shards: Sequence[int]) -> dict[int, ShardIndex]:
        """Maps the indexes of some shards. Those in a store are fetched and mapped a few at a time: a mapped one may be
        evicted."""
        header, found = self.header, dict[int, ShardIndex]()
        for first in range(0, len(shards), ASKED_INDEXES):
            some = [(n, header.index_name(n), header.shard(n)) for n in shards[first : first + ASKED_INDEXES]]
            if self._mirror is not None:
                self._mirror.need([(name, 0, shard.index_bytes) for _, name, shard in some])
            for number, name, shard in some:
                found[number] = self._mapped(name, shard)
        return found

    def _mapped(self, name: str, shard: IndexedShard) -> ShardIndex:
        if self._mirror is None:
            return ShardIndex(os.path.join(self._folder, name), shard=shard, targets=self.targets)
        shown = f"{self._mirror.place}/{name}"
        for is_last in (False, True):
            descriptor = self._mirror.open(name, shard.index_hash)
            try:
                return ShardIndex(shown, shard=shard, targets=self.targets, descriptor=descriptor)
            except FormatError:
                if is_last:
                    raise
            finally:
                os.close(descriptor)
            self._mirror.need([(name, 0, shard.index_bytes)], again=True)  # it was damaged since it was fetched
        raise AssertionError

    def _renumbered(self, index: ShardIndex) -> npt.NDArray[np.uint16]:
        """Returns the number of each of a shard's fields in the set; unknown ones get the next number."""
        numbers = [self._field_numbers.get(name, len(self.fields)) for name in index.fields]
        return np.array([*numbers, *[len(self.fields)] * ((1 << 16) - len(numbers))], np.uint16)


def field_name(index: ShardIndex | SetIndex, field: int) -> str:
    """Returns the name of a field, by its number in the index of a shard or of a set.

    Raises:
        FormatError: if there is no such field.
    """
    if field >= len(index.fields):
        raise FormatError(
            f"{index.path}: names field {field}, but has {len(index.fields)} of them; it is damaged: rebuild it with "
            "`feeder index`, or shard the dataset again"
        )
    return index.fields[field]


class RecordRows:
    """Properties of N samples; each attribute is an array [N], see Note [Sample].

    Args:
        index: The set's index.
        shards: int64 [N].
        rows: int64 [N], numbers of the records in these.
        records: The records.

    Attributes:
        shard: Numbers of the shards.
        offset, length: Places of the images in them, bytes.
        width, height: As stored, pixels.
        orientation: uint8.
        field: Numbers of the images' fields.
        crc32: Checksums of the samples.
        labels: int64 [N], -1 for none; or the targets, float32 [N] or [N, K].
    """

    __slots__ = (
        *("_index", "_records", "_rows", "crc32", "height", "length", "offset", "orientation", "shard", "width"),
    )

    def __init__(self, index: SetIndex, shards: Int64s, rows: Int64s, records: AnyArray) -> None:
        self.shard = shards
        self.offset = records["offset"]
        self.length = records["length"]
        self.width = records["width"]
        self.height = records["height"]
        self.orientation = records["orientation"]
        self.crc32 = records["crc32"]
        self._index = index
        self._rows = rows
        self._records = records

    @property
    def field(self) -> AnyArray:
        own = self._records["field"].astype(np.int64)
        fields = self._index.fields
        for k, index in enumerate(self._index.opened(self.shard)):
            if index.fields != fields[: len(index.fields)]:  # numbered in another order
                own[k] = fields.index(field_name(index, int(own[k])))
        return own

    @property
    def labels(self) -> AnyArray:
        targets = len(self._index.targets)
        if not targets:
            return self._records["label"].astype(np.int64)
        size = 4 * targets
        places = zip(self._index.opened(self.shard), self._rows.tolist(), strict=True)
        pieces = [index.group("target")[row * size : row * size + size] for index, row in places]
        found: AnyArray = np.frombuffer(b"".join(pieces), np.float32).copy()
        return found if targets == 1 else found.reshape(-1, targets)

    def extents(self, rows: Int32s) -> Int64s | None:
        """Returns the bytes of the images that some of their rows need.

        Args:
            rows: int32 [N, 2], first and end row, in pixels as stored.

        Returns:
            int64 [N, 4], see :func:`feeder._native.row_extents`; None if all bytes of all images are needed.
        """
        return self._index.extents(self.shard, self._records, rows)


def _table() -> ShardRows:
    """Returns a table of narrow records."""
    from feeder import _native

    fields: Any = NARROW.fields
    at = {name: fields[name][1] for name in NARROW.names or ()}
    return _native.ShardRows(
        *(NARROW.itemsize, at["length"], at["steps"], at["height"]),
        offset_at=at["offset"],
        label_at=at["label"],
        width_at=at["width"],
        orientation_at=at["orientation"],
    )


def _narrowed(records: AnyArray) -> AnyArray:
    """Returns what the places of rows depend on; a seekable JPEG is never larger than narrow records can say."""
    found = np.zeros(len(records), NARROW)
    fits = (records["length"] < NO_STEPS) & (records["height"] < 1 << 16)
    for name in ("length", "steps", "height"):
        found[name][fits] = records[name][fits]
    found["steps"][~fits] = NO_STEPS
    found["length"] = np.minimum(records["length"], NO_STEPS)
    return found


def _joined(indexes: list[ShardIndex], rows: Int64s) -> AnyArray:
    """Returns N records of N shards."""
    records = np.zeros(len(rows), WIDE)
    for k, (index, row) in enumerate(zip(indexes, rows.tolist(), strict=True)):
        own = index.rows()[row]
        for name in NARROW.names or ():
            records[name][k] = own[name]
    return records

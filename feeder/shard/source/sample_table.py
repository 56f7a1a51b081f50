"""The table of a source's samples: paths, sizes, labels, and where their fields are."""

from __future__ import annotations

import hashlib
import json
from array import array
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from feeder.system.arrays import Float32s, Int64s

NO_FILE = -(2**63)  # the modification time of a sample whose image is in a container
OWN_FILE = -1  # in place of the container of a field that is a file
_CHUNK = 1 << 16


class StoredField(NamedTuple):
    """One field of a sample: ``length`` bytes at ``offset`` of a container (a tar, or the spool).

    An empty field name stands for an image whose extension is decided by its bytes. A field that is a file has
    ``OWN_FILE`` as its container, and as its offset what :meth:`SampleTable.add_file` has returned.
    """

    name: str
    container: int
    offset: int
    length: int


class SampleTable:
    """The samples of a source, in its order: columns of numbers and one arena of paths, no Python object per sample.

    Attributes:
        fields: Numbers of the fields by name.
        targets: Names of the numbers that samples have in place of a label.
    """

    def __init__(self) -> None:
        self.fields: dict[str, int] = {}
        self._paths = bytearray()
        self._path_starts = array("q", [0])
        self._sizes = array("q")
        self._mtimes = array("q")
        self._labels = array("q")
        self.targets: tuple[str, ...] = ()
        self._target = array("f")
        self._rows = array("q")
        self._field_starts = array("q", [0])
        self._field_numbers = array("H")
        self._field_containers = array("i")
        self._field_offsets = array("q")
        self._field_lengths = array("q")
        self._files = bytearray()  # paths, each with a zero byte at its end

    def __len__(self) -> int:
        return len(self._sizes)

    def add(
        self,
        path: bytes,
        size: int,
        mtime_ns: int,
        label: int,
        stored: Sequence[StoredField] = (),
        target: Sequence[float] = (),
        row: int | None = None,
    ) -> None:
        """Adds a sample.

        Args:
            path: The image's file, relative to the source's root, or a name for an image in a container.
            size: Bytes of the image file (0 if the image is a stored field) and of all stored fields.
            mtime_ns: The image file's modification time; NO_FILE if the image is a stored field.
            label: Class index, -1 for none.
            stored: Fields that are in containers, or files beside the image.
            target: One number for each of ``targets``.
            row: The sample's row in its table, from 0; given for all samples or for none.
        """
        self._target.extend(target)
        if row is not None:
            self._rows.append(row)

        self._paths += path
        self._path_starts.append(len(self._paths))
        self._sizes.append(size)
        self._mtimes.append(mtime_ns)
        self._labels.append(label)

        for field in stored:
            self._field_numbers.append(self.fields.setdefault(field.name, len(self.fields)))
            self._field_containers.append(field.container)
            self._field_offsets.append(field.offset)
            self._field_lengths.append(field.length)
        self._field_starts.append(len(self._field_numbers))

    def add_file(self, field: str, path: bytes, size: int) -> StoredField:
        """Takes a file beside an image, and returns its place for :meth:`add`.

        Args:
            field: The name that its bytes get.
            path: The file, relative to the source's root.
            size: Its size, bytes.
        """
        offset = len(self._files)
        self._files += path + b"\0"
        return StoredField(field, OWN_FILE, offset, size)

    def file(self, offset: int) -> bytes:
        """Returns the path of a file that :meth:`add_file` has taken."""
        return bytes(self._files[offset : self._files.index(b"\0", offset)])

    def kept(self, fields_of: Callable[[int], Sequence[StoredField] | None]) -> SampleTable:
        """Returns a table of some of the samples, with the same files beside them.

        Args:
            fields_of: Returns a sample's stored fields from now on; None to leave it out. Called once for each sample,
                in order.
        """
        found = SampleTable()
        found.targets = self.targets
        found._files = self._files
        for i in range(len(self)):
            stored = fields_of(i)
            if stored is not None:
                row = self.row(i) if self.is_numbered else None
                grown = sum(field.length for field in stored) - sum(field.length for field in self.stored_fields(i))
                found.add(
                    self.path(i), self.size(i) + grown, self._mtimes[i], self.label(i), stored, self.target(i), row
                )
        return found

    def path(self, i: int) -> bytes:
        """Returns the path of sample ``i``."""
        return bytes(self._paths[self._path_starts[i] : self._path_starts[i + 1]])

    def label(self, i: int) -> int:
        """Returns the label of sample ``i``, -1 for none."""
        return self._labels[i]

    def target(self, i: int) -> list[float]:
        """Numbers of sample ``i``, one for each of ``targets``; NaN for none."""
        count = len(self.targets)
        return self._target[i * count : (i + 1) * count].tolist()

    @property
    def is_numbered(self) -> bool:
        """True if the samples come from rows of a table."""
        return len(self._rows) > 0

    def row(self, i: int) -> int:
        """Returns the row of sample ``i`` in its table, from 0."""
        return self._rows[i]

    def rows(self, ids: Int64s) -> tuple[SampleTable, list[int]]:
        """Returns a table of some samples, in the order of their ids, and the containers that it needs.

        The new table numbers these containers from 0. Its fields and targets are those of this one.
        """
        found = SampleTable()
        found.fields = dict(self.fields)
        found.targets = self.targets
        starts, places = _gathered(self._path_starts, ids)
        found._path_starts = array("q", starts.tobytes())
        found._paths = bytearray(np.frombuffer(self._paths, np.uint8)[places].tobytes())
        for name in ("_sizes", "_mtimes", "_labels", *(("_rows",) if self.is_numbered else ())):
            setattr(found, name, _taken(getattr(self, name), ids))
        if self.targets:
            targets = np.frombuffer(self._target, np.float32).reshape(-1, len(self.targets))
            found._target = array("f", targets[ids].tobytes())

        starts, places = _gathered(self._field_starts, ids)
        found._field_starts = array("q", starts.tobytes())
        for name in ("_field_numbers", "_field_containers", "_field_offsets", "_field_lengths"):
            setattr(found, name, _taken(getattr(self, name), places))

        containers = np.frombuffer(found._field_containers, np.int32)
        used = np.unique(containers[containers != OWN_FILE])
        for k, container in enumerate(containers.tolist()):
            if container == OWN_FILE:
                path = self.file(found._field_offsets[k])
                found._field_offsets[k] = found.add_file("", path, found._field_lengths[k]).offset
        shared = containers != OWN_FILE
        renumbered = np.where(shared, np.searchsorted(used, containers), OWN_FILE).astype(np.int32)
        found._field_containers = array("i", renumbered.tobytes())
        return found, used.tolist()

    def move_fields(self, container: int, read: Callable[[int, int], bytes]) -> bytes:
        """Copies the fields in a container to one that has nothing else, and returns its bytes.

        Args:
            container: Number of the container; that of the new one is the same.
            read: Returns bytes of the container, given their offset and their number.
        """
        moved = bytearray()
        for k, other in enumerate(self._field_containers):
            if other == container:
                data = read(self._field_offsets[k], self._field_lengths[k])
                self._field_offsets[k] = len(moved)
                moved += data
        return bytes(moved)

    @property
    def has_files(self) -> bool:
        """True if an image, or a field beside one, is a file of its own."""
        return bool(self._files) or any(self.has_file(i) for i in range(len(self)))

    def has_file(self, i: int) -> bool:
        """Returns whether the image of sample ``i`` is a file, not a stored field."""
        return self._mtimes[i] != NO_FILE

    def size(self, i: int) -> int:
        """Returns the size of sample ``i`` in the source, bytes."""
        return self._sizes[i]

    def stored_fields(self, i: int) -> list[StoredField]:
        """Returns the fields of sample ``i`` that are in containers, or files beside the image."""
        names, span = list(self.fields), slice(self._field_starts[i], self._field_starts[i + 1])
        columns = (self._field_numbers, self._field_containers, self._field_offsets, self._field_lengths)
        rows = zip(*(column[span] for column in columns), strict=True)
        return [StoredField(names[field], *place) for field, *place in rows]

    def by_fields(self) -> dict[frozenset[str], array[int]]:
        """Returns the samples by the names of their fields."""
        names = list(self.fields)
        groups: dict[frozenset[str], array[int]] = {}
        for i in range(len(self)):
            fields = self._field_numbers[self._field_starts[i] : self._field_starts[i + 1]]
            groups.setdefault(frozenset(map(names.__getitem__, fields)), array("q")).append(i)
        return groups

    def field_counts(self) -> dict[str, int]:
        """Returns the number of samples with each field, by name."""
        numbers = np.frombuffer(self._field_numbers, np.uint16)
        return dict(zip(self.fields, np.bincount(numbers, minlength=len(self.fields)).tolist(), strict=True))

    def relabel(self, mapping: Int64s) -> None:
        """Replaces each label l >= 0 by ``mapping[l]``."""
        labels = self.labels()
        for start in range(0, len(labels), _CHUNK):  # a mask of all would take much memory
            chunk = labels[start : start + _CHUNK]
            chunk[chunk >= 0] = mapping[chunk[chunk >= 0]]

    def set_targets(self, names: Sequence[str], numbers: Float32s) -> None:
        """Gives all samples numbers in place of labels: float32 [N, K], a column for each name."""
        self.labels()[:] = -1
        self.targets = tuple(names)
        self._target = array("f", numbers.tobytes())

    def sizes(self) -> Int64s:
        """Returns the size of every sample, bytes, int64 [N]; a view."""
        return np.frombuffer(self._sizes, np.int64)

    def mtimes(self) -> Int64s:
        """Returns the modification time of every sample, int64 [N], ns since 1970, NO_FILE for an image that is none; a
        view."""
        return np.frombuffer(self._mtimes, np.int64)

    def labels(self) -> Int64s:
        """Returns the label of every sample, int64 [N], -1 for none; a view."""
        return np.frombuffer(self._labels, np.int64)

    def digest(self) -> str:
        """Returns the SHA-256 of paths, sizes, labels and targets. Times are left out: a copy of the dataset has the
        same."""
        digest = hashlib.sha256()
        for column in (self._paths, self._path_starts, self._sizes, self._labels):
            digest.update(column)
        if self.targets:
            digest.update(json.dumps(self.targets).encode() + self._target.tobytes())
        if self._files:
            digest.update(self._files)
        return digest.hexdigest()


def _taken(column: array[int], ids: Int64s) -> array[int]:
    """Returns these rows of a column."""
    values = np.frombuffer(column, np.dtype(column.typecode)) if len(column) else np.empty(0, column.typecode)
    return array(column.typecode, values[ids].tobytes())


def _gathered(starts: array[int], ids: Int64s) -> tuple[Int64s, Int64s]:
    """Returns the starts of these rows when they lie one after another, and the place of each of their values now."""
    before = np.frombuffer(starts, np.int64)
    lengths = before[ids + 1] - before[ids]
    after = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return after, np.repeat(before[ids] - after[:-1], lengths) + np.arange(after[-1])

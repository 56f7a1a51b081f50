"""What every source of samples gives: a compact table of its samples, and the bytes of each."""

from __future__ import annotations

import hashlib
import json
import os
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from feeder.decode.image_header import IMAGE_EXTENSIONS, is_image_field
from feeder.errors import SourceError
from feeder.shard.source.image_file import MAX_FILE_BYTES, check_size, read_image
from feeder.shard.source.labels import Numbering
from feeder.system.files import open_regular
from feeder.text import count

__all__ = [
    "NO_FILE",
    "Container",
    "Part",
    "Rejection",
    "SampleTable",
    "Source",
    "drop_duplicates",
    "looks_like_image",
    "reject_samples",
    "unpacked_limit",
]

NO_FILE = -(2**63)
_CHUNK = 1 << 16
_OPEN_CONTAINERS = 128
_SHOWN_LABELS = 3
# Images hardly shrink, and their labels and headers not that much; a file of zeros shrinks to a thousandth.
_UNPACKED_TIMES = 100
# Formats that we don't decode: such a file claims to be an image all the same.
_OTHER_IMAGE_EXTENSIONS = {"avif", "cr2", "dng", "heic", "heif", "ico", "j2k", "jp2", "jxl", "nef", "psd", "tga"}


class Rejection(NamedTuple):
    """An input that did not become a sample.

    Attributes:
        path: The input, relative to the source; undecodable bytes as surrogates.
        reason: Why.
        bad: Whether it counts against ``--max-bad``: False for files that never claimed to be images.
    """

    path: str
    reason: str
    bad: bool


class Part(NamedTuple):
    """One field of a sample: ``length`` bytes at ``offset`` of a container (a tar, or the spool).

    An empty field name stands for the image whose extension its bytes decide.
    """

    field: str
    container: int
    offset: int
    length: int


class Container(NamedTuple):
    """A file that holds many samples, as it was when the source was listed."""

    path: str
    size_bytes: int
    mtime_ns: int


class SampleTable:
    """The samples of a source, in its own order: columns of numbers and one arena of paths, no object a sample."""

    def __init__(self) -> None:
        self.fields: dict[str, int] = {}
        self._paths = bytearray()
        self._path_starts = array("q", [0])
        self._sizes = array("q")
        self._mtimes = array("q")
        self._labels = array("q")
        self.targets: tuple[str, ...] = ()  # names of the numbers that samples have in place of labels
        self._target = array("f")
        self._rows = array("q")
        self._part_starts = array("q", [0])
        self._part_fields = array("H")
        self._part_containers = array("i")
        self._part_offsets = array("q")
        self._part_lengths = array("q")

    def __len__(self) -> int:
        return len(self._sizes)

    def add(
        self,
        path: bytes,
        size: int,
        mtime_ns: int,
        label: int,
        parts: Sequence[Part] = (),
        target: Sequence[float] = (),
        row: int | None = None,
    ) -> None:
        """Adds a sample.

        Args:
            path: The image's file, relative to the source's root, or a name for what is in a container.
            size: Bytes of the image file (0 if it stands in a part) and of all parts.
            mtime_ns: The image file's modification time; NO_FILE if the image stands in a part.
            label: Class index, -1 for none.
            parts: Fields that stand in containers.
            target: A number for each of ``targets``.
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
        for part in parts:
            self._part_fields.append(self.fields.setdefault(part.field, len(self.fields)))
            self._part_containers.append(part.container)
            self._part_offsets.append(part.offset)
            self._part_lengths.append(part.length)
        self._part_starts.append(len(self._part_fields))

    def path(self, i: int) -> bytes:
        """The path of sample ``i``."""
        return bytes(self._paths[self._path_starts[i] : self._path_starts[i + 1]])

    def label(self, i: int) -> int:
        """The label of sample ``i``, -1 for none."""
        return self._labels[i]

    def target(self, i: int) -> list[float]:
        """The numbers of sample ``i`` for each of ``targets``; NaN for none."""
        count = len(self.targets)
        return self._target[i * count : (i + 1) * count].tolist()

    @property
    def is_numbered(self) -> bool:
        """Whether the samples have rows in a table."""
        return len(self._rows) > 0

    def row(self, i: int) -> int:
        """The row of sample ``i`` in its table, from 0."""
        return self._rows[i]

    def has_file(self, i: int) -> bool:
        """Whether the image of sample ``i`` is a file of its own."""
        return self._mtimes[i] != NO_FILE

    def size(self, i: int) -> int:
        """Bytes of sample ``i`` in the source."""
        return self._sizes[i]

    def parts(self, i: int) -> list[Part]:
        """The fields of sample ``i`` that stand in containers."""
        names = list(self.fields)
        return [
            Part(names[self._part_fields[k]], self._part_containers[k], self._part_offsets[k], self._part_lengths[k])
            for k in range(self._part_starts[i], self._part_starts[i + 1])
        ]

    def by_fields(self) -> dict[frozenset[str], array[int]]:
        """Numbers of the samples by the names of their fields."""
        names = list(self.fields)
        found: dict[bytes, array[int]] = {}
        for i in range(len(self)):
            fields = self._part_fields[self._part_starts[i] : self._part_starts[i + 1]].tobytes()
            found.setdefault(fields, array("q")).append(i)
        groups: dict[frozenset[str], array[int]] = {}
        for fields, ids in found.items():  # the same fields may stand in several orders
            groups.setdefault(frozenset(names[k] for k in array("H", fields)), array("q")).extend(ids)
        return groups

    def relabel(self, mapping: npt.NDArray[np.int64]) -> None:
        """Replaces each label l >= 0 by ``mapping[l]``."""
        labels = np.frombuffer(self._labels, np.int64)
        for start in range(0, len(labels), _CHUNK):  # in chunks, as a mask of all would be as large as the labels
            chunk = labels[start : start + _CHUNK]
            chunk[chunk >= 0] = mapping[chunk[chunk >= 0]]

    def set_targets(self, names: Sequence[str], numbers: npt.NDArray[np.float32]) -> None:
        """Gives all samples numbers, float32 [N, K] with a column for each name, in place of labels."""
        labels = np.frombuffer(self._labels, np.int64)
        labels[:] = -1
        self.targets, self._target = tuple(names), array("f", numbers.tobytes())

    def sizes(self) -> npt.NDArray[np.int64]:
        """Bytes of every sample, int64 [N]; a view."""
        return np.frombuffer(self._sizes, np.int64)

    def columns(self) -> dict[str, npt.NDArray[Any]]:
        """Everything that identifies the samples, as arrays; views."""
        numbers = {
            "path_starts": self._path_starts,
            "sizes": self._sizes,
            "mtimes": self._mtimes,
            "labels": self._labels,
        }
        columns: dict[str, npt.NDArray[Any]] = {"paths": np.frombuffer(self._paths, np.uint8)}
        return columns | {name: np.frombuffer(values, np.int64) for name, values in numbers.items()}

    def digest(self) -> str:
        """SHA-256 over paths, sizes, labels and targets, but not times: equal for a copy of the dataset elsewhere."""
        digest = hashlib.sha256()
        for name in ("paths", "path_starts", "sizes", "labels"):
            digest.update(np.ascontiguousarray(self.columns()[name]).data)
        if self.targets:
            digest.update(json.dumps(self.targets).encode() + self._target.tobytes())
        return digest.hexdigest()


class Source:
    """A dataset to be sharded: a table of its samples, and the bytes of each.

    Attributes:
        kind: "class folders", "flat folder", "manifest", "tars" or "samples".
        root: Folder that the table's paths are relative to.
        classes: Class names by label, or None where labels are plain numbers or missing.
        table: The samples.
        skip_unreadable: Whether what can't be read is rejected, where it would end the run otherwise.
        rejected: Inputs that can't be samples, found while listing.
        unreadable_folders: How many of these are folders.
        notes: Lines of advice for the user, found while listing.
        containers: Files that hold many samples.
        replaces_cls: Whether the labels are others than those of the ``cls`` fields, whose place they take.
        image_fields: Fields that hold the image, of which each sample has one; empty if it is no field of the sample's.
        other_images: Fields that are named as images, and are not the chosen ones.
        max_file_bytes: No larger image or other field is read.
        content_digest: SHA-256 of what was spooled, hexadecimal; empty if nothing was.
    """

    def __init__(self, kind: str, root: str, *, skip_unreadable: bool = False) -> None:
        self.kind = kind
        self.root = root
        self.skip_unreadable = skip_unreadable
        self.unreadable_folders = 0
        self.classes: list[str] | None = None
        self.table = SampleTable()
        self.rejected: list[Rejection] = []
        self.notes: list[str] = []
        self.containers: list[Container] = []
        self.replaces_cls = False
        self.image_fields: tuple[str, ...] = ()
        self.other_images: tuple[str, ...] = ()
        self.max_file_bytes = MAX_FILE_BYTES
        self.content_digest = ""
        self._descriptors: dict[int, int] = {}

    def digest(self) -> str:
        """SHA-256 over what the samples are: paths, sizes, labels, class names and what was spooled, but not times, so
        that a copy of the same dataset elsewhere has the same."""
        parts = [self.table.digest(), self.classes, self.content_digest]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    def take_labels(self, found: Numbering, name: str) -> dict[int, str]:
        """Gives the samples, which have codes for labels, the labels or the targets that they stand for.

        Args:
            found: The labels.
            name: Of the targets, if they are some.

        Returns:
            By number the samples that are to be rejected, as their labels are odd, with the reason.
        """
        codes = self.table.columns()["labels"]
        odd = {
            i: f"its label {found.odd[int(codes[i])]!r} is no number, as nearly all others are"
            for i in np.flatnonzero(np.isin(codes, list(found.odd))).tolist()
        }
        del codes
        if odd:
            self.notes.append(
                f"{count(len(odd), 'sample')} rejected whose label is no number, as nearly all others are: "
                f"{', '.join(repr(text) for text in list(found.odd.values())[:_SHOWN_LABELS])}"
            )
        if found.targets is not None:
            self.table.set_targets([name], found.targets)
        elif found.labels is not None:
            self.table.relabel(found.labels)
        self.classes = found.classes
        return odd

    def reject(self, path: str | bytes, reason: str, *, bad: bool = True) -> None:
        """Lists an input that can't be a sample."""
        self.rejected.append(Rejection(os.fsdecode(path), reason, bad))

    def skip_folder(self, path: str, reason: str) -> None:
        """Lists a folder that is left out with all that it may hold."""
        self.unreadable_folders += 1
        self.reject(path, reason, bad=False)

    def add_container(self, path: str) -> int:
        """Registers a file that holds many samples and returns its number."""
        status = os.stat(path)
        self.containers.append(Container(path, status.st_size, status.st_mtime_ns))
        return len(self.containers) - 1

    def read(self, i: int) -> list[tuple[str | None, bytes]]:
        """The fields of sample ``i`` as (name, bytes); the image's file, if it has one, comes first, with no name.

        Raises:
            OSError: if the file can't be read.
            SourceError: if it is not the file that was listed.
        ValueError: if it is too large, or large and no image.
        MemoryError: naming the file.
        """
        parts = self.table.parts(i)
        fields: list[tuple[str | None, bytes]] = []
        if self.table.has_file(i):
            file_bytes = self.table.size(i) - sum(part.length for part in parts)
            fields.append((None, self._read_file(self.table.path(i), file_bytes)))
        fields += [(part.field or None, self._read_part(part)) for part in parts]
        return fields

    def close(self) -> None:
        """Closes the containers."""
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._descriptors.clear()

    def _read_file(self, path: bytes, size: int) -> bytes:
        full = os.path.join(self.root, os.fsdecode(path))
        data = read_image(full, max_bytes=self.max_file_bytes)
        if len(data) != size:
            raise _changed(full, f"{size} bytes", f"{len(data)} bytes")
        return data

    def _read_part(self, part: Part) -> bytes:
        container = self.containers[part.container]
        descriptor = self._descriptors.get(part.container)
        if descriptor is not None:
            data = self._pread(descriptor, part)
        else:
            opened = open_regular(container.path)
            kept = False
            try:
                data = self._pread(opened, part)
                # Two threads may race to open it; and thousands of containers would exhaust the descriptors.
                if len(self._descriptors) < _OPEN_CONTAINERS:
                    kept = self._descriptors.setdefault(part.container, opened) == opened
            finally:
                if not kept:
                    os.close(opened)
        if len(data) != part.length:
            raise _changed(container.path, f"{part.length} bytes at byte {part.offset}", f"{len(data)}")
        return data

    def _pread(self, descriptor: int, part: Part) -> bytes:
        path = self.containers[part.container].path
        try:
            if not part.field or is_image_field(part.field):
                check_size(descriptor, part.offset, part.length, max_bytes=self.max_file_bytes)
            elif part.length > self.max_file_bytes:
                raise ValueError(f"field {part.field!r} has {part.length:,} bytes, more than {self.max_file_bytes:,}")
            return os.pread(descriptor, part.length, part.offset)
        except MemoryError:
            place = f"{part.length:,} bytes at byte {part.offset}"
            raise MemoryError(f"{path}: not enough memory for {place}") from None
        except OSError as error:  # which has no name where a descriptor was read
            raise OSError(error.errno, error.strerror, path) from None


def _changed(path: str, expected: str, found: str) -> SourceError:
    return SourceError(
        f"{path}: changed while it was being sharded: expected {expected}, found {found}; "
        "leave the source alone and run into a new --out"
    )


def looks_like_image(path: str | bytes) -> bool:
    """Whether a file's name claims to be an image's."""
    return os.fsdecode(path).rpartition(".")[2].lower() in IMAGE_EXTENSIONS | _OTHER_IMAGE_EXTENSIONS


def unpacked_limit(packed_bytes: int, least_bytes: int) -> int:
    """The most bytes that so many bytes may unpack to; ``least_bytes`` are never too many."""
    return max(least_bytes, _UNPACKED_TIMES * packed_bytes)


def drop_duplicates(source: Source, canonical: Callable[[bytes], bytes], reason: str) -> None:
    """Moves every sample whose path came before to the rejected ones, in memory of 16 bytes a sample.

    Args:
        source: The source to clean.
        canonical: Gives equal bytes for paths that mean the same.
        reason: Reason for the rejection.
    """
    table = source.table
    hashes = np.fromiter((_hash64(canonical(table.path(i))) for i in range(len(table))), np.uint64, len(table))
    ordered = np.sort(hashes)
    # Equal hashes are nearly always equal paths, but only equal paths are duplicates.
    suspects = set(ordered[1:][ordered[1:] == ordered[:-1]].tolist())
    del ordered
    if not suspects:
        return
    seen: set[bytes] = set()
    repeated: dict[int, str] = {}
    for i in np.flatnonzero(np.isin(hashes, list(suspects))).tolist():
        name = canonical(table.path(i))
        if name in seen:
            repeated[i] = reason
        seen.add(name)
    reject_samples(source, repeated)


def reject_samples(source: Source, reasons: Mapping[int, str]) -> None:
    """Moves samples to the rejected ones.

    Args:
        source: The source to clean.
        reasons: Reason by the sample's number.
    """
    if not reasons:
        return
    table, kept = source.table, SampleTable()
    kept.targets = table.targets
    columns = table.columns()
    for i in range(len(table)):
        if i in reasons:
            source.reject(table.path(i), reasons[i])
        else:
            row = table.row(i) if table.is_numbered else None
            mtime_ns, label = int(columns["mtimes"][i]), table.label(i)
            kept.add(table.path(i), table.size(i), mtime_ns, label, table.parts(i), table.target(i), row)
    source.table = kept


def _hash64(data: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")

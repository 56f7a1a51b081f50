"""A source of samples: a table of them, and the bytes of each."""

from __future__ import annotations

import contextlib
import copy
import enum
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from feeder.decoders.image_header import is_image_field
from feeder.errors import SourceError
from feeder.shard.source.image_file import MAX_FILE_BYTES, check_length, check_size, read_image
from feeder.shard.source.labels import Numbering
from feeder.shard.source.sample_table import OWN_FILE, SampleTable, StoredField
from feeder.shard.store.store import Entry
from feeder.shard.store.url import is_remote
from feeder.system.arrays import Int64s
from feeder.system.files import atomic_file, open_regular
from feeder.system.text import count

_OPEN_CONTAINERS = 128
_SHOWN_LABELS = 3


class Rejection(NamedTuple):
    """An input that did not become a sample.

    Attributes:
        path: The input, relative to the source; undecodable bytes as surrogates.
        reason: Reason for the rejection.
        bad: True if it counts against ``--max-bad``; False for files that never claimed to be images.
    """

    path: str
    reason: str
    bad: bool


class Container(NamedTuple):
    """A file that holds many samples.

    Attributes:
        path: The file, or the URL of an object.
        size_bytes, mtime_ns: When the source was listed; of a scratch file its original's, or zeros.
        is_scratch: True for a file whose folder may be another one in each run.
        data: What :meth:`Source.take_in` has copied of it.
        entry: For an object: its entry.
        copy: For an object: a local file with its bytes, which samples are read from.
    """

    path: str
    size_bytes: int
    mtime_ns: int
    is_scratch: bool = False
    data: bytes | None = None
    entry: Entry | None = None
    copy: str | None = None


class SourceKind(str, enum.Enum):
    """The kind of a source; manifests and summaries name it."""

    CLASS_FOLDERS = "class folders"
    FLAT_FOLDER = "flat folder"
    PAIRED_FILES = "paired files"
    ANNOTATED_IMAGES = "annotated images"
    MANIFEST = "manifest"
    TARS = "tars"
    SAMPLES = "samples"

    __str__ = str.__str__


class Source:
    """A dataset to be sharded: a table of its samples, and the bytes of each.

    Attributes:
        is_remote: True if reading a sample takes a request over the network.
        kind: The kind.
        place: The path or the URL that it was opened by, for errors; may be empty.
        root: Folder that the table's paths are relative to.
        classes: Class names by label; None where labels are plain numbers or missing.
        table: The samples.
        skip_unreadable: Rejects inputs that can't be read; otherwise the first of them ends the run.
        rejected: Inputs that can't be samples, found while listing.
        unreadable_folders: Number of folders among these.
        notes: Lines of advice for the user, found while listing.
        containers: Files that hold many samples.
        codebooks: Codebooks of the packed JPEGs in the containers.
        replaces_cls: True if the labels replace those in the ``cls`` fields.
        image_fields: Fields that hold the image, of which each sample has one; empty where images are files.
        left_out: Paths of files and folders that are left out because of their names, by kind; also among the rejected.
        likely_members: Images of a folder that look like masks or second images of others, by their field.
        max_file_bytes: Larger images and other fields are not read.
        content_digest: SHA-256 of the spooled fields, hexadecimal; empty if nothing was spooled.
    """

    is_remote = False
    place = ""

    def __init__(self, kind: SourceKind, root: str, *, skip_unreadable: bool = False) -> None:
        self.kind = kind
        self.root = root
        self.skip_unreadable = skip_unreadable
        self.unreadable_folders = 0
        self.classes: list[str] | None = None
        self.table = SampleTable()
        self.rejected: list[Rejection] = []
        self.notes: list[str] = []
        self.containers: list[Container] = []
        self.codebooks: list[bytes] = []
        self.replaces_cls = False
        self.image_fields: tuple[str, ...] = ()
        self.left_out: dict[str, list[str]] = {}
        self.likely_members: dict[str, list[str]] = {}
        self.max_file_bytes = MAX_FILE_BYTES
        self.content_digest = ""
        self._descriptors: dict[int, int] = {}

    def digest(self) -> str:
        """Returns the SHA-256 of paths, sizes, labels, class names and spooled fields. Times are left out: a copy of
        the dataset has the same."""
        parts = [self.table.digest(), self.classes, self.content_digest]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    def take_labels(self, found: Numbering, name: str) -> dict[int, str]:
        """Replaces the label codes in the table by the labels or targets.

        Args:
            found: Labels by code, or targets.
            name: Name of the targets, if there are any.

        Returns:
            Reason for the rejection, by sample, for those whose label is odd.
        """
        codes = self.table.labels()
        odd = {
            i: f"its label {found.odd[int(codes[i])]!r} is not a number, unlike nearly all others"
            for i in np.flatnonzero(np.isin(codes, list(found.odd))).tolist()
        }
        if odd:
            self.notes.append(
                f"{count(len(odd), 'sample')} rejected, as the label is not a number, unlike nearly all others: "
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

    def leave_out(self, path: str, kind: str) -> None:
        """Lists a file or folder that is left out because of its name."""
        self.left_out.setdefault(kind, []).append(path)
        self.reject(path, f"{kind}: left out by its name", bad=False)

    def skip_folder(self, path: str, reason: str) -> None:
        """Lists a folder that is left out with all its contents."""
        self.unreadable_folders += 1
        self.reject(path, reason, bad=False)

    def add_container(self, path: str) -> None:
        """Registers a file that holds many samples."""
        status = os.stat(path)
        self.containers.append(Container(path, status.st_size, status.st_mtime_ns))

    @contextlib.contextmanager
    def copied(self, container: int) -> Iterator[str]:
        """Copies a container to a local file for the duration of the context; its samples are read from there then.

        Args:
            container: Its number.

        Returns:
            The file's path.
        """
        yield self.containers[container].path

    def rows(self, ids: Int64s) -> Source:
        """Returns a source of some samples alone, in the order of their ids, which other processes can be sent.

        Its paths are absolute. Without the lists of what was found while listing, and the names of the classes.
        """
        found = copy.copy(self)
        found.table, used = self.table.rows(ids)
        if not self.is_remote:
            found.root = os.path.abspath(self.root)
        found.containers = [
            container if is_remote(container.path) else container._replace(path=os.path.abspath(container.path))
            for container in (self.containers[number] for number in used)
        ]
        found.classes = None
        found.rejected = []
        found.notes = []
        found.left_out = {}
        found.likely_members = {}
        found._descriptors = {}
        return found

    def take_in(self, folder: str) -> None:
        """Copies the fields in containers below a folder to memory, to be read where the folder is not."""
        inside = os.path.join(os.path.abspath(folder), "")
        for number, container in enumerate(self.containers):
            if container.path.startswith(inside):
                with open(container.path, "rb", opener=open_regular) as file:
                    data = self.table.move_fields(
                        number, lambda offset, length: os.pread(file.fileno(), length, offset)
                    )
                self.containers[number] = Container("", len(data), 0, data=data)

    def missing_path(self) -> str | None:
        """Returns a folder or file of the source that this machine does not have; None if it has all."""
        places = [container.path for container in self.containers if container.path and not is_remote(container.path)]
        if not self.is_remote and self.table.has_files:
            places.append(self.root)
        return next((place for place in places if not os.path.exists(place)), None)

    def read(self, i: int) -> list[tuple[str | None, bytes]]:
        """Reads the fields of sample ``i`` as (name, bytes); an image that is a file comes first, without a name.

        Raises:
            OSError: if the file can't be read.
            SourceError: if it is not the file that was listed.
            ValueError: if it is too large, or large and not an image.
            MemoryError: naming the file.
        """
        stored = self.table.stored_fields(i)
        fields: list[tuple[str | None, bytes]] = []
        if self.table.has_file(i):
            file_bytes = self.table.size(i) - sum(field.length for field in stored)
            fields.append((None, self._read_file(self.table.path(i), file_bytes)))
        fields += [(field.name or None, self.read_field(field)) for field in stored]
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

    def read_field(self, field: StoredField) -> bytes:
        """Reads one of the fields that the table has of a sample; raises what :meth:`read` raises."""
        if field.container == OWN_FILE:
            try:
                return self._read_file(self.table.file(field.offset), field.length)
            except ValueError as error:
                raise ValueError(f"its {field.name}: {error}") from None
        container = self.containers[field.container]
        descriptor = self._descriptors.get(field.container)
        check_length(field.length, self.max_file_bytes, field.name)
        if container.data is not None:
            data = container.data[field.offset : field.offset + field.length]
        elif descriptor is not None:
            data = self._pread(descriptor, field)
        else:
            opened = open_regular(container.copy or container.path)
            kept = False
            try:
                data = self._pread(opened, field)
                # Two threads may race to open it, and thousands of containers would exhaust the descriptors.
                if len(self._descriptors) < _OPEN_CONTAINERS:
                    kept = self._descriptors.setdefault(field.container, opened) == opened
            finally:
                if not kept:
                    os.close(opened)
        if len(data) != field.length:
            raise _changed(container.path, f"{field.length} bytes at byte {field.offset}", f"{len(data)}")
        return data

    def _pread(self, descriptor: int, field: StoredField) -> bytes:
        path = self.containers[field.container].path
        try:
            if not field.name or is_image_field(field.name):
                check_size(descriptor, field.offset, field.length, max_bytes=self.max_file_bytes)
            return os.pread(descriptor, field.length, field.offset)
        except MemoryError:
            place = f"{field.length:,} bytes at byte {field.offset}"
            raise MemoryError(f"{path}: not enough memory for {place}") from None
        except OSError as error:  # an error of a descriptor has no file name
            raise OSError(error.errno, error.strerror, path) from None


def _changed(path: str, expected: str, found: str) -> SourceError:
    return SourceError(
        f"{path}: changed while it was being sharded: expected {expected}, found {found}; "
        "leave the source alone and run into a new --out"
    )


def drop_duplicates(source: Source, canonical: Callable[[bytes], bytes], reason: str) -> None:
    """Rejects each sample with the path of an earlier sample. Takes 16 bytes of memory per sample.

    Args:
        source: The source to clean.
        canonical: Returns equal bytes for paths that mean the same.
        reason: Reason for the rejection.
    """
    reject_samples(source, dict.fromkeys(repeated_paths(source, canonical), reason))


def repeated_paths(source: Source, canonical: Callable[[bytes], bytes]) -> dict[int, int]:
    """Returns the samples with the path of an earlier sample, in their order, each with the first sample of that path.

    Args:
        source: The source.
        canonical: Returns equal bytes for paths that mean the same.
    """
    table = source.table
    hashes = np.fromiter((_hash64(canonical(table.path(i))) for i in range(len(table))), np.uint64, len(table))
    ordered = np.sort(hashes)
    # Equal hashes nearly always mean equal paths; only equal paths are duplicates.
    suspects = np.unique(ordered[1:][ordered[1:] == ordered[:-1]])
    del ordered
    first: dict[bytes, int] = {}
    repeated: dict[int, int] = {}
    for i in np.flatnonzero(np.isin(hashes, suspects)).tolist():
        earlier = first.setdefault(canonical(table.path(i)), i)
        if earlier != i:
            repeated[i] = earlier
    return repeated


def reject_samples(source: Source, reasons: Mapping[int, str]) -> None:
    """Rejects samples and removes them from the table.

    Args:
        source: The source to clean.
        reasons: Reason for the rejection, by sample.
    """
    if not reasons:
        return
    table = source.table
    for i in sorted(reasons):
        source.reject(table.path(i), reasons[i])
    source.table = table.kept(lambda i: None if i in reasons else table.stored_fields(i))


def _hash64(data: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")


class Spool:
    """Appends fields to a scratch file, one of the source's containers. It can be read once the context has ended.

    Args:
        source: The source of the fields' samples.
        path: The scratch file; it is overwritten.
    """

    def __init__(self, source: Source, path: str) -> None:
        self._source = source
        self._hash = hashlib.sha256()
        self._size = 0
        self._container = len(source.containers)
        self._writing = atomic_file(path)
        source.containers.append(Container(path, 0, 0, is_scratch=True))

    def __enter__(self) -> Spool:
        self._file = self._writing.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._writing.__exit__(*error)
        self._source.content_digest = self._hash.hexdigest()

    def add(self, name: str, data: bytes) -> StoredField:
        """Appends a field's bytes and returns their place."""
        field = StoredField(name, self._container, self._size, len(data))
        self._file.write(data)
        self._hash.update(name.encode("utf-8", "surrogateescape") + b"\0%d\0" % len(data) + data)
        self._size += len(data)
        return field

    def read(self, field: StoredField) -> bytes:
        """Reads the bytes of a field that was appended before."""
        self._file.flush()
        with open(self._file.name, "rb", buffering=0) as file:
            return os.pread(file.fileno(), field.length, field.offset)

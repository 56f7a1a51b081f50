"""The encoded bytes of samples: from shards by pread, from folders by whole files. Needs no torch.

Note [Shards are untrusted]
    Shards are read by pread, never mapped: touching a mapping past the end of a truncated file kills the process.
    Offsets and lengths come from the index and are checked against the file before anything is allocated.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from feeder.errors import ArgumentError, DecodeError, FormatError, SourceError
from feeder.imageinfo import image_info
from feeder.index import Index

__all__ = ["REFUSED_FIELDS", "Encoded", "FolderReader", "Peek", "Reader", "ShardReader", "check_fields"]

REFUSED_FIELDS = frozenset({"pickle", "pkl", "pt", "pth", "pyd"})
_OPEN_SHARDS = 64
_JPEG = ("jpeg", "jpg")
_SWAPPING_ORIENTATIONS = (5, 6, 7, 8)


@dataclass
class Encoded:
    """What was read for N samples.

    Attributes:
        buffers: N encoded images; empty where ``errors`` has an entry. Valid until the same thread's next call on
            the reader.
        labels: int64 [N].
        orientations: uint8 [N], EXIF orientation to apply, 1-8.
        sizes: int32 [N, 2], upright (height, width), pixels.
        errors: One entry per sample: None, or why it could not be read.
    """

    buffers: list[memoryview]
    labels: npt.NDArray[np.int64]
    orientations: npt.NDArray[np.uint8]
    sizes: npt.NDArray[np.int32]
    errors: list[DecodeError | None]


class Peek(NamedTuple):
    """What is known of N samples without decoding them.

    Attributes:
        lengths: int64 [N], of the encoded images, bytes.
        sizes: int64 [N, 2], (height, width), stored or upright, pixels.
        is_jpeg: bool [N], by the name of the field or file.
    """

    lengths: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int64]
    is_jpeg: npt.NDArray[np.bool_]


class Reader(Protocol):
    """Where samples come from. Cheap to pickle; opens its files on first use in each process and thread."""

    classes: list[str] | None

    def __len__(self) -> int: ...

    def read(self, ids: npt.NDArray[np.int64]) -> Encoded:
        """Reads the encoded images of N samples."""

    def peek(self, ids: npt.NDArray[np.int64]) -> Peek:
        """What is known of N samples; those that can't be read count as empty."""

    def field(self, i: int, name: str) -> Any:
        """One field of a sample: "key", "path" (str), "index" (int), "json" (parsed), any other member (bytes); None
        where the sample has no such member."""

    def at(self, error: DecodeError, i: int) -> DecodeError:
        """The error with the sample's place filled in."""

    def fingerprint(self) -> str:
        """A short hash of what the samples are and in what order they stand."""

    def labels(self) -> npt.NDArray[np.int64]:
        """Labels of all samples: int64 [samples]."""

    def shard_sizes(self) -> tuple[int, ...]:
        """Number of samples in each shard, in stored order; empty if there are no shards."""


def check_fields(fields: Sequence[str]) -> tuple[str, ...]:
    """Refuses fields that could run code when read.

    Raises:
        ArgumentError: naming the field.
    """
    for name in fields:
        if not isinstance(name, str) or not name:
            raise ArgumentError(f"fields must be names such as 'key' or 'json', got {name!r}")
        if name.rpartition(".")[2].lower() in REFUSED_FIELDS:
            raise ArgumentError(
                f"field {name!r} is refused: its format runs code when it is loaded; store it as json, npy or text"
            )
    return tuple(fields)


class _Files:
    """Open shards, at most a few dozen, and the memory for what is read from them: of one thread in one process."""

    def __init__(self) -> None:
        self.entries: OrderedDict[int, tuple[int, int]] = OrderedDict()
        self.arena = bytearray()
        self.pid = os.getpid()

    def __del__(self) -> None:
        if self.entries and self.pid == os.getpid():  # after a fork the descriptors are the parent's to close
            for descriptor, _ in self.entries.values():
                os.close(descriptor)


class ShardReader:
    """Samples of a shard set. Several threads may use one reader: each has its own open files and memory.

    Args:
        index: Path of the index file.
        exif: Whether to apply EXIF orientation.
        classes: Class names by label, if known.
    """

    def __init__(self, index: str, *, exif: bool = True, classes: list[str] | None = None) -> None:
        self.index = Index(index)
        self.exif = exif
        self.classes = classes
        self._local = threading.local()  # its parts go, and close their descriptors, with their thread or the reader

    def __reduce__(self) -> tuple[Any, ...]:
        return _shard_reader, (self.index.path, self.exif, self.classes)

    def __len__(self) -> int:
        return len(self.index)

    def read(self, ids: npt.NDArray[np.int64]) -> Encoded:
        """See :meth:`Reader.read`. Reads in stored order, so that neighbours come from one place on the disk."""
        index, count = self.index, len(ids)
        shards, offsets = index.shard[ids], index.offset[ids]
        lengths = index.length[ids]
        orientations = np.array(index.orientation[ids]) if self.exif else np.ones(count, np.uint8)
        turned_wrongly = (orientations < 1) | (orientations > 8)
        errors: list[DecodeError | None] = [None] * count
        for i in np.flatnonzero(turned_wrongly).tolist():
            errors[i] = self.at(
                DecodeError(
                    f"{index.path} gives it orientation {orientations[i]}, expected 1 to 8; the index is damaged: "
                    "rebuild it with `feeder index`, or shard the dataset again"
                ),
                int(ids[i]),
            )
        orientations[turned_wrongly] = 1
        sizes = np.stack([index.height[ids], index.width[ids]], axis=1).astype(np.int32)
        swapped = np.isin(orientations, _SWAPPING_ORIENTATIONS)
        sizes[swapped] = sizes[swapped, ::-1]
        shard_sizes = np.array([self._open(int(s))[1] for s in shards.tolist()], np.uint64)
        # uint64 sums could wrap around on a hostile index: compare without adding.
        inside = (lengths <= shard_sizes) & (offsets <= shard_sizes - np.minimum(lengths, shard_sizes))
        starts = np.cumsum(np.where(inside, lengths, 0)).tolist()
        files = self._own_files()
        if count and starts[-1] > len(files.arena):
            files.arena = bytearray(max(starts[-1], 2 * len(files.arena)))
        view = memoryview(files.arena)
        buffers = [view[:0]] * count
        for i in np.lexsort((offsets, shards)).tolist():
            shard, offset, length = int(shards[i]), int(offsets[i]), int(lengths[i])
            if errors[i] is not None:
                continue
            if not inside[i]:
                errors[i] = self.at(
                    DecodeError(
                        f"expected {length} bytes at byte {offset}, but the shard has {int(shard_sizes[i])} bytes: it "
                        "was cut off, or the index is of another shard; run `feeder inspect --verify`"
                    ),
                    int(ids[i]),
                )
                continue
            buffers[i] = view[starts[i] - length : starts[i]]
            try:
                self._pread(shard, offset, buffers[i])
            except DecodeError as error:
                errors[i] = self.at(error, int(ids[i]))
                buffers[i] = view[:0]
        return Encoded(buffers, index.label[ids], orientations, sizes, errors)

    def peek(self, ids: npt.NDArray[np.int64]) -> Peek:
        """See :meth:`Reader.peek`."""
        index = self.index
        jpeg = [number for number, name in enumerate(index.fields) if name.rpartition(".")[2].lower() in _JPEG]
        sizes = np.stack([index.height[ids], index.width[ids]], axis=1).astype(np.int64)
        return Peek(index.length[ids].astype(np.int64), sizes, np.isin(index.field[ids], jpeg))

    def field(self, i: int, name: str) -> Any:
        """See :meth:`Reader.field`."""
        if name == "key":
            return self.index.key(i)
        if name == "path":
            return self.index.source_path(i)
        if name == "index":
            return i
        for member, offset, length in self.index.members(i):
            if member == name:
                data = self._member(i, offset, length)
                return self._parsed(i, data) if name == "json" else data
        if self.index.image_field(i) == name:
            return self._member(i, int(self.index.offset[i]), int(self.index.length[i]))
        return None

    def at(self, error: DecodeError, i: int) -> DecodeError:
        """See :meth:`Reader.at`."""
        shard = self.index.shard_name(int(self.index.shard[i]))
        return error.at(key=self.index.key(i), shard=shard, offset_bytes=int(self.index.offset[i]))

    def fingerprint(self) -> str:
        """A hash of the index: shards, places, lengths and labels."""
        digest = hashlib.blake2b(digest_size=16)
        digest.update(json.dumps([*self.index.shards]).encode())
        for name in ("shard", "offset", "length", "label"):
            column = np.ascontiguousarray(self.index.column(name))
            digest.update(column.data)
        return digest.hexdigest()

    def labels(self) -> npt.NDArray[np.int64]:
        """See :meth:`Reader.labels`."""
        return self.index.label

    def shard_sizes(self) -> tuple[int, ...]:
        """See :meth:`Reader.shard_sizes`."""
        counts = self.index.shard_counts()
        return tuple(counts[counts > 0].tolist())

    def _member(self, i: int, offset: int, length: int) -> bytes:
        shard = int(self.index.shard[i])
        size = self._open(shard)[1]
        if length > size or offset > size - length:
            raise self.at(DecodeError(f"expected {length} bytes at byte {offset}, the shard has {size} bytes"), i)
        data = bytearray(length)
        try:
            self._pread(shard, offset, memoryview(data))
        except DecodeError as error:
            raise self.at(error, i) from None
        return bytes(data)

    def _parsed(self, i: int, data: bytes) -> Any:
        try:
            return json.loads(data)
        except ValueError as error:
            raise self.at(DecodeError(f"field 'json' is not JSON: {error}"), i) from None

    def _pread(self, shard: int, offset: int, view: memoryview) -> None:
        descriptor = self._open(shard)[0]
        done = 0
        while done < len(view):
            try:
                count = os.preadv(descriptor, [view[done:]], offset + done)
            except OSError as error:
                raise DecodeError(f"read failed at byte {offset + done}: {error.strerror}") from None
            if count == 0:
                raise DecodeError(
                    f"expected {len(view)} bytes at byte {offset}, got {done}: the shard was cut off; "
                    "run `feeder inspect --verify`"
                )
            done += count

    def _open(self, shard: int) -> tuple[int, int]:
        """Descriptor and size of a shard."""
        entries = self._own_files().entries
        entry = entries.get(shard)
        if entry is not None:
            entries.move_to_end(shard)
            return entry
        path = self.index.shard_path(shard)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise FormatError(
                f"{path}: the index names this shard, but it can't be opened ({error.strerror}); "
                "restore it, or run `feeder inspect --verify`"
            ) from None
        entry = descriptor, os.fstat(descriptor).st_size
        entries[shard] = entry
        if len(entries) > _OPEN_SHARDS:
            os.close(entries.popitem(last=False)[1][0])
        return entry

    def _own_files(self) -> _Files:
        files: _Files | None = getattr(self._local, "files", None)
        if files is None or files.pid != os.getpid():
            files = self._local.files = _Files()
        return files


def _shard_reader(index: str, exif: bool, classes: list[str] | None) -> ShardReader:
    return ShardReader(index, exif=exif, classes=classes)


class FolderReader:
    """Images in files of their own. The list of files is two flat arrays, whatever its length.

    Args:
        root: The folder.
        path_data: uint8, the files' paths relative to the root, in the file system's bytes, one after another.
        path_start: uint64 [N + 1], where each path starts.
        labels: int64 [N].
        exif: Whether to apply EXIF orientation.
        classes: Class names by label.
    """

    def __init__(
        self,
        root: str,
        path_data: npt.NDArray[np.uint8],
        path_start: npt.NDArray[np.uint64],
        labels: npt.NDArray[np.int64],
        *,
        exif: bool = True,
        classes: list[str] | None = None,
    ) -> None:
        self.root = root
        self.exif = exif
        self.classes = classes
        self._path_data, self._path_start, self._labels = path_data, path_start, labels

    def __len__(self) -> int:
        return len(self._labels)

    def path(self, i: int) -> str:
        """Path relative to the root; undecodable bytes as surrogates."""
        start, end = self._path_start[i : i + 2].tolist()
        return os.fsdecode(self._path_data[start:end].tobytes())

    def read(self, ids: npt.NDArray[np.int64]) -> Encoded:
        """See :meth:`Reader.read`. Size and orientation come from each file's header."""
        count = len(ids)
        orientations = np.ones(count, np.uint8)
        sizes = np.ones((count, 2), np.int32)
        errors: list[DecodeError | None] = [None] * count
        buffers = [memoryview(b"")] * count
        for row, i in enumerate(ids.tolist()):
            try:
                with open(os.path.join(self.root, self.path(i)), "rb") as file:
                    data = file.read()
                info = image_info(data)
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE):
                    raise
                errors[row] = self.at(DecodeError(f"can't be read: {error.strerror}"), i)
                continue
            except ValueError as error:
                errors[row] = self.at(DecodeError(str(error)), i)
                continue
            buffers[row] = memoryview(data)
            sizes[row] = info.height_px, info.width_px
            if self.exif:
                orientations[row] = info.orientation
                if info.orientation in _SWAPPING_ORIENTATIONS:
                    sizes[row] = sizes[row, ::-1]
        return Encoded(buffers, self._labels[ids], orientations, sizes, errors)

    def peek(self, ids: npt.NDArray[np.int64]) -> Peek:
        """See :meth:`Reader.peek`."""
        encoded = self.read(ids)
        lengths = np.array([len(buffer) for buffer in encoded.buffers], np.int64)
        is_jpeg = np.array([bytes(buffer[:2]) == b"\xff\xd8" for buffer in encoded.buffers], np.bool_)
        return Peek(lengths, encoded.sizes.astype(np.int64), is_jpeg)

    def field(self, i: int, name: str) -> Any:
        """See :meth:`Reader.field`; here "key" is the path relative to the folder."""
        if name == "key":
            return self.path(i)
        if name == "path":
            return os.path.join(self.root, self.path(i))
        return i

    def at(self, error: DecodeError, i: int) -> DecodeError:
        """See :meth:`Reader.at`."""
        return error.at(key=self.path(i))

    def fingerprint(self) -> str:
        """A hash of the relative paths and labels."""
        digest = hashlib.blake2b(digest_size=16)
        for column in (self._path_start, self._path_data, self._labels):
            digest.update(np.ascontiguousarray(column).data)
        return digest.hexdigest()

    def labels(self) -> npt.NDArray[np.int64]:
        """See :meth:`Reader.labels`."""
        return self._labels

    def shard_sizes(self) -> tuple[int, ...]:
        """See :meth:`Reader.shard_sizes`."""
        return ()

    @classmethod
    def scan(cls, root: str, extensions: frozenset[str], *, exif: bool = True) -> FolderReader:
        """Lists a folder of class folders by torchvision's ImageFolder rule.

        The classes are the root's subfolders, sorted by name; samples are sorted by class, folder and file name; links
        to folders are followed, but not in circles.

        Raises:
            SourceError: if there is no class folder, or one without an image.
        """
        try:
            with os.scandir(root) as entries:
                classes = sorted(entry.name for entry in entries if entry.is_dir())
        except OSError as error:
            raise SourceError(f"{root}: expected a folder of class folders: {error.strerror}") from None
        if not classes:
            raise SourceError(f"{root}: expected a folder for each class, found no folder; shard flat folders first")
        data = bytearray()
        starts: list[int] = [0]
        labels: list[int] = []
        for label, name in enumerate(classes):
            before = len(labels)
            for folder, files in sorted(_walk(root, name)):
                for file in sorted(files):
                    if os.path.splitext(file)[1][1:].lower() in extensions:
                        data += os.fsencode(os.path.relpath(os.path.join(folder, file), root))
                        starts.append(len(data))
                        labels.append(label)
            if len(labels) == before:
                raise SourceError(
                    f"{os.path.join(root, name)}: found no image in this class folder; expected one of the extensions "
                    f"{', '.join(sorted(extensions))}: remove the folder, or add images"
                )
        arrays = np.frombuffer(bytes(data), np.uint8), np.array(starts, np.uint64), np.array(labels, np.int64)
        return cls(root, *arrays, exif=exif, classes=classes)


def _walk(root: str, name: str) -> Iterator[tuple[str, list[str]]]:
    """A class folder and those below it, however deep, with their files' names; what can't be listed is left out.

    Python's own walk calls itself for each level until 3.12, and follows links in circles.
    """
    ancestors = [_identity(root)]
    pending = [(os.path.join(root, name), 1)]
    while pending:
        folder, depth = pending.pop()
        del ancestors[depth:]
        try:
            identity = _identity(folder)
            if identity in ancestors:
                continue
            with os.scandir(folder) as entries:
                kinds = {entry.name: _is_folder(entry) for entry in entries}
        except OSError:
            continue
        ancestors.append(identity)
        pending += [(os.path.join(folder, name), depth + 1) for name, is_folder in kinds.items() if is_folder]
        yield folder, [name for name, is_folder in kinds.items() if not is_folder]


def _identity(path: str) -> tuple[int, int]:
    status = os.stat(path)
    return status.st_dev, status.st_ino


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # such as a link to itself
        return False

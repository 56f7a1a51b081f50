"""Reads samples from image files, one folder a class."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from feeder.dataset.reader import ReadSamples, Wanted, label_dtype, parsed
from feeder.decoders.image_header import ImageInfo, image_info
from feeder.decoders.staged.capacity import Peek
from feeder.errors import DecodeError, SourceError
from feeder.shard.cache.waits import waits
from feeder.shard.format.index_file import INDEX_NAME, NUMBER_FIELDS
from feeder.shard.source.class_folders import (
    are_downloads,
    class_names,
    downloads_note,
    is_folder,
    splits_advice,
    walk,
)
from feeder.shard.source.image_file import (
    MAX_FILE_BYTES,
    is_image_file,
    left_out,
    left_out_notes,
    looks_like_image,
    read_image,
)
from feeder.shard.source.siblings import are_worth_a_word, likely_members, member_names
from feeder.system.arrays import AnyArray, Int32s, Int64s, Uint8s, Uint64s
from feeder.system.files import open_regular, scan_folder
from feeder.system.warning import warn

_HEARTBEAT_ENTRIES = 256  # between two calls of it
HEADER_BYTES = 1 << 14
_MEASURED_AT_ONCE = 64
_LISTED_AT_ONCE = 1 << 13
MACHINE_ERRORS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)  # not the sample's fault


class FolderReader:
    """Samples that are image files, and the files beside them. Two flat arrays list the images, so memory does not grow
    by objects.

    A file with an image's name, but for what follows the image's stem and a dot, is a member: ``a.txt`` of ``a.jpg``.

    Args:
        root: The folder.
        path_data: uint8, the files' paths relative to the root, in the file system's bytes, one after another.
        path_start: uint64 [N + 1], start of each path.
        labels: int64 [N], or float32 [N] or [N, K].
        exif: Whether to apply EXIF orientation.
        classes: Class names by label.
        members: Names of the members that samples have, such as "txt".
    """

    # Upright (height, width) and orientation to apply of each image, once they are measured; height 0: not yet.
    # uint16, or int32 once a side needs it.
    _sizes: AnyArray | None = None
    _turns: Uint8s | None = None

    measuring_threads = 32  # disks and file servers answer many reads at a time

    def __init__(
        self,
        root: str,
        path_data: Uint8s,
        path_start: Uint64s,
        labels: AnyArray,
        *,
        exif: bool = True,
        classes: list[str] | None = None,
        members: tuple[str, ...] = (),
    ) -> None:
        self.root = root
        self._members = members
        self.exif = exif
        self.path_data = path_data
        self.path_start = path_start
        self.relabel(labels, classes)

    def __len__(self) -> int:
        return len(self._labels)

    def path(self, i: int) -> str:
        """Returns the path relative to the root; undecodable bytes as surrogates."""
        start, end = self.path_start[i : i + 2].tolist()
        return os.fsdecode(self.path_data[start:end].tobytes())

    def read(self, ids: Int64s, wanted: Wanted | None = None) -> ReadSamples:
        """See :meth:`Reader.read`. Size and orientation come from each file's header; one that has changed since the
        image was measured is an error."""
        found = ReadSamples.unread(self._labels[ids])
        for row, i in enumerate(ids.tolist()):
            try:
                data, info = self._image(i)
            except DecodeError as error:
                found.errors[row] = error
                continue
            found.sizes[row], found.orientations[row] = size, _ = self._upright(info)
            known = None if self._sizes is None else self._sizes[i]
            if known is not None and known[0] and (known != size).any():
                now, before = (f"{width}x{height}" for height, width in (size, known.tolist()))
                reason = f"has {now} pixels (width x height), and had {before} when all sizes were read: make the "
                found.errors[row] = self.at(DecodeError(f"{reason}dataset and the loader again"), i)
            else:
                found.buffers[row] = memoryview(data)
        return found

    def stored(self, ids: Int64s) -> tuple[Uint8s, Int32s] | None:
        """See :meth:`Reader.stored`."""
        if self._sizes is None or self._turns is None or not self._sizes[ids].all():
            return None
        return self._turns[ids], self._sizes[ids].astype(np.int32)

    def measure(self, ids: Int64s | None = None) -> None:
        """See :meth:`Reader.measure`. Reads the headers of several files at a time, each once.

        A file that can't be read or is no image counts as 1x1; reading the sample says what is wrong with it.
        """
        if self._sizes is None or self._turns is None:
            self._sizes = np.zeros((len(self), 2), np.uint16)
            self._turns = np.ones(len(self), np.uint8)
        samples = len(self) if ids is None else len(ids)
        with ThreadPoolExecutor(self.measuring_threads) as pool:
            for first in range(0, samples, _LISTED_AT_ONCE):  # map() submits all that it is given at once
                end = min(samples, first + _LISTED_AT_ONCE)
                wanted = np.arange(first, end) if ids is None else ids[first:end]
                unknown = wanted[self._sizes[wanted, 0] == 0]
                if not len(unknown):  # in a worker, all are known and read-only
                    continue
                parts = np.split(unknown, range(_MEASURED_AT_ONCE, len(unknown), _MEASURED_AT_ONCE))
                for part, (sizes, turns) in zip(parts, pool.map(self._measured, parts), strict=True):
                    if sizes.max(initial=0) > np.iinfo(self._sizes.dtype).max:
                        self._sizes = self._sizes.astype(np.int32)
                    self._sizes[part], self._turns[part] = sizes, turns

    def _measured(self, ids: Int64s) -> tuple[Int32s, Uint8s]:
        """Returns the upright sizes, int32 [N, 2], and the orientations, uint8 [N], of images, by their headers."""
        sizes, turns = np.ones((len(ids), 2), np.int32), np.ones(len(ids), np.uint8)
        for row, i in enumerate(ids.tolist()):
            with contextlib.suppress(DecodeError):
                sizes[row], turns[row] = self._upright(self._header(i))
        return sizes, turns

    def _header(self, i: int) -> ImageInfo:
        """Reads the header of an image; of a JPEG that alone, if it is short. Raises DecodeError as :meth:`_image`."""
        with contextlib.suppress(OSError, ValueError):  # reading all of it says what is wrong
            with open(os.path.join(self.root, self.path(i)), "rb", opener=open_regular) as file:
                head = file.read(HEADER_BYTES)
            if head[:2] == b"\xff\xd8":
                return image_info(head)
        return self._image(i)[1]

    def _upright(self, info: ImageInfo) -> tuple[tuple[int, int], int]:
        """Returns an image's upright (height, width) and the orientation to apply."""
        return (info.upright_size, info.orientation) if self.exif else ((info.height_px, info.width_px), 1)

    def orientation(self, i: int) -> int:
        """See :meth:`Reader.orientation`. It comes from the file's header."""
        return self._image(i)[1].orientation if self.exif else 1

    def peek(self, ids: Int64s) -> Peek:
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
        if name in NUMBER_FIELDS:
            return int(self._numbers(name, np.array([i]))[0])
        data = self.member(i, name)
        try:
            return None if data is None else parsed(name, data)
        except DecodeError as error:
            raise self.at(error, i) from None

    def member(self, i: int, name: str) -> bytes | None:
        """See :meth:`Reader.member`; the file beside the image."""
        path = os.path.join(self.root, f"{os.path.splitext(self.path(i))[0]}.{name}")
        try:
            with open(path, "rb", opener=open_regular) as file:
                size = os.fstat(file.fileno()).st_size
                if size > MAX_FILE_BYTES:
                    raise self.at(DecodeError(f"{path} has {size:,} bytes, {MAX_FILE_BYTES:,} are allowed"), i)
                return file.read()
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno in MACHINE_ERRORS:
                raise
            raise self.at(DecodeError(f"{path} can't be read: {error.strerror}"), i) from None

    @property
    def place(self) -> str:
        """The folder."""
        return self.root

    def field_names(self) -> list[str]:
        """See :meth:`Reader.field_names`."""
        return sorted({"key", "path", *NUMBER_FIELDS, *self._members} - {"row"})

    def column(self, name: str) -> AnyArray | list[Any]:
        """See :meth:`Reader.column`. Sizes and orientations are read from each file."""
        ids = np.arange(len(self))
        return self._numbers(name, ids) if name in NUMBER_FIELDS else [self.field(i, name) for i in ids.tolist()]

    def _numbers(self, name: str, ids: Int64s) -> Int64s:
        """Returns one of the fields that are integers, int64 [N].

        Raises:
            DecodeError: for a file that can't be read, or is not an image.
        """
        if name == "index":
            return ids
        values = np.empty(len(ids), np.int64)
        for row, i in enumerate(ids.tolist()):
            info = self._image(i)[1]
            values[row] = info.orientation if name == "orientation" else self._upright(info)[0][name == "width"]
        return values

    def _image(self, i: int) -> tuple[bytes, ImageInfo]:
        """Returns an encoded image and its header.

        Raises:
            DecodeError: for a file that can't be read, or is not an image.
        """
        try:
            return self._read_image(i)
        except OSError as error:
            if error.errno in MACHINE_ERRORS:
                raise
            raise self.at(DecodeError(f"can't be read: {error.strerror}"), i) from None
        except ValueError as error:
            raise self.at(DecodeError(str(error)), i) from None

    def _read_image(self, i: int) -> tuple[bytes, ImageInfo]:
        data = read_image(os.path.join(self.root, self.path(i)))
        return data, image_info(data)

    def at(self, error: DecodeError, i: int) -> DecodeError:
        """See :meth:`Reader.at`."""
        return error.at(key=self.path(i))

    def fingerprint(self) -> str:
        """Returns the hash of the relative paths and labels."""
        digest = hashlib.blake2b(digest_size=16)
        for column in (self.path_start, self.path_data, self._labels):
            digest.update(np.ascontiguousarray(column).data)
        return digest.hexdigest()

    def labels(self) -> AnyArray:
        """See :meth:`Reader.labels`."""
        return self._labels

    @property
    def max_label(self) -> int:
        """The largest label; -1 without any."""
        return int(self._labels.max(initial=-1))

    def relabel(self, labels: AnyArray, classes: list[str] | None) -> None:
        """Replaces the labels by ``labels``, int64 [N] or float32 [N] or [N, K], and the class names by ``classes``."""
        self._labels = labels
        self.label_dtype = label_dtype(labels)
        self.classes = classes

    def shard_sizes(self) -> Int64s:
        """See :meth:`Reader.shard_sizes`."""
        return np.zeros(0, np.int64)

    @classmethod
    def scan(
        cls,
        root: str,
        *,
        exif: bool = True,
        targets: tuple[str, ...] = (),
    ) -> FolderReader:
        """Lists a folder of class folders by torchvision's ImageFolder rule.

        The classes are the root's subfolders, sorted by name; those that img2dataset has written are none, and their
        samples have the label -1. Samples are sorted by class, folder and file name. Links to folders are followed, but
        not in circles. As in ``feeder shard``, names decide about what is left out, see :func:`left_out`, and first
        bytes about files without the extension of an image.

        Args:
            root: The folder.
            exif: Whether to apply EXIF orientation.
            targets: Names of members, such as "seg.png", whose files are no samples.

        Raises:
            SourceError: if there is no class folder, or one without an image, or one that can't be listed.

        Warns:
            UserWarning: for each kind of files and folders that are left out; if images look like members of others.
        """
        skipped: dict[str, list[str]] = {}

        def leave_out(path: str, kind: str) -> None:
            skipped.setdefault(kind, []).append(path)

        classes = _classes(root, leave_out)
        listed = (_files(root, name, targets, leave_out) for name in classes)
        given, named = gathered(root, classes, listed, skipped, is_labelled=not are_downloads(root, classes))
        return cls(root, *given, exif=exif, **named)


ClassFiles = Mapping[str, tuple[list[str], set[str]]]  # images, sorted, and names of members of each folder of a class


def gathered(
    place: str,
    classes: list[str],
    listed: Iterable[ClassFiles],
    skipped: Mapping[str, Sequence[str]],
    *,
    is_labelled: bool,
) -> tuple[tuple[Uint8s, Uint64s, Int64s], dict[str, Any]]:
    """Returns the arguments of :class:`FolderReader` that class folders give, but for its root and ``exif``.

    Args:
        place: The root, for words.
        classes: Names of the class folders, sorted.
        listed: The files of each.
        skipped: Paths that are left out, by their kind, once all are listed.
        is_labelled: False for folders that are no classes.

    Raises:
        SourceError: if a class has no image.

    Warns:
        UserWarning: as :meth:`FolderReader.scan`.
    """
    if not is_labelled:
        warn(downloads_note(place, classes))
    data = bytearray()
    starts, labels = [0], list[int]()
    members: set[str] = set()
    likely: dict[str, list[str]] = {}

    for label, (name, folders) in enumerate(zip(classes, listed, strict=True)):
        if is_labelled and not any(files for files, _ in folders.values()):
            where = f"{place.rstrip('/')}/{name}"
            raise SourceError(f"{where}: found no image in this class folder: remove the folder, or add images")
        for folder, (files, fields) in sorted(folders.items()):
            members |= fields
            for file, field in likely_members(files).items():
                likely.setdefault(field, []).append(os.path.join(folder, file))
            for file in files:
                data += os.fsencode(os.path.join(folder, file))
                starts.append(len(data))
                labels.append(label if is_labelled else -1)

    if not labels:
        raise SourceError(f"{place}: found no image in the folders of img2dataset; its _stats.json say why")
    for note in (*left_out_notes(place, skipped), *_advice(place, classes, likely, len(labels))):
        warn(note)
    arrays = np.frombuffer(bytes(data), np.uint8), np.array(starts, np.uint64), np.array(labels, np.int64)
    named = tuple(sorted(members - {"key", "path", *NUMBER_FIELDS}))
    return arrays, {"classes": classes if is_labelled else None, "members": named}


def _classes(root: str, leave_out: Callable[[str, str], None]) -> list[str]:
    """Returns the names of the class folders.

    Raises:
        SourceError: if there is none, or they can't be listed.
    """
    try:
        classes = class_names(root, leave_out)
    except OSError as error:
        raise SourceError(f"{root}: expected a folder of class folders: {error.strerror}") from None
    if not classes:
        if os.path.exists(os.path.join(root, INDEX_NAME)):
            raise SourceError(f"{root}: this is a shard set; read it with ShardDataset")
        raise no_class_folder(root)
    return classes


def no_class_folder(place: str) -> SourceError:
    """Returns the error for a folder, or the URL of one, that has none in it."""
    return SourceError(
        f"{place}: expected a folder for each class, found no folder; if there are images alone, shard it first, "
        f"without labels: feeder shard {shlex.quote(place)}"
    )


def _advice(root: str, classes: Sequence[str], likely: Mapping[str, Sequence[str]], samples: int) -> Iterator[str]:
    """Yields words about class folders that look like splits, and about images that look like members."""
    if found := splits_advice(root, classes):
        yield found
    for field, paths in likely.items():
        if are_worth_a_word(field, len(paths), samples):
            yield (
                f"{root}: images such as {min(paths)} are samples, and look like masks or second images of those "
                f"beside them: targets={{{field!r}: T.Mask()}}, or T.Image(), makes them so"
            )


def _files(
    root: str,
    name: str,
    targets: tuple[str, ...],
    leave_out: Callable[[str, str], object],
) -> dict[str, tuple[list[str], set[str]]]:
    """Returns the images below a class folder, sorted, and the names of their members, by folder relative to the root.

    ``leave_out`` takes the path and the kind of files and folders that are left out.
    """
    found: dict[str, tuple[list[str], set[str]]] = {}
    endings = tuple(f".{target}" for target in targets)

    def visit(relative: str) -> list[str]:
        folders: list[str] = []
        files: list[str] = []
        others: list[str] = []

        with scan_folder(os.path.join(root, relative)) as entries:
            for k, entry in enumerate(entries):
                if k % _HEARTBEAT_ENTRIES == 0:
                    waits.heartbeat()
                is_image = looks_like_image(entry.name)
                # A link named like an image counts as one; if its target can't be read, reading the sample says so.
                is_below = is_folder(entry, skip_unreadable=is_image)
                if kind := left_out(entry.name, is_folder=is_below):
                    leave_out(os.path.join(relative, entry.name), kind)
                elif is_below:
                    folders.append(entry.name)
                else:
                    (files if is_image and not entry.name.endswith(endings) else others).append(entry.name)

        members = member_names(files, others)
        images = found[relative] = [], set(members.values())

        for k, file in enumerate(sorted([*files, *(name for name in others if name not in members)])):
            if k % _HEARTBEAT_ENTRIES == 0:
                waits.heartbeat()
            path = os.path.join(relative, file)
            if file.endswith(endings):
                continue
            if is_image_file(os.path.join(root, path)):
                images[0].append(file)
            elif looks_like_image(file):
                leave_out(path, "undecodable image")
        return folders

    walk(root, name, visit, lambda path, reason: None)
    return found

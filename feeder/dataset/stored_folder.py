"""Reads samples from image files in a store, one folder a class."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from feeder.dataset.folder_reader import HEADER_BYTES, ClassFiles, FolderReader, gathered, no_class_folder
from feeder.dataset.reader import ReadSamples, Wanted
from feeder.decoders.image_header import ImageInfo, image_info
from feeder.errors import DecodeError, SourceError
from feeder.shard.cache.cache_mirror import CacheMirror, FetchOptions, open_mirror
from feeder.shard.cache.listed_contents import LISTING
from feeder.shard.cache.presence import IDENTITY_BYTES
from feeder.shard.format.index_file import INDEX_NAME
from feeder.shard.source.class_folders import are_downloads
from feeder.shard.source.image_file import MAX_FILE_BYTES, looks_like_image
from feeder.shard.source.remote import folders_of
from feeder.shard.source.siblings import member_names
from feeder.shard.store.store import RANGE_BYTES, Entry
from feeder.system.arrays import Int32s, Int64s, Uint8s

_END = 1 << 62  # past the end of any file
_AT_ONCE = 64  # objects that are asked for, and open, together
_STRAY = "object without the extension of an image"


class _Objects:
    """Sizes and identities of the objects of a listing by their keys; 32 bytes each, as each worker has them.

    Args:
        listed: Key, size, time and identity of each, see :data:`LISTING`.
    """

    def __init__(self, listed: Sequence[Sequence[Any]]) -> None:
        hashes = np.array([_hash(key) for key, *_ in listed], np.uint64)
        order = np.argsort(hashes)
        identities = np.frombuffer(bytes.fromhex("".join(identity for *_, identity in listed)), np.uint8)
        self._hashes = hashes[order]
        self._sizes = np.array([size for _, size, *_ in listed], np.int64)[order]
        self._identities = identities.reshape(-1, IDENTITY_BYTES)[order]

    def find(self, key: str) -> tuple[int, bytes] | None:
        """Returns the size and the identity of an object; None if it was not there when the folder was listed."""
        wanted = np.uint64(_hash(key))
        place = int(np.searchsorted(self._hashes, wanted))
        if place == len(self._hashes) or self._hashes[place] != wanted:
            return None
        return int(self._sizes[place]), self._identities[place].tobytes()


def _hash(key: str) -> int:
    return int.from_bytes(hashlib.blake2b(os.fsencode(key), digest_size=8).digest(), "little")


class _Held(threading.local):
    """The objects that a thread has got last, by the number of bytes that were wanted of each, 0: all, and by path;
    None for one that is in the mirror."""

    def __init__(self) -> None:
        self.starts: dict[int, dict[str, bytes | None]] = {0: {}, HEADER_BYTES: {}}

    def __reduce__(self) -> tuple[Any, ...]:
        return _Held, ()


class StoredFolderReader(FolderReader):
    """Samples that are objects, which come when they are read, those of a part of a batch at a time: straight from the
    store where nobody has said how many bytes the cache may take, else by the cache.

    Args:
        mirror: The folder's mirror.
        objects: What was listed.
        given, named: The other arguments of :class:`FolderReader`, after its root.
    """

    measuring_threads = 4  # each keeps files open, and brings many objects at a time

    def __init__(self, mirror: CacheMirror, objects: _Objects, *given: Any, **named: Any) -> None:
        super().__init__(mirror.folder, *given, **named)
        self.mirror = mirror
        self._objects = objects
        self._held = _Held()

    @property
    def place(self) -> str:
        """URL of the folder."""
        return self.mirror.place

    def read(self, ids: Int64s, wanted: Wanted | None = None) -> ReadSamples:
        """See :meth:`FolderReader.read`; StoreError if objects can't be had."""
        self._bring(ids)
        return super().read(ids, wanted)

    def field(self, i: int, name: str) -> Any:
        """See :meth:`FolderReader.field`; "path" is the object's URL."""
        return f"{self.place}/{self.path(i)}" if name == "path" else super().field(i, name)

    def member(self, i: int, name: str) -> bytes | None:
        """See :meth:`Reader.member`; the object beside the image."""
        path = f"{os.path.splitext(self.path(i))[0]}.{name}"
        if self._objects.find(path) is None:
            return None
        try:
            return self._bytes_of(path)
        except ValueError as error:
            raise self.at(DecodeError(f"{path}: {error}"), i) from None

    def _measured(self, ids: Int64s) -> tuple[Int32s, Uint8s]:
        self._bring(ids, HEADER_BYTES)
        return super()._measured(ids)

    def _header(self, i: int) -> ImageInfo:
        start = self._held.starts[HEADER_BYTES].get(self.path(i))
        with contextlib.suppress(ValueError):  # reading all of it says what is wrong
            if start and start[:2] == b"\xff\xd8":
                return image_info(start)
        return self._image(i)[1]

    def _read_image(self, i: int) -> tuple[bytes, ImageInfo]:
        data = self._bytes_of(self.path(i))
        return data, image_info(data)

    def _bytes_of(self, path: str) -> bytes:
        """Returns an object's bytes; ChangedError if it is not the listed one, ValueError if they are too many."""
        found = self._objects.find(path)
        assert found is not None, path
        size, identity = found
        if size > MAX_FILE_BYTES:
            raise ValueError(f"{size:,} bytes, {MAX_FILE_BYTES:,} are allowed")

        held = self._held.starts[0]
        if path not in held:
            if len(held) >= _AT_ONCE:
                held.clear()
            held[path] = self._straight({path: found}).get(path)
        data = held[path]
        return _bytes_of(self.mirror, path, identity) if data is None else data

    def _bring(self, ids: Int64s, most_bytes: int = 0) -> None:
        """Gets images, many in one go: into this thread's memory, and what is not had so into the mirror.

        Args:
            ids: int64 [N].
            most_bytes: Only so many bytes of each are wanted, 0 or HEADER_BYTES; 0: all.
        """
        found = {path: self._objects.find(path) for path in map(self.path, ids.tolist())}
        listed = {path: known for path, known in found.items() if known is not None and known[0] <= MAX_FILE_BYTES}

        before = self._held.starts[most_bytes]
        held = self._held.starts[most_bytes] = {path: before[path] for path in listed if path in before}
        held |= self._straight({path: known for path, known in listed.items() if path not in held}, most_bytes)

        needs = [(path, 0, _END) for path in listed if held.setdefault(path, None) is None]
        for first in range(0, len(needs), _AT_ONCE):
            self.mirror.need(needs[first : first + _AT_ONCE])

    def _straight(self, listed: Mapping[str, tuple[int, bytes]], most_bytes: int = 0) -> dict[str, bytes]:
        """Returns those of objects, or their starts, that come straight from the store."""
        if self.mirror.options.cache_bytes is not None:
            return {}
        wants = {
            path: (length, identity)
            for path, (size, identity) in listed.items()
            if 0 < (length := min(size, most_bytes or size)) <= RANGE_BYTES
        }
        return self.mirror.starts(wants)


def _bytes_of(mirror: CacheMirror, name: str, expected: bytes = b"") -> bytes:
    mirror.need([(name, 0, _END)])
    descriptor = mirror.open(name, expected)  # its position is shared
    try:
        return os.pread(descriptor, os.fstat(descriptor).st_size, 0)
    finally:
        os.close(descriptor)


def open_stored_folder(
    options: FetchOptions, cache_dir: str | os.PathLike[str] | None, *, exif: bool, targets: tuple[str, ...]
) -> StoredFolderReader:
    """Lists a folder of class folders in a store by :meth:`FolderReader.scan`'s rule, but that names alone decide.

    Args:
        options: Options of its fetcher.
        cache_dir: The cache's folder; None: the user's.
        exif, targets: See :meth:`FolderReader.scan`.

    Raises:
        SourceError: if there is no class folder, or one without an image.
        StoreError: if the store can't be listed.

    Warns:
        UserWarning: as :meth:`FolderReader.scan`.
    """
    mirror = open_mirror(options, cache_dir)
    listed = json.loads(_bytes_of(mirror, LISTING))
    folders, left_out = folders_of(Entry(key, size, modified_ns=modified) for key, size, modified, _ in listed)
    outside = folders.pop("", {})
    by_class: dict[str, dict[str, Mapping[str, Any]]] = {}
    for folder, files in folders.items():
        by_class.setdefault(folder.partition("/")[0], {})[folder] = files
    classes = sorted(by_class)
    if INDEX_NAME in outside:
        raise SourceError(f"{mirror.place}: this is a shard set; read it with ShardDataset")
    if not classes:
        raise no_class_folder(mirror.place)

    skipped: dict[str, list[str]] = {}
    for path, kind in left_out.items():
        skipped.setdefault(kind, []).append(path)
    files_of = (_class_files(by_class[name], targets, skipped) for name in classes)
    is_labelled = not are_downloads("", classes, outside.__contains__)
    given, named = gathered(mirror.place, classes, files_of, skipped, is_labelled=is_labelled)
    return StoredFolderReader(mirror, _Objects(listed), *given, exif=exif, **named)


def _class_files(
    folders: Mapping[str, Mapping[str, Any]], targets: Sequence[str], skipped: dict[str, list[str]]
) -> ClassFiles:
    """Returns the images of a class and the names of their members, by folder; notes in ``skipped`` what is neither."""
    found = {}
    endings = tuple(f".{target}" for target in targets)
    for folder, names in folders.items():
        images = sorted(name for name in names if looks_like_image(name) and not name.endswith(endings))
        others = [name for name in names if not looks_like_image(name) or name.endswith(endings)]
        members = member_names(images, others)
        for name in others:
            if name not in members and not name.endswith(endings):
                skipped.setdefault(_STRAY, []).append(f"{folder}/{name}")
        found[folder] = images, set(members.values())
    return found

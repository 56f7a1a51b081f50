"""Reads samples from image files in a store, one folder a class."""

from __future__ import annotations

import json
import os
from typing import Any

import numpy as np

from feeder.dataset.folder_reader import FolderReader, advice
from feeder.dataset.reader import ReadSamples, Wanted
from feeder.decoders.image_header import ImageInfo, image_info
from feeder.errors import DecodeError, NotFoundError, SourceError
from feeder.shard.cache.cache_mirror import CacheMirror, FetchOptions, open_mirror
from feeder.shard.cache.listed_files import LISTING
from feeder.shard.cache.presence import IDENTITY_BYTES
from feeder.shard.format.index_file import INDEX_NAME
from feeder.shard.source.image_file import MAX_FILE_BYTES, left_out_notes, looks_like_image
from feeder.shard.source.remote import open_remote_folder
from feeder.shard.store.open_store import open_store
from feeder.shard.store.store import Entry
from feeder.system.arrays import Int32s, Int64s, Uint8s
from feeder.system.warning import warn

__all__ = ["StoredFolderReader", "open_stored_folder"]

_END = 1 << 62  # past the end of any file
_AT_ONCE = 64  # objects that are asked for, and open, together


class StoredFolderReader(FolderReader):
    """Samples that are objects, which come whole into a cache when they are read, those of a part of a batch at a time.

    Args:
        mirror: The folder's mirror.
        identities: uint8 [N, 16], see :class:`feeder.shard.cache.cached_file.Contents`.
        sizes: int64 [N], bytes of the objects.
        given, named: The other arguments of :class:`FolderReader`, after its root.
    """

    measuring_threads = 4  # each keeps files open, and brings many objects at a time

    def __init__(self, mirror: CacheMirror, identities: Uint8s, sizes: Int64s, *given: Any, **named: Any) -> None:
        super().__init__(mirror.folder, *given, **named)
        self.mirror = mirror
        self._identities = identities
        self._bytes = sizes

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
        try:
            data = _bytes_of(self.mirror, path)
        except NotFoundError:
            return None
        if len(data) > MAX_FILE_BYTES:
            raise self.at(DecodeError(f"{path} has {len(data):,} bytes, {MAX_FILE_BYTES:,} are allowed"), i)
        return data

    def _measured(self, ids: Int64s) -> tuple[Int32s, Uint8s]:
        self._bring(ids)
        return super()._measured(ids)

    def _header(self, i: int) -> ImageInfo:
        return self._image(i)[1]

    def _read_image(self, i: int) -> tuple[bytes, ImageInfo]:
        if self._bytes[i] > MAX_FILE_BYTES:
            raise ValueError(f"{self._bytes[i]:,} bytes are more than the {MAX_FILE_BYTES:,} that an image may have")
        data = _bytes_of(self.mirror, self.path(i), self._identities[i].tobytes())
        return data, image_info(data)

    def _bring(self, ids: Int64s) -> None:
        """Has images brought into the mirror, many in one go."""
        wants = [(self.path(i), 0, _END) for i in ids.tolist() if self._bytes[i] <= MAX_FILE_BYTES]
        for first in range(0, len(wants), _AT_ONCE):
            self.mirror.need(wants[first : first + _AT_ONCE])


def _bytes_of(mirror: CacheMirror, name: str, expected: bytes = b"") -> bytes:
    """Returns the bytes of an object; ChangedError if it is not the one that was listed."""
    mirror.need([(name, 0, _END)])
    descriptor = mirror.open(name, expected)  # its position is shared
    try:
        return os.pread(descriptor, os.fstat(descriptor).st_size, 0)
    finally:
        os.close(descriptor)


def _checked_classes(place: str, keys: set[str], classes: list[str] | None) -> list[str]:
    """Returns the classes of a folder with these objects.

    Raises:
        SourceError: if its folders are none.
    """
    if INDEX_NAME in keys:
        raise SourceError(f"{place}: this is a shard set; read it with ShardDataset")
    if classes is None:
        raise SourceError(f"{place}: expected a folder for each class, found none; shard flat folders first")
    if all(not keys.isdisjoint((f"{name}.parquet", f"{name}_stats.json")) for name in classes):
        raise SourceError(
            f"{place}: its folders, such as {classes[0]}, are shards of img2dataset and no classes: "
            "feeder shard reads them"
        )
    return classes


def open_stored_folder(
    options: FetchOptions, cache_dir: str | os.PathLike[str] | None, *, exif: bool, targets: tuple[str, ...]
) -> StoredFolderReader:
    """Lists a folder of class folders in a store, as ``feeder shard`` does.

    Args:
        options: Options of its fetcher.
        cache_dir: The cache's folder; None: the user's.
        exif, targets: See :meth:`FolderReader.scan`.

    Raises:
        SourceError: if there is no class folder, or one without an image.
        StoreError: if the store can't be listed.

    Warns:
        UserWarning: for each kind of objects that are left out.
    """
    mirror = open_mirror(options, cache_dir)
    listed = json.loads(_bytes_of(mirror, LISTING))
    store = open_store(mirror.options.url, allow_http=mirror.options.allow_http)
    entries = [Entry(key, size, modified_ns=modified) for key, size, modified, _ in listed]
    source = open_remote_folder(store, entries, targets)
    classes = _checked_classes(mirror.place, {entry.key for entry in entries}, source.classes)

    table = source.table
    paths = [(i, os.fsdecode(table.path(i))) for i in range(len(table))]
    images = sorted((table.label(i), *os.path.split(path)) for i, path in paths if looks_like_image(path))
    labels = np.array([label for label, *_ in images], np.int64)
    for label, of_class in enumerate(np.bincount(labels, minlength=len(classes)).tolist()):
        if not of_class:
            raise SourceError(
                f"{mirror.place}/{classes[label]}: found no image in this class folder: remove the folder, or "
                "add images"
            )
    others = [path for _, path in paths if not looks_like_image(path)]
    kinds = {"object without the extension of an image": others} if others else {}
    for note in (
        *left_out_notes(mirror.place, source.left_out | kinds),
        *advice(mirror.place, classes, source.likely_members, len(images)),
    ):
        warn(note)

    names = [os.path.join(folder, name) for _, folder, name in images]
    of = {key: (size, bytes.fromhex(identity)) for key, size, _, identity in listed}
    found = [of[name] for name in names]
    encoded = [os.fsencode(name) for name in names]
    return StoredFolderReader(
        mirror,
        np.frombuffer(b"".join(identity for _, identity in found), np.uint8).reshape(-1, IDENTITY_BYTES),
        np.array([size for size, _ in found], np.int64),
        np.frombuffer(b"".join(encoded), np.uint8),
        np.cumsum([0, *map(len, encoded)]).astype(np.uint64),
        labels,
        exif=exif,
        classes=classes,
        members=tuple(sorted(table.fields)),
    )

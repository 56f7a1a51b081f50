"""Sources that lie in stores: a prefix of images, and what the other kinds need of one."""

from __future__ import annotations

import contextlib
import fnmatch
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import braceexpand

from feeder.errors import ChangedError, NotFoundError, SourceError
from feeder.shard.format.manifest import MANIFEST_NAME
from feeder.shard.source.class_folders import splits_advice
from feeder.shard.source.folder import ListedFile, add_files, note_members
from feeder.shard.source.image_file import (
    LARGE_BYTES,
    START_BYTES,
    check_length,
    check_start,
    left_out,
    looks_like_image,
)
from feeder.shard.source.sample_table import OWN_FILE, StoredField
from feeder.shard.source.source import Container, Source, SourceKind
from feeder.shard.store.open_store import open_store
from feeder.shard.store.store import Entry, Store, download
from feeder.shard.store.url import Url

_GAP_BYTES = 64 << 10  # fields of a sample that lie closer are read by one request


class RemoteSource(Source):
    """A source whose files, or some of its containers, lie in a store.

    Args:
        kind: As of :class:`Source`.
        store: The store; the table's paths are keys in it.
    """

    is_remote = True

    def __init__(self, kind: SourceKind, store: Store) -> None:
        super().__init__(kind, str(store.url))
        self.store = store

    def __getstate__(self) -> dict[str, Any]:
        containers = [each._replace(copy=None) for each in self.containers]
        return {**self.__dict__, "store": self.store.url.anywhere(), "containers": containers}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, store=open_store(state["store"]))

    def add_object(self, entry: Entry, copy: str | None = None) -> None:
        """Registers an object that holds many samples.

        Args:
            entry: The object.
            copy: A local file with its bytes, which samples are read from; None for the object itself.
        """
        path = str(self.store.url.joined(entry.key))
        self.containers.append(Container(path, entry.size_bytes, entry.modified_ns, entry=entry, copy=copy))

    def objects(self) -> list[Entry]:
        """Returns the objects that hold many samples, by container."""
        return [each.entry for each in self.containers if each.entry is not None]

    @contextlib.contextmanager
    def copied(self, container: int) -> Iterator[str]:
        listed = self.containers[container]
        if listed.copy or listed.entry is None:
            yield listed.copy or listed.path
            return
        with tempfile.TemporaryDirectory(prefix="feeder-tar-") as folder:
            copy = os.path.join(folder, "copy")
            download(self.store, listed.entry, copy)
            self.containers[container] = listed._replace(copy=copy)
            try:
                yield copy
            finally:
                self.close()
                self.containers[container] = listed

    def read(self, i: int) -> list[tuple[str | None, bytes]]:
        stored = self.table.stored_fields(i)
        entry = self._entry(stored[0].container) if stored else None
        if entry is None or any(field.container != stored[0].container for field in stored):
            return super().read(i)
        start = min(field.offset for field in stored)
        end = max(field.offset + field.length for field in stored)
        needed = sum(field.length for field in stored)
        if end - start > needed + _GAP_BYTES or needed > self.max_file_bytes:
            return super().read(i)
        for field in stored:
            check_length(field.length, self.max_file_bytes, field.name)
        data = self._get(entry, start, end)
        return [(field.name or None, data[field.offset - start :][: field.length]) for field in stored]

    def read_field(self, field: StoredField) -> bytes:
        entry = self._entry(field.container)
        if entry is None:
            return super().read_field(field)
        check_length(field.length, self.max_file_bytes, field.name)
        return self._get(entry, field.offset, field.offset + field.length)

    def _entry(self, container: int) -> Entry | None:
        """Returns the object that is a container, and must be read from the store; None if it is none."""
        found = None if container == OWN_FILE else self.containers[container]
        return None if found is None or found.copy else found.entry

    def _read_file(self, path: bytes, size: int) -> bytes:
        entry = Entry(os.fsdecode(path), size)
        check_length(size, self.max_file_bytes)
        if size > LARGE_BYTES:
            check_start(self._get(entry, 0, START_BYTES))
        return self._get(entry, 0, size)

    def _get(self, entry: Entry, start: int, end: int) -> bytes:
        try:
            return bytes(self.store.get(entry.key, start, end, entry.etag, size_bytes=entry.size_bytes))
        except (NotFoundError, ChangedError):
            raise SourceError(
                f"{self.store.url.object(entry.key)}: vanished or changed while it was being sharded; leave the source "
                "alone and run into a new --out"
            ) from None


def split_url(text: str) -> tuple[str, str]:
    """Returns a URL or pattern without its query, and the query with its question mark."""
    base, mark, query = text.partition("?")
    return base, mark + query


def list_objects(text: str) -> tuple[Store, list[Entry]]:
    """Lists all objects below a URL.

    Raises:
        SourceError: if there is none.
        StoreError: if it can't be listed.
    """
    store = open_store(text)
    entries = list(store.list())
    if not entries:
        raise SourceError(f"{store.url}: holds no object; check the bucket and the prefix")
    return store, entries


def named_objects(pattern: str, suffixes: tuple[str, ...]) -> tuple[Store, list[Entry]]:
    """Returns the objects that a brace pattern, a glob or a URL names, in order, and a store that has them all.

    Raises:
        SourceError: if it names none, or some twice.
        StoreError: if one of them is missing, or the store can't be read.
    """
    base, query = split_url(pattern)
    urls = [Url.parse(text + query) for text in (braceexpand.braceexpand(base) if "{" in base else [base])]

    folders = [url.prefix.rpartition("/")[0] for url in urls]
    first = os.path.commonpath(folders) if all(folders) else ""
    root = Url(urls[0].scheme, urls[0].place, first, urls[0].region, urls[0].endpoint)
    if any(url.place != root.place for url in urls):
        raise SourceError(f"{base}: names several buckets or hosts; give one at a time")

    store = open_store(root)
    keys = [url.prefix[len(first) + 1 if first else 0 :] for url in urls]
    entries = []
    for key in keys:
        if "*" in key:
            folder = key.partition("*")[0].rpartition("/")[0]
            entries += [
                e
                for e in store.list(folder)
                if e.key.count("/") == key.count("/")
                and fnmatch.fnmatchcase(e.key, key)
                and e.key.endswith(suffixes)
                and not left_out(os.path.basename(e.key))
            ]
        else:
            entries.append(store.size(key))

    if not entries:
        raise SourceError(f"{base}: names no object")
    if len({entry.key for entry in entries}) != len(entries):
        raise SourceError(f"{base}: names the same object twice")

    return store, entries


def folders_of(entries: Iterable[Entry]) -> tuple[dict[str, dict[str, ListedFile]], dict[str, str]]:
    """Returns the files of each folder of a listing, by folder and name, and the paths that are left out, with the kind
    of each, see :func:`left_out`."""
    folders: dict[str, dict[str, ListedFile]] = {}
    skipped: dict[str, str] = {}

    for entry in entries:
        *above, name = entry.key.split("/")
        path, kind = entry.key, left_out(name)
        for depth, part in enumerate(above, 1):
            if is_system := left_out(part, is_folder=True):
                path, kind = "/".join(above[:depth]), is_system
                break

        if kind:
            skipped[path] = kind
        else:
            folders.setdefault("/".join(above), {})[name] = ListedFile(entry.key, entry.size_bytes, entry.modified_ns)

    for folder in folders:  # markers of folders, as some tools make them, are no files
        parent, _, name = folder.rpartition("/")
        if name in folders.get(parent, ()) and not folders[parent][name].size_bytes:
            del folders[parent][name]
    return folders, skipped


def open_remote_folder(store: Store, entries: Sequence[Entry], members: Sequence[str], *, has_labels: bool) -> Source:
    """Lists a class-per-folder tree or a flat folder in a store as :func:`open_folder` lists a local one.

    Args:
        store: The store.
        entries: All objects of it.
        members, has_labels: See :func:`open_folder`.

    Raises:
        SourceError: if one of its folders is a shard set; if no image has one of the members.
    """
    folders, skipped = folders_of(entries)
    tops = sorted({folder.partition("/")[0] for folder in folders if folder})
    classes = tops if has_labels else []
    source = RemoteSource(SourceKind.CLASS_FOLDERS if classes else SourceKind.FLAT_FOLDER, store)
    source.classes = classes or None
    for path, kind in skipped.items():
        source.leave_out(path, kind)

    if (shards := next((name for name in tops if MANIFEST_NAME in folders.get(name, ())), None)) is not None:
        raise SourceError(f"{store.url.object(shards)}: is a shard set of feeder, not a class; move it elsewhere")

    labels = {name: label for label, name in enumerate(classes)}
    outside = folders.pop("", {}) if classes else {}
    for folder in sorted(folders, key=lambda folder: folder.split("/")):
        files = dict(sorted(folders[folder].items()))
        add_files(source, files, labels.get(folder.partition("/")[0], -1), members)
    for name in sorted(outside):
        source.reject(name, "is outside the class folders", bad=looks_like_image(name))
    if advice := splits_advice(source.root, classes):
        source.notes.append(advice)

    note_members(source, members)
    return source

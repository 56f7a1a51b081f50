"""An index for WebDataset tars that other programs wrote, so that they load like shards."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import tempfile
from dataclasses import dataclass

from feeder.decoders.image_header import image_info, is_whole
from feeder.errors import ShardError, SourceError
from feeder.shard.format.block_sums import file_sums
from feeder.shard.format.index_builder import IndexBuilder
from feeder.shard.format.index_file import INDEX_NAME
from feeder.shard.format.manifest import MANIFEST_NAME, ShardRecord
from feeder.shard.format.open_index import open_index
from feeder.shard.source.open import source_kind
from feeder.shard.source.pattern import fixed_start
from feeder.shard.source.remote import RemoteSource, list_objects, named_objects, split_url
from feeder.shard.source.source import Rejection, Source
from feeder.shard.source.table_file import ManifestColumns
from feeder.shard.source.tars import TAR_SUFFIXES, is_tar, open_stored_tars, open_tars
from feeder.shard.store.open_store import open_store
from feeder.shard.store.store import entry_of, hub_folder, refuse_web_server
from feeder.shard.store.url import Url, is_remote, local_path
from feeder.shard.write.encode import EncodeOptions, Encoder
from feeder.shard.write.set_copy import SetCopy
from feeder.shard.write.set_writer import index_path, own_suffix, write_set
from feeder.shard.write.shard_writer import add_row
from feeder.system.files import exclusive_lock
from feeder.system.progress import Progress
from feeder.system.text import count

_logger = logging.getLogger("feeder")


@dataclass(frozen=True)
class IndexSummary:
    """The result of indexing.

    Attributes:
        path: The index file.
        shards: Number of tars indexed.
        samples: Number of samples indexed.
        rejected: Inputs that were left out, with the reason.
    """

    path: str
    shards: int
    samples: int
    rejected: list[Rejection]


def index_tars(
    pattern: str,
    out: str | None = None,
    *,
    columns: ManifestColumns | None = None,
    image_field: str | None = None,
    progress: Progress | None = None,
) -> IndexSummary:
    """Builds ``index.bin`` for existing WebDataset tars, and an index beside each; the tars stay as they are.

    Args:
        pattern: A folder of tars, a tar, or a brace pattern; also such a URL in a store. Compressed tars can't be read
            at random and are refused.
        out: The index file; None for ``index.bin`` in the tars' common folder. It must lie in or above that folder, for
            tars in a store there, too.
        columns: Keys of the samples' ``json`` with the label or the targets; None takes the label from ``cls``.
        image_field: Field that holds the image, such as "rgb.jpg"; None chooses it by the names of the fields.
        progress: Shows each sample.

    Raises:
        SourceError: if there is no such tar, or none has a sample.
        ShardError: if the index would replace one of other tars, or can't be written.
        StoreError: if a store can't be read or written.
    """
    progress = progress or Progress()
    if is_remote(pattern):
        url = Url.parse(fixed_start(split_url(pattern)[0]))
        if url.scheme == "hf":
            if out is not None:
                raise ShardError(f"{url}: the index of tars on the Hub lies in the cache; leave --out out")
            return _index_hub(open_store(pattern).url, image_field, columns, progress)
        refuse_web_server(url)

        with tempfile.TemporaryDirectory(prefix="feeder-tars-") as copies:
            stored = _stored_tars(pattern, image_field, columns, copies)
            place = stored.store.url.joined(INDEX_NAME) if out is None else Url.parse(out)
            below = _below(stored.store.url, place.parent())
            if below is None:
                raise ShardError(f"{place}: must lie in {stored.root}, or above it, as shards are named relative to it")
            names = [f"{below}{entry.key}" for entry in stored.objects()]

            with SetCopy.to_change(place.parent()) as copy:
                for name in (MANIFEST_NAME, place.name):
                    copy.fetch(name)
                return _index(stored, names, os.path.join(copy.path, place.name), str(place), copy, progress)

    if is_remote(out or ""):
        raise ShardError(f"{Url.parse(out or '')}: the index of tars in a local folder lies there")
    source = open_tars(local_path(pattern), None, image_field, columns)
    path = os.path.abspath(local_path(out) if out else os.path.join(source.root, INDEX_NAME))
    folder = os.path.dirname(path)
    names = [os.path.relpath(container.path, folder) for container in source.containers]
    if names[0].startswith(".."):
        raise ShardError(f"{path}: must lie in {source.root}, or above it, as shards are named relative to the index")
    return _index(source, names, path, path, SetCopy(folder, folder), progress)


def hub_header(pattern: str) -> tuple[str, str]:
    """Returns a set's URL on the Hub at a commit, and that of its header; tars that have none get one, in the cache.

    Args:
        pattern: The URL of the set's folder or its header, or of a folder of tars, a tar or a pattern of tars.

    Raises:
        SourceError: if it is none of these.
        StoreError: if the Hub can't be read.
    """
    url = open_store(pattern).url
    if url.name.endswith(".bin"):
        return str(url), str(url)
    place, name = _hub_place(url)
    if entry_of(open_store(place), name) is None:
        _logger.info("%s: its tars are read once, for an index that stays in the cache", url)
        _index_hub(url, None, None, Progress())
    return str(url), str(place.joined(name))


def _hub_place(url: Url) -> tuple[Url, str]:
    """Returns the folder of tars on the Hub, and the name of their header."""
    if source_kind(str(url)) == "prefix":
        return url, INDEX_NAME
    if "*" in url.parent().prefix or "{" in url.parent().prefix:
        raise SourceError(f"{url}: a pattern of tars may stand in the last part only, as in data/train-*.tar")
    return url.parent(), re.sub(r"[^A-Za-z0-9._-]", "_", url.name) + ".bin"


def _index_hub(tars: Url, image_field: str | None, columns: ManifestColumns | None, progress: Progress) -> IndexSummary:
    """Makes the index of tars at a commit, in the cache: of several processes one does, for which the others wait."""
    place, name = _hub_place(tars)
    folder = os.path.join(hub_folder(place), place.repository()[2])
    os.makedirs(folder, mode=0o700, exist_ok=True)
    path = os.path.join(folder, name)
    with exclusive_lock(f"{path}.lock", waits=True), tempfile.TemporaryDirectory(prefix="feeder-tars-") as copies:
        shown = str(place.joined(name))
        if os.path.exists(path) and image_field is None and columns in (None, ManifestColumns()):
            index = open_index(path)
            return IndexSummary(shown, index.header.shards, len(index), [])
        stored = _stored_tars(str(tars), image_field, columns, copies)
        names = [f"{_below(stored.store.url, place)}{entry.key}" for entry in stored.objects()]
        return _index(stored, names, path, shown, SetCopy(folder, str(place)), progress)


def _stored_tars(pattern: str, image_field: str | None, columns: ManifestColumns | None, copies: str) -> RemoteSource:
    """Lists the samples of tars in a store, given by a folder or a pattern."""
    if source_kind(pattern) != "prefix":
        named = named_objects(pattern, TAR_SUFFIXES)
        return open_stored_tars(*named, pattern, None, image_field, columns, copies)
    store, entries = list_objects(pattern)
    own = [entry for entry in entries if "/" not in entry.key]
    tars = [entry for entry in own if is_tar(entry.key)]
    if not tars:
        raise SourceError(f"{store.url}: no tar there; expected files, such as 's3://bucket/train-{{000..009}}.tar'")
    beside = [entry.key for entry in own]
    return open_stored_tars(store, tars, pattern, None, image_field, columns, copies, beside)


def _below(inner: Url, outer: Url) -> str | None:
    """Returns the path from one folder to another in it, with a slash at its end if there is one; None if it leads out
    of it."""
    place, top = f"{inner.identity()}/", f"{outer.identity()}/"
    return place[len(top) :] if place.startswith(top) else None


def _index(source: Source, names: list[str], path: str, shown: str, copy: SetCopy, progress: Progress) -> IndexSummary:
    """Writes the index of tars, which have these names relative to it.

    Args:
        source: The samples of the tars.
        names: The tars' names.
        path: The index.
        shown: Its name in messages and the summary.
        copy: Its folder.
        progress: Shows each sample.
    """
    folder = os.path.dirname(path)
    if os.path.exists(os.path.join(folder, MANIFEST_NAME)) and os.path.basename(path) == INDEX_NAME:
        raise ShardError(f"{copy.shown}: holds a shard set that feeder wrote, with an index of its own; nothing to do")
    if os.path.exists(path):
        index = open_index(path)
        others = list(map(index.header.shard_name, range(index.header.shards)))
        if others != names:
            raise ShardError(
                f"{shown}: is an index for other tars ({', '.join(others[:1])}, ...); choose another --out"
            )
    table = source.table
    rejected = list(source.rejected)
    for note in source.notes:
        progress.note(note)
    own: list[list[int]] = [[] for _ in names]
    for i in range(len(table)):
        own[table.stored_fields(i)[0].container].append(i)
    builders = [IndexBuilder(table.targets) for _ in names]
    sums = []
    encoder = Encoder(EncodeOptions("keep"))
    size_bytes = sum(map(table.size, range(len(table))))
    with contextlib.closing(source), progress.running(len(table), size_bytes):
        for number, ids in enumerate(own):
            name = os.path.relpath(source.containers[number].path, source.root)
            with source.copied(number) as tar:
                for i in ids:
                    reason = _add(source, i, name, builders[number], encoder)
                    if reason:
                        rejected.append(Rejection(os.fsdecode(table.path(i)), reason, True))
                    progress.advance(1, table.size(i))
                sums.append(file_sums(tar))

    samples = sum(map(len, builders))
    if not samples:
        first = f", the first {rejected[0].path}: {rejected[0].reason}" if rejected else ""
        raise SourceError(f"{source.root}: no sample found, {count(len(rejected), 'input')} rejected{first}")
    suffix, shards = own_suffix(path), []
    try:
        for name, builder, container, (sha256, blocks) in zip(names, builders, source.containers, sums, strict=True):
            own_path = index_path(folder, name, suffix)
            os.makedirs(os.path.dirname(own_path), exist_ok=True)
            builder.write(own_path, blocks, container.size_bytes, source.codebooks)
            copy.publish(own_path)
            shards.append(ShardRecord(name, len(builder), container.size_bytes, sha256))
        write_set(path, shards, source.classes, suffix=suffix)
        copy.publish(path)
    except OSError as error:
        raise ShardError(f"{error.filename or path}: can't be written: {error.strerror}") from error
    return IndexSummary(shown, len(names), samples, rejected)


def _add(source: Source, i: int, tar: str, builder: IndexBuilder, encoder: Encoder) -> str | None:
    """Adds a sample to its tar's rows; returns the reason if it must be rejected."""
    stored = source.table.stored_fields(i)
    try:
        read = zip(stored, source.read(i), strict=True)
        fields = {field.name: (field.name, field.offset, data) for field, (_, data) in read}
        image = fields.pop(next(name for name in source.image_fields if name in fields))
        info = image_info(image[-1])
        if not is_whole(image[-1], info):
            encoder.encode(image[-1], info)
    except ValueError as error:
        return str(error)
    key = source.table.path(i)[len(os.fsencode(tar)) + 1 :]
    add_row(builder, source.table, i, key, info, image, [*fields.values()])
    return None

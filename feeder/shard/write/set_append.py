"""Adds samples to a finished shard set, as a new version of it.

Note [Append]
    A version becomes part of the set in three steps, each by a rename, or as an object that appears whole.
    ``append.json`` is written first: the manifest that the set will have. Then the new header takes the place of the
    old one, and the samples are part of the set. At last ``append.json`` takes the place of ``manifest.json``.
    A run that is interrupted before the second step leaves the set as it was. After it, the next call does the third:
    ``append.json`` has the digest of the header that is in place.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shlex
import shutil
import time

import numpy as np

from feeder.errors import ChoiceError, FormatError, ShardError, SourceError
from feeder.shard.format.index_file import INDEX_NAME
from feeder.shard.format.manifest import MANIFEST_NAME, Manifest
from feeder.shard.format.open_index import open_index
from feeder.shard.format.set_header import version_path
from feeder.shard.format.set_index import SetIndex
from feeder.shard.source.labels import name_numbers
from feeder.shard.source.source import Source
from feeder.shard.store.url import local_path, shown_place
from feeder.shard.write.encode import check_encoder
from feeder.shard.write.output_folder import OutputFolder
from feeder.shard.write.plan import plan_digest
from feeder.shard.write.set_writer import write_set
from feeder.shard.write.shard_engine import write_in_threads
from feeder.shard.write.shard_options import REJECTED_NAME, TAKEDOWN_NAME, ShardOptions, ShardSummary
from feeder.shard.write.sharding import source_opener
from feeder.shard.write.store_output import locked_output, no_set
from feeder.shard.write.write_run import Run
from feeder.system.files import atomic_file, file_sha256, open_regular, read_regular
from feeder.system.progress import Progress

_NEXT_MANIFEST = "append.json"
_APPENDED = "appended"  # in the manifest's source: digests of the sources that were added


def append(path: str, more: str, options: ShardOptions, *, progress: Progress | None = None) -> ShardSummary:
    """Adds the samples of a source to a shard set that ``feeder shard`` made, as a new version of the set.

    The set's shards stay as they are, and runs that use the set go on with the version that they were started with.
    New classes are numbered after the set's. A run that is interrupted leaves the set as it was, and beside it the
    shards that it has finished: the same call resumes it, and a call with another source removes them. The manifest
    keeps a digest of each source that was added, so a call with a source that has not changed since adds nothing.

    Args:
        path: The set's folder, or its URL in a store.
        more: The source, of the kinds that :func:`feeder.shard.write.sharding.shard` takes.
        options: Number of workers, share of bad inputs, and options for reading the source. The others are the set's.
        progress: Shows the run's progress.

    Returns:
        The result; its totals are those of the whole set.

    Raises:
        SourceError: if the source can't be read as a whole, or its labels do not fit those of the set.
        ShardError: if the folder has no finished set, or can't be written.
        FormatError: if the set is damaged.
    """
    started_s = time.monotonic()
    path, more = local_path(path), local_path(more)

    try:
        opener = source_opener(more, path, options)
        with locked_output(path, appends=True) as folder:
            manifest, index = _opened(folder)
            options = options.with_settings(manifest.settings)
            check_encoder(options.encode)
            with contextlib.closing(opener(folder.work, options.image_field or folder.image_field())) as source:
                return _append(folder, manifest, index, source, options, progress or Progress(), started_s)
    except ChoiceError as error:
        question, ways, _ = error.args
        ways = [(way, "") for way, _ in ways]
        raise ChoiceError(question, ways, f"feeder append {shlex.quote(path)}") from None
    except OSError as error:
        raise ShardError(
            f"{error.filename or shown_place(path)}: {error.strerror or error}; the set is as it was: fix this and run "
            "the same command again, which resumes"
        ) from error


def _append(
    folder: OutputFolder,
    before: Manifest,
    index: SetIndex,
    source: Source,
    options: ShardOptions,
    progress: Progress,
    started_s: float,
) -> ShardSummary:
    """Adds the samples of an open source to an open set; see :func:`append`."""
    engine = functools.partial(write_in_threads, options)
    run = Run(folder, source, options, progress, started_s, engine, before, index.codebooks)
    run.start()
    shards = len(before.shards)
    first_digest = source.digest()  # before its labels are the set's
    classes = _join_classes(source, index)
    digest = plan_digest(options.settings(), source)
    if digest in before.source.get(_APPENDED, ()):
        progress.note(f"these samples are part of {folder.shown} already: nothing is added")
        folder.discard(shards)
        return run.summary(before, [])
    if (source.kind, first_digest) == (before.source.get("kind"), before.source.get("digest")):
        raise SourceError(
            f"{source.root}: has the paths, sizes and labels of what {folder.shown} was made of, and its samples "
            "would be in the set twice; if its images are others, or that is meant, rename one of its files"
        )

    is_resumed = folder.begin(options.settings(), source, version=index.header.info.version, shards=shards)
    try:
        written, new = run.write(is_resumed=is_resumed)
    except (FormatError, SourceError):  # it would fail again
        folder.discard(shards)
        raise

    records = [each.record for each in written]
    header = folder.file(INDEX_NAME)
    earlier = version_path(header, index.header.info.version)
    with open(header, "rb", opener=open_regular) as old, atomic_file(earlier) as file:
        shutil.copyfileobj(old, file)
    folder.publish(earlier)

    next_header = folder.work_file(INDEX_NAME)
    write_set(next_header, records, classes, before=index.header, folder=folder.path)
    appended = [*before.source.get(_APPENDED, ()), digest]
    manifest = run.manifest(written, next_header, classes, before.source | {_APPENDED: appended})
    run.write_rejected(written)
    manifest.write(folder.work)
    os.replace(folder.work_file(MANIFEST_NAME), folder.work_file(_NEXT_MANIFEST))
    folder.publish(folder.file(REJECTED_NAME), folder.work_file(_NEXT_MANIFEST))

    os.replace(next_header, header)  # the second step of Note [Append]
    folder.publish(header)
    _complete(folder)
    folder.finish()
    return run.summary(manifest, new)


def _join_classes(source: Source, index: SetIndex) -> list[str] | None:
    """Numbers the source's classes as the set does, new ones after the set's; returns all names."""
    known, found = index.classes, source.classes
    if tuple(source.table.targets) != index.targets:
        raise SourceError(
            f"{source.root}: its targets are {_listed(source.table.targets)}, those of the set "
            f"{_listed(index.targets)}; name the same columns"
        )
    if source.table.is_numbered != index.header.info.is_numbered:
        raise SourceError(
            f"{source.root}: samples of a manifest and others do not go into one set, as only those have rows"
        )
    largest = int(source.table.labels().max(initial=-1))
    if found is None:
        if known is not None and largest >= len(known):
            raise SourceError(f"{source.root}: has a label {largest}, the set names of {len(known)} classes only")
        return known
    if known is None:
        if index.header.info.max_label >= 0:
            raise SourceError(f"{source.root}: its labels are class names, those of the set numbers without names")
        return found
    names = [*known, *(name for name in found if name not in set(known))]
    mapping = name_numbers(found, names)
    if (mapping != np.arange(len(mapping))).any():
        source.table.relabel(mapping)
        source.replaces_cls = True
    return names


def _opened(folder: OutputFolder) -> tuple[Manifest, SetIndex]:
    """Opens the set in a folder, which must be finished."""
    if os.path.exists(folder.file(TAKEDOWN_NAME)):
        raise ShardError(
            f"{folder.shown}: samples of it are being taken down, and that was interrupted; run `feeder takedown "
            f"{folder.shown}`, which finishes it"
        )
    _complete(folder)
    manifest = folder.manifest()
    if manifest is None:
        raise no_set(folder.shown)
    index = open_index(folder.file(INDEX_NAME))
    if file_sha256(folder.file(INDEX_NAME)) != manifest.index["sha256"]:
        raise ShardError(
            f"{folder.shown}: its {INDEX_NAME} is not the one that its {MANIFEST_NAME} names; restore them (`feeder "
            "inspect --verify` names all damage)"
        )
    return manifest, index


def _complete(folder: OutputFolder) -> None:
    """Runs the third step of Note [Append], if the second was done. Else ``append.json`` stays, unused."""
    pending = folder.work_file(_NEXT_MANIFEST)
    if not os.path.exists(pending):
        return
    if json.loads(read_regular(pending))["index"]["sha256"] == file_sha256(folder.file(INDEX_NAME)):
        os.replace(pending, folder.file(MANIFEST_NAME))
        folder.publish(folder.file(MANIFEST_NAME))


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(map(repr, names)) or "none"

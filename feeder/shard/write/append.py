"""Adds samples to a finished shard set, as a new version of it."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import shutil
import time

import numpy as np

from feeder.errors import FormatError, ShardError, SourceError
from feeder.shard.format.header_file import version_path
from feeder.shard.format.index_file import INDEX_NAME
from feeder.shard.format.manifest import MANIFEST_NAME, Manifest
from feeder.shard.format.open_index import open_index
from feeder.shard.format.set_index import SetIndex
from feeder.shard.format.shard_index import ShardIndex
from feeder.shard.source.open import open_source, overlaps_source, source_kind
from feeder.shard.source.source import Source
from feeder.shard.store.url import local_path, shown_place
from feeder.shard.write.column_types import refuse_other_types
from feeder.shard.write.dali_index import DALI_SUFFIX, write_dali_index
from feeder.shard.write.encode import check_encoder
from feeder.shard.write.options import REJECTED_NAME, TAKEDOWN_NAME, ShardOptions, ShardSummary
from feeder.shard.write.output_folder import OutputFolder
from feeder.shard.write.plan import plan_shards
from feeder.shard.write.run import Run, no_image, total
from feeder.shard.write.run_plan import plan_digest
from feeder.shard.write.set_writer import HashedShard, extend_set, index_path
from feeder.shard.write.shard_job import WrittenShard
from feeder.shard.write.store_output import locked_output
from feeder.system.files import atomic_file, file_sha256, open_regular
from feeder.system.progress import Progress

__all__ = ["append"]

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
        SourceError: if the source can't be read as a whole, or its labels or the types of its columns do not fit those
            of the set.
        ShardError: if the folder has no finished set, or can't be written.
        FormatError: if the set is damaged, or its index is of version 1.
    """
    started = time.monotonic()
    path, more = local_path(path), local_path(more)
    if not options.targets:
        source_kind(more)
    if any(overlaps_source(place, path) for place in (more, *(place for _, place in options.targets.pairs))):
        raise ShardError(f"{shown_place(path)}: lies inside the source {shown_place(more)}, or is it")
    try:
        with locked_output(path, appends=True) as folder:
            manifest, index = _opened(folder)
            options = options.with_settings(manifest.settings)
            check_encoder(options.encode)
            source = open_source(
                more,
                options.columns,
                folder.work,
                skip_unreadable=options.skip_unreadable,
                image_field=options.image_field or folder.image_field(),
                targets=options.targets,
            )
            try:
                return _Append(folder, manifest, index, source, options, progress or Progress(), started).run()
            finally:
                source.close()
    except OSError as error:
        raise ShardError(
            f"{error.filename or shown_place(path)}: {error.strerror or error}; the set is as it was: fix this and run "
            "the same command again, which resumes"
        ) from error


class _Append:
    """One run that adds a source's samples to a set."""

    def __init__(
        self,
        folder: OutputFolder,
        manifest: Manifest,
        index: SetIndex,
        source: Source,
        options: ShardOptions,
        progress: Progress,
        started: float,
    ) -> None:
        self._folder, self._manifest, self._index = folder, manifest, index
        self._source, self._options = source, options
        self._progress, self._started = progress, started

    def run(self) -> ShardSummary:
        source, manifest = self._source, self._manifest
        for note in source.notes:
            self._progress.note(note)
        if not len(source.table):
            raise no_image(source, source.rejected)
        first_digest = source.digest()  # before its labels are the set's
        classes = self._join_classes()
        refuse_other_types(self._folder, self._index, source)
        run = Run(
            *(self._folder, source, self._options, self._progress, self._started),
            first_shard=len(manifest.shards),
            first_key=manifest.inputs,
            codebooks=self._index.codebooks,
        )
        plan = plan_shards(source, self._options)
        folder, version, shards = self._folder, self._index.version, len(manifest.shards)
        digest = plan_digest(self._options.settings(), source)
        if digest in manifest.source.get(_APPENDED, ()):
            self._progress.note(f"these samples are part of {folder.shown} already: nothing is added")
            folder.remove_after(shards)
            folder.finish()
            return self._summary(manifest, [], {}, classes)
        if (source.kind, first_digest) == (manifest.source.get("kind"), manifest.source.get("digest")):
            raise SourceError(
                f"{source.root}: has the paths, sizes and labels of what {folder.shown} was made of, and its samples "
                "would be in the set twice; if its images are others, or that is meant, rename one of its files"
            )
        is_resumed = folder.begin_append(self._options.settings(), source, version, shards)
        if is_resumed:
            self._progress.note(f"resuming the unfinished run in {folder.shown}")
        done = run.finished(plan) if is_resumed else {}
        try:
            written = [found for _, found in sorted(run.write_shards(plan, done).items())]
            if not any(each.record.samples for each in written):
                raise SourceError(f"{source.root}: no sample could be sharded")
        except (FormatError, SourceError):  # it would fail again
            folder.remove_after(shards)
            folder.finish()
            raise
        return self._finish(written, done, classes, digest)

    def _join_classes(self) -> list[str] | None:
        """Numbers the source's classes as the set does, new ones after the set's; returns all names."""
        source, index = self._source, self._index
        known, found = index.classes, source.classes
        if tuple(source.table.targets) != index.targets:
            raise SourceError(
                f"{source.root}: its targets are {_listed(source.table.targets)}, those of the set "
                f"{_listed(index.targets)}; name the same columns"
            )
        if source.table.is_numbered != index.has_source_rows:
            raise SourceError(
                f"{source.root}: samples of a manifest and others do not go into one set, as only those have rows"
            )
        labels = source.table.columns()["labels"]
        largest = int(labels.max(initial=-1))
        if found is None:
            if known is not None and largest >= len(known):
                raise SourceError(f"{source.root}: has a label {largest}, the set names of {len(known)} classes only")
            return known
        if known is None:
            if index.max_label >= 0:
                raise SourceError(f"{source.root}: its labels are class names, those of the set numbers without names")
            return found
        names = [*known, *(name for name in found if name not in set(known))]
        places = {name: label for label, name in enumerate(names)}
        mapping = np.array([places[name] for name in found], np.int64)
        if (mapping != np.arange(len(mapping))).any():
            source.table.relabel(mapping)
            source.replaces_cls = True
        return names

    def _finish(
        self, written: list[WrittenShard], done: dict[int, WrittenShard], classes: list[str] | None, digest: str
    ) -> ShardSummary:
        """Writes the new header; the rename of it is what makes the samples part of the set.

        Args:
            written: All further shards.
            done: Those that an earlier run finished, by their numbers among these.
            classes: Class names by label.
            digest: That of the source, see :func:`plan_digest`.
        """
        folder, before, source = self._folder, self._manifest, self._source
        rejected = sorted([*source.rejected, *(r for each in written for r in each.rejected)])
        self._write_dali_indexes(written)
        header = folder.file(INDEX_NAME)
        earlier = version_path(header, self._index.version)
        _copy(header, earlier)
        folder.publish(earlier)
        next_header = folder.part(INDEX_NAME)
        shards = [HashedShard(each.record.name, each.record.size_bytes, each.record.sha256) for each in written]
        extend_set(self._index.header, next_header, folder.path, shards, classes)
        samples = sum(each.record.samples for each in written)
        manifest = dataclasses.replace(
            before,
            source=before.source | {_APPENDED: [*before.source.get(_APPENDED, ()), digest]},
            inputs=before.inputs + samples + len(rejected),
            samples=before.samples + samples,
            rejected=before.rejected + len(rejected),
            bad=before.bad + sum(r.bad for r in rejected),
            formats=total([before.formats, *(each.formats for each in written)]),
            encoded=total([before.encoded, *(each.encoded for each in written)]),
            clipped=before.clipped + sum(each.clipped for each in written),
            classes=classes,
            index={"size_bytes": os.stat(next_header).st_size, "sha256": file_sha256(next_header)},
            shards=[*before.shards, *(each.record for each in written)],
        )
        with (
            open(folder.file(REJECTED_NAME), "rb", opener=open_regular) as lines,
            atomic_file(folder.file(REJECTED_NAME)) as file,
        ):
            file.writelines(itertools.islice(lines, before.rejected))  # a killed run may have added further ones
            file.writelines(json.dumps(r._asdict()).encode() + b"\n" for r in rejected)
        manifest.write(folder.work)
        os.replace(folder.part(MANIFEST_NAME), folder.part(_NEXT_MANIFEST))
        folder.publish(folder.file(REJECTED_NAME), folder.part(_NEXT_MANIFEST))
        os.replace(next_header, header)
        folder.publish(header)
        _complete(folder)
        folder.finish()
        return self._summary(manifest, written, done, classes)

    def _write_dali_indexes(self, written: list[WrittenShard]) -> None:
        """Writes DALI's index files of further shards, if the set's have some."""
        folder = self._folder
        if folder.has(index_path("", self._index.shard_name(0), DALI_SUFFIX)):
            for each in written:
                path = index_path(folder.path, each.record.name, DALI_SUFFIX)
                write_dali_index(path, ShardIndex(index_path(folder.path, each.record.name)))
                folder.publish(path)

    def _summary(
        self,
        manifest: Manifest,
        written: list[WrittenShard],
        done: dict[int, WrittenShard],
        classes: list[str] | None,
    ) -> ShardSummary:
        source = self._source
        rejected = [*source.rejected, *(r for each in written for r in each.rejected)]
        return ShardSummary(
            out=self._folder.shown,
            kind=source.kind,
            inputs=manifest.inputs,
            samples=manifest.samples,
            rejected=len(rejected),
            bad=sum(r.bad for r in rejected),
            unreadable_folders=source.unreadable_folders,
            encoded=manifest.encoded,
            clipped=sum(each.clipped for each in written),
            shards=len(manifest.shards),
            bytes=sum(s.size_bytes for s in manifest.shards),
            classes=len(classes or ()),
            written_shards=len(written) - len(done),
            written_samples=sum(each.record.samples for number, each in enumerate(written) if number not in done),
            seconds=time.monotonic() - self._started,
            max_bad=self._options.max_bad,
            notes=source.notes,
        )


def _opened(folder: OutputFolder) -> tuple[Manifest, SetIndex]:
    """Opens the set in a folder, which must be finished."""
    if os.path.exists(folder.file(TAKEDOWN_NAME)):
        raise ShardError(
            f"{folder.shown}: samples of it are being taken down, and that was interrupted; run `feeder takedown "
            f"{folder.shown}`, which finishes it"
        )
    _complete(folder)
    manifest = Manifest.read(folder.path)
    if manifest is None:
        raise ShardError(f"{folder.shown}: holds no finished shard set of feeder; make one with `feeder shard`")
    index = open_index(folder.file(INDEX_NAME))
    if file_sha256(folder.file(INDEX_NAME)) != manifest.index["sha256"]:
        raise ShardError(
            f"{folder.shown}: its {INDEX_NAME} is not the one that its {MANIFEST_NAME} names; restore them (`feeder "
            "inspect --verify` names all damage)"
        )
    return manifest, index


def _complete(folder: OutputFolder) -> None:
    """Puts the manifest of a version in place if the version's header is."""
    pending = folder.part(_NEXT_MANIFEST)
    if not os.path.exists(pending):
        return
    with open(pending, "rb", opener=open_regular) as file:
        expected = json.load(file)["index"]["sha256"]
    if expected == file_sha256(folder.file(INDEX_NAME)):
        os.replace(pending, folder.file(MANIFEST_NAME))
        folder.publish(folder.file(MANIFEST_NAME))


def _copy(source: str, to: str) -> None:
    with open(source, "rb", opener=open_regular) as old, atomic_file(to) as file:
        shutil.copyfileobj(old, file)


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(map(repr, names)) or "none"

"""Turns samples into pre-shuffled WebDataset shards and their index."""

from __future__ import annotations

import contextlib
import functools
import os
import tempfile
import time
from collections.abc import Callable, Iterator

from feeder.errors import ArgumentError, ShardError
from feeder.shard.format.manifest import Manifest
from feeder.shard.source.layout import recognized
from feeder.shard.source.open import open_source, overlaps_source, source_kind
from feeder.shard.source.pattern import fixed_start
from feeder.shard.source.source import Source
from feeder.shard.store.url import Url, is_remote, local_path, shown_place
from feeder.shard.write.encode import check_encoder
from feeder.shard.write.plan import plan_shards
from feeder.shard.write.shard_engine import ShardEngine, write_in_threads
from feeder.shard.write.shard_options import ShardOptions, ShardSummary
from feeder.shard.write.store_output import locked_output, previewed_output
from feeder.shard.write.write_run import Run, no_image
from feeder.system.files import DISK_FULL
from feeder.system.progress import Progress
from feeder.system.ray_cluster import quiet_ray

_Opener = Callable[[str, str | None], Source]  # opens a source; takes a folder for scratch files, and the image field


def shard(
    path: str,
    out: str | None = None,
    options: ShardOptions | None = None,
    *,
    progress: Progress | None = None,
    dry_run: bool = False,
    force: bool = False,
) -> ShardSummary:
    """Turns a dataset into pre-shuffled WebDataset shards; resumes an unfinished run.

    Args:
        path: A class-per-folder tree, a flat folder, a manifest, or WebDataset tars. With ``options.targets`` the
            folder of the images, or for pairs also ``folder/*_suffix.png``.
        out: Output folder, or a URL in a store, such as "s3://bucket/set"; None for the source's name with
            ``-shards`` appended.
        options: Options for sharding.
        progress: Shows the run's progress.
        dry_run: True to list and plan only, and write nothing.
        force: True to replace feeder's shard set in the output folder, if nothing else is there.

    Returns:
        The result, or with ``dry_run`` the expected one.

    Raises:
        SourceError: if the source can't be read as a whole, or changes while it is read.
        ShardError: if the output folder can't be used.
        StoreError: if a store can't be read or written.
    """
    options = options or ShardOptions()
    path, out = local_path(path), local_path(out or default_out(path))
    opener = source_opener(path, out, options)

    run = _preview if dry_run else run_sharding
    return run(opener, out, options, progress or Progress(), force=force)


def source_opener(path: str, out: str, options: ShardOptions) -> _Opener:
    """Returns a function that opens a source; looks at the names of its files alone.

    Args:
        path: The source, see :func:`shard`.
        out: The place of the set.
        options: Options for sharding.

    Raises:
        ShardError: if the set's place is in the source.
        SourceError: if the source is of no kind that feeder knows.
    """
    given, targets, note = path, options.targets, None
    if not targets:
        source_kind(path)
        if not options.class_folders:
            path, targets, note = recognized(path, targets, has_labels=options.columns.has_labels)
    if any(overlaps_source(place, out) for place in (given, path, *(place for _, place in targets.pairs))):
        raise ShardError(f"{shown_place(out)}: lies inside the source {shown_place(given)}, or is it; name another one")

    def opener(work: str, image_field: str | None) -> Source:
        source = open_source(
            path,
            options.columns,
            work,
            skip_unreadable=options.skip_unreadable,
            image_field=image_field,
            targets=targets,
        )
        source.place = shown_place(path)
        source.notes[:0] = [] if note is None else [note]
        return source

    return opener


@contextlib.contextmanager
def open_engine(options: ShardOptions) -> Iterator[ShardEngine]:
    """Opens the engine that the options name.

    Raises:
        ArgumentError: if its package is not installed.
        ShardError: if its cluster can't be reached.
    """
    if options.engine == "local":
        yield functools.partial(write_in_threads, options)
        return
    try:
        with quiet_ray():
            from feeder.shard.write.ray_engine import open_ray
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise ArgumentError("engine 'ray' needs the package ray: pip install 'feeder-data[ray]'") from None
    with open_ray(options) as engine:
        yield engine


def default_out(path: str) -> str:
    """Returns the output folder for a source: its name with ``-shards`` appended; for a remote one, here."""
    if is_remote(path):
        path = Url.parse(path.partition("?")[0].rstrip("/")).name
    name = path.rstrip("/")
    if "{" in name or "*" in name or not os.path.isdir(name):
        name = fixed_start(name).rstrip("-_/") or "dataset"
        while os.path.splitext(name)[1] in (".tar", ".gz", ".tgz", ".csv", ".tsv", ".jsonl", ".ndjson", ".parquet"):
            name = os.path.splitext(name)[0]
    return os.path.abspath(name) + "-shards"


def _preview(opener: _Opener, out: str, options: ShardOptions, progress: Progress, *, force: bool) -> ShardSummary:
    """Lists the samples and plans the shards, and writes nothing; returns the expected summary."""
    started_s = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch, previewed_output(out, force=force) as folder:
        folder.preview(options.settings())
        with contextlib.closing(opener(scratch, options.image_field or folder.image_field())) as source:
            plan = plan_shards(source, options)

    for note in source.notes:
        progress.note(note)
    if not len(source.table):
        raise no_image(source, source.rejected)
    return ShardSummary(
        out=out,
        kind=source.kind,
        inputs=len(source.table) + len(source.rejected),
        samples=len(source.table),
        rejected=len(source.rejected),
        bad=sum(rejection.bad for rejection in source.rejected),
        unreadable_folders=source.unreadable_folders,
        encoded={},
        shards=len(plan),
        bytes=int(source.table.sizes().sum()),
        classes=len(source.classes or ()),
        written_shards=0,
        written_samples=0,
        seconds=time.monotonic() - started_s,
        max_bad=options.max_bad,
        notes=source.notes,
    )


def run_sharding(
    opener: _Opener, out: str, options: ShardOptions, progress: Progress, *, force: bool = False
) -> ShardSummary:
    """Makes the set, or finishes it; see :meth:`Run.run`."""
    started_s = time.monotonic()
    check_encoder(options.encode)
    try:
        with (
            open_engine(options) as engine,
            locked_output(out, force=force) as folder,
            contextlib.closing(opener(folder.work, options.image_field or folder.image_field())) as source,
        ):
            empty = Manifest(
                settings=options.settings(),
                source={},
                inputs=0,
                samples=0,
                rejected=0,
                bad=0,
                formats={},
                encoded={},
                classes=None,
                index={},
                shards=[],
            )
            return Run(folder, source, options, progress, started_s, engine, empty).run()
    except OSError as error:
        place = error.filename or shown_place(out)
        reason = error.strerror or str(error)
        advice = "fix this"
        if error.errno in DISK_FULL:
            place = tempfile.gettempdir() if is_remote(out) else out
            reason = f"the disk is full ({error.strerror})"
            advice = "free some space there, or name another TMPDIR," if is_remote(out) else "free some space"

        raise ShardError(f"{place}: {reason}; nothing is lost: {advice} and run the same command again") from error

"""Turns samples into pre-shuffled WebDataset shards and their index."""

from __future__ import annotations

import contextlib
import functools
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from feeder.decoders.image_header import clipped_warning
from feeder.errors import ArgumentError, ShardError, SourceError
from feeder.shard.source.iterable import open_samples
from feeder.shard.source.labels import check_classes
from feeder.shard.source.layout import recognized
from feeder.shard.source.open import open_source, overlaps_source, source_kind
from feeder.shard.source.source import Source
from feeder.shard.store.url import Url, is_remote, local_path, shown_place
from feeder.shard.write.encode import EncodeOptions, check_encoder
from feeder.shard.write.plan import plan_shards
from feeder.shard.write.shard_engine import ShardEngine, write_in_threads
from feeder.shard.write.shard_options import ShardOptions, ShardSummary
from feeder.shard.write.store_output import locked_output, previewed_output
from feeder.shard.write.write_run import Run
from feeder.system.files import DISK_FULL
from feeder.system.progress import Progress, terminal_progress
from feeder.system.quiet_ray import quiet_ray
from feeder.system.warning import warn

__all__ = [
    "Progress",
    "ShardOptions",
    "ShardSummary",
    "default_out",
    "open_engine",
    "shard",
    "source_opener",
    "write_shards",
]

_OpenSource = Callable[[str, str | None], Source]  # given a folder for scratch files, and the image field


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
    open_it = source_opener(path, out, options)

    if dry_run:
        return _preview(open_it, out, options, force=force)
    return _run(open_it, out, options, progress or Progress(), force=force)


def write_shards(
    samples: Iterable[Mapping[str, Any]],
    out: str | os.PathLike[str],
    *,
    seed: int = 0,
    shuffle: bool = True,
    shard_size_bytes: int = 256 << 20,
    samples_per_shard: int | None = None,
    workers: int | None = None,
    max_bad: float = 0.01,
    encode: EncodeOptions | str | None = None,
    image_field: str | None = None,
    classes: Sequence[str] | None = None,
    engine: str = "local",
    address: str | None = None,
    progress: bool = False,
) -> ShardSummary:
    """Shards any iterable of WebDataset-style dicts, shuffled.

    The iterable is read once and spooled to disk, in the output folder, before it is shuffled. An interrupted run can't
    be resumed: remove the folder and start again.

    Args:
        samples: Dicts of fields by extension, such as ``{"__key__": "cat-1", "jpg": b"...", "cls": 3}``; values are
            bytes, text, integers, and JSON values for ``json``. ``cls`` is a class number, 0 or more, or a class name;
            a sample without a label has -1 or no ``cls``.
        out: Output folder, new or empty, or such a place in a store, as "s3://bucket/set".
        seed, shuffle, shard_size_bytes, samples_per_shard, workers, max_bad, image_field: As in :class:`ShardOptions`.
        encode: As there, or the mode alone: "seekable", "packed", "keep", "jpeg" or "raw".
        classes: Class names by label; None takes the names in ``cls``, sorted.
        engine, address: As in :class:`ShardOptions`.
        progress: True shows the progress on standard error once all samples are spooled: a bar on a terminal or in a
            notebook, elsewhere a line every few seconds.

    Raises:
        SourceError: for a sample that is not such a dict, a class that is not in ``classes``, or if more than
            ``max_bad`` of the images are bad.
        ShardError: if the output folder can't be used.
    """
    options = ShardOptions(
        seed,
        shuffle,
        shard_size_bytes,
        samples_per_shard,
        workers,
        max_bad,
        EncodeOptions(encode) if isinstance(encode, str) else encode or EncodeOptions(),
        image_field=image_field,
        engine=engine,
        address=address,
    )
    names = None if classes is None else check_classes(classes)

    def open_it(work: str, image_field: str | None) -> Source:
        return open_samples(samples, os.path.join(work, "spool"), image_field, names)

    summary = _run(open_it, local_path(os.fspath(out)), options, terminal_progress(not progress))
    if summary.too_many_bad:
        raise SourceError(summary.too_many_bad)
    if summary.clipped:
        warn(clipped_warning(summary.clipped))
    return summary


def source_opener(path: str, out: str, options: ShardOptions) -> _OpenSource:
    """Returns what opens a source, after a look at the names alone.

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
            path, targets, note = recognized(path, targets)
    if any(overlaps_source(place, out) for place in (given, path, *(place for _, place in targets.pairs))):
        raise ShardError(f"{shown_place(out)}: lies inside the source {shown_place(given)}, or is it; name another one")

    def open_it(work: str, image_field: str | None) -> Source:
        source = open_source(
            path,
            options.columns,
            work,
            skip_unreadable=options.skip_unreadable,
            image_field=image_field,
            targets=targets,
        )
        source.notes[:0] = [] if note is None else [note]
        return source

    return open_it


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
        name = name.partition("{")[0].partition("*")[0].rstrip("-_/") or "dataset"
        while os.path.splitext(name)[1] in (".tar", ".gz", ".tgz", ".csv", ".tsv", ".jsonl", ".ndjson", ".parquet"):
            name = os.path.splitext(name)[0]
    return os.path.abspath(name) + "-shards"


def _preview(open_it: _OpenSource, out: str, options: ShardOptions, *, force: bool) -> ShardSummary:
    """Lists and plans alone; returns the expected summary."""
    started_s = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch, previewed_output(out, force=force) as folder:
        folder.preview(options.settings())
        with contextlib.closing(open_it(scratch, options.image_field or folder.image_field())) as source:
            plan = plan_shards(source, options)

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


def _run(
    open_it: _OpenSource, out: str, options: ShardOptions, progress: Progress, *, force: bool = False
) -> ShardSummary:
    """Makes the set, or finishes it; see :meth:`Run.run`."""
    started_s = time.monotonic()
    check_encoder(options.encode)
    try:
        with (
            open_engine(options) as engine,
            locked_output(out, force=force) as folder,
            contextlib.closing(open_it(folder.work, options.image_field or folder.image_field())) as source,
        ):
            return Run(folder, source, options, progress, started_s, engine).run()
    except OSError as error:
        place = error.filename or shown_place(out)
        reason = error.strerror or str(error)
        advice = "fix this"
        if error.errno in DISK_FULL:
            place = tempfile.gettempdir() if is_remote(out) else out
            reason = f"the disk is full ({error.strerror})"
            advice = "free some space there, or name another TMPDIR," if is_remote(out) else "free some space"
        raise ShardError(f"{place}: {reason}; nothing is lost: {advice} and run the same command again") from error

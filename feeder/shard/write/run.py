"""One run of ``feeder shard``: resume, write shards in parallel, finish."""

from __future__ import annotations

import collections
import json
import os
import time
from collections.abc import Iterable, Iterator, Sequence

from feeder.errors import FormatError, ShardError, SourceError
from feeder.shard.format.index_file import INDEX_NAME
from feeder.shard.format.manifest import MANIFEST_NAME, Manifest, ShardRecord
from feeder.shard.format.open_index import open_index
from feeder.shard.format.shard_index import ShardIndex
from feeder.shard.source.source import Rejection, Source
from feeder.shard.source.table_file import MANIFEST_SUFFIXES
from feeder.shard.write.codebook import chosen_codebook
from feeder.shard.write.dali_index import DALI_SUFFIX, write_dali_index
from feeder.shard.write.engine import Engine, LocalEngine
from feeder.shard.write.format_advice import decode_advice
from feeder.shard.write.options import REJECTED_NAME, ShardOptions, ShardSummary
from feeder.shard.write.output_folder import OutputFolder
from feeder.shard.write.plan import ordered_ids, plan_shards, shard_name
from feeder.shard.write.set_writer import HashedShard, index_path, write_set
from feeder.shard.write.shard_job import ShardJob, WrittenShard, record_name
from feeder.system.files import atomic_file, file_sha256, open_regular
from feeder.system.progress import Progress
from feeder.system.text import count

__all__ = ["Run", "no_image", "total"]

_SHOWN_REASONS = 3


class Run:
    """One run over one source into one folder.

    Args:
        folder: The folder.
        source: The source.
        options: Options for sharding.
        progress: Shows the run's progress.
        started: Time at which the run began, by the monotonic clock.
        first_shard, first_key: Numbers of the first shard and of the first sample's key.
        codebooks: For packed images: those that the set has already.
        engine: Writes the shards; None for threads of this process.
    """

    def __init__(
        self,
        folder: OutputFolder,
        source: Source,
        options: ShardOptions,
        progress: Progress,
        started: float,
        *,
        first_shard: int = 0,
        first_key: int = 0,
        codebooks: Sequence[bytes] = (),
        engine: Engine | None = None,
    ) -> None:
        self._folder = folder
        self._source = source
        source.max_file_bytes = options.max_file_bytes
        self._options = options
        self._first_shard, self._first_key = first_shard, first_key
        self._progress = progress
        self._started = started
        self._codebooks = codebooks
        self._codebook: bytes | None = None
        self._engine = engine or LocalEngine(options.workers)

    def run(self) -> ShardSummary:
        source, folder, settings = self._source, self._folder, self._options.settings()
        for note in source.notes:
            self._progress.note(note)
        manifest = None if folder.force else Manifest.read(folder.path)
        if manifest is not None:
            folder.check_complete(manifest, settings, source)
            self._write_dali_indexes()
            folder.finish()
            return self._summary(manifest, [])
        if not len(source.table):
            raise no_image(source, source.rejected)
        if folder.begin(settings, source):
            self._progress.note(f"resuming the unfinished run in {folder.shown}")
        plan = plan_shards(source, self._options)
        done = self.finished(plan)
        results = self.write_shards(plan, done)
        if not any(written.record.samples for written in results.values()):
            folder.discard()
            raise no_image(source, [*source.rejected, *(r for n in sorted(results) for r in results[n].rejected)])
        manifest = self._finish([results[number] for number in range(len(plan))])
        odd_masks: collections.Counter[str] = collections.Counter()
        for written in results.values():
            odd_masks.update(written.odd_masks)
        for field, number in sorted(odd_masks.items()):
            note = (
                f"{field} of {count(number, 'sample')} is nothing that T.Mask takes: feeder inspect --verify says why"
            )
            self._progress.note(note)
            source.notes.append(note)
        advice = decode_advice(open_index(folder.file(INDEX_NAME)), manifest)
        if advice:
            self._progress.note(f"advice: {advice}")
            source.notes.append(advice)
        return self._summary(manifest, [r for n, r in enumerate(manifest.shards) if n not in done])

    def finished(self, plan: list[range]) -> dict[int, WrittenShard]:
        """Returns the records of a plan's shards that an earlier run finished, by their numbers in it."""
        return {number: written for number in range(len(plan)) if (written := self._finished(number))}

    def _finished(self, number: int) -> WrittenShard | None:
        """Returns the record of a shard that an earlier run finished; None if it must be written."""
        name = shard_name(self._first_shard + number)
        try:
            size = os.stat(self._folder.file(name)).st_size
            with open(self._folder.part(record_name(name)), "rb", opener=open_regular) as file:
                written = WrittenShard.from_json(file.read())
            ShardIndex(index_path(self._folder.path, name)).check()
        except (FileNotFoundError, FormatError, KeyError, TypeError, ValueError):  # damaged ones are written again
            return None
        return written if written.record.size_bytes == size else None

    def write_shards(self, plan: list[range], done: dict[int, WrittenShard]) -> dict[int, WrittenShard]:
        """Writes the shards of a plan, and returns all by their numbers in it.

        Args:
            plan: The positions of each shard's samples.
            done: Those that are finished.
        """
        encode = self._options.encode
        if encode.mode == "packed" and len(done) < len(plan):
            sequential = encode.progressive == "sequential"
            self._codebook = chosen_codebook(self._source, self._options.seed, self._codebooks, sequential=sequential)
        table = self._source.table
        size_bytes = int(table.sizes().sum())
        done_samples = sum(len(plan[number]) for number in done)
        done_bytes = sum(written.record.size_bytes for written in done.values())
        jobs = {number: self._job(number, positions) for number, positions in enumerate(plan) if number not in done}
        with self._progress.running(len(table), size_bytes, done_samples, min(done_bytes, size_bytes)):
            return done | self._engine.write(self._folder, self._source, jobs, self._ids, self._progress)

    def _job(self, number: int, positions: range) -> ShardJob:
        name, first_key = shard_name(self._first_shard + number), self._first_key
        digits = max(8, len(str(first_key + len(self._source.table) - 1)))
        return ShardJob(name, positions, first_key, digits, self._options.encode, self._codebook)

    def _ids(self, positions: range) -> Iterator[int]:
        return ordered_ids(positions, len(self._source.table), self._options)

    def _finish(self, written: list[WrittenShard]) -> Manifest:
        """Writes the set's header. The manifest, which marks the set as complete, comes last."""
        source, folder = self._source, self._folder
        rejected = sorted([*source.rejected, *(r for w in written for r in w.rejected)])
        with atomic_file(folder.file(REJECTED_NAME)) as file:
            file.writelines(json.dumps(r._asdict()).encode() + b"\n" for r in rejected)
        header = folder.file(INDEX_NAME)
        shards = [HashedShard(w.record.name, w.record.size_bytes, w.record.sha256) for w in written]
        write_set(header, shards, source.classes)
        self._write_dali_indexes()
        samples = sum(w.record.samples for w in written)
        manifest = Manifest(
            settings=self._options.settings(),
            source={"kind": source.kind, "digest": source.digest()}
            | ({"image_field": ";".join(source.image_fields)} if source.image_fields else {}),
            inputs=len(source.table) + len(source.rejected),
            samples=samples,
            rejected=len(rejected),
            bad=sum(r.bad for r in rejected),
            formats=total(w.formats for w in written),
            encoded=total(w.encoded for w in written),
            clipped=sum(w.clipped for w in written),
            classes=source.classes,
            index={"size_bytes": os.stat(header).st_size, "sha256": file_sha256(header)},
            shards=[w.record for w in written],
        )
        if manifest.samples + manifest.rejected != manifest.inputs:
            raise ShardError(
                f"{folder.shown}: {manifest.inputs} inputs, but {samples} samples and {len(rejected)} rejected"
            )
        manifest.write(folder.path)
        folder.publish(folder.file(REJECTED_NAME), header, folder.file(MANIFEST_NAME))
        folder.finish()
        return manifest

    def _write_dali_indexes(self) -> None:
        if self._options.dali_index:
            index = open_index(self._folder.file(INDEX_NAME))
            for number in range(index.shard_count):
                path = index_path(self._folder.path, index.shard_name(number), DALI_SUFFIX)
                write_dali_index(path, index.shard_index(number))
                self._folder.publish(path)

    def _summary(self, manifest: Manifest, written: list[ShardRecord]) -> ShardSummary:
        return ShardSummary(
            out=self._folder.shown,
            kind=self._source.kind,
            inputs=manifest.inputs,
            samples=manifest.samples,
            rejected=manifest.rejected,
            bad=manifest.bad,
            unreadable_folders=self._source.unreadable_folders,
            encoded=manifest.encoded,
            clipped=manifest.clipped,
            shards=len(manifest.shards),
            bytes=sum(s.size_bytes for s in manifest.shards),
            classes=len(manifest.classes or ()),
            written_shards=len(written),
            written_samples=sum(record.samples for record in written),
            seconds=time.monotonic() - self._started,
            max_bad=self._options.max_bad,
            notes=self._source.notes,
        )


def no_image(source: Source, rejected: list[Rejection]) -> SourceError:
    """Returns the error for a source without a sample.

    Args:
        source: The source.
        rejected: Its inputs.
    """
    is_iterable = source.kind == "samples"  # its root is a scratch folder
    name = "the samples" if is_iterable else source.root
    shown = rejected[:_SHOWN_REASONS]
    if not shown:
        return SourceError(f"{name}: no image found, as {'there are none' if is_iterable else 'it is empty'}")
    reasons = "; ".join(f"{r.path}: {r.reason}" for r in shown)
    hint = " (paths with backslashes? use /)" if any("\\" in r.path for r in shown) else ""
    table = next((r.path for r in rejected if r.path.lower().endswith(MANIFEST_SUFFIXES)), None)
    if table is not None:
        path = os.path.join(source.root, table)
        hint = f". {path!r} is a table: name it in place of its folder, and add further ones with `feeder append`"
    inputs = count(len(rejected), "input")
    return SourceError(f"{name}: no image found ({inputs}, all rejected, first {reasons}){hint}")


def total(counts: Iterable[dict[str, int]]) -> dict[str, int]:
    """Returns the sum of several counts, by name."""
    found: collections.Counter[str] = collections.Counter()
    for outcomes in counts:
        found.update(outcomes)
    return dict(sorted(found.items()))

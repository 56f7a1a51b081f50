"""One run over one source: chooses a codebook, writes shards in parallel, resumes, and makes the manifest."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import itertools
import json
import os
import time
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from feeder.decoders.decoder import MAX_PIXELS
from feeder.decoders.image_header import ImageInfo, image_info
from feeder.decoders.packed import MOST_CODEBOOKS, add_codebooks, codebook_id
from feeder.errors import FormatError, ShardError, SourceError
from feeder.order.permutation import permute
from feeder.shard.format.index_file import INDEX_NAME
from feeder.shard.format.manifest import MANIFEST_NAME, Manifest
from feeder.shard.format.shard_index import ShardIndex
from feeder.shard.source.source import Rejection, Source, SourceKind
from feeder.shard.source.table_file import MANIFEST_SUFFIXES
from feeder.shard.write.encode import EncodeOptions, Encoder, decode_ms
from feeder.shard.write.output_folder import OutputFolder
from feeder.shard.write.plan import plan_shards
from feeder.shard.write.set_writer import index_path, write_set
from feeder.shard.write.shard_engine import ShardEngine
from feeder.shard.write.shard_options import REJECTED_NAME, ShardOptions, ShardSummary
from feeder.shard.write.shard_writer import ShardJob, WrittenShard, read_sample, record_name
from feeder.system.files import atomic_file, file_sha256, open_regular, read_regular
from feeder.system.progress import Progress
from feeder.system.text import count

_SHOWN_REASONS = 3
_FAST_FORMATS = ("jpg", "fpk", "npy")
_ADVISED_SHARE = 0.05  # advise from this share of samples in other formats on
_ADVISED_GAIN = 1.5  # advise if decoding gets so many times faster
_TIMED_IMAGES = 4  # images in other formats whose decoding is timed
_DRAWN_SAMPLES = 256  # for a new codebook
_DRAWN_BYTES = 64 << 20  # the most of drawn images that are in memory together
_COMPARED_IMAGES = 64  # drawn images that codebooks are compared by
_LEAST_GAIN = 0.02  # share of the bytes that a new codebook must save where the set has one


@dataclasses.dataclass(eq=False)
class Run:
    """Writes the samples of a source into a folder, as a new shard set or as further shards of one.

    Attributes:
        folder: The folder.
        source: The source.
        options: Options for sharding.
        progress: Shows the run's progress.
        started_s: Time at which the run began, by the monotonic clock.
        engine: Writes the shards.
        before: Manifest of the set that the shards are added to; of a new set, an empty one.
        codebooks: For packed images: those that the set has already.
    """

    folder: OutputFolder
    source: Source
    options: ShardOptions
    progress: Progress
    started_s: float
    engine: ShardEngine
    before: Manifest
    codebooks: Sequence[bytes] = ()

    def run(self) -> ShardSummary:
        """Makes the set of the source, or finishes it. The manifest, which marks the set as complete, comes last.

        Raises:
            ShardError: if the folder holds another set, or can't be written.
            SourceError: if there is no sample, or the source changes.
        """
        source, folder, settings = self.source, self.folder, self.before.settings
        self.start()

        # The folder may have the finished set, or an unfinished one.
        manifest = folder.manifest()
        if manifest is not None:
            folder.check_complete(manifest, settings, source)
            folder.finish()
            return self.summary(manifest, [])

        is_resumed = folder.begin(settings, source)
        written, new = self.write(is_resumed=is_resumed)

        self.write_rejected(written)
        header = folder.file(INDEX_NAME)
        write_set(header, [each.record for each in written], source.classes)
        image_field = {"image_field": ";".join(source.image_fields)} if source.image_fields else {}
        record = {"kind": source.kind, "digest": source.digest()} | image_field
        manifest = self.manifest(written, header, source.classes, record)
        manifest.write(folder.path)
        folder.publish(folder.file(REJECTED_NAME), header, folder.file(MANIFEST_NAME))
        folder.finish()

        self._advise(manifest, written)
        return self.summary(manifest, new)

    def start(self) -> None:
        """Limits the files of the source, and shows the notes on it.

        Raises:
            SourceError: if it has no sample.
        """
        self.source.max_file_bytes = self.options.max_file_bytes
        for note in self.source.notes:
            self.progress.note(note)
        self._refuse_empty([])

    def _refuse_empty(self, written: Sequence[WrittenShard]) -> None:
        """Raises SourceError if the source has no sample left beside those that were rejected in these shards."""
        if len(self.source.table) == sum(len(each.rejected) for each in written):
            raise no_image(self.source, [*self.source.rejected, *_rejected(written)])

    def write(self, *, is_resumed: bool) -> tuple[list[WrittenShard], list[WrittenShard]]:
        """Writes the shards of the source.

        Args:
            is_resumed: True to keep those that an earlier run has finished.

        Returns:
            All shards, in their order, and those among them that this run wrote.
        """
        # The plan follows from source and options alone, so a resumed run has the same one.
        source, folder, before, encode = self.source, self.folder, self.before, self.options.encode
        plan = plan_shards(source, self.options)
        names = [f"shard-{len(before.shards) + number:06d}.tar" for number in range(len(plan))]
        done: dict[int, WrittenShard] = {}
        if is_resumed:
            self.progress.note(f"resuming the unfinished run in {folder.shown}")
            done = {number: found for number, name in enumerate(names) if (found := self._finished(name))}

        # Samples for a codebook are read before the others, as all shards are packed with it.
        codebook = None
        if encode.mode == "packed" and len(done) < len(plan):
            is_sequential = encode.progressive == "sequential"
            codebook = _chosen_codebook(source, self.options.seed, self.codebooks, sequential=is_sequential)
        digits = max(8, len(str(before.inputs + len(source.table) - 1)))
        jobs = {
            number: ShardJob(names[number], positions, before.inputs, digits, encode, codebook)
            for number, positions in enumerate(plan)
            if number not in done
        }

        size_bytes = int(source.table.sizes().sum())
        done_samples = sum(len(plan[number]) for number in done)
        done_bytes = sum(each.record.size_bytes for each in done.values())
        with self.progress.running(len(source.table), size_bytes, done_samples, min(done_bytes, size_bytes)):
            new = self.engine(folder, source, jobs, self.progress)

        written = [(done | new)[number] for number in range(len(plan))]
        try:
            self._refuse_empty(written)
        except SourceError:
            folder.discard(len(before.shards))
            raise
        return written, list(new.values())

    def _finished(self, name: str) -> WrittenShard | None:
        """Returns the record of a shard that an earlier run finished; None if it must be written."""
        try:
            size = os.stat(self.folder.file(name)).st_size
            written = WrittenShard.from_json(read_regular(self.folder.work_file(record_name(name))))
            ShardIndex(index_path(self.folder.path, name)).check()
        except (FileNotFoundError, FormatError, KeyError, TypeError, ValueError):  # damaged ones are written again
            return None
        return written if written.record.size_bytes == size else None

    def write_rejected(self, written: Sequence[WrittenShard]) -> None:
        """Writes the set's rejected inputs, those of these shards after those that it has."""
        path = self.folder.file(REJECTED_NAME)
        with atomic_file(path) as file:
            if self.before.rejected:
                with open(path, "rb", opener=open_regular) as lines:  # a killed run may have added further ones
                    file.writelines(itertools.islice(lines, self.before.rejected))
            rejected = sorted([*self.source.rejected, *_rejected(written)])
            file.writelines(json.dumps(each._asdict()).encode() + b"\n" for each in rejected)

    def manifest(
        self,
        written: Sequence[WrittenShard],
        header: str,
        classes: list[str] | None,
        record: dict[str, Any],
    ) -> Manifest:
        """Returns the manifest of the set with these shards.

        Args:
            written: The shards.
            header: The set's header with them.
            classes: Class names by label.
            record: What the manifest says of the source.
        """
        source, before = self.source, self.before
        rejected = [*source.rejected, *_rejected(written)]

        manifest = dataclasses.replace(
            before,
            source=record,
            inputs=before.inputs + len(source.table) + len(source.rejected),
            samples=before.samples + sum(each.record.samples for each in written),
            rejected=before.rejected + len(rejected),
            bad=before.bad + sum(each.bad for each in rejected),
            formats=_total([before.formats, *(each.formats for each in written)]),
            encoded=_total([before.encoded, *(each.encoded for each in written)]),
            clipped=before.clipped + sum(each.clipped for each in written),
            classes=classes,
            index={"size_bytes": os.stat(header).st_size, "sha256": file_sha256(header)},
            shards=[*before.shards, *(each.record for each in written)],
        )
        if manifest.samples + manifest.rejected != manifest.inputs:
            raise ShardError(
                f"{self.folder.shown}: {manifest.inputs} inputs, but {manifest.samples} samples and "
                f"{manifest.rejected} rejected"
            )
        return manifest

    def summary(self, manifest: Manifest, new: Sequence[WrittenShard]) -> ShardSummary:
        """Returns the summary of the run.

        Args:
            manifest: The set's manifest.
            new: The shards that this run wrote.
        """
        return ShardSummary(
            out=self.folder.shown,
            kind=self.source.kind,
            inputs=manifest.inputs,
            samples=manifest.samples,
            rejected=manifest.rejected - self.before.rejected,
            bad=manifest.bad - self.before.bad,
            unreadable_folders=self.source.unreadable_folders,
            encoded=manifest.encoded,
            clipped=manifest.clipped - self.before.clipped,
            shards=len(manifest.shards),
            bytes=sum(each.size_bytes for each in manifest.shards),
            classes=len(manifest.classes or ()),
            written_shards=len(new),
            written_samples=sum(each.record.samples for each in new),
            seconds=time.monotonic() - self.started_s,
            max_bad=self.options.max_bad,
            notes=self.source.notes,
        )

    def _advise(self, manifest: Manifest, written: Sequence[WrittenShard]) -> None:
        """Adds notes on the result: fields that are no masks, reasons of rejections, formats that decode slowly."""
        notes = [
            f"{field} of {count(number, 'sample')} is nothing that T.Mask takes, which says why when it reads one"
            for field, number in _total(each.odd_masks for each in written).items()
        ]
        bad = collections.Counter(each.reason for each in _rejected(written) if each.bad)
        notes += [f"{count(number, 'image')} rejected: {reason}" for reason, number in bad.most_common(_SHOWN_REASONS)]
        others = sum(number for name, number in manifest.formats.items() if name not in _FAST_FORMATS)
        if others and others >= _ADVISED_SHARE * manifest.samples:
            notes += _format_advice(self.source, self.options.seed, f"{others} of {manifest.samples}")
        for note in notes:
            self.progress.note(note)
        self.source.notes += notes


def _rejected(written: Iterable[WrittenShard]) -> list[Rejection]:
    return [rejection for each in written for rejection in each.rejected]


def no_image(source: Source, rejected: list[Rejection]) -> SourceError:
    """Returns the error for a source without a sample.

    Args:
        source: The source.
        rejected: Its inputs.
    """
    is_iterable = source.kind is SourceKind.SAMPLES  # its root is a scratch folder
    name = "the samples" if is_iterable else source.place or source.root
    shown = rejected[:_SHOWN_REASONS]
    if not shown:
        return SourceError(f"{name}: no image found, as {'there are none' if is_iterable else 'it is empty'}")
    reasons = "; ".join(f"{r.path}: {r.reason}" for r in shown)
    hint = " (paths with backslashes? use /)" if any("\\" in r.path for r in shown) else ""
    table = next((r.path for r in rejected if r.path.lower().endswith(MANIFEST_SUFFIXES)), None)
    if table is not None:
        path = os.path.join(source.root, table)
        hint = f". {path!r} is a table: name it in place of its folder, or several by a pattern, as in '*.parquet'"
    inputs = count(len(rejected), "input")
    return SourceError(f"{name}: no image found ({inputs}, all rejected, first {reasons}){hint}")


def _total(counts: Iterable[dict[str, int]]) -> dict[str, int]:
    """Returns the sum of several counts, by name."""
    return dict(sorted(sum(map(collections.Counter, counts), collections.Counter[str]()).items()))


def _chosen_codebook(source: Source, seed: int, known: Sequence[bytes], *, sequential: bool) -> bytes:
    """Returns the codebook for a source, the same bytes for the same source and the same codebooks.

    It is the one of the set that takes the fewest bytes, or a new one if that saves more than a fiftieth of them, and
    the set may have another one.

    Args:
        source: The samples, of which some are drawn by the seed. Those that can't be read or packed are passed over.
        seed: Seed of the set.
        known: The set's codebooks.
        sequential: True if sequential copies of progressive images are packed.
    """
    from feeder import _native

    images = _drawn(source, seed)
    if sequential:
        images = [_sequential(image) for image in images]
    trained = _native.train_codebook(images, max_pixels=MAX_PIXELS)
    if not known or trained in known:
        return trained
    compared = images[:_COMPARED_IMAGES]
    least, best = min((_packed_bytes(compared, codebook), k) for k, codebook in enumerate(known))
    is_full = len(known) >= MOST_CODEBOOKS
    return trained if not is_full and _packed_bytes(compared, trained) < (1 - _LEAST_GAIN) * least else known[best]


def _format_advice(source: Source, seed: int, share: str) -> list[str]:
    """Returns a line on images that decode faster as JPEGs, by a measurement; none where they don't.

    Args:
        source: The samples.
        seed: Seed of the set.
        share: The number of images in other formats, for the line.
    """
    encoder = Encoder(EncodeOptions("jpeg"))
    timed: list[tuple[tuple[bytes, ImageInfo], tuple[bytes, ImageInfo]]] = []
    for image in _drawn(source, seed, 16 * _TIMED_IMAGES):
        with contextlib.suppress(ValueError):  # the run has rejected it
            info = image_info(image)
            if info.extension not in _FAST_FORMATS and len(timed) < _TIMED_IMAGES:
                timed.append(((image, info), encoder.encode(image, info)[:2]))

    if not timed:
        return []
    now_ms, then_ms = (decode_ms(images) for images in zip(*timed, strict=True))
    if now_ms < _ADVISED_GAIN * then_ms:
        return []
    return [
        f"advice: {share} images are not JPEGs. A crop of a {timed[0][0][1].extension} took {now_ms:.2g} ms, and "
        f"{then_ms:.2g} ms of the same image as JPEG: --encode jpeg makes lossy copies"
    ]


def _drawn(source: Source, seed: int, most: int = _DRAWN_SAMPLES) -> list[bytes]:
    """Returns the images of samples that are drawn by the seed."""
    count = len(source.table)
    images: list[bytes] = []
    size_bytes = 0
    for i in permute(np.arange(min(most, count)), count, seed).tolist():
        if images and size_bytes + source.table.size(i) > _DRAWN_BYTES:
            break
        try:
            image, _ = read_sample(source, i)
        except (MemoryError, OSError, ValueError):  # the run rejects it, or stops there
            continue
        images.append(image[1])
        size_bytes += len(image[1])
    return images


def _sequential(image: bytes) -> bytes:
    """Returns a sequential copy of a progressive JPEG; any other image as it is."""
    from feeder import _native

    try:
        return _native.transcode(image, keep_metadata=False, max_pixels=MAX_PIXELS)
    except _native.Unsupported:  # it is not a JPEG, or stays as it is
        return image


def _packed_bytes(images: Sequence[bytes], codebook: bytes) -> int:
    """Returns the size of images that are packed with a codebook; a JPEG that it has no shape for counts twice."""
    from feeder import _native

    add_codebooks([codebook])
    total = 0
    for image in images:
        try:
            total += len(_native.pack(image, codebook_id(codebook), bytes(32), max_pixels=MAX_PIXELS))
        except _native.Unsupported as error:
            total += 2 * len(image) if str(error) == "coefficients out of range" else 0
    return total

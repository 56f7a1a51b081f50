"""Writes one shard, on this machine or another: a tar, its index, and the record of it."""

from __future__ import annotations

import collections
import errno
import json
import math
import os
import zlib
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from feeder.decoders.image_header import ImageInfo, image_info
from feeder.decoders.packed import codebook_name, is_packed, is_packed_field, unpack_checked
from feeder.decoders.targets.mask import check_mask
from feeder.errors import DecodeError, ShardError, SourceError
from feeder.shard.format.index_builder import IndexBuilder, row_data
from feeder.shard.format.manifest import ShardRecord
from feeder.shard.format.tar import TarWriter
from feeder.shard.source.image_field import is_mask_field
from feeder.shard.source.image_file import UNREADABLE, has_other_extension, looks_like_image
from feeder.shard.source.sample_table import SampleTable
from feeder.shard.source.source import Rejection, Source, SourceKind
from feeder.shard.write.encode import EncodedImage, EncodeOptions, Encoder
from feeder.shard.write.set_writer import index_path
from feeder.system.files import atomic_file

# Any file may lie in a folder; in other sources each input claims to be an image.
_FOLDERS = (SourceKind.CLASS_FOLDERS, SourceKind.FLAT_FOLDER)
# Their fields of images were named by the user, or made for T.Mask; those of others are only counted.
_WITH_MASKS = (*_FOLDERS, SourceKind.ANNOTATED_IMAGES, SourceKind.PAIRED_FILES)


class ShardJob(NamedTuple):
    """A shard to be written: everything but the samples.

    Attributes:
        name: Name of its file.
        positions: The positions of its samples in the shuffled order.
        first_key: Number of the key of position 0.
        key_digits: Number of digits of a key.
        encode: The options for encoding images.
        codebook: For packed images: their codebook.
    """

    name: str
    positions: range
    first_key: int
    key_digits: int
    encode: EncodeOptions
    codebook: bytes | None


@dataclass(frozen=True)
class WrittenShard:
    """The record of a finished shard.

    Attributes:
        record: The shard.
        rejected: Inputs that were rejected while it was written.
        formats, encoded, clipped: See :class:`Manifest`.
        odd_masks: By field that is named as a mask, the number of samples in which its header says that it is none.
    """

    record: ShardRecord
    rejected: list[Rejection]
    formats: dict[str, int]
    encoded: dict[str, int]
    clipped: int
    odd_masks: dict[str, int]

    def to_json(self) -> bytes:
        return json.dumps(vars(self) | {"record": vars(self.record)}).encode()

    @classmethod
    def from_json(cls, text: bytes) -> WrittenShard:
        """Reads a record.

        Raises:
            KeyError, TypeError, ValueError: if it is damaged.
        """
        data = json.loads(text)
        data["record"] = ShardRecord(**data["record"])
        data["rejected"] = [Rejection(*row) for row in data["rejected"]]
        return cls(**data)


def record_name(shard: str) -> str:
    """Returns the name of the file with a shard's record, by the shard's name."""
    return f"{shard}.json"


def write_shard(
    job: ShardJob,
    source: Source,
    ids: Iterable[int],
    folder: str,
    records: str,
    advance: Callable[[int], None],
) -> WrittenShard:
    """Writes a shard. It is renamed into place after its index and its record are written.

    Args:
        job: The shard.
        source: The source of its samples.
        ids: The samples, in the order of the job's positions.
        folder: The folder for the shard and its index.
        records: The folder for its record.
        advance: Is called after each sample with the sample's size in the source, bytes. Raises :class:`Stopped`.

    Raises:
        OSError, ShardError: for an error of the machine, not of a sample.
        SourceError: if a sample changed since it was listed.
        StoreError: if a store can't be read.
    """
    codebooks = [] if job.codebook is None else [job.codebook]
    writer = _ShardWriter(job, source)

    with atomic_file(os.path.join(folder, job.name)) as file:
        tar = TarWriter(file)
        for codebook in codebooks:
            tar.add(codebook_name(codebook), codebook)
        for position, i in zip(job.positions, ids, strict=True):
            writer.add(tar, job.first_key + position, i)
            advance(source.table.size(i))
        checksum = tar.finish()

        written = writer.finished(ShardRecord(job.name, len(writer.builder), tar.size_bytes, checksum))
        writer.builder.write(index_path(folder, job.name), tar.blocks.sums(), tar.size_bytes, codebooks)
        with atomic_file(os.path.join(records, record_name(job.name))) as record:
            record.write(written.to_json())
    return written


class Stopped(Exception):
    """The run has ended, so that an unfinished shard is dropped."""


class _Misnamed(ValueError):
    """An image by its bytes, but not by its extension."""


class _ShardWriter:
    """Writes samples into one shard, and counts formats, encodings and rejections."""

    def __init__(self, job: ShardJob, source: Source) -> None:
        self.builder = IndexBuilder(source.table.targets, numbered=source.table.is_numbered)
        self._job = job
        self._source = source
        self._encoder = Encoder(job.encode, job.codebook)
        self._rejected: list[Rejection] = []
        self._formats: collections.Counter[str] = collections.Counter()
        self._encoded: collections.Counter[str] = collections.Counter()
        self._odd_masks: collections.Counter[str] = collections.Counter()
        self._clipped = 0

    def finished(self, record: ShardRecord) -> WrittenShard:
        """Returns the record of the shard and of all that was added."""
        return WrittenShard(record, self._rejected, self._formats, self._encoded, self._clipped, self._odd_masks)

    def add(self, tar: TarWriter, number: int, i: int) -> None:
        """Adds sample ``i`` under the key of this number, or rejects it; raises what :func:`write_shard` raises."""
        try:
            field, fields, encoded = self._read(i)
        except MemoryError as error:
            raise ShardError(
                f"{self._path(i)}: not enough memory ({error or 'to encode it'}); nothing is lost: use fewer "
                "--workers, or reject large files with --max-file-bytes, and run again"
            ) from None
        except (OSError, ValueError) as error:
            path = self._path(i)
            reason = self._unreadable(error, path) if isinstance(error, OSError) else str(error)
            # A file that never claimed to be an image does not count as a bad one.
            bad = isinstance(error, _Misnamed) or self._source.kind not in _FOLDERS or looks_like_image(path)
            self._rejected.append(Rejection(path, reason, bad))
            return

        key = f"{number:0{self._job.key_digits}d}"
        image, *members = [
            (name, tar.add(f"{key}.{name}", data), data) for name, data in [(field, encoded.data), *fields]
        ]
        self._formats[encoded.info.extension] += 1
        self._encoded[encoded.outcome] += 1
        self._clipped += encoded.clipped
        add_row(self.builder, self._source.table, i, key.encode(), encoded.info, image, members)

    def _read(self, i: int) -> tuple[str, list[tuple[str, bytes]], EncodedImage]:
        """Returns the name of a sample's image field, its other fields, and its encoded image.

        Raises:
            OSError, MemoryError, ValueError: if the sample can't be read or encoded.
        """
        source = self._source
        (name, data), fields = read_sample(source, i)
        info = image_info(data)
        if source.kind in _FOLDERS and has_other_extension(self._path(i)):
            raise _Misnamed(f"not an image by its extension, and {info.extension} by its bytes: rename it")
        encoded = self._encoder.encode(data, info)

        odd = _odd_masks(fields, encoded.info)
        if odd and source.kind in _WITH_MASKS:
            mask, reason = next(iter(odd.items()))
            raise ValueError(f"its {mask}: {reason}; give it another name if it is no mask")
        self._odd_masks.update(odd.keys())

        if not name or encoded.info.extension != info.extension:
            name = _free_name(encoded.info.extension, source.table.fields.keys() - set(source.image_fields))
        return name, self._labelled(fields, i), encoded

    def _labelled(self, fields: list[tuple[str, bytes]], i: int) -> list[tuple[str, bytes]]:
        """Returns the fields of a sample with its label as ``cls`` and its targets in ``json``, for programs that read
        shards without the index."""
        table, label = self._source.table, self._source.table.label(i)
        if self._source.replaces_cls:
            fields = [(name, value) for name, value in fields if name != "cls"]
        if label >= 0 and all(name != "cls" for name, _ in fields):
            fields.insert(0, ("cls", b"%d" % label))
        if not table.targets or self._source.kind is not SourceKind.MANIFEST:
            return fields

        row: dict[str, float | None] = next((json.loads(data) for name, data in fields if name == "json"), {})
        # Each as the shortest text that gives the same float32.
        row |= {
            name: None if math.isnan(value) else float(str(np.float32(value)))
            for name, value in zip(table.targets, table.target(i), strict=True)
        }
        text = json.dumps(row, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogateescape")
        return [*((name, data) for name, data in fields if name != "json"), ("json", text)]

    def _unreadable(self, error: OSError, path: str) -> str:
        """Returns the reason to reject a sample that can't be read.

        Raises:
            OSError, ShardError, SourceError: if the error is not the sample's fault, so that it must not be lost.
        """
        if isinstance(error, FileNotFoundError):
            raise SourceError(f"{error.filename}: vanished while it was being sharded; run again") from None
        if error.errno == errno.EIO and not self._source.skip_unreadable:  # a bad block of a disk may stay bad
            raise ShardError(
                f"{error.filename or path}: can't be read: {error.strerror}; nothing is lost: fix the disk and run "
                "the same command again, or reject such files with --skip-unreadable"
            ) from None
        if error.errno not in (*UNREADABLE, errno.EISDIR, errno.EIO):
            raise error
        return f"unreadable: {error.strerror}"

    def _path(self, i: int) -> str:
        return os.fsdecode(self._source.table.path(i))


def add_row(
    builder: IndexBuilder,
    table: SampleTable,
    i: int,
    key: bytes,
    info: ImageInfo,
    image: tuple[str, int, bytes],
    members: Sequence[tuple[str, int, bytes]],
) -> None:
    """Adds a sample of a tar to the tar's index.

    Args:
        builder: The index.
        table: The table of the sample.
        i: Its number there.
        key: Its key.
        info: Its image's header.
        image: Field, offset and bytes of the image.
        members: Those of its other fields.
    """
    field, offset, data = image
    checksum = zlib.crc32(data)
    for _, _, value in members:
        checksum = zlib.crc32(value, checksum)

    builder.add(
        key=key,
        path=table.path(i),
        field=field,
        offset=offset,
        length=len(data),
        label=table.label(i),
        width=info.width_px,
        height=info.height_px,
        orientation=info.orientation,
        source_bytes=table.size(i),
        crc32=checksum,
        members=[(name, start, len(value)) for name, start, value in members],
        rows=row_data(data),
        target=table.target(i),
        source_row=table.row(i) if table.is_numbered else 0,
    )


def read_sample(source: Source, i: int) -> tuple[tuple[str | None, bytes], list[tuple[str, bytes]]]:
    """Reads the image and the other fields of a sample. The image has no name if its bytes decide the extension.

    Packed images, also those of other fields, are unpacked: the new set has no codebook for them.

    Raises:
        OSError, SourceError, ValueError, MemoryError: See :meth:`Source.read`; ValueError also for a packed image that
            is damaged, or whose tar lacks its codebook.
    """
    fields = source.read(i)
    names = [name for name, _ in fields if name is not None]
    image_name = None if len(names) < len(fields) else next(name for name in source.image_fields if name in names)
    image: tuple[str | None, bytes] | None = None
    others = []

    for name, data in fields:
        is_image = name == image_name
        if is_packed(data) and (is_image or name is None or is_packed_field(name)):
            try:
                data = unpack_checked(data)
            except DecodeError as error:
                raise ValueError(error.reason) from None
            if name is not None and is_packed_field(name):
                name = _free_name(f"{name.removesuffix('fpk')}jpg", names)
                names.append(name)
        if is_image:
            image = image or (name, data)
        elif name is not None:
            others.append((name, data))

    assert image is not None
    return image, others


def _odd_masks(fields: Sequence[tuple[str, bytes]], info: ImageInfo) -> dict[str, str]:
    """Returns the reason for each field that is named as a mask and can't be one of the image."""
    odd = {}
    for name, data in fields:
        if is_mask_field(name):
            try:
                check_mask(data, info.sizes)
            except DecodeError as error:
                odd[name] = error.reason
    return odd


def _free_name(name: str, taken: Collection[str]) -> str:
    """Returns a name for an image's field, with a prefix if another field has it."""
    while name in taken:
        name = f"image.{name}"
    return name

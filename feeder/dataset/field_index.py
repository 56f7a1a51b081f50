"""An index in which another field of the samples is the image. It is kept beside the index that it is made from, of a
remote set in the cache."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np

from feeder.dataset.shard_fields import HEADER_BYTES
from feeder.dataset.shard_reader import ShardReader
from feeder.errors import ArgumentError, DecodeError, FormatError
from feeder.shard.format.manifest import ShardRecord
from feeder.shard.format.open_index import open_index
from feeder.shard.format.set_header import ImageOf
from feeder.shard.format.set_index import SetIndex
from feeder.shard.format.shard_index import SampleRow, ShardIndex, write_shard_index
from feeder.shard.source.image_field import split_fields
from feeder.shard.store.mirror import Mirror
from feeder.shard.write.set_writer import index_path, own_suffix, write_set
from feeder.system.text import count
from feeder.system.warning import warn

__all__ = ["index_of_field", "open_shards"]

_AT_ONCE = 1000  # headers that a store is asked for together


def open_shards(
    index: str,
    *,
    exif: bool,
    image_field: str | None = None,
    version: int | None = None,
    mirror: Mirror | None = None,
    writes: bool = True,
) -> ShardReader:
    """Opens a shard set.

    Args:
        index: Path of its index.
        exif: Whether to apply EXIF orientation.
        image_field: The field that is the image, see :func:`index_of_field`; None: that of the index.
        version: Number of the version, from 1; None for the newest.
        mirror: The mirror of a remote set; None for a local one.
        writes: True to make the index of the image field where there is none.

    Raises:
        FormatError, ArgumentError: as :func:`index_of_field` does.
    """
    if image_field is not None and mirror is not None:  # the set may get another version while this one is read
        version = open_index(index, version, mirror).version

    made = None if image_field is None else index_of_field(index, image_field, version, mirror, writes=writes)
    if made is None or image_field is None:
        return ShardReader(index, exif=exif, version=version, mirror=mirror)

    reader = ShardReader(made, exif=exif, mirror=mirror, is_of_field=True)
    reader.field_of = index, version, image_field
    return reader


def index_of_field(
    path: str, image_field: str, version: int | None = None, mirror: Mirror | None = None, *, writes: bool = True
) -> str | None:
    """Makes the index in which another field of the samples is the image, unless it exists and is up to date.

    Args:
        path: The index of the set.
        image_field: The field, or several separated by ";", of which the first that a sample has is its image.
        version: Number of the version of the set, from 1; None for the newest.
        mirror: The mirror of a remote set, in whose folder the index is; None for a local set.
        writes: False to refuse a set without that file.

    Returns:
        Path of that index, beside the one at ``path``; None if the images are in that field already.

    Raises:
        FormatError: if the index is missing or damaged.
        ArgumentError: if no sample has an image in that field, or the file can't be written.
    """
    index = open_index(path, version, mirror)
    fields = [field for field in split_fields(image_field) if field in index.fields]
    if not fields:
        known = ", ".join(map(repr, sorted(index.fields)))
        raise ArgumentError(f"image_field={image_field!r}: no sample of {path} has it; its fields are {known}")

    if index.image_of is not None:
        raise ArgumentError(f"{path}: was made for another image_field; name the folder of the set, or its own index")
    own, numbers = index.column("field"), [index.fields.index(field) for field in fields]
    is_image = np.isin(own, numbers).all() and not np.isin(index.column("member_field"), numbers).any()
    if is_image or (own == numbers[0]).all():
        return None

    stem = os.path.splitext(path)[0] + (f"-{index.version:06d}" if index.version > 1 else "")
    to = f"{stem}.{'+'.join(fields).replace(os.sep, '_')}.bin"
    if not _fits(to, index):
        if not writes or not os.access(os.path.dirname(to) or ".", os.W_OK):
            raise ArgumentError(
                f"{to}: can't be written; the headers of the images in {image_field!r} are kept there: open the set "
                "once as a user who may write into its folder"
            )
        _make(index, fields, to, image_field, mirror)

    made = SetIndex(to)
    left_out = 0 if made.image_of is None else made.image_of.left_out
    if left_out:
        warn(
            f"{path}: {count(left_out, 'sample')} of {len(index):,} left out, without a readable image in "
            f"{image_field!r}",
        )
    return to


def _fits(path: str, index: SetIndex) -> bool:
    """Returns whether the file at ``path`` was made from this index, and is intact with those of its shards."""
    try:
        made = SetIndex(path)
        made.check()
    except FormatError:
        return False
    return made.image_of is not None and made.image_of.identity == index.identity.hex()


def _make(index: SetIndex, fields: Sequence[str], path: str, image_field: str, mirror: Mirror | None) -> None:
    reader, reason = ShardReader(index.path, mirror=mirror), ""
    found = []
    for number in range(index.shard_count):
        own = index.shard_index(number)
        samples, failure = _samples(reader, own, fields, index.header.sample_range(number)[0])
        found.append((own, samples))
        reason = reason or failure

    kept = sum(len(samples) for _, samples in found)
    if not kept:
        raise ArgumentError(
            f"image_field={image_field!r}: no sample of {index.path} has a readable image there{reason}"
        )

    folder, suffix, shards = os.path.dirname(path), own_suffix(path), []
    try:
        for number, (own, samples) in enumerate(found):
            name, size_bytes = index.shard_entry(number)
            to = index_path(folder, name, suffix)
            os.makedirs(os.path.dirname(to) or ".", exist_ok=True)
            rest = own.fields, own.targets, own.blocks(), size_bytes, own.codebooks()
            write_shard_index(to, samples, *rest, is_numbered=own.is_numbered)
            shards.append(ShardRecord(name, len(samples), size_bytes, index.shard_hash(number).hex()))
        origin = ImageOf(index.identity.hex(), len(index) - kept)
        write_set(path, shards, index.classes, suffix=suffix, image_of=origin)
    except OSError as error:
        raise ArgumentError(f"{error.filename or path}: can't be written: {error.strerror}") from error


def _samples(reader: ShardReader, own: ShardIndex, fields: Sequence[str], first: int) -> tuple[list[SampleRow], str]:
    """Returns a shard's samples that have a readable image in the fields, and why the first one of the others has none,
    if it has such a field. The first member of each is the image of the old index.

    Args:
        reader: The set's reader.
        own: The shard's index.
        fields: The fields, of which the first that a sample has is its image.
        first: Number of the shard's first sample.
    """
    numbers = [own.fields.index(field) for field in fields if field in own.fields]
    found, reason = list[tuple[int, SampleRow]](), ""
    for row in range(own.samples):
        sample = own.sample(row)
        members = [(sample.field, sample.offset, sample.length), *sample.members]
        places = {member[0]: member for member in members}
        field = next((number for number in numbers if number in places), None)
        if field is not None:
            _, offset, length = places[field]
            image = sample._replace(field=field, offset=offset, length=length, members=members, row_data=b"")
            found.append((first + row, image))

    kept = []
    for k, (i, sample) in enumerate(found):
        if k % _AT_ONCE == 0:
            some = found[k : k + _AT_ONCE]
            ids, offsets, lengths = np.array([(i, each.offset, each.length) for i, each in some], np.int64).T
            reader.bring(ids, offsets, np.minimum(lengths, HEADER_BYTES))
        try:
            info = reader.header(i, sample.offset, sample.length)
        except (DecodeError, ValueError) as error:
            if isinstance(error.__cause__, OSError):  # the disk's fault, which must not leave the sample out for good
                raise
            reason = reason or f"; the first, {reader.index.key(i)!r}: {error}"
        else:
            width, height = info.width_px, info.height_px
            kept.append(sample._replace(width=width, height=height, orientation=info.orientation))
    return kept, reason

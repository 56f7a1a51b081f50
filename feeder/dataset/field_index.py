"""An index in which another field of the samples is the image. It is kept beside the index that it is made from, of a
remote set in the cache."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import numpy.typing as npt

from feeder.dataset.shard_fields import HEADER_BYTES
from feeder.dataset.shard_reader import ShardReader
from feeder.errors import ArgumentError, DecodeError, FormatError
from feeder.shard.format.column_index import ColumnIndex
from feeder.shard.format.index import Index
from feeder.shard.format.index_file import COLUMNS, OPTIONAL_COLUMNS, ImageOf, write_index
from feeder.shard.format.open_index import open_index
from feeder.shard.source.image_field import split_fields
from feeder.shard.store.mirror import Mirror
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
    numbers = [index.fields.index(field) for field in split_fields(image_field) if field in index.fields]
    if not numbers:
        known = ", ".join(map(repr, sorted(index.fields)))
        raise ArgumentError(f"image_field={image_field!r}: no sample of {path} has it; its fields are {known}")

    if index.image_of is not None:
        raise ArgumentError(f"{path}: was made for another image_field; name the folder of the set, or its own index")
    own = index.column("field")
    is_image = np.isin(own, numbers).all() and not np.isin(index.column("member_field"), numbers).any()
    if is_image or (own == numbers[0]).all():
        return None

    name = "+".join(index.fields[number] for number in numbers)
    stem = os.path.splitext(path)[0] + (f"-{index.version:06d}" if index.version > 1 else "")
    to = f"{stem}.{name.replace(os.sep, '_')}.bin"
    if not _fits(to, index):
        if not writes or not os.access(os.path.dirname(to) or ".", os.W_OK):
            raise ArgumentError(
                f"{to}: can't be written; the headers of the images in {image_field!r} are kept there: open the set "
                "once as a user who may write into its folder"
            )
        _make(index, numbers, to, image_field, mirror)

    made = ColumnIndex(to)
    left_out = 0 if made.image_of is None else made.image_of.left_out
    if left_out:
        warn(
            f"{path}: {count(left_out, 'sample')} of {len(index):,} left out, without a readable image in "
            f"{image_field!r}",
        )
    return to


def _fits(path: str, index: Index) -> bool:
    """Returns whether the file at ``path`` was made from this index, and is intact."""
    try:
        made = ColumnIndex(path)
        made.check()
    except FormatError:
        return False
    return made.image_of is not None and made.image_of.identity == index.identity.hex()


def _make(index: Index, numbers: list[int], path: str, image_field: str, mirror: Mirror | None) -> None:
    index.check()
    samples = len(index)

    starts = index.column("member_start").astype(np.int64)
    sizes = np.diff(starts)
    if starts[0] != 0 or (sizes < 0).any():
        raise FormatError(f"{index.path}: damaged: column 'member_start' decreases; rebuild it with `feeder index`")
    owners = np.repeat(np.arange(samples), sizes)

    place = {name: np.array(index.column(name)) for name in ("field", "offset", "length", "width", "height")}
    place["orientation"] = np.array(index.column("orientation"))
    has_field = np.zeros(samples, bool)

    for number in reversed(numbers):  # the first field counts, so it is written last
        own = np.flatnonzero(index.column("field") == number)
        rows = np.flatnonzero(index.column("member_field") == number)
        for name in ("field", "offset", "length"):
            place[name][own] = index.column(name)[own]
            place[name][owners[rows]] = index.column(f"member_{name}")[rows]
        has_field[own] = has_field[owners[rows]] = True

    reader, reason = ShardReader(index.path, mirror=mirror), ""
    ids = np.flatnonzero(has_field)
    for k, i in enumerate(ids.tolist()):
        if k % _AT_ONCE == 0:
            own = ids[k : k + _AT_ONCE]
            reader.bring(own, place["offset"][own], np.minimum(place["length"][own], HEADER_BYTES))
        try:
            info = reader.header(i, int(place["offset"][i]), int(place["length"][i]))
        except (DecodeError, ValueError) as error:
            if isinstance(error.__cause__, OSError):  # the disk's fault, which must not leave the sample out for good
                raise
            has_field[i], reason = False, reason or f"; the first, {index.key(i)!r}: {error}"
        else:
            place["width"][i], place["height"][i] = info.width_px, info.height_px
            place["orientation"][i] = info.orientation

    kept = np.flatnonzero(has_field)
    if not kept.size:
        raise ArgumentError(
            f"image_field={image_field!r}: no sample of {index.path} has a readable image there{reason}"
        )

    columns = _columns(index, kept, place, has_field[owners], sizes)
    counts = {name: column.size for name, column in columns.items()}
    origin = ImageOf(index.identity.hex(), samples - len(kept))
    pieces = {name: [column] for name, column in columns.items()}

    try:
        labels: dict[str, Any] = {"targets": index.targets, "classes": index.classes, "codebooks": index.codebooks}
        shards = [index.shard_entry(number) for number in range(index.shard_count)]
        write_index(path, shards, index.fields, pieces, counts, origin, **labels)
    except OSError as error:
        raise ArgumentError(f"{path}: can't be written: {error.strerror}") from error


def _columns(
    index: Index,
    kept: npt.NDArray[np.int64],
    place: dict[str, npt.NDArray[np.generic]],
    is_kept_row: npt.NDArray[np.bool_],
    sizes: npt.NDArray[np.int64],
) -> dict[str, npt.NDArray[np.generic]]:
    """Returns the columns of the kept samples. The first member of each is the image of the old index."""
    columns: dict[str, npt.NDArray[np.generic]] = {}
    for text in ("key", "path"):
        starts, data = index.column(f"{text}_start").tolist(), index.column(f"{text}_data").tobytes()
        texts = [data[starts[i] : starts[i + 1]] for i in kept.tolist()]
        columns[f"{text}_start"] = _starts(np.array([len(each) for each in texts], np.int64))
        columns[f"{text}_data"] = np.frombuffer(b"".join(texts), np.uint8)
    columns["member_start"] = _starts(sizes[kept] + 1)
    firsts = columns["member_start"][:-1].astype(np.int64)
    is_first = np.zeros(int(sizes[kept].sum()) + len(kept), bool)
    is_first[firsts] = True
    for name in ("field", "offset", "length"):
        rows = np.empty(len(is_first), COLUMNS[f"member_{name}"])
        rows[is_first], rows[~is_first] = index.column(name)[kept], index.column(f"member_{name}")[is_kept_row]
        columns[f"member_{name}"] = rows
    columns["row_start"], columns["row_data"] = _starts(np.zeros(len(kept), np.int64)), np.zeros(0, np.uint32)
    has = {"target": bool(index.targets), "source_row": index.has_source_rows}
    optional = [name for name in OPTIONAL_COLUMNS if has[name]]
    for name in [*COLUMNS, *optional]:
        if name not in columns:
            columns[name] = place.get(name, index.column(name))[kept]
    return columns


def _starts(sizes: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.uint64)

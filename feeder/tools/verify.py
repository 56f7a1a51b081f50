"""Verification of a shard set: every byte is compared with its checksums."""

from __future__ import annotations

import contextlib
import os
import zlib
from concurrent.futures import ThreadPoolExecutor
from typing import BinaryIO, NamedTuple

import numpy as np

from feeder.decoders.packed import add_codebooks, is_packed_field, unpack_checked
from feeder.errors import DecodeError, FormatError
from feeder.shard.format.block_sums import BLOCK_BYTES, file_sums
from feeder.shard.format.index_file import INDEX_NAME
from feeder.shard.format.manifest import MANIFEST_NAME, Manifest, matches_checksum
from feeder.shard.format.set_index import SetIndex
from feeder.shard.source.image_file import MAX_FILE_BYTES
from feeder.shard.write.set_copy import SetCopy
from feeder.system.cores import cores
from feeder.system.files import file_sha256, open_regular
from feeder.system.progress import Progress
from feeder.system.text import count


class Damage(NamedTuple):
    """A damaged file or sample of a shard set.

    Attributes:
        shard: Name of the damaged file.
        sample: Key of the damaged sample; None if the whole file is damaged.
        reason: The damage, with the expected value.
    """

    shard: str
    sample: str | None
    reason: str


def verify(
    place: str | SetCopy, *, deep: bool = False, workers: int | None = None, progress: Progress | None = None
) -> list[Damage]:
    """Reads every shard again and compares it with its checksums.

    Args:
        place: A shard set's folder, an index file, or an open set.
        deep: True to unpack every packed image, too, and compare its JPEG with the SHA-256 in it.
        workers: Number of threads; None for one per core.
        progress: Advanced with every shard.

    Returns:
        All damage, by shard and sample.

    Raises:
        FormatError: if index or manifest is missing or damaged.
    """
    progress = progress or Progress()
    copy = place if isinstance(place, SetCopy) else SetCopy(place, place)
    index = copy.index()
    is_whole = os.path.basename(index.path) == INDEX_NAME
    manifest = Manifest.read(os.path.dirname(index.path)) if is_whole else None
    names = [index.header.shard_name(number) for number in range(index.header.shards)]
    damages = [] if manifest is None else _verify_manifest(index, manifest)
    if manifest and names != [shard.name for shard in manifest.shards]:
        shards = count(len(names), "shard")
        return [*damages, Damage(INDEX_NAME, None, f"lists {shards}, {MANIFEST_NAME} lists {len(manifest.shards)}")]

    starts = np.concatenate([[0], np.cumsum(np.asarray(index.header.shard_sizes))]).tolist()

    def check(number: int) -> list[Damage]:
        checksum = manifest.shards[number].sha256 if manifest else None
        rows = range(starts[number], starts[number + 1])
        with copy.shard(names[number], may_be_missing=True):
            found = _verify_packed(index, number, rows) if deep else []
            return _verify_indexed_shard(index, number, rows, checksum) + found

    if deep:
        add_codebooks(index.codebooks)
    with progress.running(len(index), index.header.size_bytes), ThreadPoolExecutor(workers or cores().usable) as pool:
        for number, found in enumerate(pool.map(check, range(index.header.shards))):
            damages += found
            progress.advance(starts[number + 1] - starts[number], index.header.shard(number).size_bytes)
    return damages


def _verify_manifest(index: SetIndex, manifest: Manifest) -> list[Damage]:
    """Compares the manifest and the index file with their checksums."""
    damages = []
    with open(os.path.join(os.path.dirname(index.path), MANIFEST_NAME), "rb") as file:
        if not matches_checksum(file.read()):
            damages.append(Damage(MANIFEST_NAME, None, "its bytes do not match its checksum; restore it"))
    if (found := file_sha256(index.path)) != manifest.index["sha256"]:
        damages.append(Damage(INDEX_NAME, None, f"SHA-256 is {found}, {MANIFEST_NAME} says {manifest.index['sha256']}"))
    return damages


def _verify_packed(index: SetIndex, number: int, rows: range) -> list[Damage]:
    """Unpacks the packed images of a shard. Those that can't be read are left to the check of checksums."""
    packed = [i for i, name in enumerate(index.fields) if is_packed_field(name)]
    name, damages = index.header.shard_name(number), []
    with contextlib.suppress(OSError, FormatError), open(index.shard_path(number), "rb", opener=open_regular) as file:
        for i in rows:
            row = index.row(i)
            if int(row.field[0]) not in packed or int(row.length[0]) > MAX_FILE_BYTES:
                continue
            data = os.pread(file.fileno(), int(row.length[0]), int(row.offset[0]))
            try:
                unpack_checked(data)
            except DecodeError as error:
                damages.append(Damage(name, index.key(i), error.reason))
    return damages


def _verify_indexed_shard(index: SetIndex, number: int, rows: range, checksum: str | None) -> list[Damage]:
    """Verifies a shard, and its index."""
    name = index.header.index_name(number)
    try:
        own = index.shard_index(number)
        own.check()
        expected = own.blocks()
        fields = [*own.rows()["field"].tolist(), *own.column("member_field").tolist()]
        orientations = own.rows()["orientation"]
    except FormatError as error:
        return [Damage(name, None, str(error))]
    damages = []
    if fields and max(fields) >= len(own.fields):
        damages.append(Damage(name, None, f"names field {max(fields)}, but has {len(own.fields)} of them"))
    for row in np.flatnonzero((orientations < 1) | (orientations > 8)).tolist():
        damages.append(Damage(name, index.key(rows[row]), f"has orientation {orientations[row]}, expected 1 to 8"))
    if damages:
        return damages
    shard = index.header.shard(number)
    recorded = shard.shard_hash.hex()
    if checksum is not None and not checksum.startswith(recorded):
        damages.append(Damage(INDEX_NAME, None, f"has hash {recorded} of {shard.name}, {MANIFEST_NAME} has {checksum}"))
    damages += _verify_shard(index, number, rows, checksum or recorded)
    if not damages:
        found = file_sums(index.shard_path(number))[1]
        for block in np.flatnonzero(found != expected).tolist():
            place = f"block {block} of {shard.name}, from byte {block * BLOCK_BYTES}"
            damages.append(Damage(name, None, f"has CRC-32C {expected[block]:08x} of {place}: {found[block]:08x}"))
    return damages


def _verify_shard(index: SetIndex, number: int, rows: range, checksum: str) -> list[Damage]:
    """Compares a shard with its SHA-256, or the first digits of it, and if they differ its samples with theirs."""
    shard, path = index.header.shard(number), index.shard_path(number)
    damages = []
    try:
        with open(path, "rb", opener=open_regular) as file:
            found_bytes = os.fstat(file.fileno()).st_size
        if found_bytes != shard.size_bytes:
            damages.append(Damage(shard.name, None, f"has {found_bytes} bytes, expected {shard.size_bytes}"))
        else:
            found = file_sha256(path)
            if found.startswith(checksum):
                return []
            damages.append(Damage(shard.name, None, f"SHA-256 is {found}, expected {checksum}"))
        with open(path, "rb", opener=open_regular) as file:
            for i in rows:
                try:
                    check_sample(file, index, i)
                except DecodeError as error:
                    damages.append(Damage(shard.name, index.key(i), error.reason))
                except FormatError:
                    continue  # _verify_indexed_shard has reported it
    except OSError as error:
        damages.append(Damage(shard.name, None, f"can't be read: {error.strerror}"))
    return damages


def check_sample(file: BinaryIO, index: SetIndex, i: int) -> None:
    """Compares the fields of a sample in its open shard with their checksum, which they share.

    Raises:
        DecodeError: if they differ, or are not there.
        FormatError: if the index is damaged.
    """
    shard_bytes = os.fstat(file.fileno()).st_size
    crc = 0
    for _, offset, length in index.stored_fields(i):
        if length > MAX_FILE_BYTES:
            raise DecodeError(f"has a field of {length:,} bytes, more than the {MAX_FILE_BYTES:,} that can be loaded")
        if offset + length > shard_bytes:
            raise DecodeError(f"needs {length} bytes at byte {offset}, the shard ends at {shard_bytes}")
        crc = zlib.crc32(os.pread(file.fileno(), length, offset), crc)
    if crc != int(index.row(i).crc32[0]):
        raise DecodeError(f"its bytes changed (image at byte {index.place(i)[1]})")

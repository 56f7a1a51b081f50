"""Samples that are taken out of a shard: their bytes become zeros, and their rows become those of others.

Note [Tombstones]
    A shard keeps its size, and each other sample its place. The members of a sample that goes become one member without
    contents, ``__taken-down__``: a header, then zeros. Its row in the shard's index becomes that of its substitute, a
    sample of the same shard, with all fields: so ids, order and the lengths of epochs stay, and readers of any version
    find an image there. The substitute of row r of shard s is the first that is left of the rows that
    :func:`feeder.order.sample_order.substitute` gives for position r, with seed s and epoch 0; after 1,000 of them the
    next row that is left. It changes only if it is taken down itself.
    The group ``taken_down`` of the index, JSON, lists the rows, and the first 16 bytes of the SHA-256 of their keys in
    hexadecimal digits, so that the same keys may be named again.
"""

from __future__ import annotations

import json
import os
import shutil
import tarfile
from collections.abc import Collection, Mapping
from typing import BinaryIO, NamedTuple

import numpy as np

from feeder.errors import ShardError
from feeder.order.sample_order import substitute
from feeder.shard.format.block_sums import BLOCK_BYTES, file_sums
from feeder.shard.format.sealed_head import short_hash
from feeder.shard.format.shard_index import TAKEN_DOWN, ShardIndex, write_shard_index
from feeder.shard.format.tar import BLOCK_BYTES as TAR_BLOCK
from feeder.shard.format.tar import Member, members_of
from feeder.system.arrays import Uint32s
from feeder.system.files import atomic_file, open_regular

_DRAWN = 1000
_MEMBER_NAME = "__taken-down__"


class ErasedShard(NamedTuple):
    """A shard without the bytes of some samples.

    Attributes:
        sha256: SHA-256 of its file, hexadecimal.
        blocks: CRC-32C of each 256 KiB of it, uint32.
    """

    sha256: str
    blocks: Uint32s


def key_hash(key: bytes) -> str:
    """Returns the hash that stands for a key once its sample is gone."""
    return short_hash(key).hex()


def erase(path: str, index: ShardIndex, rows: Collection[int], *, is_resumed: bool) -> ErasedShard:
    """Overwrites samples of a shard with zeros, in a new file that takes the place of the old one.

    Args:
        path: The shard.
        index: Its index, as it was before.
        rows: The rows of the samples.
        is_resumed: True if an interrupted run may have done it already.

    Raises:
        ShardError: if the shard is damaged.
        OSError: if it can't be read or written.
    """
    places = sorted({(offset, length) for row in rows for _, offset, length in index.stored_fields(row)})
    found, expected = file_sums(path)[1], index.blocks()
    with open(path, "rb", opener=open_regular) as file, atomic_file(path) as out:
        patches = _patches(file, os.fstat(file.fileno()).st_size, places, path)
        # An interrupted run may have overwritten some of these blocks.
        touched = [range(begin // BLOCK_BYTES, -(-end // BLOCK_BYTES)) for begin, end, _ in patches if is_resumed]
        for block in np.flatnonzero(found != expected).tolist() if len(found) == len(expected) else [len(expected)]:
            if not any(block in blocks for blocks in touched):
                raise ShardError(
                    f"{path}: does not match its checksums from byte {block * BLOCK_BYTES} on; restore it "
                    "(`feeder inspect --verify` names all damage) and run the same command again"
                )

        file.seek(0)
        shutil.copyfileobj(file, out)
        for begin, end, head in patches:
            out.seek(begin)
            out.write(head.ljust(end - begin, b"\0"))
    return ErasedShard(*file_sums(path))


def _patches(file: BinaryIO, size: int, places: list[tuple[int, int]], path: str) -> list[tuple[int, int, bytes]]:
    """Returns the first byte and the end of the members at some places, their headers included, and the bytes that
    these become, zeros after them."""
    wanted, found = dict(places), []
    end: int | None = 0
    for each in members_of(file, size):
        if not isinstance(each, Member):
            end = None
            continue
        # Headers of long names stand before the member's own.
        begin = each.offset - TAR_BLOCK if end is None else min(end, each.offset - TAR_BLOCK)
        end = each.offset + -(-each.size // TAR_BLOCK) * TAR_BLOCK
        if each.name == _MEMBER_NAME:  # an earlier run, perhaps an interrupted one, has emptied it
            wanted = {offset: length for offset, length in wanted.items() if not begin < offset < end}
        elif wanted.pop(each.offset, None) is None:
            continue
        found.append((begin, end, _header(end - begin - TAR_BLOCK)))
    if wanted:
        raise ShardError(
            f"{path}: has no member at byte {min(wanted)}, where its index has a field of a sample; restore it "
            "(`feeder inspect --verify` names all damage) and run the same command again"
        )
    return found


def _header(size: int) -> bytes:
    info = tarfile.TarInfo(_MEMBER_NAME)
    info.size = size
    return info.tobuf(tarfile.GNU_FORMAT)


def write_tombstones(index: ShardIndex, number: int, rows: Mapping[int, str], erased: ErasedShard) -> None:
    """Writes the index of a shard in which rows are those of other samples; see Note [Tombstones].

    Args:
        index: The shard's index.
        number: The shard's number in the set.
        rows: Hash of the key of each row that goes, by row.
        erased: The shard without their bytes.

    Raises:
        OSError: if the index can't be written.
    """
    gone = dict(sorted({**index.taken_down(), **rows}.items()))
    sources = (_substitute(row, number, index.samples, gone) if row in gone else row for row in range(index.samples))
    group = json.dumps({"rows": [*gone], "keys": [*gone.values()]}, separators=(",", ":")).encode()
    write_shard_index(
        index.path,
        [index.sample(row) for row in sources],
        index.fields,
        index.targets,
        erased.blocks,
        index.tar_bytes,
        index.codebooks(),
        is_numbered=index.is_numbered,
        further={TAKEN_DOWN: group},
    )


def _substitute(row: int, number: int, samples: int, gone: Mapping[int, str]) -> int:
    for attempt in range(_DRAWN):
        found = substitute(row, attempt, samples, number, 0)
        if found not in gone:
            return found
    return next(other % samples for other in range(row + 1, row + samples) if other % samples not in gone)

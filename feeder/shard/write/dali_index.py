"""The index of a shard as DALI's wds2idx writes it, version 1.2."""

from __future__ import annotations

from collections.abc import Iterator

from feeder.shard.format.shard_index import ShardIndex
from feeder.shard.write.set_writer import index_path
from feeder.system.files import atomic_file

__all__ = ["DALI_SUFFIX", "write_dali_index"]

DALI_SUFFIX = ".idx"


def write_dali_index(folder: str, shard: str, index: ShardIndex) -> str:
    """Writes the file for a shard beside it, by feeder's own index of it, and returns its path."""
    path = index_path(folder, shard, DALI_SUFFIX)
    with atomic_file(path) as file:
        file.writelines(_lines(index))
    return path


def _lines(index: ShardIndex) -> Iterator[bytes]:
    yield b"v1.2 %d\n" % index.samples
    for row, record in enumerate(index.rows()):
        key = index.key(row).decode("utf-8", "surrogateescape")
        members = [(int(record["field"]), int(record["offset"]), int(record["length"])), *index.members(row)]
        members.sort(key=lambda member: member[1])
        named = ((index.fields[field], offset, size) for field, offset, size in members)
        yield " ".join(f"{f} {offset} {size} {key}.{f}" for f, offset, size in named).encode() + b"\n"

"""One shard to be written, on this machine or another, and the record of it when it is finished."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from feeder.decoders.packed import codebook_name
from feeder.shard.format.manifest import ShardRecord
from feeder.shard.format.tar import TarWriter
from feeder.shard.source.source import Rejection, Source
from feeder.shard.write.encode import EncodeOptions
from feeder.shard.write.set_writer import index_path
from feeder.shard.write.shard_writer import ShardWriter
from feeder.system.files import atomic_file

__all__ = ["ShardJob", "WrittenShard", "record_name", "write_shard"]


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
        formats, encoded, clipped: As in :class:`Manifest`.
        odd_masks: Number of samples by field, for fields that are named as masks and are none by their headers.
    """

    record: ShardRecord
    rejected: list[Rejection]
    formats: dict[str, int]
    encoded: dict[str, int]
    clipped: int
    odd_masks: dict[str, int]

    def to_json(self) -> bytes:
        record = self.record
        data: dict[str, Any] = {"record": record.__dict__, "rejected": self.rejected, "formats": self.formats}
        data |= {"encoded": self.encoded, "clipped": self.clipped, "odd_masks": self.odd_masks}
        return json.dumps(data).encode()

    @classmethod
    def from_json(cls, text: bytes) -> WrittenShard:
        data = json.loads(text)
        rejected = [Rejection(*row) for row in data["rejected"]]
        record, clipped, odd_masks = ShardRecord(**data["record"]), data.get("clipped", 0), data.get("odd_masks", {})
        return cls(record, rejected, data["formats"], data["encoded"], clipped, odd_masks)


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
    *,
    raises_unreadable: bool = False,
) -> WrittenShard:
    """Writes a shard. It is renamed into place after its index and its record are written.

    Args:
        job: The shard.
        source: The source of its samples.
        ids: The samples, in the order of the job's positions.
        folder: The folder for the shard and its index.
        records: The folder for its record.
        advance: Is called after each sample with the sample's size in the source, bytes.
        raises_unreadable: True to raise the error of a file that can't be read instead of rejecting its sample.

    Raises:
        OSError, ShardError, SourceError, StoreError: if it can't be written, see :meth:`ShardWriter.add`.
    """
    codebooks = [] if job.codebook is None else [job.codebook]
    writer = ShardWriter(
        source,
        job.encode,
        job.codebook,
        first_key=job.first_key,
        key_digits=job.key_digits,
        raises_unreadable=raises_unreadable,
    )
    with atomic_file(os.path.join(folder, job.name)) as file:
        tar = TarWriter(file)
        for codebook in codebooks:
            tar.add(codebook_name(codebook), codebook)
        for position, i in zip(job.positions, ids, strict=True):
            advance(writer.add(tar, position, i))
        checksum = tar.finish()
        record = ShardRecord(job.name, len(writer.builder), tar.size_bytes, checksum)
        counts = dict(writer.formats), dict(writer.encoded), writer.clipped, dict(writer.odd_masks)
        written = WrittenShard(record, writer.rejected, *counts)
        writer.builder.write(index_path(folder, job.name), tar.blocks.sums(), tar.size_bytes, codebooks)
        with atomic_file(os.path.join(records, record_name(job.name))) as part:
            part.write(written.to_json())
    return written
